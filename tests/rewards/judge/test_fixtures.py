"""Fixtures, parameters, set-up and tear-down come as in pytest: the same suites run in both, event for event."""

import asyncio
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from agentrl.rewards.judge import minitest
from agentrl.rewards.judge.hidden import ids_in
from agentrl.rewards.judge.suites import Tests

FILES = {
    "conftest.py": """
import pytest
from events import note
@pytest.fixture(scope="session")
def world():
    note("world up")
    yield "earth"
    note("world down")
@pytest.fixture
def name(): return "root"
@pytest.fixture(autouse=True)
def always():
    note("always up")
    yield
    note("always down")
""",
    "near/conftest.py": """
import pytest
from events import note
@pytest.fixture
def name(name): return name + "/near"
@pytest.fixture(scope="module", autouse=True)
def wide(request):
    note("wide up")
    request.addfinalizer(lambda: note("wide down"))
""",
    "near/test_levels.py": """
import pytest
from events import note
@pytest.fixture
def name(name): return name + "/file"
@pytest.fixture
def twice(name, world): return name * 2 + world
def test_name(name): note(name)
def test_twice(twice): note(twice)
class TestIn:
    @pytest.fixture
    def name(self, name):
        self.kept = name
        yield name + "/class"
        note("class fixture down")
    def test_here(self, name):
        note(name, self.kept)
    def test_fails(self, name):
        note("fails")
        assert name == 3
""",
    "test_scopes.py": """
import pytest
from events import note
@pytest.fixture(scope="module")
def module(world):
    note("module up")
    yield [world]
    note("module down")
@pytest.fixture(scope="class")
def klass(module):
    note("class up")
    yield len(module)
    note("class down")
@pytest.fixture
def each(klass):
    note("each up")
    yield klass
    note("each down")
class TestA:
    def test_1(self, each, module):
        module.append(1)
        note("a1", each)
    def test_2(self, each): note("a2", each)
class TestB:
    def test_1(self, klass): note("b1", klass)
def test_function(module): note(len(module))
""",
    "test_params.py": """
import pytest
from events import note
@pytest.fixture(params=["x", pytest.param("y", id="why")], ids=["ex", "y"])
def letter(request):
    note("up", request.param)
    yield request.param
    note("down", request.param)
@pytest.fixture
def pair(letter, number): return (letter, number)
@pytest.fixture
def number(): return 0
@pytest.mark.parametrize("number", [1, 2], ids=["one", "two"])
def test_both(letter, number, pair): note("both", letter, number, pair)
@pytest.mark.parametrize("a, b", [(1, 2), pytest.param(3, 4)])
@pytest.mark.parametrize(("c",), [(5,), (6,)])
def test_tables(a, b, c): note("table", a, b, c)
@pytest.mark.parametrize("letter", ["z"], indirect=True)
def test_indirect(letter): note("indirect", letter)
@pytest.mark.parametrize("letter, n", [("p", 1)], indirect=["letter"])
def test_some(letter, n): note("some", letter, n)
@pytest.mark.parametrize("n", [1, 3, 2])
def test_one_of_three(n): assert n != 2
@pytest.mark.parametrize("k", [1, 2])
class TestMarked:
    pytestmark = pytest.mark.usefixtures("letter")
    def test_it(self, k): note("marked", k)
""",
    "test_requests.py": """
import pytest
from events import note
@pytest.fixture(name="renamed")
def _made(): return 7
@pytest.fixture
def asks(request):
    request.addfinalizer(lambda: note("first put, last called"))
    request.addfinalizer(lambda: note("last put, first called"))
    return request.getfixturevalue("renamed"), request.fixturename, request.scope, request.instance is None
def test_asks(asks): note(*asks)
def test_default(renamed, other=5): note(renamed, other)
@pytest.fixture
def test_data(): return "a fixture and no test"
def test_named_like_a_test(test_data): note(test_data)
@pytest.fixture
def broken(): raise ValueError
def test_broken(broken): note("never")
@pytest.fixture
def breaks_later():
    yield 1
    assert False
def test_breaks_later(breaks_later): note("body")
@pytest.mark.usefixtures("asks")
@pytest.mark.slow
@pytest.mark.timeout(5)
def test_uses(): note("uses")
async def _later(): return 4
def test_patch_and_capture(monkeypatch, capsys):
    monkeypatch.setattr("math.tau", 3)
    monkeypatch.setitem(vars(pytest), "agentrl_tau", 1)
    import math
    print("out", math.tau)
    note(capsys.readouterr().out, capsys.readouterr().out)
def test_undone():
    import math
    note(math.tau > 6, hasattr(pytest, "agentrl_tau"))
def test_folder(tmp_path, tmp_path_factory):
    (tmp_path / "a").write_text("x")
    note([p.name for p in tmp_path.iterdir()], tmp_path_factory.mktemp("a") != tmp_path_factory.mktemp("a"))
""",
    "test_set_up.py": """
import unittest
import pytest
from events import note
def setup_module(module): note("setup_module", module.__name__.rpartition(".")[2])
def teardown_module(): note("teardown_module")
def setup_function(function): note("setup_function", function.__name__)
def teardown_function(): note("teardown_function")
def test_plain(): note("plain")
class TestPlain:
    @classmethod
    def setup_class(cls):
        note("setup_class", cls.__name__)
        cls.n = 0
    @classmethod
    def teardown_class(cls): note("teardown_class")
    def setup_method(self, method):
        note("setup_method", method.__name__)
        self.fresh = 1
    def teardown_method(self): note("teardown_method")
    def test_a(self):
        self.fresh += 1
        note("a", self.fresh)
    @pytest.mark.parametrize("k", [1, 2])
    def test_b(self, k): note("b", k, self.fresh)
    @staticmethod
    def test_static(): note("static")
class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        note("setUpClass", cls.__name__)
        cls.addClassCleanup(note, "class cleanup")
    @classmethod
    def tearDownClass(cls): note("tearDownClass")
    def setUp(self):
        note("setUp")
        self.addCleanup(note, "cleanup")
    def tearDown(self): note("tearDown")
    def test_base(self): note("base", type(self).__name__)
class TestCase(Base):
    @pytest.fixture(autouse=True)
    def around(self):
        note("around up")
        self.around = 1
        yield
        note("around down")
    def test_ok(self): note("ok", self.around)
    def test_part(self):
        for n in range(3):
            with self.subTest(n=n): assert n != 1
class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self): note("asyncSetUp")
    async def test_async(self): note("async")
class TestBad:
    @classmethod
    def setup_class(cls): raise ValueError
    def test_a(self): note("never")
    def test_b(self): note("never")
""",
}


def ours(monkeypatch):
    """The events, and for each test whether it passed, in our runner."""
    events = []
    helper = types.ModuleType("events")
    helper.note = lambda *words: events.append(" ".join(map(str, words)))
    monkeypatch.setitem(sys.modules, "events", helper)
    monkeypatch.setitem(sys.modules, "pytest", minitest)
    modules = {}

    def module_of(path):
        if path not in modules:
            modules[path] = types.ModuleType(path.removesuffix(".py").replace("/", "."))
            exec(FILES[path], modules[path].__dict__)
        return modules[path]

    tests = Tests(minitest, module_of, FILES, asyncio.run)
    ids = ids_in(FILES, "")
    passed = {}
    for name, then in zip(ids, [*ids[1:], ""], strict=True):
        try:
            tests.run(name, then)
            passed[name] = True
        except (Exception, KeyboardInterrupt):
            passed[name] = False
    return events, passed


def pytests(folder: Path):
    """The same in pytest."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    (folder / "events.py").write_text(
        "def note(*words):\n    open('events.txt', 'a').write(' '.join(map(str, words)) + '\\0')\n"
    )
    paths = [path for path in FILES if "test_" in path]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:anyio",
        "-p",
        "no:asyncio",
        "-W",
    ]
    command += ["ignore", "-c", os.devnull, "--rootdir", str(folder), "--import-mode=importlib", *paths]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(folder)}
    )
    results = {}
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word.startswith("SUBFAILED"):
            word, rest = "SUBFAILED", rest.rpartition(" ")[2] if " - " not in rest else rest
        if word in ("PASSED", "FAILED", "ERROR", "SUBFAILED") and "::" in rest:
            name = rest.partition(" - ")[0].partition("[")[0].strip()
            results[name] = results.get(name, True) and word == "PASSED"
    return (folder / "events.txt").read_text().split("\0")[:-1], results


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        mine = ours(patch)
    return mine, pytests(tmp_path_factory.mktemp("suite"))


def test_the_same_tests_pass(both):
    (_, mine), (_, theirs) = both
    assert set(theirs) <= set(mine), set(theirs) - set(mine)
    assert mine == {name: theirs.get(name) for name in mine}
    assert not all(mine.values())  # some are made to fail


def test_the_same_things_happen_in_the_same_order(both):
    (mine, _), (theirs, _) = both
    assert mine == theirs
