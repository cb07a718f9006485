"""Arms take turns, and a rate is the median of its rounds."""

import asyncio
import os
import subprocess
import sys

import pytest

from agentrl.bench import rounds
from agentrl.bench.report import Aim
from agentrl.bench.rounds import Arm, Contestant, Rate, Took, descendants, pss_mib, rates, ratio, turns


def arm(name, seen, runs, lanes=2):
    async def run(lane):
        seen.append((name, lane))

    return Arm(name=name, run=run, runs=runs, lanes=lanes)


def test_arms_take_turns_after_a_first_run_that_does_not_count():
    seen = []
    found = asyncio.run(rates([arm("a", seen, 2), arm("b", seen, 1, lanes=1)], rounds=2))
    first = [("a", 0), ("a", 1), ("b", 0)]
    turn = [("a", 0), ("a", 0), ("a", 1), ("a", 1), ("b", 0)]
    assert seen == first + turn * 2
    assert found.keys() == {"a", "b"}


def test_a_rate_is_the_median_and_tells_what_one_run_takes():
    # medians of 50, 200 and 100 runs per second: 100; with two lanes each run takes 2 / 100 s
    assert rounds._rate([50.0, 200.0, 100.0], 2) == Rate(per_s=100.0, best_per_s=200.0, ms=20.0)


def test_an_arm_that_fails_is_no_number():
    async def fail(_lane):
        raise RuntimeError("came out wrong")

    with pytest.raises(RuntimeError, match="came out wrong"):
        asyncio.run(rates([Arm(name="x", run=fail, runs=1)], rounds=1))


def test_contestants_take_turns_and_the_first_round_does_not_count():
    seen, told, used = [], [], iter(range(0, 100, 5))
    contestants = {
        "a": Contestant(play=lambda: seen.append("a"), used=lambda: next(used)),
        "b": Contestant(play=lambda: seen.append("b")),
    }
    found = turns(contestants, 2, tell=told.append)
    assert seen == ["a", "b"] * 3
    assert found["a"].used == (5, 5)  # asked before and after each play, 5 apart
    assert len(found["a"].passed) == len(found["b"].passed) == 2
    assert told[-1] == "round 2 of 2: b"


def test_a_ratio_is_taken_within_each_round():
    # 4/1, 4/2 and 9/3: the second half of the machine's time was slower for both
    assert ratio([1.0, 2.0, 3.0], [4.0, 4.0, 9.0]) == (3.0, 2.0, 4.0)
    assert Took(passed=(1.0,), used=(0.5,)).used == (0.5,)


@pytest.mark.parametrize(
    ("value", "at_most", "reached"),
    [(2.5, False, True), (2.4, False, False), (2.5, True, True), (2.6, True, False), (None, True, None)],
)
def test_an_aim_is_reached_on_its_own_side(value, at_most, reached):
    assert Aim(name="x", value=value, wanted=2.5, at_most=at_most).reached is reached


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_descendants_are_those_of_the_system():
    before = descendants().keys()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        assert descendants().keys() - before == {child.pid}
        assert 0 < pss_mib([child.pid]) < pss_mib([child.pid, os.getpid()])
    finally:
        child.communicate()
    assert pss_mib([child.pid]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_has_ended_and_nobody_waited_for_has_no_memory():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert pss_mib([child.pid]) == 0
    child.wait()
