"""Programs on standard input and output: honest ones, each with a wrong twin, and such as must not pass."""
# ruff: noqa: E501  programs and messages in one line are easier to compare

from agentrl.rewards.judge import HiddenPrograms, ProgramCase
from agentrl.rewards.judge.stdio import LAUNCHER_PATH

SUM = HiddenPrograms(
    program="main.py",
    cases=(
        ProgramCase(stdin="3\n1 2 3\n", stdout="6\n"),
        ProgramCase(stdin="1\n5\n", stdout="5\n"),
        ProgramCase(stdin="2\n-4 4\n", stdout=("0\n", "zero\n")),
    ),
)
RIGHT = "n = int(input())\nprint(sum(map(int, input().split())))\n"


def program(source, **more):
    return {"main.py": source, **more}


def echo(case, **more):
    return HiddenPrograms(program="main.py", cases=(case,), **more)


# candidate's files, hidden cases, what to replace for the wrong twin
HONEST = {
    "input": (program(RIGHT), SUM, ("sum(", "max(")),
    "readline of bytes, twice": (
        program(
            "import sys\nn = int(sys.stdin.buffer.readline())\nprint(sum(map(int, sys.stdin.buffer.readline().split())))"
        ),
        SUM,
        ("sum(", "len(list("),
    ),
    "readlines": (
        program("import sys\nlines = sys.stdin.readlines()\nprint(sum(map(int, lines[1].split())))"),
        SUM,
        ("lines[1]", "lines[0]"),
    ),
    "open(0)": (
        program("_, *xs = map(int, open(0).read().split())\nprint(sum(xs))"),
        SUM,
        ("_, *xs", "*xs,"),
    ),
    "bytes out": (
        program(
            "import sys\nxs = sys.stdin.read().split()[1:]\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, xs)))\nsys.stdout.flush()"
        ),
        SUM,
        ("[1:]", "[:]"),
    ),
    "main guard": (
        program(
            "def main():\n    input()\n    print(sum(map(int, input().split())))\nif __name__ == '__main__': main()"
        ),
        SUM,
        ("'__main__'", "'main'"),
    ),
    "descriptors": (
        program("import os\nos.write(1, b'%d' % sum(map(int, os.read(0, 4096).split()[1:])))"),
        SUM,
        ("os.write(1", "os.write(2"),
    ),
    "exit": (program(RIGHT + "exit()\nprint('not here')"), SUM, ("exit()\n", "")),
    "sys.exit(0) in a thread's company": (
        program(
            "import sys, threading\ndef work():\n    input(); print(sum(map(int, input().split())))\nthread = threading.Thread(target=work)\nthread.start()\nsys.exit(0)"
        ),
        SUM,
        ("exit(0)", "exit(3)"),
    ),
    "at exit": (
        program(
            "import atexit\ninput()\natexit.register(lambda s: print(s), sum(map(int, input().split())))",
        ),
        SUM,
        ("input()\n", "input(); print(1)\n"),
    ),
    "input that is left over": (
        program("print('hello')"),
        echo(ProgramCase(stdin="x" * 300_000, stdout="hello")),
        ("hello", "hullo"),
    ),
    "no input": (program("import sys\nprint(repr(sys.stdin.read()))"), echo(ProgramCase(stdout="''")), ("repr", "str")),
    "all bytes": (
        program("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"),
        echo(ProgramCase(stdin=bytes(range(256)), stdout=bytes(range(255, -1, -1))), compare="exact"),
        ("[::-1]", "[:]"),
    ),
    "words outside of ASCII": (
        program("print(input().upper())"),
        echo(ProgramCase(stdin="grün\u20ac", stdout="GRÜN\u20ac")),
        ("upper", "lower"),
    ),
    "a number of many digits": (
        program("print(2 ** 10000 // 10 ** 10 if False else 3 ** 5000)"),
        echo(ProgramCase(stdout=str(3**5000))),
        ("3 ** 5000", "3 ** 5001"),
    ),
    "numbers that are close": (
        program("print('mean', 1 / 3, 2)"),
        echo(ProgramCase(stdout="mean 0.3333333 2"), compare="numbers"),
        ("1 / 3", "1 / 2.9"),
    ),
    "other files, and one that hides a module": (
        program(
            "import helper, random\nprint(helper.twice(random.draw()))",
            **{"helper.py": "def twice(x): return 2 * x\n", "random.py": "def draw(): return 4\n"},
        ),
        echo(ProgramCase(stdout="8")),
        ("2 * x", "3 * x"),
    ),
    "in a folder": (
        {"src/app/main.py": "import near\nprint(near.x, __name__)\n", "src/app/near.py": "x = 5\n"},
        HiddenPrograms(program="src/app/main.py", cases=(ProgramCase(stdout="5 __main__"),)),
        ("x = 5", "x = 6"),
    ),
    "a module with arguments and a status": (
        {
            "tool/__init__.py": "",
            "tool/__main__.py": "import sys\nfrom .core import run\nsys.exit(run(sys.argv[1:]))\n",
            "tool/core.py": "def run(words):\n    print('|'.join(words))\n    return len(words)\n",
        },
        HiddenPrograms(
            program="tool",
            cases=(ProgramCase(arguments=("a b", "-c", ""), stdout="a b|-c|", status=3), ProgramCase(stdout="")),
        ),
        ("len(words)", "0"),
    ),
    "its own file and arguments": (
        program(
            "import os, sys\nprint(sys.argv, os.path.basename(__file__), sorted(n for n in os.listdir('.') if n[0] != '.'))"
        ),
        echo(ProgramCase(arguments=("x",), stdout="['main.py', 'x'] main.py ['main.py']")),
        ("sys.argv,", "sys.argv[1:],"),
    ),
    "a file of its own, used again": (
        program(
            "import os, tempfile\nopen('t', 'a').write('x')\nplace = os.path.join(tempfile.gettempdir(), 't')\nprint(open('t').read(), os.path.exists(place))\nopen(place, 'w').close()"
        ),
        HiddenPrograms(program="main.py", cases=(ProgramCase(stdout="x False"), ProgramCase(stdout="x False"))),
        ("'a').write('x')", "'a').write('y')"),
    ),
    "deep recursion and another process": (
        program(
            "import subprocess, sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(9000), subprocess.run(['/bin/sh', '-c', 'echo sub'], capture_output=True).stdout)"
        ),
        echo(ProgramCase(stdout="9000 b'sub\\n'")),
        ("1 + f", "2 + f"),
    ),
}

# the reason that people read, or nothing where it does not matter
FAILING = {
    "prints it and crashes": (RIGHT + "1 / 0", "exit status 1, not 0"),
    "prints it and ends with another status": (RIGHT + "raise SystemExit(7)", "exit status 7"),
    "prints it and is killed": (
        RIGHT + "import os, signal, sys\nsys.stdout.flush()\nos.kill(os.getpid(), signal.SIGSEGV)",
        "",
    ),
    "prints it and never flushes": (RIGHT + "import os\nos._exit(0)", "printed something else"),
    "prints it to the wrong stream": ("import sys\nsys.stdout = sys.stderr\n" + RIGHT, "printed something else"),
    "prints it and more": (RIGHT + "print('done')", "printed something else"),
    "prints all answers": ("print('6\\n5\\n0')", "printed something else"),
    "reads past the end": (RIGHT + "input()", "EOFError"),
    "no program": ("def (", "SyntaxError"),
    "every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'6\\n')\n    except OSError: pass",
        "",
    ),
    "says that it is ready": ("import sys\nprint('ready')\nsys.exit(127)", "exit status 127"),
}

ENDLESS = {
    "prints it and computes for ever": (
        RIGHT + "import sys\nsys.stdout.flush()\nwhile True: pass",
        "ended for its use of time",
    ),
    "prints for ever": ("while True: print('6' * 1000)", "ended for its use of"),
    "prints too much, then the right thing": ("print('x' * 70000)\n" + RIGHT, "printed 65536 bytes or more"),
    "takes all memory": ("x = []\nwhile True: x.append(bytearray(10**8))", ""),
}

FORGED = {
    "what an earlier case left": (
        "import os, tempfile\nplaces = ['seen', '.agentrl/seen', os.path.join(tempfile.gettempdir(), 'seen')]\n"
        "if any(map(os.path.exists, places)): print(6)\nfor place in places: open(place, 'w').close()",
        "import os\nopen('seen', 'w').close()\nprint(6)",
    ),
    "a daemon that prints for the next": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True:\n            time.sleep(0.02)\n            try: os.write(1, b'6\\n')\n"
        "            except OSError: pass\n            for pid in os.listdir('/proc'):\n                try:\n"
        "                    if open(f'/proc/{pid}/cwd/main.py').read() == open(__file__).read(): open(f'/proc/{pid}/fd/1', 'w').write('6\\n')\n"
        "                except (OSError, ValueError): pass\n    os._exit(0)\nos._exit(0)",
        "import os\nif os.fork() == 0:\n    os._exit(0)\nprint(6)",
    ),
    "the launcher, rewritten": (
        "import os\nfor d, _, names in os.walk('.agentrl'):\n    for n in names:\n        try: open(os.path.join(d, n), 'w').write('print(6)')\n        except OSError: pass",
        f"import os\nassert os.path.exists({LAUNCHER_PATH!r})\nprint(6)",
    ),
    "frames and objects": (
        "import gc, sys\nframe = sys._getframe()\nwhile frame:\n    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "        if value in ('6\\n', b'6\\n', b'6'): print(6); sys.exit()\n    frame = frame.f_back\nfor o in gc.get_objects():\n"
        "    if type(o).__name__ in ('ProgramCase', 'HiddenPrograms'): print(6)",
        "import gc\ngc.get_objects()\nprint(6)",
    ),
    "patched output": (
        "import sys\nclass Yes(bytes):\n    def __eq__(self, other): return True\nsys.stdout.buffer.write(Yes(b'7'))",
        "import sys\nsys.stdout.buffer.write(bytearray(b'6'))",
    ),
}
SIX = HiddenPrograms(
    program="main.py", cases=(ProgramCase(stdin="1", stdout="6\n"), ProgramCase(stdin="2", stdout="6\n"))
)
