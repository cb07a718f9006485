"""Hidden tests decide, and a pass cannot be had without the right answers."""

import asyncio
import os
import signal

import pytest

from agentrl.errors import ScorerError, TaskError
from agentrl.rewards.programs import HiddenCalls, HiddenScript, HiddenTests, Verdict, grade
from agentrl.sandbox import WorkerPool
from agentrl.sandbox.jobs import encode_job

ADD = HiddenCalls(module="m", calls=(("add", (1, 2)), ("add", (0, 0)), ("add", (-5, 12345))), expected=(3, 0, 12340))
ADD_SCRIPT = HiddenScript(
    module="m", source="def check(g):\n    assert g(1, 2) == 3\n    assert g(2, 2) == 4\ncheck(add)\n"
)


def judge(pool, source, hidden=ADD):
    return asyncio.run(grade(pool, {"m.py": source}, hidden))


def test_the_right_answer_passes(pool):
    verdict = judge(pool, "def add(a, b):\n    return a + b")
    assert verdict.passed
    assert verdict.explanation == "3 of 3"


def test_a_wrong_answer_is_counted_test_by_test(pool):
    verdict = judge(pool, "def add(a, b):\n    return a + b if a >= 0 else 0")
    assert (verdict.num_passed, verdict.num_tests, verdict.passed) == (2, 3, False)


CHEATS = {
    "equal to everything": """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 3
def add(a, b): return Yes()
""",
    "an int that is equal to everything": """
class Yes(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def add(a, b): return Yes(0)
""",
    "exit at import": "import os\nos._exit(0)",
    "system exit at import": "raise SystemExit(0)",
    "exit at exit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef add(a, b): return None",
    "skip": "import unittest\ndef add(a, b): raise unittest.SkipTest",
    "bool for int": "def add(a, b): return a + b if a + b > 1 else False",
    "float for int": "def add(a, b): return float(a + b)",
    "hard-coded": "def add(a, b): return {(1, 2): 3, (0, 0): 0}.get((a, b))",
    "reads frames": """
import gc, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in frame.f_locals.values():
            if isinstance(value, dict) and "expected" in value: return value["expected"]
        frame = frame.f_back
    return [o for o in gc.get_objects() if type(o) is tuple and 12340 in o][:1]
""",
    "forged reports": """
import os
def add(a, b):
    line = b'{"status":"value","value":3}\\\\n{"status":"value","value":0}\\\\n'
    for fd in range(3, 64):
        try: os.write(fd, line)
        except OSError: pass
    os._exit(0)
""",
    "patched codec": """
import json
json.dumps = lambda *a, **k: '{"status": "value", "value": 3}'
def add(a, b): return 0
""",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_does_not_pass(pool, cheat):
    assert not judge(pool, CHEATS[cheat]).passed


def test_expected_values_never_enter_the_sandbox():
    assert b"12345" in encode_job(ADD.job({}))
    assert b"12340" not in encode_job(ADD.job({}))


def test_a_tolerance_is_for_floats_only(pool):
    third = HiddenCalls(module="m", calls=(("f", (3,)),), expected=(0.3333333,), tolerance=1e-6)
    assert judge(pool, "def f(n): return 1 / n", third).passed
    assert not judge(pool, "def f(n): return '0.3333333'", third).passed
    exact = HiddenCalls(module="m", calls=(("f", (3,)),), expected=(0.3333333,))
    assert not judge(pool, "def f(n): return 1 / n", exact).passed


def test_an_endless_program_fails(hasty_pool):
    verdict = judge(hasty_pool, "def add(a, b):\n    while a == 0: pass\n    return a + b")
    assert (verdict.num_passed, verdict.passed) == (1, False)


@pytest.mark.parametrize(
    ("source", "passed"),
    [
        ("def add(a, b): return a + b", True),
        ("def add(a, b): return 3", False),
        ("import os\nos._exit(0)", False),
        ("import sys\nsys.exit(0)", False),
        ("def add(a, b): raise SystemExit(0)", False),
        ("import os\ndef add(a, b): os._exit(0)", False),
        ("def add(a, b", False),
    ],
)
def test_a_hidden_script_must_reach_its_end(pool, source, passed):
    verdict = judge(pool, source, ADD_SCRIPT)
    assert (verdict.passed, verdict.num_tests) == (passed, 1)


def test_only_sources_on_the_list_are_graded(pool):
    scorer = HiddenTests(pool, ADD, sources=["m.py"])
    extra = {"sitecustomize.py": "1 / 0", "test_m.py": "1 / 0", "operator.py": "1 / 0"}
    right = {"m.py": "import operator\ndef add(a, b):\n    return operator.add(a, b)"}
    score = asyncio.run(scorer.score(right | extra))
    assert (score.name, score.value, score.explanation, score.weight) == ("hidden_tests", 1.0, "3 of 3", 1.0)
    assert asyncio.run(scorer.score(extra)).value == 0.0


def test_a_workspace_cannot_smuggle_in_a_helper(pool):
    scorer = HiddenTests(pool, ADD, sources=["m.py"])
    workspace = {"m.py": "from helper import add", "helper.py": "def add(a, b): return a + b"}
    assert asyncio.run(scorer.score(workspace)).value == 0.0


def test_a_failure_of_ours_is_never_a_zero():
    async def kill_then_score(pool):
        task = asyncio.ensure_future(HiddenTests(pool, ADD, sources=["m.py"]).score({"m.py": "while True: pass"}))
        await asyncio.sleep(0.3)
        os.kill(pool._workers[0].process.pid, signal.SIGKILL)
        return await task

    with WorkerPool(1) as pool, pytest.raises(ScorerError, match="hidden tests could not be run: sandbox worker"):
        asyncio.run(kill_then_score(pool))


@pytest.mark.parametrize(
    ("calls", "expected", "problem"),
    [
        ((), (), "0 hidden calls"),
        ((("f", ()),), (), "1 hidden calls and 0 expected"),
        ((("f", ()),), (object(),), "an expected value cannot be compared: object"),
    ],
)
def test_hidden_tests_that_could_pass_or_fail_vacuously_are_refused(calls, expected, problem):
    with pytest.raises(TaskError, match=problem):
        HiddenCalls(module="m", calls=calls, expected=expected)


def test_no_tests_is_no_pass():
    assert not Verdict(num_passed=0, num_tests=0).passed
