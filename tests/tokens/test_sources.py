"""Files of conversations: what is read of them, with its place, and what is told of a damaged one."""

import gzip
import json

import pytest

from agentrl.errors import ConfigError
from agentrl.records import trace_to_json, write_traces
from agentrl.tokens.sources import read_entries
from agentrl.types import Message, Node, Score, Stop, Trace

ROWS = [{"messages": [{"role": "user", "content": "a"}]}, {"messages": [{"role": "user", "content": "ä – 你好"}]}]


def attempt(name="t", task="bugfix-v1/tiny/train/0", **fields):
    node = Node(parent=None, message=Message(role="assistant"), sampled_ids=(1,), logprobs=(-0.5,), versions=(0,))
    made = {"group_id": "g", "attempt": 0, "seed": 0, "stop": Stop.DONE, "scores": (Score(name="pass", value=1.0),)}
    return Trace(id=name, task_id=task, nodes=(node,), **(made | fields))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def lines(rows):
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def contents(path):
    return [entry.content for entry in read_entries(path)]


def test_json_lines_json_and_parquet_give_the_same_rows_with_their_places(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    files = [write(tmp_path / "a.jsonl", lines(ROWS)), write(tmp_path / "a.json", json.dumps(ROWS))]
    write(tmp_path / "b.jsonl", "\ufeff" + lines(ROWS))  # as editors on Windows begin a file
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines(ROWS).encode()))
    parquet.write_table(arrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for file in (*files, tmp_path / "b.jsonl", tmp_path / "c.jsonl.gz", tmp_path / "a.parquet"):
        assert contents(file) == ROWS
    assert [entry.name for entry in read_entries(files[0])] == [f"{files[0]}, line 1", f"{files[0]}, line 2"]
    assert [entry.name for entry in read_entries(files[1])][1] == f"{files[1]}, item 2"
    assert [entry.name for entry in read_entries(tmp_path / "a.parquet")][1].endswith("a.parquet, row 2")


def test_an_object_in_parquet_has_only_the_fields_that_were_written(tmp_path):
    # a column of objects has the fields of all of them, and gives them all back, null where one had none
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = [{"calls": [{"name": "edit", "arguments": {"line": 3}}, {"name": "read", "arguments": {"path": "a.py"}}]}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() != rows
    assert contents(tmp_path / "a.parquet") == rows


def test_a_folder_is_its_files_by_name(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        write(tmp_path / name, lines([{"file": name}]))
    assert contents(tmp_path) == [{"file": "a.jsonl"}, {"file": "b.jsonl"}]


@pytest.mark.parametrize("name", ["rl-000001.jsonl.gz", "attempts.jsonl"])
def test_attempts_are_read_whole(tmp_path, name):
    traces = [attempt("t1"), attempt("t2")]
    write_traces(tmp_path / "x.jsonl.gz", traces, phase="rl", step=1)
    data = (tmp_path / "x.jsonl.gz").read_bytes()
    (tmp_path / name).write_bytes(data if name.endswith(".gz") else gzip.decompress(data))
    assert contents(tmp_path / name) == traces


def test_of_a_run_the_attempts_of_training_are_read(tmp_path):
    (tmp_path / "traces").mkdir()
    for phase in ("rl", "rejection", "warm_start", "eval", "eval_before"):
        traces = [attempt(phase, task=f"b/{'test' if 'eval' in phase else 'train'}/0")]
        write_traces(tmp_path / "traces" / f"{phase}-000001.jsonl.gz", traces, phase=phase, step=1)
    assert [trace.id for trace in contents(tmp_path)] == ["rejection", "rl", "warm_start"]
    with pytest.raises(
        ConfigError, match=r"eval-000001.jsonl.gz, line 2: the attempt is at b/test/0, a task of the sp"
    ):
        contents(tmp_path / "traces" / "eval-000001.jsonl.gz")
    assert contents(tmp_path / "traces" / "rl-000001.jsonl.gz")  # a file of its own is read like another


def test_of_an_evaluation_at_training_tasks_all_attempts_are_read(tmp_path):
    # the folder that `agentrl eval --split train` makes, where another model's demonstrations are collected
    (tmp_path / "traces").mkdir()
    write(tmp_path / "evaluation.json", "{}")
    write_traces(tmp_path / "traces" / "eval-000000.jsonl.gz", [attempt("t1", task="b/train/0")], phase="eval", step=0)
    assert [trace.id for trace in contents(tmp_path)] == ["t1"]
    write_traces(tmp_path / "traces" / "eval-000001.jsonl.gz", [attempt("t2", task="b/test/0")], phase="eval", step=1)
    with pytest.raises(ConfigError, match=r"eval-000001.jsonl.gz, line 2: the attempt is at b/test/0"):
        contents(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1}\nhello\n', "line 2: not JSON .*: 'hello'; write one object, or remove the line"),
        ('{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ('{"a": NaN}\n', "line 1: not JSON .NaN is no JSON number"),
        ('{"a": 1}\n\n{"a": 1}\n', "line 2: the line is empty; remove it"),
        ("{'a': 1}\n", "line 1: not JSON .Expecting property name enclosed in double quotes at column 2"),
        ('{"schema": 99, "phase": "rl"}\n', "line 1: schema 99 is newer than"),
        ('{"schema": 1, "phase": "rl", "traces": 1}\n{"id": "x"}\n', "line 2: no attempt .*'x' cannot be read"),
        ('{"schema": 1, "phase": "rl", "traces": 2}\n' + json.dumps(trace_to_json(attempt())) + "\n", "it was cut"),
    ],
)
def test_a_damaged_line_is_told_by_its_number(tmp_path, text, told):
    with pytest.raises(ConfigError, match=told):
        contents(write(tmp_path / "a.jsonl", text))


def test_empty_lines_at_the_end_are_none(tmp_path):
    assert contents(write(tmp_path / "a.jsonl", '{"a": 1}\n\n \n')) == [{"a": 1}]


def test_what_cannot_be_read_is_told_with_what_can(tmp_path):
    for path, told in [
        (tmp_path / "none.jsonl", "does not exist; give a file of .jsonl"),
        (write(tmp_path / "a.csv", "x"), "ends in .csv; files of .jsonl"),
        (write(tmp_path / "a.json", "{}"), "a .json file holds a list of conversations; name it .jsonl"),
        (write(tmp_path / "a.parquet", "x"), "is no Parquet file"),
    ]:
        with pytest.raises(ConfigError, match=told):
            contents(path)
    (tmp_path / "latin.jsonl").write_bytes('{"a": "ä"}'.encode("latin-1"))
    (tmp_path / "half.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 99)[:20])
    for name in ("latin.jsonl", "half.jsonl.gz"):
        with pytest.raises(ConfigError, match=f"{name} cannot be read .*; copy it again"):
            contents(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty has no files of .jsonl"):
        contents(tmp_path / "empty")
