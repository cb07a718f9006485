"""Runs that sample from vLLM servers: each step has the trainer's weights, and what goes wrong with a server is mended
or named. The server here computes what is published to it."""

import asyncio
import threading
from dataclasses import replace

import pytest
import torch

pytest.importorskip("httpx")
pytest.importorskip("transformers")

from agentrl.cli import main
from agentrl.config import TrainConfig, to_toml
from agentrl.engine.vllm import Timing
from agentrl.errors import ConfigError, SamplerError, TrainerError
from agentrl.loops.context import RunContext
from agentrl.loops.rl import reinforce
from agentrl.loops.rl_async import reinforce_async
from agentrl.loops.run import train
from agentrl.loops.served import Served, published
from agentrl.records import trace_to_json
from agentrl.store import RunFolder
from tests.engine.vllm_server import GENERATE
from tests.loops.serving import Computing, plain, save, served_config
from tests.loops.test_run import Reporter

AHEAD = {"mode": "async", "max_staleness": 1}
QUICK = Timing(health_s=0.5, backoff_s=0.05)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture
def server():
    with Computing() as running:
        yield running


class Noted(RunContext):
    """Keeps what the trainer had at each publication, and looks at its servers often."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.given = []
        self.served.sampler.fleet.timing = QUICK
        self.served.sampler.settings = replace(self.served.sampler.settings, timing=QUICK)

    async def publish(self, version, *, restored=False):
        self.given.append((version, {name: tensor.clone() for name, tensor in published(self.model).items()}))
        await super().publish(version, restored=restored)


def reinforced(root, config):
    """The context of a run of reinforcement learning, which is over."""
    context = Noted(config, RunFolder.create(root, config), Reporter())
    try:
        (reinforce_async if config.rl.mode == "async" else reinforce)(context)
    finally:
        context.close()
    return context


def same(theirs, ours):
    """All weights but the output projection, which is tied."""
    return theirs.keys() == ours.keys() - {"lm_head.weight"} and all(torch.equal(theirs[n], ours[n]) for n in theirs)


def versions(context, step):
    return {v for trace in context.folder.iter_traces("rl", step) for node in trace.nodes for v in node.versions}


@pytest.fixture(scope="module")
def healthy(model, tmp_path_factory):
    """A synchronous run to which nothing happens, and its server."""
    with Computing() as running:
        return reinforced(tmp_path_factory.mktemp("healthy"), served_config(model, running)), running


@pytest.mark.parametrize("rl", [{}, AHEAD], ids=["sync", "async"])
def test_each_step_publishes_the_weights_of_the_trainer_and_tokens_say_which_sampled_them(
    tmp_path, model, server, healthy, rl
):
    context = reinforced(tmp_path, served_config(model, server, **rl)) if rl else healthy[0]
    server = server if rl else healthy[1]
    assert [version for version, _ in server.versions()] == [version for version, _ in context.given] == [0, 1, 2, 3]
    for (_, theirs), (_, ours) in zip(server.versions(), context.given, strict=True):
        assert same(theirs, ours)
    assert not same(server.versions()[3][1], context.given[0][1])
    rows = context.folder.metrics("rl")
    for step in (1, 2, 3):
        found = versions(context, step)
        assert found <= ({step - 1} if not rl else {step - 2, step - 1})
        assert len(list(context.folder.iter_traces("rl", step))) == 2
    assert all(row["episodes_unscored"] == 0 and 0 < row["tokens_sampled"] <= 2 * 2 * 6 for row in rows)
    assert all(row["seconds_sampling"] > 0 and row["tokens_prefilled"] is None for row in rows)
    assert max(row["logprob_gap"] or 0.0 for row in rows if not row.get("age_max")) < 1e-4
    assert sum(row["tokens_trained"] for row in rows) > 0
    assert not context.served.folder.exists()


def test_nothing_is_copied_in_this_process(tmp_path, model, server):
    config = served_config(model, server, **AHEAD)
    context = Noted(config, RunFolder.create(tmp_path, config), Reporter())
    try:
        assert context.engine is context.current is context.served.sampler
    finally:
        context.close()


def test_adapters_are_published_within_their_layers(tmp_path, model, server):
    pytest.importorskip("peft")
    data = served_config(model, server, steps=1, learning_rate=1e-2).model_dump()
    data["hf"] |= {"lora_rank": 2}
    context = reinforced(tmp_path, TrainConfig.model_validate(data))
    before, after = (tensors for _, tensors in server.versions())
    base = plain(0).state_dict()
    assert same(before, base)  # the second factors begin at zero
    assert after.keys() == before.keys()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed
    assert all("_proj" in name for name in changed)
    assert same(after, context.given[1][1])


def spoken(context):
    """All attempts, without the time that they took."""
    rows = [(step, trace) for step in (1, 2, 3) for trace in context.folder.iter_traces("rl", step)]
    return [(step, trace_to_json(trace) | {"seconds": None}) for step, trace in rows]


def dying(server):
    """Kills the server at its sixth reply, and starts it again with other weights a moment later."""
    count = [0]

    def twist(n, path, body):
        count[0] += path == GENERATE and "request_id" in body
        if count[0] == 6:
            count[0] += 1
            server.stop()
            threading.Timer(0.3, server.start).start()

    return twist


def test_a_server_that_dies_and_comes_back_changes_nothing(tmp_path, model, server, healthy):
    """The attempts and the weights are those of a run that nothing happened to: no attempt is played twice, and none
    has tokens of the weights that the server came back with."""
    expected, _ = healthy
    server.twist = dying(server)
    found = reinforced(tmp_path, served_config(model, server))
    sampler = found.served.sampler
    assert sampler.fleet.recovered == 1
    assert sampler.stats.retries > 0
    assert spoken(found) == spoken(expected)
    assert same(server.versions()[-1][1], expected.given[-1][1])


def test_an_asynchronous_run_goes_on_too(tmp_path, model, server):
    server.twist = dying(server)
    context = reinforced(tmp_path, served_config(model, server, **AHEAD))
    assert context.served.sampler.stats.retries > 0
    ids = [trace["id"] for _, trace in spoken(context)]
    assert len(ids) == len(set(ids)) == 6
    assert all(row["episodes_unscored"] == 0 for row in context.folder.metrics("rl"))


def stale(number):
    """From the publication of this number on the weights stay as they were, though their label does not."""
    kept = {}

    def spoil(network, count):
        if count < number:
            kept["weights"] = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        else:
            network.load_state_dict(kept["weights"])

    return spoil


def test_a_server_that_keeps_its_weights_is_named_within_a_step(tmp_path, model):
    """One of two: the other one has the new weights, and could have given all replies."""
    with Computing() as well, Computing() as server:
        server.spoil = stale(1)
        config = served_config(model, well, server, learning_rate=1e-2, **AHEAD)
        with pytest.raises(SamplerError, match=r"version 1 was published and .* does not hold the weights") as found:
            reinforced(tmp_path, config)
        assert f"log-probabilities of {server.url} differ" in str(found.value)
        (folder,) = tmp_path.iterdir()
        assert [row["step"] for row in RunFolder.open(folder).metrics("rl")] == [1]


def test_a_synchronous_run_notices_it_before_it_learns_from_it(tmp_path, model, server):
    server.spoil = stale(1)
    config = served_config(model, server, learning_rate=1e-2, steps=2)
    with pytest.raises(TrainerError, match="just sampled differ by"):
        reinforced(tmp_path, config)


@pytest.mark.parametrize(
    ("rl", "again"), [(AHEAD, 1), ({**AHEAD, "publish_every": 2, "at_publication": "wait"}, 0)], ids=["each", "lags"]
)
def test_a_run_that_was_stopped_gives_its_servers_what_they_had(tmp_path, model, server, rl, again):
    config = served_config(model, server, learning_rate=1e-2, **rl)
    folder = RunFolder.create(tmp_path, config)
    train(config, folder, Reporter(("rl", 1)), resume=False)
    first = dict(server.versions())
    server.stop()
    server.start()
    server.published.clear()
    train(config, folder, Reporter(), resume=True)
    version, tensors = server.versions()[0]
    assert version == again
    assert same(tensors, first[again] | {"lm_head.weight": None})
    assert [row["step"] for row in folder.metrics("rl")] == [1, 2, 3]
    assert max(row["age_max"] for row in folder.metrics("rl")) <= config.rl.max_staleness


def test_evaluations_are_of_the_weights_that_the_run_has(tmp_path, model, server):
    data = served_config(model, server, steps=2, eval_every=1).model_dump()
    data["eval"] |= {"tasks": 2}
    config = TrainConfig.model_validate(data)
    folder = RunFolder.create(tmp_path, config)
    train(config, folder, Reporter(), resume=False)
    # before, at the beginning of the phase, after each step, and after all
    assert [version for version, _ in server.versions()] == [0, 0, 1, 2, 2]
    for phase, step, version in (("eval_before", 0, 0), ("eval", 2, 2)):
        traces = list(folder.iter_traces(phase, step))
        assert {v for trace in traces for node in trace.nodes for v in node.versions} == {version}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: s.stop(), "/v1/models: ConnectError"),
        (lambda s: s.shape.update(num_hidden_layers=3), "serves another model"),
        (lambda s: setattr(s, "tokenizer", {text: [1] for text in s.tokenizer}), "another tokenizer"),
        (lambda s: setattr(s, "processed", False), "--logprobs-mode processed_logprobs"),
        (lambda s: setattr(s, "context", 512), "start the server with --max-model-len 2048"),
    ],
    ids=["unreachable", "model", "tokenizer", "logprobs", "length"],
)
def test_a_server_that_is_not_the_right_one_is_refused_before_anything_is_done(
    tmp_path, model, server, change, problem
):
    change(server)
    config = served_config(model, server)
    folder = RunFolder.create(tmp_path, config)
    with pytest.raises(ConfigError, match=f"engine.servers: {server.url}.*{problem}"):
        train(config, folder, Reporter(), resume=False)
    assert server.published == []
    assert list(folder.checkpoints.iterdir()) == []


def test_on_the_command_line_it_is_bad_input_and_leaves_no_run_behind(tmp_path, model, server, capsys):
    server.stop()
    (tmp_path / "served.toml").write_text(to_toml(served_config(model, server)))
    with pytest.raises(SystemExit) as left:
        main(["train", str(tmp_path / "served.toml"), "--runs", str(tmp_path / "runs")])
    said = capsys.readouterr()
    assert left.value.code == 2
    assert f"error: engine.servers: {server.url}: /v1/models: ConnectError" in said.err
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_server_that_does_not_say_what_it_drew_from_is_refused(tmp_path, model, server):
    config = served_config(model, server, top_p=0.9)
    with pytest.raises(ConfigError, match=r"engine.servers: .* start the server with --return-sampling-mask"):
        train(config, RunFolder.create(tmp_path, config), Reporter(), resume=False)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, model, server):
    (tmp_path / "file").write_text("")
    config = served_config(model, server, engine={"folder": str(tmp_path / "file")})
    with pytest.raises(ConfigError, match=f"engine.folder {tmp_path / 'file'}: weights cannot be written there"):
        train(config, RunFolder.create(tmp_path, config), Reporter(), resume=False)


def test_what_a_process_left_that_was_killed_is_removed_by_the_run_that_goes_on(tmp_path, model, server):
    config = served_config(model, server, engine={"folder": str(tmp_path)})
    folder = RunFolder.create(tmp_path / "runs", config)
    context = RunContext(config, folder, Reporter())
    asyncio.run(context.served.publish(0))
    context.pool.close()  # as far as the killed process came
    (left,) = context.served.folder.iterdir()
    again = RunContext(config, folder, Reporter())
    try:
        asyncio.run(again.served.publish(0))
        assert again.served.folder == context.served.folder
        assert not left.exists()
    finally:
        again.close()
    assert not again.served.folder.exists()


def test_two_runs_of_the_same_name_have_folders_of_their_own(tmp_path, model, server):
    config = served_config(model, server, engine={"folder": str(tmp_path)})
    context = RunContext(config, RunFolder.create(tmp_path, config), Reporter())
    try:
        other = Served(config, context.agent, tmp_path / "elsewhere" / context.folder.path.name)
        assert other.folder != context.served.folder
        other.close()
    finally:
        context.close()
