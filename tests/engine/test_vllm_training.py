"""Training with a real vLLM server: it agrees with the trainer before and after, and may be killed."""

import shutil
import threading
import time

import pytest

from tests.engine.vllm_process import PYTHON, VLLMProcess

pytest.importorskip("httpx")
pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

from agentrl.loops.context import RunContext
from agentrl.loops.evaluation import find_checkpoint
from agentrl.loops.parity import Asked, check
from agentrl.loops.rl_async import reinforce_async
from agentrl.loops.run import train
from agentrl.loops.served import Servers
from agentrl.store import RunFolder
from tests.loops.serving import CONTEXT, rejecting_config, save, save_ending, served_config
from tests.loops.test_run import Reporter

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(shutil.which(PYTHON) is None, reason="no environment of vLLM here: make vllm-env"),
]
AHEAD = {"mode": "async", "max_staleness": 1, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("trained") / "model")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It is started with other weights, so that only those that are published to it can agree."""
    folder = tmp_path_factory.mktemp("vllm")
    with VLLMProcess(save(folder / "model", seed=1), folder / "log", "--max-model-len", str(CONTEXT)) as process:
        yield process


def measured(config, checkpoint=None):
    """How far trainer and server are apart, as `agentrl check parity` says."""
    return check(
        Asked(
            config=config,
            checkpoint=checkpoint,
            sampling=config.rl.sampling,
            engine="vllm",
            servers=Servers(urls=config.engine.servers, model="policy"),
            tasks=2,
            attempts=2,
            turns=2,
            max_tokens=12,
        )
    )


def reinforced(root, config, beside=lambda context: None):
    context = RunContext(config, RunFolder.create(root, config), Reporter())
    try:
        beside(context)
        reinforce_async(context)
    finally:
        context.close()
    return context


def test_two_steps_and_the_server_agrees_before_and_after(model, server, tmp_path):
    config = served_config(model, server, steps=2, checkpoint_every=1, **AHEAD)
    before = measured(config)
    assert before.within
    context = reinforced(tmp_path, config)
    rows = context.folder.metrics("rl")
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["logprob_gap"] < 1e-4
    assert rows[0]["tokens_trained"] > 0
    for step, versions in ((1, {0}), (2, {0, 1})):
        traces = list(context.folder.iter_traces("rl", step))
        assert {v for trace in traces for node in trace.nodes for v in node.versions} <= versions
        assert all(trace.error is None for trace in traces)
    after = measured(config, find_checkpoint(context.folder, "2"))
    assert after.within
    print(f"largest difference before {before.figures.largest:.2g}, after {after.figures.largest:.2g}")


def test_a_run_goes_on_when_its_server_was_killed(model, server, tmp_path):
    killed = []

    def kill(context):
        """In the midst of the second step or so. It is started again when its loss has been seen."""

        def work():
            sampler = context.served.sampler
            while sampler.stats.replies < 10:
                time.sleep(0.005)
            server.kill()
            killed.append(sampler.stats.replies)
            while sampler.fleet.servers[0].up:
                time.sleep(0.005)
            server.start()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

    context = reinforced(tmp_path, served_config(model, server, steps=4, **AHEAD), kill)
    sampler = context.served.sampler
    rows = context.folder.metrics("rl")
    assert killed[0] < sampler.stats.replies
    assert [(row["step"], row["episodes"], row["episodes_unscored"]) for row in rows] == [
        (n, 2, 0) for n in range(1, 5)
    ]
    ids = [trace.id for step in range(1, 5) for trace in context.folder.iter_traces("rl", step)]
    assert len(set(ids)) == len(ids) == 8
    assert max(row["age_max"] for row in rows) <= 1
    print(f"killed after {killed[0]} replies of {sampler.stats.replies}; {sampler.stats.retries} sent again")


def test_two_rounds_of_rejection_sampling_and_the_server_agrees(server, tmp_path):
    """Each round is played with the weights of the last one; the evaluations before and after with those of the run."""
    config = rejecting_config(save_ending(tmp_path / "model"), server)
    folder = RunFolder.create(tmp_path / "runs", config)
    summary = train(config, folder, Reporter(), resume=False)
    assert list(summary["eval"]) == ["before", "after", "difference"]
    rows = folder.metrics("rejection")
    assert [(row["step"], row["episodes"], row["episodes_unscored"]) for row in rows] == [(1, 16, 0), (2, 16, 0)]
    assert all(row["episodes_kept"] > 0 for row in rows)
    for phase, step, version in (("eval_before", 0, 0), ("rejection", 1, 0), ("rejection", 2, 1), ("eval", 2, 2)):
        traces = list(folder.iter_traces(phase, step))
        assert {v for trace in traces for node in trace.nodes for v in node.versions} == {version}
    after = measured(config, find_checkpoint(folder, "2"))
    assert after.within
    print(f"largest difference after two rounds {after.figures.largest:.2g}")
