"""Whatever a tiny program is made into, its short report is in TinyAgent's language."""

from __future__ import annotations

import random

import pytest

from agentrl.errors import RendererError
from agentrl.sandbox import CaseOutcome, Job, JobResult, Limits, Suite
from agentrl.tasks.bugfix.environment import is_test_path
from agentrl.tasks.bugfix.report import short_report
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tasks.bugfix.tiny import COMMENT
from agentrl.tokens.tiny import IDS, NAMES, NUMBERS, PYTHON, decode, encode
from agentrl.types import Task
from tests.pools import open_pool

NUM_CASES = 400
WORDS = (*PYTHON, *NAMES, *NUMBERS[:10], *NUMBERS[-2:])


def random_edit(rng: random.Random, line: str) -> str:
    """Mostly the line with a few words changed, sometimes words at random."""
    ids = list(encode(line.strip()))
    if rng.random() < 0.2:
        return decode([IDS[rng.choice(WORDS)] for _ in range(rng.randint(1, 8))])
    for _ in range(rng.randint(1, 3)):
        ids[rng.randrange(len(ids))] = IDS[rng.choice(WORDS)]
    return decode(ids)


def edited(rng: random.Random, task: Task) -> Job:
    files = dict(task.files)
    lines = files["prog.py"].split("\n")
    number = rng.randrange(1, len(lines) - 1)
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = indent + random_edit(rng, lines[number].partition(COMMENT)[0])
    tests = tuple(path for path in files if is_test_path(path))
    return Job(files=files | {"prog.py": "\n".join(lines)}, run=Suite(paths=tests))


@pytest.fixture(scope="module")
def results() -> list[JobResult]:
    rng = random.Random(0)
    tasks = BugFix("tiny", "train", 40)
    with open_pool(limits=Limits(wall_s=5.0, cpu_s=0.05)) as pool:
        return pool.run_sync([edited(rng, tasks[case % len(tasks)]) for case in range(NUM_CASES)])


def test_reports_on_random_edits_are_in_the_vocabulary(results: list[JobResult]) -> None:
    reports = [short_report(result.tests) for result in results]
    for report in reports:
        assert decode(encode(report)) == report
    # the edits reach every form of a report
    for form in ("== ", "raised SyntaxError", "raised NameError", "raised TypeError", "expected ["):
        assert any(form in report for report in reports), form
    assert any("expected" in report and "==" not in report for report in reports)


@pytest.mark.parametrize("exception", ["ProcessDied", "SystemExit", "LookupError", "raised f"])
def test_an_exception_outside_of_the_vocabulary_is_a_runtime_error(exception: str) -> None:
    report = short_report([CaseOutcome(name="t", status="raised", call="f(1)", exception=exception)])
    assert report == "failed f(1) raised RuntimeError"
    with pytest.raises(RendererError):
        encode(f"failed f(1) raised {exception}!")


def test_a_large_number_is_spelt_and_a_larger_one_left_out() -> None:
    def report(got: int) -> str:
        return short_report([CaseOutcome(name="t", status="failed", call="f(1)", got=str(got), expected="-3")])

    assert report(-(10**20)) == "failed f(1) == -100000000000000000000 expected -3"
    assert decode(encode(report(-(10**20)))) == report(-(10**20))
    assert report(10**30) == "failed f(1) expected -3"
