"""Hidden tests decide, and a pass cannot be had without the right answers."""

import asyncio
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import SandboxError, ScorerError, TaskError
from agentrl.rewards.grading import CallGrader, HiddenTests, PoolGrader
from agentrl.rewards.judge import HiddenCheck, HiddenReference
from agentrl.rewards.programs import HiddenCalls
from agentrl.sandbox.jobs import encode_job, read_result
from agentrl.sandbox.walls import memory
from tests.pools import open_pool
from tests.rewards.judge.forgeries import ADDING

ADD = HiddenCalls(module="m", calls=(("add", (1, 2)), ("add", (0, 0)), ("add", (-5, 12345))), expected=(3, 0, 12340))


def judge(pool, source, hidden=ADD):
    return asyncio.run(CallGrader(pool).grade({"m.py": source.encode()}, hidden))


def test_the_right_answer_passes(pool):
    verdict = judge(pool, "def add(a, b):\n    return a + b")
    assert (verdict.verdict, verdict.num_passed, verdict.num_tests) == ("pass", 3, 3)
    assert verdict.repeatable


def test_a_wrong_answer_is_counted_test_by_test(pool):
    verdict = judge(pool, "def add(a, b):\n    return a + b if a >= 0 else 0")
    assert (verdict.num_passed, verdict.num_tests, verdict.verdict) == (2, 3, "fail")


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
    assert judge(pool, CHEATS[cheat]).verdict == "fail"


def test_expected_values_never_enter_the_sandbox():
    assert b"12345" in encode_job(ADD.job({}))
    assert b"12340" not in encode_job(ADD.job({}))


def test_a_tolerance_is_for_floats_only(pool):
    third = HiddenCalls(module="m", calls=(("f", (3,)),), expected=(0.3333333,), tolerance=1e-6)
    assert judge(pool, "def f(n): return 1 / n", third).verdict == "pass"
    assert judge(pool, "def f(n): return '0.3333333'", third).verdict == "fail"
    exact = HiddenCalls(module="m", calls=(("f", (3,)),), expected=(0.3333333,))
    assert judge(pool, "def f(n): return 1 / n", exact).verdict == "fail"


def test_an_endless_program_fails(hasty_pool):
    verdict = judge(hasty_pool, "def add(a, b):\n    while a == 0: pass\n    return a + b")
    assert (verdict.num_passed, verdict.verdict) == (1, "fail")


CHECK = HiddenCheck.of_script(
    module="m",
    source="def check(g):\n    assert g(1, 2) == 3\n    assert g(2, 2) == 4\ncheck(add)\n",
    reference="def add(a, b):\n    return a + b\n",
)


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("def add(a, b): return a + b", "pass"),
        ("def add(a, b): return 3", "fail"),
        ("import os\nos._exit(0)", "fail"),
        ("def add(a, b", "fail"),
    ],
)
def test_other_hidden_tests_are_graded_by_a_judge_in_the_boxes_of_the_pool(pool, source, verdict):
    found = asyncio.run(PoolGrader(pool).grade({"m.py": source.encode()}, CHECK))
    assert (found.verdict, found.num_tests, found.tier) == (verdict, 1, 1)


def test_a_judge_ends_with_its_pool():
    before = set(memory.descendants(os.getpid()))
    with open_pool(1) as pool:
        asyncio.run(PoolGrader(pool).grade({"m.py": b"def add(a, b): return a + b"}, CHECK))
        assert set(memory.descendants(os.getpid())) - before
    assert set(memory.descendants(os.getpid())) <= before  # a box of another pool may have been emptied meanwhile


def test_only_sources_on_the_list_are_graded(pool):
    scorer = HiddenTests(CallGrader(pool), ADD, sources=["m.py"])
    extra = {"sitecustomize.py": "1 / 0", "test_m.py": "1 / 0", "operator.py": "1 / 0"}
    right = {"m.py": "import operator\ndef add(a, b):\n    return operator.add(a, b)"}
    score = asyncio.run(scorer.score(right | extra))
    assert (score.name, score.value, score.explanation, score.weight) == ("hidden_tests", 1.0, "3 of 3", 1.0)
    assert asyncio.run(scorer.score(extra)).value == 0.0


def test_a_workspace_cannot_smuggle_in_a_helper(pool):
    scorer = HiddenTests(CallGrader(pool), ADD, sources=["m.py"])
    workspace = {"m.py": "from helper import add", "helper.py": "def add(a, b): return a + b"}
    assert asyncio.run(scorer.score(workspace)).value == 0.0


class Lost:
    """Runs nothing."""

    async def run(self, job):
        raise SandboxError("the box was lost; the job was lost, not failed")


def test_a_failure_of_ours_is_never_a_zero():
    assert asyncio.run(CallGrader(Lost()).grade({}, ADD)).reward is None
    with pytest.raises(ScorerError, match="hidden tests could not be run: the box was lost"):
        asyncio.run(HiddenTests(CallGrader(Lost()), ADD, sources=["m.py"]).score({"m.py": "def add(a, b): return 0"}))


def test_half_a_character_in_a_source_is_no_fault_of_ours(pool):
    scorer = HiddenTests(CallGrader(pool), ADD, sources=["m.py"])
    assert asyncio.run(scorer.score({"m.py": "x = '\ud800'\ndef add(a, b): return a + b"})).value == 0.0


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


def test_the_verdicts_on_calls_are_those_of_a_judges_process(pool):
    grader = PoolGrader(pool)
    programs = [source for row in ADDING.values() for source in row]

    async def verdicts(hidden):
        turn = asyncio.Semaphore(4)

        async def one(source):
            async with turn:
                return await grader.grade({"m.py": source.encode("utf-8", "surrogatepass")}, hidden)

        return await asyncio.gather(*map(one, programs))

    here, there = asyncio.run(verdicts(ADD)), asyncio.run(verdicts(JUDGED))
    assert [p for p, a, b in zip(programs, here, there, strict=True) if a.verdict != b.verdict] == []
    assert {verdict.verdict for verdict in here} == {"pass", "fail"}


JUDGED = HiddenReference(
    module="m",
    function="add",
    reference="def add(a, b): return a + b",
    inputs="LEFT = [(1, 2), (0, 0), (-5, 12345)]\ndef inputs(rng): return LEFT.pop(0)",
    num_inputs=3,
)
"""The same calls and values as those of ADD, through the judge's process."""

RIGHT = b'{"status":"value","value":3}\n{"status":"value","value":0}\n{"status":"value","value":12340}\n'
FIRST = b'{"status":"value","value":%s}\n' + RIGHT.partition(b"\n")[2]
HOSTILE = {
    "deep": FIRST % (b"[" * 60_000 + b"]" * 60_000),
    "deep tags": FIRST % (b'{"t":[' * 300 + b"]}" * 300),
    "an int of many digits": FIRST % (b"9" * 100_000),
    "a float of many digits": FIRST % (b"9" * 100_000 + b".0"),
    "NaN": FIRST % b"NaN",
    "infinity": FIRST % b"1e999",
    "a float": FIRST % b"3.0",
    "a bool": FIRST % b"true",
    "text": FIRST % b'"3"',
    "an opaque": FIRST % b'{"o":"3"}',
    "an unknown tag": FIRST % b'{"x":["bytearray",99999999999]}',
    "an unhashable key": FIRST % b'{"d":[[[],1]]}',
    "many empty lists": FIRST % (b"[" + b"[]," * 40_000 + b"[]]"),
    "half a character": FIRST % b'"\\ud800"',
    "a key twice": FIRST % b'3,"value":4',
    "no status": b'{"value":3}\n' * 3,
    "too few": RIGHT.partition(b"\n")[2],
    "no object": b"[3]\n" * 3,
    "no text": b"\xff\xfe" * 50,
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_report_passes_nothing_and_costs_little(name):
    assert all(ADD.passes(read_result(ADD.job({}), "finished", RIGHT)))  # the control
    tracemalloc.start()
    passes = ADD.passes(read_result(ADD.job({}), "finished", HOSTILE[name]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not all(passes)
    assert peak < 32 << 20


@given(st.binary(max_size=80))
def test_any_bytes_are_a_report(body):
    assert not any(ADD.passes(read_result(ADD.job({}), "finished", body)))


def test_a_verdict_is_repeatable_unless_a_limit_or_a_death_made_it(hasty_pool):
    grader = CallGrader(hasty_pool)
    for source, repeatable in (
        (b"def add(a, b): return a + b", True),
        (b"1 / 0", True),
        (b"import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", False),
        (b"import time\ntime.sleep(9)", False),
    ):
        assert asyncio.run(grader.grade({"m.py": source}, ADD)).repeatable is repeatable
