"""Public failures of training loops that play ahead, or that go on from a checkpoint, tried on ours."""

import os
import time

import pytest
import torch

from agentrl.config import TrainConfig
from agentrl.errors import ConfigError, TaskError
from agentrl.loops.context import RunContext
from agentrl.loops.rl import optimizer_settings, reinforce
from agentrl.loops.rl_async import reinforce_async
from agentrl.sandbox.walls import memory
from agentrl.store import RunFolder
from agentrl.train.checkpoint import latest_checkpoint, optimizer_tensors, read_checkpoint
from tests.loops.test_rl_async import small, trained
from tests.loops.test_run import Reporter, run, same

QUICK = {"eval_every": 0, "groups_per_step": 2}


def test_case_r10_and_a09_passes_over_a_batch_make_tokens_older_in_updates_and_draw_no_other_prompts(tmp_path):
    """Two passes of two mini-batches are 4 optimizer updates in a step, so a token 1 step old is 4 updates old."""
    updates = {"epochs": 2, "minibatches": 2, "correction": "token_tis"}
    folder, _ = run(tmp_path, small(mode="async", max_staleness=1, **updates, **QUICK))
    rows = folder.metrics("rl")
    assert [row["age_max"] for row in rows] == [0, 1, 1]
    assert [row["age_max_updates"] for row in rows] == [0, 4, 4]
    names = [[name for name, _, _ in attempts] for _, attempts in trained(folder)]
    assert names == [[f"rl-{step}-{place}-{n}" for place in (0, 1) for n in (0, 1)] for step in (1, 2, 3)]
    tasks = [{task for _, task, _ in attempts} for _, attempts in trained(folder)]
    assert len(set.union(*tasks)) == 6, "two fresh prompts in each step"


RESUMED = small(mode="async", max_staleness=1, steps=6, minibatches=2, **QUICK)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after three steps."""
    return run(tmp_path_factory.mktemp("stopped"), RESUMED, stop=("rl", 3))[0]


def test_the_optimizers_are_neither_lost_nor_reset_by_a_resume(stopped):
    found = read_checkpoint(latest_checkpoint(stopped.checkpoints))
    context = RunContext(RESUMED, stopped, Reporter())
    try:
        assert context.resume()
        trainer = context.start_phase("rl", optimizer_settings(RESUMED.rl))
        again = optimizer_tensors(trainer.optimizers)
    finally:
        context.close()
    assert trainer.steps == found.state["optimizer_steps"] > 0
    assert again.keys() == dict(found.optimizer).keys()
    assert all(torch.equal(again[name], found.optimizer[name]) for name in again)
    assert any(tensor.abs().sum() > 0 for name, tensor in again.items() if not name.endswith("step"))


def test_a_resumed_run_neither_counts_its_schedule_twice_nor_widens_its_bound(stopped):
    """R03: the rate of a resumed run was that of twice as many steps. And where ages counted from the version that was
    recovered, generation ran so many steps too far ahead."""
    seen = []

    class Counting(Reporter):
        def step(self, step, metrics):
            super().step(step, metrics)
            seen.append((context.buffer.next_number, context.buffer.num_out))

    context = RunContext(RESUMED, stopped, Counting())
    try:
        assert context.resume()
        reinforce_async(context)
    finally:
        context.close()
    # at the end of step t (from 1) the groups of step t + 1 are out, those of t + 2 follow with the publication
    assert seen == [(2 * min(step + 1, 6), 2 * min(1, 6 - step)) for step in (4, 5, 6)]
    rows, taken = stopped.metrics("rl"), 0
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert max(row["age_max"] for row in rows) <= 1
    schedule = optimizer_settings(RESUMED.rl)
    for row in rows:  # the rate that a row tells is that of its last update
        taken += row["optimizer_steps"]
        if row["optimizer_steps"]:
            assert row["learning_rate"] == pytest.approx(1e-3 * schedule.scale(taken - 1))
    assert taken > rows[2]["optimizer_steps"] + 3
    assert len(stopped.sandboxes()) == 1, "resumed with the same walls"


def broken(context, share):
    """Let the scorer fail for the first tasks of every step. Returns how often an environment was made."""
    tasks = context.train_tasks()
    environment, made = tasks.environment, []

    def breaks(task):
        made.append(environment(task))
        if len(made) % 10 < 10 * share:
            made[-1].score = undefined
        return made[-1]

    async def undefined(trace):
        return missing_import.score(trace)  # noqa: F821

    tasks.environment = breaks
    return made


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_case_w10_a_run_whose_attempts_all_break_stops_in_its_first_step_and_says_why(tmp_path, mode):
    config = small(**({"mode": mode, "max_staleness": 1} if mode == "async" else {}), **QUICK)
    others = children()  # of tests before this one, in the same process
    context = RunContext(config, RunFolder.create(tmp_path, config), Reporter())
    before = weights_of(context)
    broken(context, 1.0)
    try:
        with pytest.raises(TaskError) as caught:
            (reinforce_async if mode == "async" else reinforce)(context)
    finally:
        context.close()
    assert "none of the 4 attempts of step 1 could be scored (4 scorer)" in str(caught.value)
    assert "NameError: name 'missing_import' is not defined" in str(caught.value)
    assert context.folder.metrics("rl") == []
    assert same(before, weights_of(context)), "no step was taken"
    assert ended(others), "O05: nothing that the run started lives on"


def test_case_t12_attempts_that_break_are_counted_and_the_others_are_trained(tmp_path):
    config = small(mode="async", max_staleness=1, groups_per_step=5, eval_every=0)
    context = RunContext(config, RunFolder.create(tmp_path, config), Reporter())
    broken(context, 0.3)
    try:
        reinforce_async(context)
    finally:
        context.close()
    rows = context.folder.metrics("rl")
    assert [(row["episodes"], row["episodes_unscored"], row["episodes_scored"]) for row in rows] == [(10, 3, 7)] * 3
    assert all(trace.reward is None for trace in context.folder.iter_traces("rl") if trace.error is not None)
    assert sum(row["tokens_trained"] for row in rows) > 0


def weights_of(context):
    return {name: tensor.clone() for name, tensor in context.model.tensors().items()}


def children():
    return set(memory.descendants(os.getpid())[1:])


def ended(others, seconds=30.0):
    deadline = time.monotonic() + seconds
    while children() - others and time.monotonic() < deadline:
        time.sleep(0.02)
    return children() <= others


def test_case_l15_a_temperature_of_zero_cannot_be_trained_with():
    with pytest.raises((ConfigError, ValueError), match="temperature"):
        TrainConfig.model_validate({**small().model_dump(), "rl": {**small().rl.model_dump(), "temperature": 0}})
