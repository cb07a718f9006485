"""Through the judge, every right solution of HumanEvalFix passes and every buggy one fails."""

from pathlib import Path

import pytest

from agentrl.tasks.humanevalfix import HumanEvalFix

DATA = Path(__file__).parents[4] / "shared" / "data" / "humanevalfix" / "humanevalpack-python.jsonl"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the data set is not on this machine")


def checks():
    tasks = HumanEvalFix(DATA)
    for index in range(len(tasks)):
        task = tasks[index]
        right = tasks.solution(task.id)["program.py"]
        yield task, right, tasks.hidden(task.id)


@needs_data
@pytest.mark.long
def test_right_solutions_pass_and_buggy_ones_fail(grade):
    wanted, jobs = [], []
    for task, right, hidden in checks():
        jobs += [({"program.py": right}, hidden), ({"program.py": task.files["program.py"]}, hidden)]
        wanted += [(task.id, "pass"), (task.id, "fail")]
    verdicts = grade.all(jobs, at_once=4)
    wrong = [(w, v.why) for w, v in zip(wanted, verdicts, strict=True) if v.verdict != w[1]]
    assert len(verdicts) == 328
    assert wrong == []


@needs_data
def test_a_helper_that_the_check_uses_is_the_references(grade):
    # the check of this task encodes with the program's own encode_shift and wants the text back
    _, _, hidden = next(found for found in checks() if found[0].id.endswith("/50"))
    identity = "def encode_shift(s):\n    return s\ndef decode_shift(s):\n    return s\n"
    assert grade({"program.py": identity}, hidden).verdict == "fail"
