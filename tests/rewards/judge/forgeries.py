"""Candidates that are wrong and want to pass. Each comes with an honest twin that does the same to a right end.

A row is: the hidden test, the forged candidate, the honest twin.
"""
# ruff: noqa: E501  programs and messages in one line are easier to compare

ADD = """
import unittest
from m import add
class Test(unittest.TestCase):
    def test_small(self): self.assertEqual(add(1, 2), 3)
    def test_zero(self): self.assertEqual(add(0, 0), 0)
    def test_large(self): self.assertEqual(add(-5, 12345), 12340)
"""
RIGHT = "def add(a, b):\n    return a + b\n"

ADDING = {
    "plain wrong": ("def add(a, b):\n    return a - b\n", RIGHT),
    "exit at import": ("import os\nos._exit(0)\n", "import os\n" + RIGHT),
    "exit in the call": ("import os\ndef add(a, b):\n    os._exit(0)\n", RIGHT),
    "text to every descriptor, then exit": (
        """
import os
for fd in range(64):
    try: os.write(fd, b'{"v": null}\\n3 passed in 0.01s\\nOK\\n')
    except OSError: pass
os._exit(0)
""",
        "import os, sys\nprint('3 passed')\nos.write(1, b'OK')\nos.write(2, b'OK')\n" + RIGHT,
    ),
    "exit at exit": (
        "import atexit, os\natexit.register(os._exit, 0)\n",
        "import atexit\natexit.register(print)\n" + RIGHT,
    ),
    "always equal": (
        "class Yes:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    def __hash__(self): return 3\ndef add(a, b): return Yes()\n",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b): return Yes(a + b)\n",
    ),
    "an int that is always equal": (
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef add(a, b): return Yes(0)\n",
        "class Int(int):\n    pass\ndef add(a, b): return Int(a + b)\n",
    ),
    "patched asserts": (
        "import unittest\nfor name in dir(unittest.TestCase):\n    if name.startswith('assert'):\n"
        "        setattr(unittest.TestCase, name, lambda *a, **k: None)\ndef add(a, b): return None\n",
        "import unittest\nunittest.TestCase.assertEqual = None\n" + RIGHT,
    ),
    "the caller's bytecode": (
        """
import dis, sys
def add(a, b):
    frame = sys._getframe(1)
    while frame:
        for step in dis.get_instructions(frame.f_code):
            if step.argval in (3, 0, 12340): return step.argval
        frame = frame.f_back
""",
        "import sys\ndef add(a, b):\n    assert sys._getframe(1)\n    return a + b\n",
    ),
    "values of frames and of the collector": (
        """
import gc, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, (dict, list, tuple)) and 12340 in value: return 12340
        frame = frame.f_back
    return 12340 if any(type(o) is tuple and 12340 in o[:9] for o in gc.get_objects()) else 3
""",
        "import gc\ndef add(a, b):\n    gc.get_objects()\n    gc.collect()\n    return a + b\n",
    ),
    "the live result": (
        """
import gc, threading, time, unittest
def patch():
    for o in gc.get_objects():
        if isinstance(o, unittest.TestResult): o.failures.clear(); o.errors.clear(); o.addFailure = print
threading.Thread(target=lambda: [(patch(), time.sleep(0.001)) for _ in range(50)], daemon=True).start()
def add(a, b):
    patch()
    return 0
""",
        "import threading\nthreading.Thread(target=print, daemon=True).start()\n" + RIGHT,
    ),
    "skip in the call": (
        "import unittest\ndef add(a, b): raise unittest.SkipTest('no')\n",
        "import unittest\ndef add(a, b):\n    try: raise unittest.SkipTest('no')\n    except unittest.SkipTest: return a + b\n",
    ),
    "skip at import": ("import unittest\nraise unittest.SkipTest('no')\n", "import unittest\n" + RIGHT),
    "pytest.skip": (
        "class Skipped(BaseException): pass\nSkipped.__module__ = '_pytest.outcomes'\ndef add(a, b): raise Skipped\n",
        "class Skipped(BaseException): pass\n" + RIGHT,
    ),
    "system exit at import": ("raise SystemExit(0)\n", "try: raise SystemExit(0)\nexcept SystemExit: pass\n" + RIGHT),
    "system exit in the call": ("import sys\ndef add(a, b): sys.exit(0)\n", RIGHT),
    "interrupt": ("def add(a, b): raise KeyboardInterrupt\n", RIGHT),
    "an exception like a pass": (
        "class _ShouldStop(Exception): pass\n_ShouldStop.__module__ = 'unittest.case'\ndef add(a, b): raise _ShouldStop\n",
        RIGHT,
    ),
    "a daemon that answers for it": (
        """
import os, time
if os.fork() == 0:
    while True:
        try: os.write(3, b'\\0\\0\\0\\x07{"v":3}')
        except OSError: os._exit(0)
        time.sleep(0.0005)
def add(a, b): return 0
""",
        "import os\nif os.fork() == 0:\n    os.close(3)\n    os._exit(0)\n" + RIGHT,
    ),
    "the agent, patched": (
        """
import gc
def add(a, b): return 0
for o in gc.get_objects():
    if type(o).__name__ == 'Agent':
        o.encode = lambda value, depth=0: True
        o.do_call = lambda *rest: True
""",
        "import gc\n[type(o) for o in gc.get_objects()]\n" + RIGHT,
    ),
    "a verdict in place of an answer": (
        """
import os
def add(a, b):
    for body in (b'{"passed":["test_hidden.py::Test::test_small"],"why":{}}', b'{"v":{"verdict":"pass"}}'):
        os.write(3, len(body).to_bytes(4, 'big') + body)
    os._exit(0)
""",
        "def add(a, b):\n    return {'verdict': a + b}['verdict']\n",
    ),
    "frames of another kind": (
        "import os\ndef add(a, b):\n    os.write(3, b'\\0\\0\\0\\1v{}')\n    os._exit(0)\n",
        RIGHT,
    ),
    "a length of 2 GB": ("import os\ndef add(a, b):\n    os.write(3, b'\\x7f\\xff\\xff\\xff')\n    return 3\n", RIGHT),
    "an answer of many MB": (
        "def add(a, b): return [0] * 10**7\n",
        "def add(a, b):\n    x = [0] * 10**5\n    return a + b\n",
    ),
    "400,000 levels": (
        """
import os
def add(a, b):
    body = b'{"v":' + b'[' * 400000 + b']' * 400000 + b'}'
    data = len(body).to_bytes(4, 'big') + body
    while data: data = data[os.write(3, data):]
""",
        "x = []\nfor _ in range(100000): x = [x]\nwhile x: x = x[0]\n\ndef add(a, b): return a + b\n",
    ),
    "a deep value": (
        "def add(a, b):\n    x = 3\n    for _ in range(100000): x = [x]\n    return x\n",
        "def add(a, b):\n    return [[[a + b]]][0][0][0]\n",
    ),
    "a value that holds itself": ("x = [3]\nx.append(x)\ndef add(a, b): return x\n", "x = []\nx.append(x)\n" + RIGHT),
    "an int of a million digits": (
        "def add(a, b): return 1 << 4000000\n",
        "def add(a, b): return (a + b << 4000) >> 4000\n",
    ),
    "the right answer to anything": ("def add(a, b): return {3, 0, 12340}\n", RIGHT),
    "bool for int": ("def add(a, b): return a + b if a + b > 20 else bool(a)\n", RIGHT),
    "no such function": ("ad = None\n", RIGHT),
    "other modules in the way": (
        "import sys\nsys.modules['json'] = sys.modules['builtins']\nsys.modules['unittest'] = None\ndef add(a, b): return 1\n",
        "import sys\nsys.modules['json'] = None\nsys.modules['unittest'] = None\n" + RIGHT,
    ),
    "patched builtins": (
        "import builtins\nbuiltins.len = lambda x: 0\nbuiltins.isinstance = lambda *a: True\ndef add(a, b): return 1\n",
        "import builtins\nbuiltins.add = 3\n" + RIGHT,
    ),
    "behaves until it is graded": (
        "import sys\ndef add(a, b):\n    return a + b if any('pytest' in m for m in sys.modules) else 3\n",
        RIGHT,
    ),
    "a table of the visible answers": ("def add(a, b): return {(1, 2): 3, (0, 0): 0}.get((a, b))\n", RIGHT),
    "descriptor 3 closed": ("import os\ndef add(a, b):\n    os.close(3)\n    return 3\n", RIGHT),
    "the module changes its own kind": (
        "import sys, types\nclass M(types.ModuleType):\n    def __getattr__(self, name): return lambda *a: 3\n"
        "sys.modules['m'] = M('m')\n",
        "import sys, types\nm = types.ModuleType('m')\nm.add = lambda a, b: a + b\nsys.modules['m'] = m\n",
    ),
}

SUITES = {
    "an object whose subtraction is nothing": (
        "from m import f\ndef test_it(): assert abs(f(1.33) - 0.33) < 1e-6\n",
        "class Near:\n    def __sub__(self, other): return 0.0\n    __rsub__ = __sub__\ndef f(x): return Near()\n",
        "def f(x): return x % 1.0\n",
    ),
    "a number whose subtraction is nothing": (
        "from m import f\ndef test_it(): assert abs(f(1.33) - 0.33) < 1e-6\n",
        "class Near(float):\n    def __sub__(self, other): return 0.0\n    __rsub__ = __sub__\ndef f(x): return Near(7)\n",
        "class Float(float):\n    pass\ndef f(x): return Float(x % 1.0)\n",
    ),
    "almost equal": (
        "import unittest\nfrom m import f\nclass T(unittest.TestCase):\n    def test_it(self): self.assertAlmostEqual(f(2), 1.41421356)\n",
        "class Near(float):\n    def __round__(self, n=None): return 0\n    def __sub__(self, o): return self\n"
        "    def __abs__(self): return 0.0\ndef f(x): return Near(9)\n",
        "def f(x): return x ** 0.5\n",
    ),
    "approx against a friendly object": (
        "import pytest\nfrom m import f\ndef test_it(): assert f(2) == pytest.approx(1.4142135)\n",
        "class Near:\n    def __eq__(self, o): return True\n    def __float__(self): return 1.4142135\ndef f(x): return Near()\n",
        "def f(x): return x ** 0.5\n",
    ),
    "contains everything": (
        "from m import f\ndef test_it(): assert 4 in f(2) and 'four' in f(2)\n",
        "class All:\n    def __contains__(self, x): return True\n    def __iter__(self): return iter(())\ndef f(x): return All()\n",
        "class Box:\n    def __init__(self, *xs): self.xs = xs\n    def __iter__(self): return iter(self.xs)\ndef f(x): return Box(4, 'four')\n",
    ),
    "greater and smaller than everything": (
        "from m import f\ndef test_it(): assert 3 < f(2) < 5\n",
        "class Any:\n    def __lt__(self, o): return True\n    def __gt__(self, o): return True\ndef f(x): return Any()\n",
        "def f(x): return x + x\n",
    ),
    "starts with everything": (
        "from m import f\ndef test_it(): assert f(2).startswith('two')\n",
        "class S:\n    def startswith(self, x): return True\ndef f(x): return S()\n",
        "class S(str):\n    def startswith(self, x): return False\ndef f(x): return S('two')\n",
    ),
    "a str that starts with everything": (
        "from m import f\ndef test_it(): assert f(2).startswith('two')\n",
        "class S(str):\n    def startswith(self, x): return True\ndef f(x): return S('x')\n",
        "def f(x): return 'two and more'\n",
    ),
    "a manager that swallows the assertion": (
        "from m import Box\ndef test_it():\n    with Box(3) as b:\n        assert b.size == 3\n",
        "class Box:\n    size = 0\n    def __init__(self, n): pass\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n",
        "class Box:\n    def __init__(self, n): self.size = n\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n",
    ),
    "a manager that swallows its own exception": (
        "from m import Box, f\ndef test_it():\n    with Box():\n        assert f() == 3\n",
        "class Box:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\ndef f(): raise ValueError\n",
        "class Box:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\ndef f(): return 3\n",
    ),
    "an assertion in a callback, swallowed": (
        "from m import each\ndef test_it():\n    seen = []\n    def check(x):\n        seen.append(x)\n        assert x > 0\n"
        "    each([1, 2], check)\n    assert len(seen) == 2\n",
        "def each(xs, f):\n    for x in xs:\n        try: f(-x)\n        except BaseException: pass\n",
        "def each(xs, f):\n    for x in xs:\n        try: f(x)\n        except ValueError: pass\n",
    ),
    "callbacks that were never passed": (
        "from m import f\ndef test_it(): assert f(abs, -3) == 3\n",
        """
import gc
def f(g, x):
    for number in range(100):
        for how in ('call', 'get', 'set', 'next'):
            g._agent.call_back(number, how, ('__globals__',), {})
    return 3
""",
        "def f(g, x): return g(x)\n",
    ),
    "looks into a callback": (
        "from m import f\nSECRET = 3\ndef test_it():\n    def g(x): return x\n    assert f(g) == SECRET\n",
        "def f(g):\n    return g._agent.call_back(g._number, 'get', ('__globals__',), {})['SECRET']\n",
        "def f(g): return g(3)\n",
    ),
    "always-equal dataclass": (
        "from m import P, f\ndef test_it(): assert f(2) == P(2, 4)\n",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int\n    def __eq__(self, o): return True\ndef f(x): return P(0, 0)\n",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int\ndef f(x): return P(x, x * x)\n",
    ),
    "a dataclass with always-equal fields": (
        "from m import P, f\ndef test_it(): assert f(2) == P(4)\n",
        "from dataclasses import dataclass\nclass Yes:\n    def __eq__(self, o): return True\n@dataclass\nclass P:\n    x: object\ndef f(x): return P(Yes())\n",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: object\ndef f(x): return P(x + x)\n",
    ),
    "a dataclass that compares no field": (
        "from m import P, f\ndef test_it(): assert f(2) == P(2, 4)\n",
        "from dataclasses import dataclass, field\n@dataclass\nclass P:\n    x: int = field(compare=False)\n    y: int = field(compare=False)\ndef f(x): return P(0, 0)\n",
        "from dataclasses import dataclass, field\n@dataclass\nclass P:\n    x: int = field(repr=False)\n    y: int = field(default=0)\ndef f(x): return P(x, x * x)\n",
    ),
    "a dataclass that forgets what it was given": (
        "from m import L, P, f\ndef test_it(): assert f(2) == L(P(2))\n",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    def __post_init__(self): self.x = 0\n@dataclass\nclass L:\n    p: P\ndef f(x): return L(P(0))\n",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 0\n    def __post_init__(self): self.y = 1\n@dataclass\nclass L:\n    p: P\ndef f(x): return L(P(x))\n",
    ),
    "the agent's own file": (
        "from m import f\ndef test_it(): assert f(2) == 3\n",
        "import os\nfor d, _, names in os.walk('.agentrl'):\n    for n in names:\n        try: open(os.path.join(d, n), 'wb').write(b'')\n        except OSError: pass\ndef f(x): return 0\n",
        "import os\nos.listdir('.')\ndef f(x): return 3\n",
    ),
    "always-equal class that the test names": (
        "from m import P, f\ndef test_it(): assert f(2) == P(4)\n",
        "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return True\ndef f(x): return P(0)\n",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(x): return P(x + x)\n",
    ),
    "keys that hash alike": (
        "from m import f\ndef test_it(): assert f(2)['a'] == 1 and set(f(2)) == {'a'}\n",
        "class K:\n    def __hash__(self): return hash('a')\n    def __eq__(self, o): return True\ndef f(x): return {K(): 1}\n",
        "class K(str):\n    pass\ndef f(x): return {K('a'): 1}\n",
    ),
    "an argument made to fit": (
        "from m import f\ndef test_it():\n    want = [1, 2, 3]\n    assert f([3, 1, 2]) == want\n",
        "def f(xs):\n    xs[:] = [9]\n    return xs\n",
        "def f(xs):\n    xs.sort()\n    return xs\n",
    ),
    "changes of containers that it was never given": (
        "from m import f\nWANT = [4]\ndef test_it(): assert f(2) == WANT\n",
        "import gc\ndef f(x):\n    for o in gc.get_objects():\n        if type(o).__name__ == 'Agent': o.changes = lambda: [[0, [9]], [1, [9]]]\n    return [9]\n",
        "def f(x): return [x + x]\n",
    ),
    "an endless iterator": (
        "from m import f\ndef test_it(): assert list(f()) == [1]\n",
        "import itertools\ndef f(): return itertools.repeat(1)\n",
        "def f(): yield 1\n",
    ),
    "raises what is expected, always": (
        "import pytest\nfrom m import f\ndef test_it():\n    with pytest.raises(ValueError): f(-1)\n    assert f(4) == 2\n",
        "def f(x): raise ValueError\n",
        "def f(x):\n    if x < 0: raise ValueError\n    return int(x ** 0.5)\n",
    ),
    "an exception of another class by the same name": (
        "import pytest\nfrom m import f\ndef test_it():\n    with pytest.raises(ValueError): f(-1)\n",
        "class ValueError(Exception): pass\ndef f(x): raise ValueError\n",
        "class Value(ValueError): pass\ndef f(x): raise Value\n",
    ),
    "a helper module of its own": (
        "import helper\nfrom m import f\ndef test_it(): assert f(2) == helper.want(2)\n",
        "def f(x): return 0\n",
        "def f(x): return x * 3\n",
    ),
    "a star import that hides the test's names": (
        "from m import *\ndef test_it(): assert abs(f(2)) == 4 and len([f(1)]) == 1\n",
        "def abs(x): return 4\ndef len(x): return 1\ndef f(x): return 0\n",
        "def f(x): return -2 * x\n",
    ),
    "a fixture of its own": (
        "import pytest\nfrom m import *\n@pytest.fixture\ndef want(): return 6\ndef test_it(want): assert f(3) == want\n",
        "def want(): return 0\nwant.agentrl_fixture = {'scope': 'function', 'autouse': True}\nwant.agentrl_marks = []\npytestmark = setup_function = want\ndef f(x): return 0\n",
        "def want(): return 0\ndef f(x): return x + x\n",
    ),
    "a patch that it takes back": (
        "import m\ndef test_it(monkeypatch):\n    seen = []\n    monkeypatch.setattr(m, 'send', seen.append)\n    m.run(2)\n    assert seen == [4]\n",
        "def send(x): pass\nkept = send\ndef run(x):\n    global send\n    send = kept\n    send(x * x)\n",
        "def send(x): pass\ndef run(x):\n    send(x * x)\n",
    ),
    "a mock that is made to agree": (
        "import m\nfrom unittest import mock\ndef test_it():\n    with mock.patch('m.send') as fake: m.run(2)\n    fake.assert_called_once_with(4)\n",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef send(x): pass\n"
        "def run(x):\n    try: send._agent.call_back(send._number, 'set', ('assert_called_once_with', print), {})\n    except Exception: pass\n    send(Yes(0))\n",
        "class Int(int): pass\ndef send(x): pass\ndef run(x): send(Int(x * x))\n",
    ),
    "a tear-down that it escapes": (
        "import pytest\nfrom m import Box\n@pytest.fixture\ndef box():\n    made = Box()\n    yield made\n    assert made.closed is True\ndef test_it(box): box.close()\n",
        "import os\nclass Box:\n    closed = False\n    def close(self): raise SystemExit\n",
        "class Box:\n    closed = False\n    def close(self): self.closed = True\n",
    ),
    "prints for the test": (
        "from m import f\ndef test_it(capsys):\n    f(3)\n    assert capsys.readouterr().out == 'nine\\n'\n",
        "import sys\nclass Yes(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\ndef f(x): sys.stdout.write(Yes('six'))\n",
        "def f(x): print({3: 'nine'}[x])\n",
    ),
}
