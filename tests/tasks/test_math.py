"""Questions in mathematics from a file."""

import asyncio
import json

import pytest

from agentrl.errors import ScorerError, TaskError
from agentrl.rewards.verifier import Verifier
from agentrl.tasks.math import MathTasks
from agentrl.types import Message, Node, Stop, Trace

pytest.importorskip("math_verify")
ROWS = [
    {"question": "2+40?", "answer": "2+40=42\n#### 42"},  # as GSM8K
    {"problem": "half?", "solution": r"It is $\boxed{\frac{1}{2}}$."},  # as MATH
    {"question": "how many?", "answer": 7},
]


@pytest.fixture(scope="module")
def verifier():
    """Shared by the tests."""
    verifier = Verifier(workers=1)
    yield verifier
    verifier.close()


def write(path, rows):
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def score(task_set, index, reply):
    """What a reply to a task scores."""
    nodes = (Node(parent=None, message=Message(role="assistant", content=reply, reasoning=r"\boxed{99}")),)
    task = task_set[index]
    trace = Trace(id="t", task_id=task.id, group_id="g", attempt=0, seed=0, nodes=nodes, stop=Stop.DONE)
    return asyncio.run(task_set.environment(task).score(trace))[0].value


def test_rows_of_both_kinds_are_graded(tmp_path, verifier):
    task_set = MathTasks(write(tmp_path / "a.jsonl", ROWS), verifier=verifier)
    assert [score(task_set, n, task_set.right_reply(task_set[n].id)) for n in range(3)] == [1.0] * 3
    assert score(task_set, 1, r"\boxed{0.5}") == 1.0
    assert score(task_set, 0, "it is 42") == 0.0  # not marked
    assert score(task_set, 0, r"\boxed{43}") == 0.0
    assert score(task_set, 0, r"42 \boxed{2+40=42}") == 1.0
    # case W20
    assert score(task_set, 2, r"\boxed{7}, \boxed{8}") == 0.0


def test_one_rule_for_marking_may_be_asked_for(tmp_path, verifier):
    task_set = MathTasks(write(tmp_path / "a.jsonl", ROWS), 1, rule="hash", verifier=verifier)
    assert [score(task_set, 0, reply) for reply in ("#### 42", r"\boxed{42}")] == [1.0, 0.0]
    assert len(task_set) == 1


# case W04
def test_a_right_answer_that_is_no_mathematics_leaves_attempts_unscored(tmp_path, verifier):
    rows = [*ROWS, {"question": "?", "answer": r"$\operatorname{undefined}($"}]
    task_set = MathTasks(write(tmp_path / "a.jsonl", rows), verifier=verifier)
    assert task_set.unreadable() == [task_set[3].id]
    for reply in (r"\boxed{1}", r"\boxed{x}"):
        with pytest.raises(ScorerError, match="cannot be read"):
            score(task_set, 3, reply)


def test_an_answer_that_no_verifier_ends_on_is_wrong_and_no_way_out_of_the_count(tmp_path):
    """A policy could else answer so whenever it is not sure. Where the right answer fails too, the task is at fault."""
    poison = r"\boxed{9^{9^{9^{9}}} + x}"
    verifier = Verifier(workers=1, cpu_s=1.0)
    rows = [*ROWS, {"question": "?", "answer": r"$\operatorname{undefined}($"}]
    task_set = MathTasks(write(tmp_path / "a.jsonl", rows), verifier=verifier)
    try:
        assert score(task_set, 0, r"\boxed{42}") == 1.0
        with pytest.raises(ScorerError, match="1 s of processor time"):  # it is one that the verifier does not end on
            verifier.ask_now("math", {"gold": "42", "answer": "9^{9^{9^{9}}} + x"})
        assert score(task_set, 0, poison) == 0.0
        with pytest.raises(ScorerError):
            score(task_set, 3, poison)
    finally:
        verifier.close()


# case W19: ids that collide between sets
def test_rows_of_two_files_have_other_ids(tmp_path, verifier):
    (tmp_path / "b").mkdir()
    sets = [
        MathTasks(write(path, [{"question": "n?", "answer": gold}]), verifier=verifier)
        for path, gold in ((tmp_path / "a.jsonl", "4"), (tmp_path / "b" / "a.jsonl", "9"))
    ]
    assert sets[0][0].id != sets[1][0].id
    assert [score(one, 0, r"\boxed{4}") for one in sets] == [1.0, 0.0]
    with pytest.raises(TaskError, match="not of this set"):
        sets[0].environment(sets[1][0])


def test_parquet_is_read_too(tmp_path, verifier):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": ["2+40?"], "answer": ["#### 42"]}), path)
    assert score(MathTasks(path, verifier=verifier), 0, r"\boxed{42}") == 1.0
    path.write_bytes(b"PAR1")
    with pytest.raises(TaskError, match="no Parquet file"):
        MathTasks(path, verifier=verifier)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "a"}\n', "row 1 has no answer or solution"),
        ('{"question": "a", "answer": ["b"]}\n', "row 1 has no answer or solution"),
        ('{"answer": "a"}\n', "row 1 has no question or problem"),
        ("{\n", "not JSON"),
        ("3\n", "one JSON object a line"),
        ("", "one JSON object a line"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(TaskError, match=message):
        MathTasks(path)


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(TaskError, match="no file"):
        MathTasks(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="has 3 rows"):
        MathTasks(write(tmp_path / "a.jsonl", ROWS), 4)
    with pytest.raises(TaskError, match="unknown rule 'bx'"):
        MathTasks(tmp_path / "a.jsonl", rule="bx")
