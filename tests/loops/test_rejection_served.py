"""Rejection sampling from vLLM servers: each round has the weights of the last one, and what goes wrong with a server
is mended or named. The server here computes what is published to it."""

import threading

import pytest

pytest.importorskip("httpx")
pytest.importorskip("transformers")

from agentrl.config import TrainConfig
from agentrl.errors import SamplerError, TrainerError
from agentrl.loops.context import RunContext
from agentrl.loops.rejection import reject_and_imitate
from agentrl.loops.run import train
from agentrl.loops.served import published
from agentrl.store import RunFolder
from agentrl.tokens.samples import samples
from agentrl.train.parity.check import rescore
from tests.engine.vllm_server import GENERATE
from tests.loops.serving import Computing, rejecting_config, save_ending
from tests.loops.test_run import Reporter, same, spoken, weights


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_ending(tmp_path_factory.mktemp("rejecting") / "model")


@pytest.fixture
def server():
    with Computing() as running:
        yield running


def trained(folder):
    """The weights of the last checkpoint, by the names under which they are published."""
    named = {name.removeprefix("model."): tensor for name, tensor in weights(folder).items()}
    return {name: tensor for name, tensor in named.items() if name != "lm_head.weight"}  # tied


def begun(root, config):
    folder = RunFolder.create(root, config)
    return folder, train(config, folder, Reporter(), resume=False)


@pytest.fixture(scope="module")
def healthy(model, tmp_path_factory):
    """A whole run to which nothing happens, with its server and its summary."""
    with Computing() as running:
        config = rejecting_config(model, running)
        return *begun(tmp_path_factory.mktemp("healthy"), config), running.versions(), config


def test_each_round_is_played_with_the_weights_that_the_last_one_made(healthy):
    folder, summary, versions, _ = healthy
    # before all, at the beginning of the phase, after each round, and before the last evaluation
    assert [version for version, _ in versions] == [0, 0, 1, 2, 2]
    assert not same(versions[2][1], versions[1][1])
    assert not same(versions[3][1], versions[2][1])
    rows = folder.metrics("rejection")
    assert [(row["step"], row["episodes"], row["episodes_unscored"]) for row in rows] == [(1, 16, 0), (2, 16, 0)]
    for row in rows:
        traces = list(folder.iter_traces("rejection", row["step"]))
        assert {v for trace in traces for node in trace.nodes for v in node.versions} == {row["step"] - 1}
        kept = [trace for trace in traces if "objective" in trace.metadata]
        assert len(kept) == row["episodes_kept"] == row["sequences_trained"] > 0
        assert all(trace.reward == 1.0 for trace in kept)
    assert list(summary["eval"]) == ["before", "after", "difference"]
    for phase, step in (("eval_before", 0), ("eval", 2)):
        assert {v for trace in folder.iter_traces(phase, step) for node in trace.nodes for v in node.versions} == {step}


def test_the_numbers_of_its_tokens_are_those_of_the_trainer_with_the_weights_of_the_round(healthy, tmp_path):
    folder, _, _, config = healthy
    with Computing() as running:
        here = RunContext(rejecting_config(config.model.name, running), RunFolder.create(tmp_path, config), Reporter())
        here.close()
    gaps = {}
    for number in (1, 2):
        made = [made for trace in folder.iter_traces("rejection", number) for made in samples(trace, 0.0)]
        gaps[number] = rescore(here.model, made, temperature=config.rl.temperature).figures.largest
    assert gaps[1] < 1e-4 < gaps[2]  # those of the second round were sampled from other weights


def test_what_is_sampled_by_a_server_is_trained_in_this_process(healthy):
    folder, _, versions, _ = healthy
    assert same(versions[-1][1], trained(folder))


def test_where_each_round_begins_anew_the_weights_of_the_last_round_still_play(model, server, tmp_path, healthy):
    folder, _ = begun(tmp_path, rejecting_config(model, server, restart=True))
    versions = [tensors for _, tensors in server.versions()]
    assert all(same(mine, other) for mine, (_, other) in zip(versions[:3], healthy[2], strict=False))
    assert not same(versions[3], healthy[2][3][1])
    assert spoken(folder, "rejection", 2) == spoken(healthy[0], "rejection", 2)


def test_a_run_that_was_stopped_gives_its_servers_the_weights_of_its_round(model, server, tmp_path, healthy):
    config = rejecting_config(model, server)
    folder = RunFolder.create(tmp_path, config)
    train(config, folder, Reporter(("rejection sampling", 1)), resume=False)
    server.stop()
    server.start()
    server.published.clear()
    summary = train(config, folder, Reporter(), resume=True)
    assert [version for version, _ in server.versions()] == [1, 2, 2]
    assert spoken(folder, "rejection", 2) == spoken(healthy[0], "rejection", 2)
    assert summary["eval"] == healthy[1]["eval"]
    assert same(server.versions()[-1][1], trained(healthy[0]))


def test_a_server_that_dies_and_comes_back_changes_nothing(model, server, tmp_path, healthy):
    count = [0]

    def twist(n, path, body):
        """It dies at a reply of the first round, behind the evaluation and the canary, and is back a moment later."""
        count[0] += path == GENERATE and "request_id" in body
        if count[0] == 12:
            count[0] += 1
            server.stop()
            threading.Timer(0.3, server.start).start()

    server.twist = twist
    folder, _ = begun(tmp_path, rejecting_config(model, server))
    assert count[0] > 12
    assert [spoken(folder, "rejection", n) for n in (1, 2)] == [spoken(healthy[0], "rejection", n) for n in (1, 2)]
    assert same(server.versions()[-1][1], trained(healthy[0]))


def test_a_server_that_keeps_its_weights_is_named_at_the_end_of_the_round(model, server, tmp_path):
    """No number of a round would show it: what was sampled from other weights can be imitated too."""
    old = {}

    def spoil(network, number):
        if number == 0:
            old.update({name: tensor.clone() for name, tensor in network.state_dict().items()})
        network.load_state_dict(old)

    server.spoil = spoil
    config = rejecting_config(model, server)
    folder = RunFolder.create(tmp_path, config)
    with pytest.raises(SamplerError, match=f"version 1 .* log-probabilities of {server.url} differ"):
        train(config, folder, Reporter(), resume=False)
    assert folder.metrics("rejection") == []


def test_reinforcement_learning_can_follow(model, server, tmp_path):
    data = rejecting_config(model, server, rounds=1).model_dump()
    data["rl"] |= {"steps": 2, "mode": "async", "max_staleness": 1}
    data["eval"] |= {"tasks": 0}
    folder, summary = begun(tmp_path, TrainConfig.model_validate(data))
    assert summary["trained"] == "rejection sampling and RL"
    assert [version for version, _ in server.versions()] == [0, 1, 0, 1, 2]
    assert same(server.versions()[1][1], server.versions()[2][1])
    assert [row["step"] for row in folder.metrics("rl")] == [1, 2]


def test_without_a_success_the_round_says_so_and_its_files_are_removed(model, server, tmp_path):
    config = rejecting_config(model, server, min_reward=2.0)
    context = RunContext(config, RunFolder.create(tmp_path, config), Reporter())
    try:
        with pytest.raises(TrainerError, match="round 1: none of 16 attempts at 2 tasks is a success"):
            reject_and_imitate(context)
        assert server.versions()[0][1].keys() == published(context.model).keys() - {"lm_head.weight"}
    finally:
        context.close()
    assert not context.served.folder.exists()
