"""Honest candidates with hidden tests that use much of Python. Each comes with a wrong twin that must fail.

A row is: the candidate's files, the test file, what to replace in them for the wrong twin.
"""
# ruff: noqa: E501  programs and messages in one line are easier to compare

HONEST = {
    "functions, keywords and defaults": (
        {"m.py": "def join(*parts, sep='-', **extra):\n    return sep.join(parts) + str(sorted(extra.items()))\n"},
        """
from m import join
def test_plain(): assert join("a", "b") == "a-b[]"
def test_keywords(): assert join("a", "b", sep="+", k=1) == "a+b[('k', 1)]"
""",
        ("sep='-'", "sep='_'"),
    ),
    "callbacks": (
        {
            "m.py": "def apply(f, items):\n    return [f(x, twice=True) for x in items]\ndef compose(f, g):\n    return lambda x: f(g(x))\n"
        },
        """
from m import apply, compose
def test_function():
    seen = []
    def f(x, twice):
        seen.append(x)
        return x * 2 if twice else x
    assert apply(f, [1, 2]) == [2, 4]
    assert seen == [1, 2]
def test_lambda_and_builtin():
    assert compose(lambda x: x + 1, abs)(-3) == 4
def test_method():
    out = []
    apply(lambda x, twice: out.append(x), [1, 2])
    assert out == [1, 2]
""",
        ("f(g(x))", "g(f(x))"),
    ),
    "a callback that raises": (
        {
            "m.py": "def retry(f, times):\n    for left in range(times):\n        try:\n            return f()\n        except ValueError:\n            pass\n    raise RuntimeError('gave up', times)\n"
        },
        """
import pytest
from m import retry
class Odd(Exception): pass
def test_retries():
    calls = []
    def f():
        calls.append(1)
        if len(calls) < 3: raise ValueError("no")
        return 7
    assert retry(f, 5) == 7 and len(calls) == 3
def test_gives_up():
    def f(): raise ValueError
    with pytest.raises(RuntimeError) as caught: retry(f, 2)
    assert caught.value.args == ("gave up", 2)
def test_its_own_exception_comes_back():
    odd = Odd("x")
    def f(): raise odd
    try: retry(f, 2)
    except Odd as error: assert error is odd
    else: assert False
""",
        ("range(times)", "range(2)"),
    ),
    "nested callbacks and recursion": (
        {
            "m.py": "def walk(tree, visit):\n    visit(tree['v'])\n    for child in tree['c']:\n        walk(child, visit)\ndef fact(n, again=None):\n    again = again or fact\n    return 1 if n < 2 else n * again(n - 1)\n"
        },
        """
from m import fact, walk
def test_tree():
    seen = []
    walk({"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, seen.append)
    assert seen == [1, 2, 3, 4]
def test_plain_recursion(): assert fact(20) == 2432902008176640000
def test_through_both_sides():
    def again(n): return fact(n, again)
    assert fact(8, again) == 40320
""",
        ("visit(tree['v'])", "visit(0)"),
    ),
    "iterators and generators": (
        {
            "m.py": "import itertools\ndef naturals():\n    return itertools.count(1)\ndef evens():\n    n = 0\n    while True:\n        yield n\n        n += 2\ndef total(items):\n    return sum(items)\ndef pairs(d):\n    yield from d.items()\n"
        },
        """
import itertools
from m import evens, naturals, pairs, total
def test_infinite(): assert list(itertools.islice(evens(), 4)) == [0, 2, 4, 6]
def test_next():
    g = naturals()
    assert next(g) == 1 and next(g) == 2
def test_ends(): assert dict(pairs({"a": 1})) == {"a": 1} and next(pairs({}), None) is None
def test_generator_argument(): assert total(x for x in range(5)) == 10
def test_views(): assert total({"a": 1, "b": 2}.values()) == 3
def test_membership(): assert 4 in evens()
""",
        ("n += 2", "n += 3"),
    ),
    "dataclasses": (
        {
            "m.py": "from dataclasses import dataclass, field\n@dataclass\nclass Point:\n    x: int\n    y: int = 0\n    tags: list = field(default_factory=list)\n    def moved(self, by):\n        return Point(self.x + by, self.y, self.tags)\n@dataclass(frozen=True)\nclass Key:\n    a: str\ndef grow(p):\n    p.x += 1\n"
        },
        """
import dataclasses
from m import Key, Point, grow
def test_equal(): assert Point(1, 2).moved(3) == Point(4, 2)
def test_unequal(): assert Point(1) != Point(2)
def test_fields():
    p = Point(1, tags=["a"]).moved(1)
    assert (p.x, p.y, p.tags) == (2, 0, ["a"])
    p.y = 5
    assert p.y == 5 and dataclasses.asdict(p) == {"x": 2, "y": 5, "tags": ["a"]}
def test_frozen():
    assert {Key("a"): 1}[Key("a")] == 1
    try: Key("a").a = "b"
    except dataclasses.FrozenInstanceError: pass
    else: raise AssertionError
def test_repr(): assert repr(Key("a")) == "Key(a='a')"
def test_after_changes():
    p = Point(1, 2)
    p.x = 7
    assert p == Point(7, 2)
    grow(p)
    assert p == Point(8, 2) and p.moved(1) == Point(9, 2) and p.moved(1) != Point(8, 2)
def test_replace(): assert dataclasses.replace(Point(1, 2), x=9) == Point(9, 2)
""",
        ("self.x + by", "self.x - by"),
    ),
    "exceptions with arguments": (
        {
            "m.py": "class Short(ValueError):\n    def __init__(self, need, have):\n        super().__init__(f'need {need}, have {have}')\n        self.need, self.have = need, have\nclass Deep(Short):\n    pass\ndef pay(need, have):\n    if have < need:\n        raise Deep(need, have)\n    return {}['missing' if need > 99 else 0]\n"
        },
        """
import unittest
from m import Deep, Short, pay
class Test(unittest.TestCase):
    def test_its_class(self):
        with self.assertRaises(Short) as caught: pay(3, 2)
        self.assertEqual((caught.exception.need, caught.exception.have), (3, 2))
        self.assertEqual(str(caught.exception), "need 3, have 2")
        self.assertIsInstance(caught.exception, ValueError)
        self.assertIs(type(caught.exception), Deep)
    def test_builtin(self):
        with self.assertRaises(KeyError) as caught: pay(100, 100)
        self.assertEqual(caught.exception.args, ("missing",))
    def test_message(self):
        with self.assertRaisesRegex(ValueError, "need 3"): pay(3, 1)
""",
        ("need {need}", "needs {need}"),
    ),
    "library exceptions and sys.exit": (
        {
            "m.py": "import json, sys\ndef load(text):\n    return json.loads(text)\ndef main(args):\n    if not args:\n        sys.exit(2)\n    print('hello', *args)\n    return 0\n"
        },
        """
import contextlib, io, json, pytest
from m import load, main
def test_json():
    with pytest.raises(json.JSONDecodeError): load("{")
    with pytest.raises(ValueError): load("{")
def test_exit():
    with pytest.raises(SystemExit) as caught: main([])
    assert caught.value.code == 2
def test_print():
    out = io.StringIO()
    with contextlib.redirect_stdout(out): assert main(["a", "b"]) == 0
    assert out.getvalue() == "hello a b\\n"
""",
        ("sys.exit(2)", "sys.exit(3)"),
    ),
    "floats": (
        {
            "m.py": "def mean(xs):\n    return sum(xs) / len(xs)\ndef third():\n    return [1 / 3, {'x': 2 / 3}, float('nan'), float('-inf')]\n"
        },
        """
import math, pytest, unittest
from m import mean, third
class Test(unittest.TestCase):
    def test_almost(self): self.assertAlmostEqual(mean([0.1, 0.2]), 0.15)
def test_approx(): assert mean([1, 2, 2]) == pytest.approx(1.6666667)
def test_difference(): assert abs(mean([1.33]) - 1.33) < 1e-9 and round(mean([1, 2]), 2) == 1.5
def test_special():
    a, b, c, d = third()
    assert [a, b] == [1 / 3, {"x": 2 / 3}] and math.isnan(c) and d == -math.inf
""",
        ("/ len(xs)", "// len(xs)"),
    ),
    "mutation of arguments": (
        {
            "m.py": "def sort(xs):\n    xs.sort()\ndef drop(d, seen, grid):\n    d.pop('a')\n    d['new'] = [1]\n    seen.add(3)\n    grid[0][1] = 9\n    grid.append(grid[0])\n    return grid\nclass Log:\n    def __init__(self, lines):\n        self.lines = lines\n    def add(self, line):\n        self.lines.append(line)\n"
        },
        """
from m import Log, drop, sort
def test_in_place():
    xs = [3, 1, 2]
    assert sort(xs) is None and xs == [1, 2, 3]
def test_nested():
    d, seen, grid = {"a": 1, "b": 2}, {1}, [[1, 2], [3]]
    assert drop(d, seen, grid) is grid
    assert d == {"b": 2, "new": [1]} and seen == {1, 3} and grid == [[1, 9], [3], [1, 9]]
    assert grid[2] is grid[0]
def test_kept_by_an_object():
    lines = ["a"]
    log = Log(lines)
    log.add("b")
    assert lines == ["a", "b"]
    lines.append("c")
    log.add("d")
    assert lines == ["a", "b", "c", "d"]
def test_unchanged():
    xs = (2, 1)
    try: sort(xs)
    except AttributeError: assert xs == (2, 1)
    else: assert False
""",
        ("xs.sort()", "xs.sort(reverse=True)"),
    ),
    "modules importing one another": (
        {
            "pkg/__init__.py": "from .core import run\nVERSION = '1.2'\n",
            "pkg/core.py": "from . import helpers\nfrom pkg.parts.deep import deep\nLIMIT = 3\ndef run(x):\n    return helpers.twice(x) + deep() if x < LIMIT else 0\n",
            "pkg/helpers.py": "def twice(x):\n    return x * 2\n",
            "pkg/parts/__init__.py": "",
            "pkg/parts/deep.py": "def deep():\n    import pkg.core\n    return pkg.core.LIMIT\n",
        },
        """
import pkg
import pkg.parts.deep as deep
from pkg import core, helpers
from pkg.core import LIMIT
from pkg.helpers import *
def test_run(): assert pkg.run(2) == 7 and core.run is pkg.run
def test_parts(): assert deep.deep() == 3 == LIMIT and helpers.twice(4) == twice(4) == 8
def test_constant(): assert pkg.VERSION == "1.2"
def test_set():
    core.LIMIT = 10
    assert pkg.run(5) == 20 and core.LIMIT == 10
    core.LIMIT = 3
def test_missing():
    try: import pkg.nothing
    except ModuleNotFoundError: pass
    else: assert False
    try: from pkg import nothing
    except ImportError: pass
    else: assert False
""",
        ("x * 2", "x * 3"),
    ),
    "classes with state and properties": (
        {
            "m.py": "class Account:\n    count = 0\n    def __init__(self, start=0):\n        self._balance = start\n        Account.count += 1\n    @property\n    def balance(self):\n        return self._balance\n    @balance.setter\n    def balance(self, value):\n        if value < 0:\n            raise ValueError('below 0')\n        self._balance = value\n    @classmethod\n    def empty(cls):\n        return cls()\n    @staticmethod\n    def fee(x):\n        return x // 10\n    def __len__(self):\n        return 3\n    def __getitem__(self, key):\n        return [self.balance, key]\n    def __contains__(self, item):\n        return item == self.balance\n    def __add__(self, other):\n        return Account(self.balance + other.balance)\n    def __lt__(self, other):\n        return self.balance < other.balance\n    def __call__(self, by):\n        self.balance += by\n        return self\n    def __str__(self):\n        return f'{self.balance} EUR'\n    def __bool__(self):\n        return self.balance > 0\nclass Savings(Account):\n    pass\n"
        },
        """
import pytest
from m import Account, Savings
def test_state():
    a = Account(5)
    a.balance += 2
    assert a.balance == 7 and str(a) == "7 EUR" and f"{a}" == "7 EUR"
    with pytest.raises(ValueError, match="below"): a.balance = -1
    with pytest.raises(AttributeError): a.nothing
def test_class():
    before = Account.count
    assert Account.empty().balance == 0 and Account.count == before + 1 and Account.fee(25) == 2
def test_kinds():
    assert isinstance(Savings(1), Account) and issubclass(Savings, Account) and type(Savings(1)) is Savings
    assert not isinstance(Account(), Savings) and callable(Account()) and Account.__name__ == "Account"
def test_operators():
    a, b = Account(1), Account(2)
    assert len(a) == 3 and a["k"] == [1, "k"] and 1 in a and 2 not in a and (a + b).balance == 3
    assert a < b and not Account() and a(4) is a and a.balance == 5 and a == a and a != b
    assert sorted([b, Account(0)])[0].balance == 0
""",
        ("self._balance = value", "self._balance = value + 1"),
    ),
    "context managers": (
        {
            "m.py": "from contextlib import contextmanager\nclass Box:\n    def __init__(self):\n        self.events = []\n    def __enter__(self):\n        self.events.append('in')\n        return self\n    def __exit__(self, kind, error, trace):\n        self.events.append(kind.__name__ if kind else 'out')\n@contextmanager\ndef marked(out):\n    out.append('<')\n    try:\n        yield 5\n    finally:\n        out.append('>')\ndef use(manager):\n    with manager as x:\n        return x\n"
        },
        """
import pytest
from m import Box, marked, use
def test_class():
    with Box() as b: b.events.append(1)
    assert b.events == ["in", "out"]
def test_error_goes_through():
    b = Box()
    with pytest.raises(ZeroDivisionError):
        with b: 1 / 0
    assert b.events == ["in", "ZeroDivisionError"]
def test_generator():
    out = []
    with marked(out) as five: assert five == 5 and out == ["<"]
    assert out == ["<", ">"]
def test_given():
    class Own:
        left = 0
        def __enter__(self): return 8
        def __exit__(self, *rest): Own.left += 1
    assert use(Own()) == 8 and Own.left == 1
""",
        ("'out'", "'left'"),
    ),
    "sets, dicts, tuples, bytes": (
        {
            "m.py": "import collections, decimal, fractions, datetime\ndef shapes():\n    return {1, 2}, frozenset('a'), {'k': (1, [2])}, (), b'\\x00\\xff', None, True, 2 ** 200, 1 + 2j\ndef library():\n    return (collections.Counter('aab'), collections.OrderedDict(a=1), collections.deque([1], 3), decimal.Decimal('1.10'),\n            fractions.Fraction(1, 3), datetime.date(2024, 2, 29), range(3), bytearray(b'x'), datetime.timedelta(1))\ndef kinds(*xs):\n    return [type(x).__name__ for x in xs]\n"
        },
        """
import collections, datetime, decimal, fractions
from m import kinds, library, shapes
def test_shapes():
    assert shapes() == ({1, 2}, frozenset("a"), {"k": (1, [2])}, (), b"\\x00\\xff", None, True, 2**200, 1 + 2j)
    assert [type(x) for x in shapes()[6:8]] == [bool, int]
def test_library():
    c, o, d, n, f, day, r, b, t = library()
    assert c["a"] == 2 and c.most_common(1) == [("a", 2)] and list(o) == ["a"] and d.maxlen == 3
    assert n == decimal.Decimal("1.1") and f == fractions.Fraction(1, 3) and day.year == 2024
    assert list(r) == [0, 1, 2] and b == b"x" and t == datetime.timedelta(days=1)
def test_there(): assert kinds({1}, (1,), b"x", {}, None, 2**70, collections.deque(), 1.0, "\\ud800") == (
    ["set", "tuple", "bytes", "dict", "NoneType", "int", "deque", "float", "str"])
""",
        ("decimal.Decimal('1.10')", "decimal.Decimal('1.11')"),
    ),
    "subclasses of plain types": (
        {
            "m.py": "import enum, typing, collections\nclass Color(enum.Enum):\n    RED = 1\n    BLUE = 2\nclass Level(enum.IntEnum):\n    LOW = 1\n    HIGH = 2\nclass P(typing.NamedTuple):\n    x: int\n    y: int\n    def norm(self):\n        return self.x + self.y\nclass Stack(list):\n    def push(self, x):\n        self.append(x)\n        return self\ndef pick(n):\n    return Color(n), Level(n), P(n, 2), Stack([n])\nQ = collections.namedtuple('Q', 'a b')\ndef q():\n    return Q(1, 2)\n"
        },
        """
import pytest
from m import Color, Level, P, Stack, pick, q
def test_enum():
    color, level, _, _ = pick(1)
    assert color is Color.RED and color == Color["RED"] and color.value == 1 and color.name == "RED"
    assert level == 1 and level < 2 and level is Level.LOW and list(Color) == [Color.RED, Color.BLUE]
    assert {Color.RED: 5}[pick(1)[0]] == 5 and color != Color.BLUE and color in Color and str(color) == "Color.RED"
    with pytest.raises(ValueError): Color(3)
def test_named_tuple():
    p = pick(1)[2]
    assert p == (1, 2) == P(1, 2) and p.x == 1 and p.norm() == 3 and isinstance(p, tuple)
    x, y = p
    assert (x, y) == (1, 2) and q() == (1, 2) and q().b == 2 and q()._asdict() == {"a": 1, "b": 2}
def test_list():
    s = Stack()
    assert s.push(3).push(4) is s and s == [3, 4] and len(s) == 2 and s[0] == 3 and s == Stack([3, 4]) and s != [3]
    assert list(s) == [3, 4] and 4 in s and s.pop() == 4
""",
        ("self.append(x)", "self.append(x + 1)"),
    ),
    "closures, decorators, class factories": (
        {
            "m.py": "import functools\ndef counter():\n    n = 0\n    def tick(by=1):\n        nonlocal n\n        n += by\n        return n\n    return tick\ndef twice(f):\n    @functools.wraps(f)\n    def wrapper(*a, **k):\n        return [f(*a, **k), f(*a, **k)]\n    return wrapper\nclass _Store:\n    def __init__(self):\n        self.data = {}\n    def put(self, key, value):\n        self.data[key] = value\n        return self\ndef store():\n    return _Store()\nasync def later(x):\n    import asyncio\n    await asyncio.sleep(0)\n    return x + 1\n"
        },
        """
import asyncio
from m import counter, later, store, twice
def test_closure():
    t = counter()
    assert (t(), t(), t(by=3)) == (1, 2, 5) and counter()() == 1
def test_decorator():
    @twice
    def f(x): return x + 1
    assert f(1) == [2, 2] and f(x=2) == [3, 3]
def test_private_class(): assert store().put("a", 1).put("b", 2).data == {"a": 1, "b": 2}
def test_async(): assert asyncio.run(later(1)) == 2
async def test_async_test(): assert await later(2) == 3
""",
        ("n += by", "n += by + 1"),
    ),
    "modules named like those of the standard library": (
        {
            "random.py": "def draw():\n    return 4\n",
            "json.py": "import random\ndef dumps(x):\n    return random.draw() + x\n",
        },
        """
import json
from random import draw
def test_both(): assert draw() == 4 and json.dumps(1) == 5
""",
        ("return 4", "return 5"),
    ),
    "objects of the test": (
        {
            "m.py": "def greet(clock, out):\n    hour = clock.now()\n    out.write('morning' if hour < 12 else 'evening')\n    clock.calls = clock.calls + 1\n    return clock\n"
        },
        """
import io
from m import greet
class Clock:
    calls = 0
    def now(self): return 9
def test_fake():
    clock, out = Clock(), io.StringIO()
    assert greet(clock, out) is clock
    assert out.getvalue() == "morning" and clock.calls == 1
""",
        ("hour < 12", "hour > 12"),
    ),
    "parameters, set-up, plain classes": (
        {"m.py": "def square(x):\n    return x * x\n"},
        """
import pytest, unittest
from m import square
@pytest.mark.parametrize("x, y", [(1, 1), (3, 9), (-2, 4)])
def test_table(x, y): assert square(x) == y
class TestPlain:
    def setup_method(self): self.x = 4
    def test_one(self): assert square(self.x) == 16
class Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.base = square(2)
    def setUp(self): self.x = self.base + 1
    def test_it(self): self.assertEqual(square(self.x), 25)
    def test_parts(self):
        for n in range(3):
            with self.subTest(n=n): self.assertEqual(square(n), n * n)
""",
        ("x * x", "x + x"),
    ),
    "fixtures": (
        {
            "m.py": "class Store:\n    def __init__(self, start=()):\n        self.items = list(start)\n        self.is_open = True\n    def add(self, x):\n        if not self.is_open:\n            raise RuntimeError('closed')\n        self.items.append(x)\n        return self\n    def total(self):\n        return sum(self.items)\n    def close(self):\n        self.is_open = False\n"
        },
        """
import pytest
from m import Store
@pytest.fixture(scope="module")
def shared():
    store = Store([1])
    yield store
    store.close()
    assert not store.is_open
@pytest.fixture(params=[(), (1, 2)])
def start(request): return request.param
@pytest.fixture
def store(start):
    made = Store(start)
    yield made
    made.close()
    with pytest.raises(RuntimeError): made.add(1)
def test_total(store, start): assert store.add(4).total() == 4 + sum(start)
def test_shared(shared): assert shared.add(1).total() == 2
def test_shared_again(shared): assert shared.add(1).total() == 3
class TestMore:
    @pytest.fixture(autouse=True)
    def around(self, store):
        self.store = store
    @pytest.mark.parametrize("start, want", [([5], 5), pytest.param([], 0, id="none")])
    def test_it(self, want): assert self.store.total() == want
""",
        ("sum(self.items)", "sum(self.items[1:])"),
    ),
    "patches of its modules": (
        {
            "m.py": "import time\nfrom helper import fetch\nLIMIT = 3\nclass Clock:\n    def _now(self):\n        return time.time()\n    def text(self):\n        return f'at {self._now()}'\ndef load(key):\n    found = fetch(key, retries=LIMIT)\n    return found['value'] * 2\ndef wait():\n    time.sleep(99)\n    return LIMIT\n",
            "helper.py": "def fetch(key, retries):\n    return {'value': retries}\n",
        },
        """
from unittest import mock
import pytest
import helper, m
from m import Clock, load, wait
def test_data(monkeypatch):
    monkeypatch.setattr(m, "LIMIT", 5)
    assert load("k") == 10
def test_undone(): assert load("k") == 6 and m.LIMIT == 3
def test_function(monkeypatch):
    seen = []
    def fake(key, retries):
        seen.append((key, retries))
        return {"value": 21}
    monkeypatch.setattr("m.fetch", fake)
    assert load("k") == 42 and seen == [("k", 3)]
def test_method(monkeypatch):
    monkeypatch.setattr(Clock, "_now", lambda self: 7)
    assert Clock().text() == "at 7"
def test_its_library(monkeypatch):
    monkeypatch.setattr("m.time.sleep", lambda s: None)
    assert wait() == 3
def test_mock():
    with mock.patch("m.fetch", return_value={"value": 1}) as fake: assert load("q") == 2
    fake.assert_called_once_with("q", retries=3)
    with mock.patch.object(m, "fetch", side_effect=KeyError("q")), pytest.raises(KeyError): load("q")
    assert load("k") == 6
@mock.patch("m.fetch")
def test_decorated(fake, monkeypatch):
    fake.return_value = {"value": 5}
    assert load("z") == 10
def test_its_own_things(monkeypatch):
    class Mine: x = 1
    monkeypatch.setattr(Mine, "x", 2)
    assert Mine.x == 2 and helper.fetch("k", retries=1) == {"value": 1}
""",
        ("found['value'] * 2", "found['value'] + found['value'] * 2"),
    ),
    "what it prints": (
        {"m.py": "def hello(name):\n    print('hello', name)\n    print(end='!')\n    return len(name)\n"},
        """
from m import hello
def test_it(capsys):
    assert hello("you") == 3
    assert capsys.readouterr().out == "hello you\\n!"
    hello("me")
    out, _ = capsys.readouterr()
    assert out.splitlines() == ["hello me", "!"] and capsys.readouterr().out == ""
""",
        ("end='!'", "end='?'"),
    ),
    "coroutines": (
        {
            "m.py": "import asyncio\nclass Counter:\n    def __init__(self):\n        self.n = 0\n    async def add(self, by):\n        await asyncio.sleep(0)\n        self.n += by\n        return self.n\nasync def each(items, f):\n    return [f(x) for x in items]\nasync def fail():\n    raise ValueError('no')\n"
        },
        """
import asyncio, unittest
import pytest
from m import Counter, each, fail
@pytest.mark.asyncio
async def test_it():
    c = Counter()
    assert await c.add(2) == 2 and await c.add(3) == 5 == c.n
async def test_callback(): assert await each([1, 2], lambda x: x + 1) == [2, 3]
async def test_raises():
    with pytest.raises(ValueError, match="no"): await fail()
class Test(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self): self.c = Counter()
    async def test_case(self): self.assertEqual(await self.c.add(4), 4)
def test_run(): assert asyncio.run(Counter().add(7)) == 7
""",
        ("self.n += by", "self.n -= by"),
    ),
}
