"""Rejection sampling: what is kept, what is trained from which weights, and that it resumes exactly."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import EvalConfig, RejectionConfig, RlConfig, TrainConfig, load_recipe
from agentrl.errors import StoreError, TrainerError
from agentrl.loops.context import RunContext
from agentrl.loops.evaluation import find_checkpoint, step_of
from agentrl.loops.rejection import _refuse_nothing, choose, round_metrics
from agentrl.loops.rejection import train as train_round
from agentrl.loops.run import train
from agentrl.store import RunFolder
from agentrl.tokens.samples import samples
from agentrl.train.checkpoint import read_checkpoint
from agentrl.types import Group, Message, Node, Score, Stop, Task, Trace
from tests.loops.test_run import SMALL, Reporter, measured, run, same, spoken, weights


def attempt(group, number, reward, ids, stop=Stop.DONE):
    node = Node(
        parent=None,
        message=Message(role="assistant"),
        context_ids=(1, 2),
        sampled_ids=tuple(ids),
        logprobs=(-0.5,) * len(ids),
        versions=(0,) * len(ids),
    )
    return Trace(
        id=f"{group}-{number}",
        task_id=group,
        group_id=group,
        attempt=number,
        seed=0,
        nodes=(node,),
        stop=stop,
        scores=(Score(name="pass", value=reward),),
    )


def group(name, *attempts):
    traces = tuple(attempt(name, number, *told) for number, told in enumerate(attempts))
    return Group(id=name, task=Task(id=name, prompt=()), traces=traces)


GROUPS = [
    # passes, the same again, another pass, another, fails, cut by a limit although it passed, unscored
    group(
        "hard",
        (1.0, [5, 6, 7]),
        (1.0, [5, 6, 7]),
        (1.0, [8]),
        (1.0, [8, 9]),
        (0.0, [3]),
        (1.0, [4], Stop.MAX_TURNS),
        (None, [4]),
    ),
    group("easy", (1.0, [5]), (1.0, [6]), (1.0, [6])),
    group("unsolved", (0.0, [5]), (0.5, [6])),
]


def kept(chosen):
    return [sample.trace_id for sample in chosen.samples]


def reasons(chosen, index):
    return [trace.metadata.get("left_out", trace.metadata.get("objective")) for trace in chosen.groups[index].traces]


def test_the_shortest_distinct_successes_of_each_task_are_kept():
    chosen = choose(GROUPS, RejectionConfig(keep=2, prefer="shortest"), 0)
    assert kept(chosen) == ["hard-2", "hard-3", "easy-0", "easy-1"]
    assert reasons(chosen, 0) == ["surplus", "repeated", "ce", "ce", "failed", "overlong", "unscored"]
    assert reasons(chosen, 1) == ["ce", "ce", "repeated"]
    assert reasons(chosen, 2) == ["failed", "failed"]
    assert (chosen.num_distinct, chosen.num_solved, chosen.num_unsolved) == (5, 1, 1)
    # trained tokens: 1 and 2 of the hard task, 1 and 1 of the easy one
    assert chosen.solved_share == pytest.approx(2 / 5)
    assert round_metrics(chosen) == {
        "episodes": 12,
        "episodes_scored": 11,
        "episodes_unscored": 1,
        "episodes_done": 11,
        "episodes_overlong": 1,
        "episodes_passed": 7,
        "episodes_distinct": 5,
        "episodes_kept": 4,
        "episodes_left_out": 8,
        "reward": 8.5 / 11,
        "turns": 1.0,
        "tokens_sampled": 17,
        "groups": 3,
        "groups_trained": 2,
        "groups_solved": 1,
        "groups_unsolved": 1,
        "solved_share": pytest.approx(2 / 5),
    }


def test_a_task_that_was_solved_in_all_attempts_weighs_less_or_nothing():
    half = choose(GROUPS, RejectionConfig(keep=1, prefer="shortest", solved_weight=0.5), 0)
    assert [sample.weights["ce"] for sample in half.samples] == [(0.0, 0.0, 1.0), (0.0, 0.0, 0.5)]
    assert half.solved_share == pytest.approx(0.5 / 1.5)
    none = choose(GROUPS, RejectionConfig(keep=1, prefer="shortest", solved_weight=0.0), 0)
    assert kept(none) == ["hard-2"]
    assert reasons(none, 1) == ["too_easy", "too_easy", "repeated"]
    assert none.solved_share == 0.0


def test_a_lower_threshold_takes_partial_successes():
    chosen = choose(GROUPS, RejectionConfig(keep=8, attempts=8, min_reward=0.5), 0)
    assert "unsolved-1" in kept(chosen)
    assert chosen.num_unsolved == 0


def test_the_random_choice_is_drawn_from_the_seed():
    picks = {tuple(kept(choose(GROUPS[:1], RejectionConfig(keep=1), seed))) for seed in range(20)}
    assert picks == {("hard-0",), ("hard-2",), ("hard-3",)}
    assert choose(GROUPS, RejectionConfig(keep=1), 3) == choose(GROUPS, RejectionConfig(keep=1), 3)


outcome = st.tuples(
    st.sampled_from([0.0, 1.0, None]),
    st.lists(st.integers(0, 2), min_size=1, max_size=2),
    st.sampled_from([Stop.DONE, Stop.DONE, Stop.MAX_TURNS]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(outcome, min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from(["shortest", "random"]),
)
def test_of_no_task_more_is_trained_than_is_to_be_kept_and_only_distinct_successes(told, keep, prefer):
    groups = [group(f"g{number}", *attempts) for number, attempts in enumerate(told)]
    chosen = choose(groups, RejectionConfig(keep=keep, prefer=prefer), 1)
    traces = {trace.id: trace for one in groups for trace in one.traces}
    for one in groups:
        mine = [traces[name] for name in kept(chosen) if traces[name].group_id == one.id]
        said = [trace.nodes[0].sampled_ids for trace in mine]
        there = {t.nodes[0].sampled_ids for t in one.traces if t.reward == 1.0 and t.stop is Stop.DONE}
        assert len(set(said)) == len(said) == min(keep, len(there))
        assert set(said) <= there
    noted = [trace for one in chosen.groups for trace in one.traces]
    assert [trace.id for trace in noted if "objective" in trace.metadata] == kept(chosen)
    assert all(("objective" in trace.metadata) != ("left_out" in trace.metadata) for trace in noted)
    for sample in chosen.samples:
        assert sample.weights == samples(traces[sample.trace_id], None, objective="ce")[0].weights


# The loop.


def config(**rejection):
    told = {"rounds": 2, "tasks_per_round": 8, "tasks_at_once": 3, "attempts": 6, "batch_size": 5, "keep": 2}
    return TrainConfig(
        **{
            **SMALL.model_dump(),
            "rl": RlConfig(steps=0),
            "eval": EvalConfig(tasks=2, during_tasks=2),
            "rejection": RejectionConfig(**(told | rejection)),
        }
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), config())


def begun(root, settings, whole):
    """A run of its own that has come to the end of the same warm start."""
    folder = RunFolder.create(root, settings)
    warm = next((whole[0].checkpoints).glob("warm_start-*-end"))
    shutil.copytree(warm, folder.checkpoints / warm.name)
    (folder.checkpoints / "latest").write_text(warm.name)
    return folder


def test_a_run_leaves_its_rounds_and_is_measured_before_and_after(whole):
    folder, summary = whole
    assert list(summary["eval"]) == ["before", "after", "difference"]
    assert (summary["trained"], summary["episodes"]) == ("rejection sampling", 2 * 8 * 6)
    rows = folder.metrics("rejection")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        traces = list(folder.iter_traces("rejection", row["step"]))
        assert len(traces) == row["episodes"] == 48
        assert len({trace.id for trace in traces}) == 48
        assert len({trace.task_id for trace in traces}) == row["groups"] == 8
        trained = [trace for trace in traces if "objective" in trace.metadata]
        assert len(trained) == row["episodes_kept"] > 0
        # two passes, in parts of at most five
        assert row["sequences_trained"] == 2 * len(trained)
        assert row["optimizer_steps"] == 2 * -(-len(trained) // 5)
        assert {version for trace in traces for node in trace.nodes for version in node.versions} == {row["step"] - 1}
    # the rounds have other tasks until all were had: 24 tasks, 8 a round
    tasks = [{trace.task_id for trace in folder.iter_traces("rejection", number)} for number in (1, 2)]
    assert not tasks[0] & tasks[1]
    assert [row["step"] for row in folder.metrics("eval")] == [0, 2]
    assert sorted(path.name for path in folder.checkpoints.glob("*-end")) == [
        "rejection-000002-end",
        "warm_start-000090-end",
    ]


def test_a_run_that_was_stopped_goes_on_as_if_nothing_had_happened(whole, tmp_path):
    folder, summary = whole
    stopped = begun(tmp_path, config(), whole)
    early = train(config(), stopped, Reporter(stop=("rejection sampling", 1)), resume=True)
    assert "after" not in early["eval"]
    stopped.append_metrics("rejection", 2, {"reward": 0.5})  # a kill in the next round leaves this behind
    resumed = train(config(), stopped, Reporter(), resume=True)
    assert same(weights(folder), weights(stopped))
    assert measured(folder)[90:] == measured(stopped)
    assert spoken(folder, "rejection", 2) == spoken(stopped, "rejection", 2)
    assert resumed["eval"] == summary["eval"]
    assert (resumed["episodes"], resumed["tokens_sampled"]) == (summary["episodes"], summary["tokens_sampled"])
    assert 0.0 < wall_at(stopped, "warm_start-000090-end") < wall_at(stopped, "rejection-000001") <= early["wall_s"]
    assert resumed["wall_s"] > early["wall_s"]


def wall_at(folder, name):
    """Seconds of all sessions of a run up to a checkpoint."""
    return read_checkpoint(folder.checkpoints / name).state["progress"]["seconds"]["wall"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_round_trains_the_weights_of_the_last_round_or_those_before_the_first(whole, tmp_path, restart):
    settings = config(restart=restart)
    folder = begun(tmp_path, settings, whole) if restart else whole[0]
    if restart:
        train(settings, folder, Reporter(), resume=True)
    begins = folder.checkpoints / ("warm_start-000090-end" if restart else "rejection-000001")
    context = RunContext(settings, folder, Reporter())
    context.close()
    context.model.load_tensors(read_checkpoint(begins).weights)
    traces = [trace for trace in folder.iter_traces("rejection", 2) if "objective" in trace.metadata]
    train_round(context, [sample for trace in traces for sample in samples(trace, None, objective="ce")], 2)
    assert same(dict(context.model.tensors()), weights(folder))


def test_a_round_without_any_success_says_so_and_keeps_its_attempts(tmp_path):
    hopeless = config().model_copy(update={"warm_start": SMALL.warm_start.model_copy(update={"steps": 0})})
    told = "round 1: none of 48 attempts at 8 tasks is a success .reward 1 or more, ended by the policy; .* raise rejec"
    folder = RunFolder.create(tmp_path, hopeless)
    with pytest.raises(TrainerError, match=told):
        train(hopeless, folder, Reporter(), resume=False)
    assert len(list(folder.iter_traces("rejection", 1))) == 48


def test_reinforcement_learning_can_follow_and_is_pulled_to_where_it_began(whole, tmp_path):
    both = config(rounds=1).model_copy(
        update={"rl": SMALL.rl.model_copy(update={"steps": 1, "kl_coef": 0.5}), "eval": EvalConfig(tasks=0)}
    )
    folder = begun(tmp_path, both, whole)
    summary = train(both, folder, Reporter(), resume=True)
    assert summary["trained"] == "rejection sampling and RL"
    assert sorted(path.name for path in folder.checkpoints.glob("*-end")) == [
        "rejection-000001-end",
        "rl-000001-end",
        "warm_start-000090-end",
    ]
    context = RunContext(both, folder, Reporter())
    context.close()
    assert same(context.reference().tensors(), read_checkpoint(folder.checkpoints / "rejection-000001-end").weights)
    assert [folder.metrics("rl")[0][name] for name in ("kl_reference",)] == [pytest.approx(0.0, abs=1e-6)]
    # a number is a step of RL where there are any, and a round has its name
    assert find_checkpoint(folder, "1").name == "rl-000001-end"
    assert find_checkpoint(folder, "rejection-1").name == "rejection-000001-end"
    assert find_checkpoint(folder, "before").name == "warm_start-000090-end"
    for word in ("2", "rejection-2", "walk-1", "-1"):
        with pytest.raises(StoreError, match=f"no checkpoint '{word}'; it keeps rejection-1, 1, before"):
            find_checkpoint(folder, word)


def test_the_rounds_of_a_run_can_be_evaluated(whole):
    folder, _ = whole
    assert [find_checkpoint(folder, word).name for word in ("1", "rejection-1", "2", "after", "before")] == [
        "rejection-000001",
        "rejection-000001",
        "rejection-000002-end",
        "rejection-000002-end",
        "warm_start-000090-end",
    ]
    assert [step_of(find_checkpoint(folder, word)) for word in ("1", "after", "before")] == [1, 2, 0]


def test_where_only_what_is_too_easy_was_solved_the_setting_is_named():
    lenient = RejectionConfig(solved_weight=0.0, keep=1)
    with pytest.raises(TrainerError, match=r"round 3: every task that was solved was solved in all of its 8 attempts"):
        _refuse_nothing(3, round_metrics(choose(GROUPS[1:], lenient, 0)), lenient)


def test_more_cannot_be_kept_than_is_tried():
    with pytest.raises(ValueError, match="keep 9 with attempts 8: there are never so many successes; set keep to 8"):
        RejectionConfig(keep=9)


def test_the_recipe_has_the_warm_start_of_bugfix_tiny_and_as_many_attempts():
    recipe, base = load_recipe("bugfix-tiny-rejection"), load_recipe("bugfix-tiny")
    assert recipe.warm_start == base.warm_start
    attempts = recipe.rejection.rounds * recipe.rejection.tasks_per_round * recipe.rejection.attempts
    assert attempts == pytest.approx(base.rl.steps * base.rl.groups_per_step * base.rl.group_size, rel=0.01)
