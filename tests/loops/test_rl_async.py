"""Runs whose attempts are played ahead: a bound of zero is the synchronous run, a larger one is kept, and a run that
stops goes on without losing an attempt."""

import asyncio
from collections import Counter

import pytest
import torch

from agentrl.config import TrainConfig
from agentrl.engine.local import LocalEngine
from agentrl.loops.context import RunContext
from agentrl.loops.rl_async import LEGEND, reinforce_async
from agentrl.loops.run import train
from agentrl.metrics import METRICS
from agentrl.records import trace_to_json
from agentrl.store import RunFolder
from agentrl.train.checkpoint import latest_checkpoint, read_checkpoint
from tests.loops.test_run import SMALL, Reporter, measured, run, same, weights


def small(**rl):
    """A run that begins with a random model, which learns from drawn rewards."""
    data = SMALL.model_dump()
    data["tasks"] |= {"reward": "random", "max_reply": 8}
    data["warm_start"] |= {"steps": 0}
    data["eval"] |= {"tasks": 0}
    data["rl"] |= {"groups_per_step": 3, "group_size": 2, "steps": 3, "traces_every": 1} | rl
    return TrainConfig.model_validate(data)


AHEAD = small(mode="async", max_staleness=2, steps=5, checkpoint_every=2)


def stored(folder):
    """All attempts, without the time that they took."""
    return [
        (phase, step, trace_to_json(trace) | {"seconds": None})
        for phase, step, _ in folder.trace_files()
        for trace in folder.iter_traces(phase, step)
    ]


def trained(folder):
    """Which attempts each step took, and at which tasks."""
    return [
        (step, sorted((trace.id, trace.task_id, trace.seed) for trace in folder.iter_traces(phase, step)))
        for phase, step, _ in folder.trace_files()
        if phase == "rl"
    ]


@pytest.mark.parametrize(
    "rl",
    [
        {"minibatches": 2, "correction": "token_tis"},
        {"algorithm": "dapo"},  # refills: groups for a step alone
        {"algorithm": "remax", "at_publication": "wait", "order": "first_come"},  # greedy attempts
    ],
)
def test_with_a_bound_of_zero_the_run_is_the_synchronous_one(tmp_path, rl):
    synchronous = {name: value for name, value in rl.items() if name not in ("at_publication", "order")}
    expected, _ = run(tmp_path / "sync", small(**synchronous))
    found, _ = run(tmp_path / "async", small(mode="async", max_staleness=0, **rl))
    assert same(weights(expected), weights(found))
    assert stored(expected) == stored(found)
    for wanted, row in zip(measured(expected), measured(found), strict=True):
        assert wanted == {name: row[name] for name in wanted}
    rows = found.metrics("rl")
    assert [(row["age_max"], row["overlap"]) for row in rows] == [(0, 0.0)] * 3
    assert sum(row["tokens_trained"] for row in rows) > 0
    if rl.get("algorithm") == "dapo":
        assert sum(row["refills"] for row in rows) > 0


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ahead"), AHEAD)[0]


def test_attempts_are_played_ahead_within_the_bound(ahead):
    rows = ahead.metrics("rl")
    assert rows[0]["age_max"] == 0
    assert all(trace.error is None for trace in ahead.iter_traces("rl"))
    assert 0 < max(row["age_max"] for row in rows) <= 2
    for row, (step, _) in zip(rows, trained(ahead), strict=True):
        found = [v for trace in ahead.iter_traces("rl", step) for node in trace.nodes for v in node.versions]
        ages = Counter(step - 1 - version for version in found)
        assert row["tokens_taken"] == ages.total()
        assert row["age_max"] == max(ages) <= 2
        assert row["age_mean"] == pytest.approx(sum(age * count for age, count in ages.items()) / ages.total())
        assert row["groups_stale"] == row["episodes_stale"] == row["episodes_cancelled"] == 0
        assert row["episodes_consumed"] == row["episodes"] == 6
        assert 0.0 <= row["overlap"] <= 1.0
        assert row.keys() - {"phase", "step"} <= METRICS.keys()


def test_each_step_takes_the_groups_that_a_synchronous_one_would(ahead, tmp_path):
    expected, _ = run(tmp_path, small(steps=5))
    assert trained(ahead) == trained(expected)
    assert not same(weights(ahead), weights(expected))


@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_that_was_stopped_goes_on_with_what_was_in_flight(ahead, tmp_path, stop):
    stopped, _ = run(tmp_path, AHEAD, stop=("rl", stop))
    checkpoint = read_checkpoint(latest_checkpoint(stopped.checkpoints))
    buffer = checkpoint.state["buffer"]
    # groups of the stream: those of three steps are dispatched by the first, then three with each publication
    out = {group["plan"]["id"] for group in buffer["groups"]}
    assert buffer["next_number"] == 3 * (stop + 2)
    assert out == {f"rl-{step}-{place}" for step in (stop + 1, stop + 2) for place in range(3)}
    assert {f"sampler:{name}" for name in checkpoint.weights if ":" not in name} <= checkpoint.weights.keys()
    train(AHEAD, stopped, Reporter(), resume=True)
    assert trained(stopped) == trained(ahead)
    assert [row["step"] for row in stopped.metrics("rl")] == [1, 2, 3, 4, 5]
    assert max(row["age_max"] for row in stopped.metrics("rl")) <= 2


def test_extra_attempts_are_given_up_once_a_group_is_made(tmp_path):
    folder, _ = run(tmp_path, small(mode="async", max_staleness=1, extra_attempts=2))
    rows = folder.metrics("rl")
    assert [row["episodes"] for row in rows] == [6, 6, 6]
    assert sum(row["episodes_consumed"] for row in rows) == 18
    ended = sum(row["episodes_surplus"] + row["episodes_cancelled"] for row in rows)
    assert ended == 9 * 2  # of each of nine groups two
    for step in (1, 2, 3):
        assert all(trace.attempt < 4 for trace in folder.iter_traces("rl", step))


def test_a_sampler_that_lags_keeps_the_bound(tmp_path):
    folder, _ = run(tmp_path, small(mode="async", max_staleness=2, publish_every=2, steps=5))
    rows = folder.metrics("rl")
    assert max(row["age_max"] for row in rows) <= 2
    versions = {v for trace in folder.iter_traces("rl") for node in trace.nodes for v in node.versions}
    assert versions <= {0, 2, 4}


def test_trainer_and_sampler_compute_with_as_many_threads_each(tmp_path):
    """Two numbers would become one at random, since a library underneath has one for the whole process."""
    config, seen = small(mode="async", max_staleness=1), []

    class Watched(LocalEngine):
        def publish(self, version):
            seen.append(("loop", torch.get_num_threads()))
            super().publish(version)

    class Noted(RunContext):
        def start_phase(self, phase, settings):
            trainer = super().start_phase(phase, settings)
            step = trainer.step

            def noted(*values, **named):
                seen.append(("trainer", torch.get_num_threads()))
                return step(*values, **named)

            trainer.step = noted
            return trainer

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    context = Noted(config, RunFolder.create(tmp_path, config), Reporter())
    context.engine = Watched(context.engine.model, sampling=config.rl.sampling, schedule="continuous")
    try:
        reinforce_async(context)
        assert torch.get_num_threads() == 2
    finally:
        context.close()
        torch.set_num_threads(before)
    assert {number for _, number in seen} == {1}
    assert {where for where, _ in seen} == {"loop", "trainer"}


def test_an_attempt_that_hangs_is_given_up_and_named_and_the_others_are_trained(tmp_path):
    """Its scorer never answers, and nothing else would end it."""
    config = small(mode="async", max_staleness=1, attempt_s=6.0, eval_every=0)
    context, notes = RunContext(config, RunFolder.create(tmp_path, config), Reporter()), []
    context.reporter.note = notes.append
    tasks = context.train_tasks()
    environment, made = tasks.environment, []

    def first_hangs(task):
        made.append(environment(task))
        if len(made) == 1:
            made[0].score = lambda trace: asyncio.sleep(3600)
        return made[-1]

    tasks.environment = first_hangs
    try:
        reinforce_async(context)
    finally:
        context.close()
    rows = context.folder.metrics("rl")
    assert [row["episodes_unscored"] for row in rows] == [1, 0, 0]
    [lost] = [trace for trace in context.folder.iter_traces("rl", 1) if trace.error is not None]
    assert f"attempt {lost.id} at task" in lost.error.message
    assert "gave no answer within 6 s; it waits in attempt > _score" in lost.error.message
    assert lost.error.message in notes
    assert notes.count(LEGEND.format(1)) == 1
