"""Programs in a forked interpreter that is warm already: as in one of their own."""

from __future__ import annotations

import signal

import pytest

from agentrl.sandbox.base import BoxLimits, Spec
from agentrl.sandbox.zygote_link import ZygoteBox
from tests.sandbox.backends import why_not
from tests.sandbox.zygotes import (
    with_box,
)

if why_not("zygote"):
    pytest.skip(why_not("zygote"), allow_module_level=True)


def test_a_warm_python_behaves_as_a_fresh_one() -> None:
    """The same programs by both: output, errors, status; in a box and with its walls."""
    programs = {
        "plain": "import sys; print(sys.argv, __name__, __file__); print('err', file=sys.stderr)",
        "error": "def f():\n    return 1 / 0\nf()",
        "syntax": "def",
        "status": "import sys; sys.exit(7)",
        "message": "raise SystemExit('gone')",
        "input": "print(open(0).read().upper()); print(b'\\xff'.decode(errors='surrogateescape'))",
        "at exit": "import atexit, threading, time; atexit.register(print, 'late')\n"
        "threading.Thread(target=lambda: [time.sleep(0.05), print('thread')]).start()",
        "who": "import os; print(os.getuid(), os.getppid(), os.listdir('/proc/self/fd'), *os.environ, os.getsid(0))",
        "hash": "print(hash('x'), hash('yy'), list({'a', 'b', 'c', 'd'}))",
        "killed": "import os; os.abort()",
        "output gone": "import os; os.close(1); print('x')",
        "ours": "import sys; print([name for name in sys.modules if 'agentrl' in name])",
        "walls": "import socket\ntry:\n    socket.socket()\nexcept OSError as error:\n    print(error)",
        "main": "import __main__, pickle; class_ = type('A', (), {}); print(__main__.class_ is class_)",
    }
    files = {f"{name}.py": source.encode() for name, source in programs.items()}

    async def body(box: ZygoteBox) -> None:
        for name in files:
            warm = await box.exec(["warm-python", name, "a"], stdin=b"\xc3\xa9 in")
            fresh = await box.exec(["python", "-s", "-S", "-P", name, "a"], stdin=b"\xc3\xa9 in")
            assert (warm.status, warm.signal, warm.stdout) == (fresh.status, fresh.signal, fresh.stdout), (
                name,
                warm,
                fresh,
            )
            assert warm.stderr == fresh.stderr or name == "output gone.py", name  # where words differ
        assert (await box.exec(["warm-python", "missing.py"])).status == 1

    with_box(body, Spec(files=files))


def test_a_warm_python_has_the_channel_too() -> None:
    async def body(box: ZygoteBox) -> None:
        channel = await box.channel(["warm-python", "echo.py"])
        await channel.send(b"hello")
        assert await channel.receive(5) == b"HELLO"
        assert (await channel.close()).signal == signal.SIGKILL

    source = b"import socket, time\ns = socket.socket(fileno=3)\ns.sendall(s.recv(5).upper())\ntime.sleep(60)"
    with_box(body, Spec(files={"echo.py": source}))


LOOKS = """
import ctypes, sys
sought, found = b"-".join(word.encode() for word in sys.argv[1:]), 0
for line in open("/proc/self/maps"):
    place, modes, *_ = line.split()
    if modes.startswith("rw") and "[v" not in line:
        first, last = (int(number, 16) for number in place.split("-"))
        found += ctypes.string_at(first, last - first).count(sought)
print(found)
"""


@pytest.mark.parametrize("size", [0, 300, 30_000])
def test_what_one_program_was_given_and_printed_is_in_the_memory_of_no_other(size: int) -> None:
    async def body(box: ZygoteBox) -> None:
        async def found(*words: str) -> int:
            await box.reset()
            await box.write({"looks.py": LOOKS.encode()})
            return int((await box.exec(["warm-python", "looks.py", *words])).stdout)

        await box.write({"first.py": b"# its-own-source" + bytes(size).replace(b"\0", b"#") + PRINTS})
        done = await box.exec(["warm-python", "first.py"], stdin=b"its-given-input" + b"." * size)
        assert done.stdout.startswith(b"its-own-output")
        assert done.stderr.startswith(b"its-own-errors")
        alone = await found("its", "own", "nothing")  # what is sought is in the memory of who seeks it
        for words in (("own", "source"), ("own", "output"), ("own", "errors"), ("given", "input")):
            assert await found("its", *words) == alone, words

    with_box(body, Spec())


PRINTS = b"""
import sys
for word, stream in (("output", sys.stdout), ("errors", sys.stderr)):
    stream.write("its-" + "own-" + word + "." * len(sys.stdin.read()))
"""


def test_a_warm_program_that_hides_is_held_to_be_full_of_sockets() -> None:
    source = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(4, 0)
sum(range(5_000_000))  # some 100 ms of processor time: it has come to run
for _ in range(%d):
    if os.fork() == 0:
        break
time.sleep(%g)
"""

    async def body(box: ZygoteBox) -> None:
        assert (await box.exec(["warm-python", "one.py"])).ok  # 104 MiB at most, below the 256
        assert (await box.exec(["warm-python", "three.py"])).killed_for == "memory"

    files = {"one.py": (source % (0, 0.8)).encode(), "three.py": (source % (2, 60)).encode()}
    with_box(body, Spec(files=files, limits=BoxLimits(memory_mib=256)))
