"""An evaluation makes exactly the attempts that are missing, whatever interrupted it, and keeps to one policy."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedSession
from agentrl.errors import SamplerError, StoreError
from agentrl.evals.folder import EvaluationFolder, Spec
from agentrl.evals.result import summarize, table_of
from agentrl.evals.running import cluster_of, waves
from agentrl.types import Completion, Stop
from tests.evals.world import SPEC, Coin, Lines, evaluator, go_on


def run(path, tasks=6, attempts=2, *, watch=go_on, spec=SPEC, **world):
    """Evaluate; the ids of the attempts that were played, and the rewards of all."""
    task_set = Lines(tasks, **world)
    coin = Coin(task_set)
    parts, listed = evaluator(path, task_set, coin, spec=spec)
    asyncio.run(parts.run(listed, attempts, watch))
    return coin.opened, rewards(parts.folder)


def rewards(folder):
    return {(trace.task_id, trace.attempt): trace.reward for trace in folder.traces()}


def test_all_attempts_are_made_and_labelled(tmp_path):
    opened, found = run(tmp_path / "e")
    assert len(opened) == len(set(opened)) == 12
    assert set(found) == {(f"lines/{n}", k) for n in range(6) for k in range(2)}
    assert set(found.values()) == {0.0, 1.0}
    traces = EvaluationFolder.open(tmp_path / "e").traces()
    assert len({trace.id for trace in traces}) == 12
    clusters = {trace.task_id: trace.metadata["cluster"] for trace in traces}
    assert clusters["lines/0"] == clusters["lines/1"] != clusters["lines/2"]
    assert {trace.metadata["family"] for trace in traces} == {"even", "odd"}


def test_the_same_again_plays_nothing(tmp_path):
    _, first = run(tmp_path / "e")
    opened, second = run(tmp_path / "e")
    assert (opened, second) == ([], first)


def test_more_attempts_or_tasks_add_only_the_new_ones(tmp_path):  # case E14
    _, three = run(tmp_path / "e", attempts=3)
    opened, five = run(tmp_path / "e", attempts=5)
    assert len(opened) == 6 * 2
    assert {key: five[key] for key in three} == three
    assert len({seed for _, seed in opened}) == 12  # each has draws of its own
    opened, _ = run(tmp_path / "e", attempts=4)
    assert opened == []
    opened, _ = run(tmp_path / "e", tasks=8, attempts=4)
    assert {task for task, _ in opened} == {"lines/6", "lines/7"}
    _, fresh = run(tmp_path / "fresh", tasks=8, attempts=5)
    assert {key: fresh[key] for key in five} == five  # as if all had been asked for at once


@settings(max_examples=12, deadline=None)
@given(cut=st.floats(0.0, 1.0))
def test_after_a_kill_at_any_byte_the_rest_is_made_and_nothing_twice(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("e")  # case E11
    _, whole = run(path / "e")
    journal = path / "e" / "journal.jsonl"
    data = journal.read_bytes()
    kept = data[: int(cut * len(data))]
    journal.write_bytes(kept)
    opened, again = run(path / "e")
    assert len(opened) == 12 - kept.count(b"\n")
    assert again == whole
    assert len(journal.read_bytes().splitlines()) == 12


def test_a_kill_while_the_journal_is_moved_loses_and_doubles_nothing(tmp_path):
    _, before = run(tmp_path / "e")
    folder = EvaluationFolder.open(tmp_path / "e")
    journal = (tmp_path / "e" / "journal.jsonl").read_bytes()
    folder.finish({})
    assert rewards(folder) == before
    (tmp_path / "e" / "journal.jsonl").write_bytes(journal)  # the trace file is there, the journal not yet gone
    assert run(tmp_path / "e") == ([], before)


def test_a_damaged_line_in_the_middle_is_refused(tmp_path):
    run(tmp_path / "e")
    journal = tmp_path / "e" / "journal.jsonl"
    journal.write_bytes(b'{"id": 1}\n' + journal.read_bytes())
    with pytest.raises(StoreError, match=r"journal\.jsonl: line 1 is damaged"):
        EvaluationFolder.open(tmp_path / "e").traces()


def test_what_could_not_be_scored_is_made_again(tmp_path):
    opened, found = run(tmp_path / "e", broken_judge=(1,))
    assert len(opened) == 12
    assert [found[f"lines/{n}", 1] for n in range(6)] == [None] * 6
    traces = EvaluationFolder.open(tmp_path / "e").traces()
    summary = summarize(table_of("coin", traces), traces)
    assert (summary["counts"]["unscored"], summary["faults"], summary["stops"]["error"]) == (6, {"scorer": 6}, 6)
    assert summary["bounds"]["high"] - summary["bounds"]["low"] == pytest.approx(0.5)
    opened, mended = run(tmp_path / "e")
    assert len(opened) == 6
    assert None not in mended.values()


def test_another_evaluation_is_refused_with_what_differs(tmp_path):  # case E08
    run(tmp_path / "e")
    for change, message in (
        ({"weights": "other"}, "weights: 'coin' there, 'other' here"),
        ({"temperature": 0.7}, "temperature: None there, 0.7 here"),
        ({"seed": 1}, "seed: 0 there, 1 here"),
    ):
        with pytest.raises(StoreError) as refused:
            run(tmp_path / "e", spec=Spec(**{**vars(SPEC), **change}))
        assert message in str(refused.value)
        assert "choose another folder with --out" in str(refused.value)
    assert run(tmp_path / "e", spec=Spec(**{**vars(SPEC), "policy": "another name of the same"}))[0] == []


def test_a_task_that_was_changed_is_refused_with_both_digests(tmp_path):  # case R15
    run(tmp_path / "e")
    task_set = Lines(6)
    task_set[3].files["a.txt"] += "x"
    with pytest.raises(StoreError, match=r"task lines/3 was changed since \(digest \w{16} there, \w{16} here\)"):
        evaluator(tmp_path / "e", task_set, Coin(task_set))


def test_folders_of_a_newer_schema_or_of_something_else_are_refused(tmp_path):
    run(tmp_path / "e")
    mark = tmp_path / "e" / "evaluation.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "schema": 2}))
    with pytest.raises(StoreError, match="schema 2 is newer than 1"):
        EvaluationFolder.open(tmp_path / "e")
    mark.write_text("{}")
    with pytest.raises(StoreError, match="damaged"):
        EvaluationFolder.open(tmp_path / "e")
    with pytest.raises(StoreError, match="holds something else than an evaluation"):
        evaluator(tmp_path, Lines(2), Coin(Lines(2)))


def test_tasks_are_played_in_a_drawn_order_with_clusters_together(tmp_path):
    parts, tasks = evaluator(tmp_path / "e", Lines(24), Coin(Lines(24)))
    order = [place.task.id for place in parts.design(tasks)]
    assert order != [task.id for task in tasks]
    assert sorted(order) == sorted(task.id for task in tasks)
    clusters = [place.cluster for place in parts.design(tasks)]
    assert all(a == b for a, b in zip(clusters[::2], clusters[1::2], strict=True))
    fewer = [place.task.id for place in parts.design(tasks[:20])]
    assert fewer == [task for task in order if task in fewer]  # more tasks leave the order of the others


def test_what_is_shown_is_whole_clusters_from_the_start_of_the_order(tmp_path):
    seen = []

    def watch(standing):
        seen.append((standing.done, list(standing.complete)))
        return standing.done >= 7

    task_set = Lines(10)
    parts, tasks = evaluator(tmp_path / "e", task_set, Coin(task_set), wave=7)
    asyncio.run(parts.run(tasks, 2, watch))
    order = [place.task.id for place in parts.design(tasks)]
    # 7 attempts: three tasks whole and half of the fourth; the third one's cluster is not whole
    assert seen == [(0, []), (7, order[:2])]


class Stale(ScriptedSession):
    """A conversation that goes on with a newer version of the policy."""

    async def sample(self, context_ids, **limits):
        found = await super().sample(context_ids, **limits)
        versions = (1,) * len(found.token_ids)
        return Completion(
            token_ids=found.token_ids, logprobs=found.logprobs, versions=versions, finish_reason=found.finish_reason
        )


def test_another_version_of_the_policy_is_refused(tmp_path):
    task_set = Lines(2)
    coin = Coin(task_set)

    def stale(task, seed):
        session = coin(task, seed)
        return Stale(session.script, session.write, session.read)

    parts, tasks = evaluator(tmp_path / "e", task_set, stale)
    with pytest.raises(SamplerError, match="from version 1 of the policy and the evaluation is of version 0"):
        asyncio.run(parts.run(tasks, 1, go_on))


def test_a_cluster_is_a_tag_or_a_common_solution():
    task_set = Lines(4)
    assert cluster_of(task_set, task_set[0]) == cluster_of(task_set, task_set[1])
    task_set[0].metadata["cluster"] = 5
    assert cluster_of(task_set, task_set[0]) == "5"


def test_waves_cover_everything_once():
    assert [list(wave) for wave in waves([1, 2, 3, 4, 5], 2)] == [[1, 2], [3, 4], [5]]


def test_attempts_end_as_the_loop_says(tmp_path):
    run(tmp_path / "e")
    assert {trace.stop for trace in EvaluationFolder.open(tmp_path / "e").traces()} == {Stop.DONE}
