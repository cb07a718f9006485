"""A fault of ours is an error and never a zero; a candidate cannot bring one about; nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.rewards.judge import HiddenCheck, HiddenReference, HiddenSuite, Judge
from agentrl.sandbox.base import BoxLimits
from tests.rewards.judge.plain_box import PlainBackend, PlainBox

RIGHT = {"m.py": b"def add(a, b): return a + b\n"}
ADDING = HiddenSuite(files={"test_x.py": "from m import add\ndef test_x(): assert add(1, 2) == 3\n"}, modules=("m",))


def run(work, backend=None, **limits):
    async def main():
        judge = Judge(backend or PlainBackend(), limits=BoxLimits(**limits))
        try:
            return await work(judge)
        finally:
            await judge.close()

    return asyncio.run(main())


def children():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


class Broken(PlainBackend):
    async def start(self, spec):
        raise SandboxError("no box today")


class Wordless(PlainBackend):
    """Its boxes have no interpreter."""

    async def start(self, spec):
        class Empty(PlainBox):
            async def channel(self, argv, *, wall_s=None):
                return await super().channel(["python", "-c", "raise SystemExit('no python')"])

        return Empty(spec)


@pytest.mark.parametrize(
    ("backend", "why"), [(Broken(), "no box today"), (Wordless(), "agent did not start in the box")]
)
def test_a_box_that_cannot_be_had_is_an_error(backend, why):
    verdict = run(lambda judge: judge.grade(RIGHT, ADDING), backend)
    assert (verdict.verdict, verdict.reward, verdict.num_passed) == ("error", None, 0)
    assert why in verdict.why
    assert verdict.as_json()["tests"] == {"passed": 0, "total": 1}


def test_a_number_that_keeps_a_test_busy_for_ever_is_no_way_out_of_a_zero(monkeypatch):
    monkeypatch.setattr("agentrl.rewards.judge.hearing._GRACE_S", 2.5)
    hidden = HiddenSuite(
        files={"test_x.py": "from m import f\ndef test_x(): assert sum(range(f())) == 6\n"}, modules=("m",)
    )
    alone = HiddenSuite(files={"test_x.py": "def test_x(): assert sum(range(10**12)) == 6\n"}, modules=("m",))
    files = {"m.py": b"def f(): return 10**12\n"}
    verdict = run(lambda judge: judge.grade(files, hidden), wall_s=0.5)
    assert (verdict.verdict, verdict.repeatable, verdict.why) == ("fail", False, "the candidate is out of time")
    verdict = run(lambda judge: judge.grade({"m.py": b"def f(): return 4\n"}, hidden), wall_s=5.0)
    assert verdict.verdict == "pass"
    verdict = run(lambda judge: judge.grade(files, alone), wall_s=0.5)
    assert verdict.verdict == "error"  # nothing had been asked of the candidate


@pytest.mark.parametrize("path", [".agentrl", ".agentrl/agent.py", ".agentrl/agent.pyc/x.py"])
def test_a_file_where_ours_lie_is_left_out(path):
    verdict = run(lambda judge: judge.grade({**RIGHT, path: b"raise SystemExit"}, ADDING))
    assert verdict.verdict == "pass"


def test_what_hears_no_alarm_is_ended():
    code = "from agentrl.rewards.judge import server; server.end_for_good_after(0.5); sum(range(10**12))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("what", ["a child of the judge", "the judge"])
def test_a_judge_that_is_killed_is_an_error_and_the_next_grading_works(what):
    hang = {"m.py": b"import time\ndef add(a, b): time.sleep(9)\n"}

    async def work(judge):
        await judge.grade(RIGHT, ADDING)
        while forked(judge):  # the child of that grading
            await asyncio.sleep(0.01)
        pid = judge._process._process.pid
        grading = asyncio.ensure_future(judge.grade(hang, ADDING))
        while not forked(judge):
            await asyncio.sleep(0.01)
        os.kill(pid if what == "the judge" else int(forked(judge)[0]), signal.SIGKILL)
        return await grading, await judge.grade(RIGHT, ADDING)

    lost, after = run(work, wall_s=3.0)
    assert (lost.verdict, lost.reward) == ("error", None) or what == "the judge"
    assert after.verdict == "pass"


def test_a_grading_that_is_given_up_leaves_no_child_of_the_judge():
    hang = {"m.py": b"import time\ndef add(a, b): time.sleep(99)\n"}

    async def work(judge):
        grading = asyncio.ensure_future(judge.grade(hang, ADDING))
        while judge._process._process is None or not forked(judge):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading
        for _ in range(6000):
            if not forked(judge):
                return True
            await asyncio.sleep(0.01)
        return False

    assert run(work, wall_s=60.0)  # so that no clock ends it


def forked(judge):
    pid = judge._process._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


BROKEN = {
    "a suite whose import fails by itself": HiddenSuite(
        files={"test_x.py": "import nothing_of_that_name\ndef test_x(): pass\n"}, modules=("m",)
    ),
    "a test that fails before it asks": HiddenSuite(
        files={"test_x.py": "def test_x():\n    undefined\n    import m\n"}, modules=("m",)
    ),
    "a reference that cannot be run": HiddenReference(
        module="m", function="add", reference="1 / 0", inputs="def inputs(rng): return (1, 2)"
    ),
    "inputs that raise": HiddenReference(
        module="m", function="add", reference="def add(a, b): return a", inputs="def inputs(rng): return 1 / 0"
    ),
    "a check whose reference raises": HiddenCheck(module="m", entry="add", source="check(add)", reference="1 / 0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_hidden_test_that_is_broken_is_an_error(plainly, name):
    verdict = plainly({"m.py": "def add(a, b): return a + b"}, BROKEN[name])
    assert (verdict.verdict, verdict.reward) == ("error", None)


ESCAPES = {
    "constants that break the test": ("CONFIG = {}", "from m import CONFIG\ndef test_x(): assert CONFIG['a'] == 1\n"),
    "no module": ("1 / 0", "import m\ndef test_x(): assert m.x\n"),
    "a module that is no Python": ("def (", "import m\ndef test_x(): assert m.x\n"),
    "NameError of its own": ("def f(): return undefined", "from m import f\ndef test_x(): assert f() == 1\n"),
    "an empty iterator": (
        "def f(): return iter(())",
        "from m import f\ndef test_x():\n    for x in f(): pass\n    assert x\n",
    ),
    "a value that kills the test": (
        "def f(): return range(10**12)",
        "from m import f\ndef test_x(): assert list(f()) == [1]\n",
    ),
    "a value that takes for ever": (
        "def f(): return 10**5000",
        "from m import f\ndef test_x():\n    for _ in range(f()): pass\n",
    ),
    "a hanging call": ("def f():\n    while True: pass", "from m import f\ndef test_x(): assert f() == 1\n"),
    "a dead candidate": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import m\ndef test_x(): assert m.f() == 1\n",
    ),
    "all memory": (
        "def f():\n    x = []\n    while True: x.append(bytearray(10**8))",
        "from m import f\ndef test_x(): assert f() == 1\n",
    ),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_a_candidate_cannot_escape_a_zero(grade, name):
    source, test = ESCAPES[name]
    verdict = grade.suite({"m.py": source}, test)
    assert (verdict.verdict, verdict.reward) == ("fail", 0.0), verdict.why


def test_nothing_is_left_behind():
    before = children(), len(os.listdir("/proc/self/fd"))

    async def work(judge):
        hang = {"m.py": b"import os\nif os.fork() == 0:\n    import time; time.sleep(99)\nos._exit(0)\n"}
        gradings = [judge.grade(RIGHT, ADDING) for _ in range(8)]
        assert [v.verdict for v in await asyncio.gather(*gradings)] == ["pass"] * 8
        assert (await judge.grade({"m.py": b"1 / 0"}, ADDING)).verdict == "fail"
        del hang

    run(work)
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


def test_a_workspace_that_is_too_large_is_a_zero_and_no_way_out_of_one(grade):
    large = {"m.py": "def add(a, b): return a + b\n", **{f"data{i}.txt": "x" * (4 << 20) for i in range(5)}}
    verdict = grade(large, ADDING)
    assert (verdict.verdict, verdict.reward) == ("fail", 0.0)
    assert grade({"m.py": "def add(a, b): return a + b\n"}, ADDING).verdict == "pass"  # the box was not lost
