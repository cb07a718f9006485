"""Suites that ask for what is not there are refused when they are made, with the task, the line and the remedy."""
# ruff: noqa: E501  programs in one line are easier to compare

import pytest

from agentrl.errors import TaskError
from agentrl.rewards.judge import HiddenSuite, InsideSuite
from tests.rewards.judge.conftest import Grader
from tests.rewards.judge.plain_box import PlainBackend

HEAD = "import os, random, sys, time, unittest\nfrom unittest import mock\nimport pytest\nimport m\n"
ASSERTS = "\ndef test_last(): assert m.f() == 3\n"


def outside(text, **files):
    return HiddenSuite(files={"test_x.py": HEAD + text + ASSERTS, **files}, modules=("m",), task_id="sets/9")


def inside(text, **files):
    return InsideSuite(files={"test_x.py": HEAD + text + ASSERTS, **files}, task_id="sets/9")


NEVER = {
    "a skip": ("def test_a():\n    pytest.skip('no')", "pytest.skip: a hidden test that does not run is no pass"),
    "a mark": (
        "@pytest.mark.skipif(sys.version_info < (3, 9), reason='')\ndef test_a(): 1",
        "pytest.mark.skipif: a hidden",
    ),
    "xfail": ("@pytest.mark.xfail\ndef test_a(): 1", "leave the test or the mark out"),
    "a mark of a row": (
        "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.xfail)])\ndef test_a(n): 1",
        "pytest.mark.xfail",
    ),
    "unittest's skip": (
        "@unittest.skipIf(True, '')\nclass T(unittest.TestCase):\n    def test_a(self): 1",
        "unittest.skipIf",
    ),
    "skipTest": ("class T(unittest.TestCase):\n    def test_a(self): self.skipTest('')", "skipTest: a hidden test"),
    "an expected failure": (
        "from unittest import expectedFailure as odd\nclass T(unittest.TestCase):\n    @odd\n    def test_a(self): 1",
        "unittest.expectedFailure",
    ),
    "a module that is missing": (
        "no_such_thing = pytest.importorskip('no_such_thing.part')",
        "importorskip('no_such_thing.part'): it is not installed here",
    ),
    "a function that is not there": (
        "def test_a():\n    with pytest.warns(UserWarning): 1",
        "pytest.warns is not there",
    ),
    "a fixture that nobody has": ("def test_a(db): 1", "there is no fixture 'db'; these are: "),
    "a fixture of a plug-in": ("@pytest.fixture\ndef a(mocker): 1\ndef test_a(a): 1", "there is no fixture 'mocker'"),
    "a part of the request": ("@pytest.fixture\ndef a(request): return request.node.name", "request.node is not there"),
    "a coroutine as a fixture": ("@pytest.fixture\nasync def a(): 1", "a fixture cannot be a coroutine"),
}
OUTSIDE = {
    "a folder": (
        "def test_a(tmp_path): m.f(tmp_path)",
        "fixture 'tmp_path' makes a folder here, which the candidate's",
    ),
    "a fixture with a folder": (
        "@pytest.fixture\ndef a(tmp_path_factory): 1",
        "fixture 'tmp_path_factory' makes a folder",
    ),
    "its descriptors": ("def test_a(capfd): 1", "fixture 'capfd' takes in what this process says"),
    "its log": ("class TestA:\n    def test_a(self, caplog): 1", "fixture 'caplog'"),
    "its errors": (
        "def test_a(capsys):\n    assert capsys.readouterr().err == ''",
        "writes to sys.stderr does not come here",
    ),
    "its errors, unpacked": ("def test_a(capsys):\n    out, err = capsys.readouterr()", "sys.stderr"),
    "the environment": (
        "def test_a(monkeypatch): monkeypatch.setenv('A', '1')",
        "monkeypatch.setenv changes this process",
    ),
    "the folder": ("def test_a(monkeypatch): monkeypatch.chdir('/')", "monkeypatch.chdir"),
    "a library, by name": (
        "def test_a(monkeypatch): monkeypatch.setattr('time.time', int)",
        "patching time.time changes",
    ),
    "a library": (
        "def test_a(monkeypatch): monkeypatch.setattr(time, 'time', int)",
        "patching time changes this process",
    ),
    "a built-in": ("def test_a(monkeypatch): monkeypatch.setattr('builtins.input', str)", "patching builtins.input"),
    "standard input": ("def test_a(monkeypatch): monkeypatch.setattr(sys, 'stdin', 1)", "patching sys changes"),
    "mock of a library": ("@mock.patch('os.listdir')\ndef test_a(f): 1", "patching os.listdir"),
    "mock of an object": ("def test_a():\n    with mock.patch.object(random, 'random'): 1", "patching random"),
    "mock of a dict": ("def test_a():\n    with mock.patch.dict(os.environ, A='1'): 1", "patching os.environ"),
    "an item of the candidate's": ("def test_a(monkeypatch): monkeypatch.setitem(m.D, 'a', 1)", "m.D is a copy here"),
    "an assignment": ("def test_a():\n    sys.stdin = 3", "setting a part of sys changes this process"),
    "a variable": ("def test_a():\n    os.environ['A'] = '1'", "setting a part of os.environ"),
    "a class of the candidate's": ("class A(m.Base):\n    def f(self): 1", "class A derives from m.Base"),
    "a seed": ("def test_a():\n    random.seed(3)", "random.seed changes this process"),
}


@pytest.mark.parametrize("make", [outside, inside])
@pytest.mark.parametrize("name", NEVER)
def test_what_no_suite_can_have(name, make):
    text, problem = NEVER[name]
    with pytest.raises(TaskError, match=r"^sets/9: hidden test file test_x.py, line \d+: ") as caught:
        make(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_only_tests_inside_can_have(name):
    text, problem = OUTSIDE[name]
    with pytest.raises(TaskError, match=r"^sets/9: hidden test file test_x.py, line [5678]: ") as caught:
        outside(text)
    assert problem in str(caught.value)
    assert "use InsideSuite" in str(caught.value)
    if "fixture" not in problem:  # inside, nothing is in its way; a few fixtures are not there either
        inside(text)


FINE = {
    "its own modules": "def test_a(monkeypatch):\n    monkeypatch.setattr(m, 'x', 1)\n    monkeypatch.setattr('m.time.time', int)",
    "mock of its own": "@mock.patch('m.f')\n@mock.patch.object(m, 'g')\ndef test_a(g, f): 1",
    "things of the test": "class A: x = 1\ndef test_a(monkeypatch):\n    a = A()\n    a.x = 2\n    monkeypatch.setattr(A, 'x', 3)",
    "its environment, read": "def test_a(): assert os.environ.get('A') is None and random.random() < 1",
    "arguments of parameters": "N = 'a, b'\n@pytest.mark.parametrize(N, [(1, 2)])\ndef test_a(a, b): 1",
    "of a class": "@pytest.mark.parametrize('a', [1])\nclass TestA:\n    def test_a(self, a): 1\n    @staticmethod\n    def test_b(a): 1",
    "of a module": "pytestmark = [pytest.mark.parametrize('a', [1])]\ndef test_a(a): 1",
    "defaults": "def test_a(a=1, *, b=2, **c): 1",
    "own fixtures": "from pytest import fixture\n@fixture(name='db')\ndef _db(request): return request.param\ndef test_a(db): 1",
    "marks of people": "@pytest.mark.slow\n@pytest.mark.timeout(3)\ndef test_a(): 1",
    "a module that is there": "json = pytest.importorskip('json')\nm = pytest.importorskip('m')\ndef test_a(): 1",
    "what it prints": "def test_a(capsys):\n    out, _ = capsys.readouterr()\n    assert capsys.readouterr().out == ''",
    "helpers that are no tests": "class Mixin:\n    def test_shared(self): 1\nclass TestA(Mixin): pass",
    "a class of fixtures": "class TestA:\n    @pytest.fixture\n    def b(self, request): 1\n    def test_a(self, b): 1",
}


@pytest.mark.parametrize("name", FINE)
def test_what_a_suite_can_have(name):
    outside(FINE[name])


def test_tests_that_a_class_has_from_another_are_its_own():
    ids = outside(FINE["helpers that are no tests"]).ids
    assert ids == ("test_x.py::TestA::test_shared", "test_x.py::test_last")


@pytest.mark.parametrize("make", [outside, inside])
def test_tests_that_a_class_has_from_another_file_are_not_left_out_silently(make):
    shared = {"shared.py": "class Shared:\n    def test_it(self): 1\nclass Helper: x = 1\n"}
    with pytest.raises(TaskError, match=r"^sets/9: .*class TestA has tests from another file, shared.Shared; put"):
        make("from shared import Shared\nclass TestA(Shared): pass\n", **shared)
    make("from shared import Helper\nclass TestA(Helper):\n    def test_a(self): assert self.x == 1\n", **shared)


def test_fixtures_of_other_files_count():
    shared = {"conftest.py": "import pytest\n@pytest.fixture\ndef db(): return 1\n"}
    assert outside("def test_a(db): 1", **shared).ids[0] == "test_x.py::test_a"
    with pytest.raises(TaskError, match=r"hidden test file conftest.py, line 3: there is no fixture 'nothing'"):
        outside("def test_a(db): 1", **{"conftest.py": shared["conftest.py"].replace("db()", "db(nothing)")})


CONFTEST = """
import pytest
from m import Store
@pytest.fixture(scope="session")
def base():
    yield 100
@pytest.fixture
def store(base, monkeypatch):
    monkeypatch.setattr("m.STEP", 2)
    made = Store(base)
    yield made
    assert made.closed
"""
DEEP = {
    "conftest.py": CONFTEST,
    "tests/unit/conftest.py": "import pytest\n@pytest.fixture\ndef store(store):\n    store.add()\n    return store\n",
    "tests/unit/test_store.py": "def test_a(store):\n    assert store.n == 102\n    store.close()\ndef test_b(store):\n"
    "    store.add()\n    assert store.n == 104\n    store.close()\n",
    "tests/test_top.py": "def test_a(store):\n    assert store.n == 100\n    store.close()\n",
}
STORE = (
    "STEP = 1\nclass Store:\n    closed = False\n    def __init__(self, n): self.n = n\n"
    "    def add(self): self.n += STEP\n    def close(self): self.closed = True\n"
)


@pytest.mark.parametrize("kind", [HiddenSuite, InsideSuite])
def test_conftests_count_outside_and_inside(plainly, kind):
    suite = kind(files=DEEP, **({"modules": ("m",)} if kind is HiddenSuite else {}))
    right = plainly({"m.py": STORE}, suite)
    assert (right.verdict, right.num_tests, right.why) == ("pass", 3, "")
    assert plainly({"m.py": STORE.replace("closed = True", "closed = False")}, suite).verdict == "fail"  # the tear-down
    assert plainly({"m.py": STORE.replace("+= STEP", "+= 2 * STEP")}, suite).verdict == "fail"


FOLDER = """
import os, sys
from m import save
def test_a(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WHO", "me")
    monkeypatch.chdir(tmp_path)
    save("a.txt")
    assert (tmp_path / "a.txt").read_text() == "me"
    assert capsys.readouterr().err == "saved\\n"
"""


def test_inside_there_are_folders_and_the_environment(plainly):
    save = "import os, sys\ndef save(name):\n    open(name, 'w').write(os.environ['WHO'])\n    print('saved', file=sys.stderr)\n"
    suite = InsideSuite(files={"test_x.py": FOLDER})
    right = plainly({"m.py": save}, suite)
    assert (right.verdict, right.why) == ("pass", "")
    assert plainly({"m.py": save.replace("['WHO']", "['PATH']")}, suite).verdict == "fail"


def test_a_file_that_imports_what_is_not_installed_is_an_error_and_no_zero(plainly):
    test = "from m import f\nimport nothing_of_that_name\ndef test_a(): assert f() == 1\n"
    verdict = plainly.suite({"m.py": "def f(): return 1"}, test)
    assert (verdict.verdict, verdict.reward) == ("error", None)
    assert "imports nothing_of_that_name, which is not installed here" in verdict.why


@pytest.mark.parametrize("source", ["import nothing_of_that_name", "raise ModuleNotFoundError('x', name='pandas')"])
def test_a_candidate_that_imports_what_is_not_installed_fails(plainly, source):
    verdict = plainly.suite({"m.py": source}, "from m import f\ndef test_a(): assert f() == 1\n")
    assert (verdict.verdict, verdict.reward) == ("fail", 0.0)


def test_a_set_up_that_fails_fails_each_of_its_tests(plainly):
    test = (
        "import unittest\nfrom m import start\nclass T(unittest.TestCase):\n    @classmethod\n"
        "    def setUpClass(cls): assert start() == 1\n    def test_a(self): pass\n    def test_b(self): pass\n"
    )
    verdict = plainly.suite({"m.py": "def start(): return 2"}, test)
    assert (verdict.verdict, verdict.num_passed, verdict.num_tests) == ("fail", 0, 2)
    assert plainly.suite({"m.py": "def start(): return 1"}, test).verdict == "pass"


SLOW = """
import pytest
from m import f
@pytest.fixture(autouse=True)
def around():
    yield
    assert f() == 1
def test_a():
    for _ in range(f()): pass
def test_b():
    try:
        for _ in range(f()): pass
    except BaseException: pass
"""


def test_a_candidate_that_makes_tests_slow_cannot_escape_a_zero_through_their_tear_down():
    grader = Grader(PlainBackend(), wall_s=0.3)
    verdict = grader.suite({"m.py": "def f(): return 10**5000"}, SLOW)
    quick = grader.suite({"m.py": "def f(): return 1"}, SLOW)
    grader.close()
    assert (verdict.verdict, verdict.reward, verdict.num_passed) == ("fail", 0.0, 0), verdict.why
    assert quick.verdict == "pass"
