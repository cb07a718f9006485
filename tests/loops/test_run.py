"""Whole runs in small: they learn, they repeat themselves bit for bit, and an interruption changes nothing."""

import json

import pytest
import torch

from agentrl.config import EvalConfig, ModelConfig, RlConfig, SandboxConfig, TasksConfig, TrainConfig, WarmStartConfig
from agentrl.errors import TrainerError
from agentrl.loops.context import RunContext
from agentrl.loops.rl import reinforce
from agentrl.loops.run import train
from agentrl.policy import compiled
from agentrl.store import RunFolder
from agentrl.train.checkpoint import latest_checkpoint, read_checkpoint
from agentrl.types import Score

SMALL = TrainConfig(
    recipe="small-test",
    tasks=TasksConfig(train_tasks=24, max_turns=4),
    model=ModelConfig(layers=1, width=32, heads=2, mlp_width=64, context=320),
    warm_start=WarmStartConfig(steps=90, batch_size=6, demonstrations=1, learning_rate=1e-2),
    rl=RlConfig(
        steps=4, groups_per_step=4, group_size=4, learning_rate=1e-3, eval_every=2, checkpoint_every=2, traces_every=2
    ),
    eval=EvalConfig(tasks=4, attempts=1, during_tasks=3),
    sandbox=SandboxConfig(workers=1, cpu_s=0.1),
)


class Reporter:
    """Says nothing, and asks for a stop when a number of steps of a phase has been reported."""

    def __init__(self, stop=None):
        self.stop, self.name, self.stop_requested = stop, "", False

    def phase(self, name, total):
        self.name = name

    def step(self, step, metrics):
        self.stop_requested = self.stop_requested or (self.name, step) == self.stop

    def evaluation(self, name, step, mean, low, high):
        assert 0.0 <= low <= mean <= high <= 1.0

    def note(self, text):
        assert text


def run(root, config=SMALL, *, stop=None):
    folder = RunFolder.create(root, config)
    summary = train(config, folder, Reporter(stop), resume=False)
    return folder, summary


def weights(folder):
    return read_checkpoint(latest_checkpoint(folder.checkpoints)).weights


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def measured(folder):
    """The metrics that do not depend on the clock."""
    timed = ("seconds", "per_s", "resident")
    rows = folder.metrics()
    return [{key: value for key, value in row.items() if not any(word in key for word in timed)} for row in rows]


def spoken(folder, phase, step):
    return [(trace.id, [node.sampled_ids for node in trace.nodes]) for trace in folder.iter_traces(phase, step)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


def test_a_run_leaves_a_whole_folder(whole):
    folder, summary = whole
    assert summary == json.loads((folder.path / "summary.json").read_text())
    for key in ("recipe", "seed", "wall_s", "train_s", "episodes", "tokens_sampled"):
        assert key in summary
    assert summary["episodes"] == 4 * 4 * 4
    for name in ("before", "after", "difference"):
        assert set(summary["eval"][name]["pass@1"]) == {"mean", "low", "high"}
    assert summary["eval"]["before"]["tasks"] == 4
    assert {"sampling", "tools", "training", "evaluation"} <= summary["seconds"].keys()
    assert (folder.path / "curves.png").stat().st_size > 10_000
    assert RunFolder.open(folder.path).config == SMALL
    assert len(folder.metrics("warm_start")) == 90
    assert [row["step"] for row in folder.metrics("rl")] == [1, 2, 3, 4]
    assert [row["step"] for row in folder.metrics("eval")] == [0, 2, 4]
    # Reinforcement learning moved the weights, so that "the same weights" below says something about it.
    assert sum(row["tokens_trained"] > 0 for row in folder.metrics("rl")) >= 2


def test_a_stored_attempt_carries_its_credit_and_its_harness(whole):
    folder, _ = whole
    traces = list(folder.iter_traces("rl", 4))
    assert len(traces) == 4 * 4
    assert all("advantage" in trace.metadata and "tool-loop-v1" in trace.metadata["harness"] for trace in traces)
    assert all(trace.error is None for trace in traces)
    # groups of four that all failed or all passed are left out whole
    said = ["objective" in trace.metadata for trace in traces]
    rewards = [{trace.reward for trace in traces[start : start + 4]} for start in range(0, 16, 4)]
    assert said == [len(found) > 1 for found in rewards for _ in range(4)]
    demonstrations = list(folder.iter_traces("warm_start", 0))
    assert {trace.metadata["objective"] for trace in demonstrations} == {"ce"}
    assert all("objective" not in trace.metadata for trace in folder.iter_traces("eval"))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(whole, tmp_path):
    folder, _ = whole
    again, _ = run(tmp_path / "again")
    assert same(weights(folder), weights(again))
    assert measured(folder) == measured(again)
    assert spoken(folder, "rl", 4) == spoken(again, "rl", 4)
    other, _ = run(tmp_path / "other", SMALL.model_copy(update={"seed": 1}))
    assert not same(weights(folder), weights(other))


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "stop", [("warm start", 3), pytest.param(("rl", 1), marks=LONG), ("rl", 2), pytest.param(("rl", 3), marks=LONG)]
)
def test_a_run_that_was_stopped_goes_on_as_if_nothing_had_happened(whole, tmp_path, stop):
    folder, summary = whole
    stopped, early = run(tmp_path, stop=stop)
    assert "after" not in early["eval"]
    resumed = train(SMALL, stopped, Reporter(), resume=True)
    assert same(weights(folder), weights(stopped))
    assert measured(folder) == measured(stopped)
    assert spoken(folder, "rl", 4) == spoken(stopped, "rl", 4)
    for name in ("before", "after", "difference"):
        assert resumed["eval"][name] == summary["eval"][name]
    assert (resumed["episodes"], resumed["tokens_sampled"]) == (summary["episodes"], summary["tokens_sampled"])


def test_a_run_with_a_reference_goes_on_with_the_same_reference(tmp_path):
    pulled = SMALL.model_copy(update={"rl": SMALL.rl.model_copy(update={"kl_coef": 0.5})})
    whole, _ = run(tmp_path / "whole", pulled)
    stopped, _ = run(tmp_path / "stopped", pulled, stop=("rl", 3))
    train(pulled, stopped, Reporter(), resume=True)
    assert same(weights(whole), weights(stopped))
    assert measured(whole) == measured(stopped)
    assert any(row.get("kl_reference", 0.0) > 0 for row in whole.metrics("rl"))


def changed(**rl):
    return TrainConfig.model_validate({**SMALL.model_dump(), "rl": {**SMALL.rl.model_dump(), **rl}})


EVERYTHING = changed(
    algorithm="vapo",
    separate_critic=True,
    critic_warmup=1,
    entropy_target=9.0,
    publish_every=3,
    minibatches=2,
    correction="token_tis",
    mask_truncated=True,
)
"""All that has a state of its own at once: a second network and its optimizer, a coefficient, a sampler that lags."""


@pytest.mark.parametrize("stop", [("rl", 2), pytest.param(("rl", 3), marks=LONG)])
def test_a_run_with_all_kinds_of_state_goes_on_as_if_nothing_had_happened(tmp_path, stop):
    whole, _ = run(tmp_path / "whole", EVERYTHING)
    stopped, _ = run(tmp_path / "stopped", EVERYTHING, stop=stop)
    train(EVERYTHING, stopped, Reporter(), resume=True)
    assert same(weights(whole), weights(stopped))
    assert measured(whole) == measured(stopped)
    assert any(name.startswith("critic:") for name in weights(whole))
    rows = whole.metrics("rl")
    # the adaptive coefficient grows by 0.005 from step to step and begins with 0, when the critic has warmed up
    assert [row.get("entropy_coef", 0.0) for row in rows] == pytest.approx([0.0, 0.0, 0.005, 0.01])
    # the sampler had the weights of steps 0 to 2 in the first three steps, then those of step 3
    versions = {version for trace in whole.iter_traces("rl", 4) for node in trace.nodes for version in node.versions}
    assert versions == {3}
    assert [row["logprob_gap"] > 1e-3 for row in rows[1:]] == [False, True, False]  # step 1 taught the critic alone
    assert rows[2]["importance"] != 1.0
    # evaluation is of the policy as it is, and not of the sampler's older one
    for phase, step in (("eval_before", 0), ("eval", 4)):
        found = {v for trace in whole.iter_traces(phase, step) for node in trace.nodes for v in node.versions}
        assert found == {step}


def test_a_step_is_refilled_until_it_is_full_or_enough_was_tried(tmp_path):
    size = 3
    config = changed(algorithm="dapo", steps=3, groups_per_step=size, group_size=8, max_refills=3, traces_every=1)
    folder, summary = run(tmp_path, config)
    rows = folder.metrics("rl")
    for row in rows:
        assert size * row["refills"] < row["groups"] <= size * (1 + row["refills"])
        assert row["groups_trained"] == size
        assert row["groups"] == row["groups_trained"] + row["groups_no_signal"] + row["groups_surplus"]
    # measured: refills 2, 1, 1; surplus 2, 2, 0
    assert max(row["refills"] for row in rows) > 1
    assert sum(row["groups_surplus"] for row in rows) > 0
    assert summary["episodes"] == sum(row["episodes"] for row in rows) == sum(8 * row["groups"] for row in rows)
    # no task twice in a step, no name twice, and other tasks from step to step
    traces = [list(folder.iter_traces("rl", step)) for step in (1, 2, 3)]
    for row, found in zip(rows, traces, strict=True):
        assert len({trace.id for trace in found}) == len(found) == 8 * row["groups"]
        assert len({trace.task_id for trace in found}) == row["groups"]
        assert len({trace.seed for trace in found}) == len(found)
        assert len({trace.group_id for trace in found if "objective" in trace.metadata}) == size
    refilled = [{trace.task_id for trace in found if "refill" in trace.id} for found in traces]
    assert refilled[0] != refilled[1]


def test_without_refills_a_step_has_what_is_left(tmp_path):
    once, _ = run(tmp_path, changed(algorithm="dapo", steps=2, max_refills=0))
    assert [(row["refills"], row["groups"]) for row in once.metrics("rl")] == [(0, 4)] * 2


def test_greedy_attempts_are_a_baseline_and_are_counted_apart(tmp_path):
    folder, summary = run(tmp_path, changed(algorithm="remax", steps=1, traces_every=1))
    (row,) = folder.metrics("rl")
    assert (row["episodes"], row["episodes_greedy"], summary["episodes"]) == (16, 4, 20)
    everything = list(folder.iter_traces("rl", 1))
    assert row["tokens_sampled"] == sum(trace.num_sampled for trace in everything) == summary["tokens_sampled"]
    greedy = [trace for trace in everything if trace.metadata.get("left_out") == "greedy"]
    assert [trace.attempt for trace in greedy] == [4] * 4
    others = [trace for trace in folder.iter_traces("rl", 1) if trace.metadata.get("left_out") != "greedy"]
    baseline = {trace.group_id: trace.reward for trace in greedy}
    assert [trace.metadata["advantage"] for trace in others] == [t.reward - baseline[t.group_id] for t in others]


def test_what_was_written_after_the_last_checkpoint_is_done_again_once(whole, tmp_path):
    folder, _ = whole
    killed, _ = run(tmp_path, stop=("rl", 2))
    killed.append_metrics("rl", 3, {"reward": 0.5})  # a kill between two checkpoints leaves rows behind
    killed.write_traces("rl", 4, [])
    train(SMALL, killed, Reporter(), resume=True)
    assert measured(folder) == measured(killed)
    assert same(weights(folder), weights(killed))


def test_a_learning_rate_of_zero_moves_nothing(tmp_path):
    still = SMALL.model_copy(
        update={"rl": SMALL.rl.model_copy(update={"learning_rate": 0.0, "matrix_learning_rate": 0.0})}
    )
    folder, _ = run(tmp_path, still)
    end_of_warm_start = read_checkpoint(folder.checkpoints / "warm_start-000090-end").weights
    assert same(end_of_warm_start, weights(folder))


def test_a_sampler_with_other_weights_than_the_trainer_is_noticed_within_a_step(tmp_path):
    class Stale(RunContext):
        """Its engine samples from a network that is not the one in training."""

        def start_phase(self, phase, settings):
            trainer = super().start_phase(phase, settings)
            with torch.no_grad():
                trainer.model = type(self.model)(self.model.shape, seed=99)
            return trainer

    config = SMALL.model_copy(update={"rl": SMALL.rl.model_copy(update={"algorithm": "reinforce"})})
    context = Stale(config, RunFolder.create(tmp_path, config), Reporter())
    try:
        with pytest.raises(TrainerError, match="just sampled differ by"):
            reinforce_with_some_reward(context)
    finally:
        context.close()


def reinforce_with_some_reward(context):
    """A loop over tasks whose reward is the length of the attempt, so that an untrained policy has a gradient."""
    task_set = context.train_tasks()
    environment = task_set.environment

    def rewarded(task):
        made = environment(task)

        async def score(trace):
            return [Score(name="length", value=float(trace.num_sampled))]

        made.score = score
        return made

    task_set.environment = rewarded
    reinforce(context)


def test_a_run_tells_once_what_could_not_be_compiled(tmp_path, monkeypatch):
    heard = []

    class Listening(Reporter):
        def note(self, text):
            heard.append(text)

    small = {"warm_start": {"steps": 1}, "rl": {"steps": 0}, "eval": {"tasks": 0}}
    config = TrainConfig.model_validate({**SMALL.model_dump(), **small})
    for known in ([], ["no compiler"]):
        monkeypatch.setattr(compiled, "_known", dict.fromkeys(known))
        folder = RunFolder.create(tmp_path, config)
        assert train(config, folder, Listening(), resume=False)["notes"] == known
    assert heard.count("no compiler") == 1
