"""Tier 2: suites that run in the candidate's own process, where canaries tell on most forgeries."""

import ast
import random
from pathlib import Path

import pytest

from agentrl.errors import TaskError
from agentrl.rewards.judge import InsideSuite, agent, codec, fixtures, inside, stream, suites
from agentrl.rewards.judge.canaries import MAX_CANARIES, with_canaries
from tests.rewards.judge.forgeries import ADDING

TESTS = """
import unittest
from unittest import mock
import pytest
import m
from m import add
class Test(unittest.TestCase):
    def test_small(self): self.assertEqual(add(1, 2), 3)
    def test_zero(self): self.assertEqual(add(0, 0), 0)
    def test_large(self): self.assertEqual(add(-5, 12345), 12340)
    def test_mock(self):
        with mock.patch.object(m, "add", return_value=7): self.assertEqual(m.add(1, 1), 7)
def test_plain(): assert add(2, 2) == 4
@pytest.mark.parametrize("a, b, c", [(1, 1, 2), (2, 3, 5)])
def test_table(a, b, c): assert add(a, b) == c
def test_text(): assert add("a", "b") == "ab"
class TestPlain:
    def test_more(self): assert add(10, 20) == 30
"""
SUITE = InsideSuite(files={"tests/test_hidden.py": TESTS})
RIGHT = "def add(a, b):\n    return a + b\n"


def test_the_right_answer_passes_and_the_tier_is_told(grade):
    verdict = grade({"m.py": RIGHT}, SUITE)
    assert (verdict.verdict, verdict.why) == ("pass", "")
    assert (verdict.tier, verdict.num_passed, verdict.num_tests) == (2, 8, 8)


def test_a_wrong_answer_fails(grade):
    assert grade({"m.py": RIGHT.replace("+", "-")}, SUITE).verdict == "fail"


CAUGHT = [name for name in ADDING if name != "behaves until it is graded"]  # that one is right where it sees pytest


@pytest.mark.parametrize("name", CAUGHT)
def test_what_the_judge_withstands_does_not_pass_here_either(plainly, name):
    forged, _ = ADDING[name]
    assert plainly({"m.py": forged}, SUITE).verdict == "fail"


FRAMES = """
import sys
def add(a, b):
    frame, found = sys._getframe(1), None
    for value in frame.f_code.co_consts:
        if isinstance(value, (int, str)) and value not in (a, b): found = value
    return found
"""
ALWAYS = """
class Yes(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = str.__hash__
def add(a, b): return Yes()
"""
YES = "import os\ndef add(a, b): return 0\nwhile True:\n    os.read(3, 4096)\n    os.write(3, b'\\0\\0\\0\\4true')\n"


@pytest.mark.parametrize("forged", [FRAMES, ALWAYS, YES], ids=["frames", "always equal", "yes to everything"])
def test_a_canary_tells(plainly, forged):
    verdict = plainly({"m.py": forged}, SUITE)
    assert verdict.verdict == "fail"
    assert "a canary passed" in verdict.why


def test_pristine_tests_lie_over_the_candidates(plainly):
    own = {"tests/test_hidden.py": "def test_plain(): pass", "tests/__init__.py": "raise SystemExit"}
    assert plainly({"m.py": RIGHT.replace("+", "-"), **own}, SUITE).verdict == "fail"


def test_fixtures_of_the_candidates_are_left_out(plainly):
    steering = "import pytest\n@pytest.fixture(autouse=True)\ndef steer(): raise ValueError\n"
    own = {"conftest.py": steering, "tests/conftest.py": steering}
    assert plainly({"m.py": RIGHT, **own}, SUITE).verdict == "pass"
    shared = InsideSuite(files={**SUITE.files, "conftest.py": steering})  # the same among the tests counts
    assert plainly({"m.py": RIGHT, **own}, shared).verdict == "fail"


def test_a_fixture_named_like_a_test_is_none():
    text = "import pytest\n@pytest.fixture\ndef test_data(): return 3\ndef test_a(test_data):\n    assert f() == 3\n"
    mixed = with_canaries({"test_x.py": text}, {"test_x.py": True}, random.Random(1))
    assert sorted(mixed.expected.values()) == [False, True]
    assert "def test_data()" in mixed.files["test_x.py"]


@pytest.mark.parametrize("modules", [(codec, stream, agent), (fixtures, suites, inside)])
def test_modules_that_are_compiled_into_one_share_no_name(modules):
    trees = [ast.parse(Path(module.__file__).read_text()) for module in modules]
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(names) == len({*names})


def test_canaries_are_changed_copies_under_random_names():
    text = "def test_a():\n    assert f() == 3\ndef test_b():\n    assert g()\n"
    mixed = with_canaries({"test_x.py": text}, {"test_x.py": True}, random.Random(1))
    assert sorted(mixed.expected.values()) == [False, True, True]  # test_b compares with nothing
    assert "test_a" not in mixed.files["test_x.py"]
    assert mixed.files["test_x.py"].count("f() == 3") == mixed.files["test_x.py"].count("f() == 4") == 1
    again = with_canaries({"test_x.py": text}, {"test_x.py": True}, random.Random(2))
    assert not mixed.expected.keys() & again.expected.keys()


def test_there_are_at_most_so_many_canaries():
    text = "".join(f"def test_{n}():\n    assert f() == {n}\n" for n in range(30))
    mixed = with_canaries({"test_x.py": text}, {"test_x.py": True}, random.Random(1))
    assert list(mixed.expected.values()).count(False) == MAX_CANARIES


def test_a_suite_without_canaries_is_refused():
    with pytest.raises(TaskError, match="no test compares with a constant"):
        InsideSuite(files={"test_x.py": "def test_x():\n    assert f()"})
