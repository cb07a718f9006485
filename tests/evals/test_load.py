"""Attempts are read from tables and from the logs of other tools; what is wrong is named with its place."""

import json
import zipfile

import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.evals.attempts import Status
from agentrl.evals.load import load, load_table
from agentrl.evals.metric import parse_metric
from agentrl.evals.result import mean_interval

INSPECT = {
    "version": 2,
    "status": "success",
    "eval": {"task": "toy", "model": "some/model"},
    "samples": [
        {"id": 1, "epoch": 1, "scores": {"match": {"value": "C"}, "size": {"value": {"a": 0.25, "b": 1}}}},
        {"id": 1, "epoch": 2, "scores": {"match": {"value": "I"}, "size": {"value": {"a": 0.5, "b": 1}}}},
        {"id": "two", "epoch": 1, "scores": {}, "error": {"message": "boom"}, "working_time": 0.5},
        {"id": "two", "epoch": 2, "scores": {}, "limit": {"type": "time", "limit": 60}},
        {"id": "three", "epoch": 1, "scores": {"match": {"value": float("nan")}}},
        {"id": "three", "epoch": 2, "scores": None},
        {
            "id": "four",
            "epoch": 1,
            "scores": {"match": {"value": "P"}},
            "model_usage": {"some/model": {"input_tokens": 9, "output_tokens": 4}},
        },
    ],
}


def lm_eval_rows(metric="exact_match", filters=("strict",), values=(1.0, 0.0, 1.0)):
    return [
        {"doc_id": n, "doc": {}, "filter": name, "metrics": [metric], metric: value}
        for name in filters
        for n, value in enumerate(values)
    ]


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read(path, **options):
    return load(str(path), runs=path.parent, **options)


def test_a_csv_has_what_its_columns_say(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "task,attempt,score,checkpoint,cluster,family,status,tokens,seconds,score:proxy,trace,note\n"
        "x,0,1,base,p,f,,12,0.5,0.25,tr,any\n"
        "x,1,,base,p,f,errored,,,,,\n"
        "x,2,,base,p,f,,,,,,\n"
        "x,0,true,new,p,f,scored,,,,,\n",
        encoding="utf-8-sig",
    )
    first, second, third, fourth = read(path)
    assert (first.checkpoint, first.task, first.number, first.score) == ("base", "x", 0, 1.0)
    assert (first.cluster, first.family, first.tokens, first.seconds) == ("p", "f", 12.0, 0.5)
    assert (first.others, first.trace_id, first.origin) == ({"proxy": 0.25}, "tr", "a.csv line 2")
    assert (second.status, second.score, third.status) == (Status.ERRORED, None, Status.UNSCORED)
    assert (fourth.checkpoint, fourth.score) == ("new", 1.0)


def test_jsonl_says_the_same(tmp_path):
    rows = [{"task": 17, "attempt": 1, "score": 0.5, "status": "scored"}, {"task": "x", "score": None}]
    first, second = read(write(tmp_path / "a.jsonl", rows))
    assert (first.task, first.number, first.score, second.status) == ("17", 1, 0.5, Status.UNSCORED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task,attempt\nx,0\n", "no column 'score' among task, attempt"),
        ("task,scoer\nx,1\n", "no column 'score'"),
        ("task,score,cluter\nx,1,p\n", "column 'cluter' would not be read; did you mean 'cluster'?"),
        ("task,score\nx,1.0\ny,inf\n", "a.csv line 3: score 'inf' is not finite"),
        ("task,score\nx,good\n", "a.csv line 2: score 'good' is no number"),
        ("task,score\nx,1\nx,0\n", "task 'x' stands at a.csv line 2 too, and neither says which attempt it is"),
        ("task,score,attempt\nx,1,0.5\n", "attempt '0.5' is no whole number"),
        ("task,score,status\nx,,lost\n", "status 'lost' is unknown; write one of scored, errored, timed_out, unscored"),
        ("task,score\n,1\n", "a.csv line 2: no task"),
        ("task,score\nx,1,2\n", "as many values are needed as there are columns (2)"),
        ("task,score\nx\n", "as many values are needed as there are columns (2)"),
        ("task,score,status\nx,1,errored\n", "score 1.0 beside status errored"),
    ],
)
def test_a_wrong_csv_is_refused_by_its_line(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(StoreError) as refused:
        read(tmp_path / "a.csv")
    assert message in str(refused.value)


def test_wrong_jsonl_is_refused_by_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"task": "x", "score": 1}\n[1]\n')
    with pytest.raises(StoreError, match=r"a\.jsonl line 2: '\[1\]' is no JSON object"):
        read(tmp_path / "a.jsonl")


def test_twenty_rows_of_four_tasks_are_four_tasks(tmp_path):
    # case E13: passes 5, 0, 4, 1 of 5. Means 1, 0, 0.8, 0.2: mean 0.5, sd over tasks 0.476095, SE 0.238048
    rows = [
        {"task": f"t{n}", "attempt": k, "score": float(k < passes)}
        for n, passes in enumerate((5, 0, 4, 1))
        for k in range(5)
    ]
    table = load_table([str(write(tmp_path / "a.jsonl", rows))], runs=tmp_path)
    found = mean_interval(table)
    assert found.mean == pytest.approx(0.5)
    assert (found.num_tasks, found.num_attempts) == (4, 20)
    values = parse_metric("mean").values(table.scores)[:, 0]
    assert np.std(values, ddof=1) / 2 == pytest.approx(0.238048, abs=1e-6)
    with pytest.raises(StoreError, match="attempt 4 at task 't3' occurs twice"):
        load_table([str(write(tmp_path / "b.jsonl", [*rows, rows[-1]]))], runs=tmp_path)


def inspect_json(tmp_path, **changes):
    path = tmp_path / "log.json"
    path.write_text(json.dumps({**INSPECT, **changes}))
    return path


def inspect_zip(tmp_path, header="header.json"):
    path = tmp_path / "log.eval"
    samples = INSPECT["samples"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for n, sample in enumerate(samples):
            archive.writestr(f"samples/{n}.json", json.dumps(sample))
        archive.writestr(header, json.dumps({name: INSPECT[name] for name in ("version", "status", "eval")}))
        archive.writestr("summaries.json", "[]")
    return path


@pytest.mark.parametrize("make", [inspect_json, inspect_zip])
def test_an_inspect_log_is_read(tmp_path, make):
    found = {(one.task, one.number): one for one in read(make(tmp_path), score="match")}
    assert [found["1", n].score for n in (0, 1)] == [1.0, 0.0]
    assert (found["two", 0].status, found["two", 0].seconds) == (Status.ERRORED, 0.5)
    assert found["two", 1].status is Status.TIMED_OUT
    assert [found["three", n].status for n in (0, 1)] == [Status.UNSCORED] * 2
    assert (found["four", 0].score, found["four", 0].tokens) == (0.5, 4.0)


def test_a_log_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path):
    assert len(read(inspect_zip(tmp_path, "_journal/start.json"), score="match")) == 7


def test_one_of_several_scores_is_chosen(tmp_path):
    path = inspect_json(tmp_path, samples=INSPECT["samples"][:2])
    assert [one.score for one in read(path, score="size.a")] == [0.25, 0.5]
    for score, message in (
        (None, "several scores (match, size); choose one with --score NAME"),
        ("other", "no score 'other'; there are match, size"),
        ("size", "score 'size' has the values a, b; choose one with --score size.KEY"),
    ):
        with pytest.raises(StoreError) as refused:
            read(path, score=score)
        assert message in str(refused.value)


def test_other_versions_and_other_files_are_refused(tmp_path):
    for changes, message in (
        ({"version": 3}, "version 3 of the Inspect log is newer than 2"),
        ({"version": None}, "no Inspect log"),
        ({"samples": None}, "the log has no samples (status 'success')"),
        ({"samples": [{"id": 1, "scores": {"m": {"value": "yes"}}}]}, "score 'yes' is neither a number nor one of C,"),
        ({"samples": [{"id": 1, "scores": {"m": {"value": 1e999}}}]}, "score inf is not one finite number"),
    ):
        with pytest.raises(StoreError) as refused:
            read(inspect_json(tmp_path, **changes))
        assert message in str(refused.value)
    (tmp_path / "results_1.json").write_text(json.dumps({"results": {"gsm8k": {}}}))
    with pytest.raises(StoreError, match="run lm-eval with --log_samples"):
        read(tmp_path / "results_1.json")
    (tmp_path / "x.eval").write_text("no zip")
    with pytest.raises(StoreError, match=r"not a readable \.eval file"):
        read(tmp_path / "x.eval")
    (tmp_path / "x.parquet").write_text("")
    with pytest.raises(StoreError, match="attempts are read from a run"):
        read(tmp_path / "x.parquet")


def test_lm_eval_samples_are_read(tmp_path):
    folder = tmp_path / "out" / "some__model"
    folder.mkdir(parents=True)
    write(folder / "samples_gsm8k_2026-01-02T03-04-05.123456.jsonl", lm_eval_rows(filters=("strict", "flexible")))
    write(folder / "samples_arc_2026-01-02T03-04-05.123456.jsonl", lm_eval_rows("acc", ("none",)))
    found = read(folder / "samples_gsm8k_2026-01-02T03-04-05.123456.jsonl", score="exact_match,strict")
    assert [(one.task, one.family, one.number, one.score) for one in found] == [
        ("gsm8k/0", "gsm8k", 0, 1.0),
        ("gsm8k/1", "gsm8k", 0, 0.0),
        ("gsm8k/2", "gsm8k", 0, 1.0),
    ]
    with pytest.raises(StoreError, match=r"several metrics and filters \(exact_match,flexible; exact_match,strict\)"):
        read(folder / "samples_gsm8k_2026-01-02T03-04-05.123456.jsonl")
    write(folder / "samples_gsm8k_2026-01-03T03-04-05.123456.jsonl", lm_eval_rows())
    (folder / "samples_arc_2026-01-02T03-04-05.123456.jsonl").unlink()
    with pytest.raises(StoreError, match="are of the same task gsm8k; give one of the two files"):
        read(folder.parent, score="exact_match,strict")


def test_a_source_that_does_not_exist_is_named_with_what_there_can_be(tmp_path):
    with pytest.raises(StoreError, match=r"nothing does not exist; .*what can be compared is a run"):
        load("nothing", runs=tmp_path)
    with pytest.raises(StoreError, match="is given twice"):
        load_table(["a", "a"], runs=tmp_path)


def test_sources_with_the_same_checkpoints_are_told_apart(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("task,score,checkpoint\nx,1,base\n")
    words = [str(tmp_path / f"{name}.csv") for name in ("a", "b")]
    assert load_table(words, runs=tmp_path).checkpoints == (f"{words[0]}:base", f"{words[1]}:base")
    (tmp_path / "c.csv").write_text("task,score\nx,1\n")
    assert load_table([words[0], str(tmp_path / "c.csv")], runs=tmp_path).checkpoints == ("base", "c.csv")
