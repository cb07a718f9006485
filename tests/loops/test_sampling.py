"""What a run plays at a time against the memory that there is, and the engine as the configuration sets it."""

import pytest

from agentrl.config import TrainConfig, apply_overrides
from agentrl.engine.vllm_settings import VLLMStats
from agentrl.errors import ConfigError
from agentrl.loops.context import RunContext
from agentrl.loops.evaluation import open_context
from agentrl.loops.run import train
from agentrl.loops.sampling import in_process, local_engine, played_at_once, prefilled_since, told_of_memory
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.store import RunFolder
from tests.loops.test_run import SMALL, Reporter, changed

SHAPE = {"layers": 1, "width": 32, "heads": 2, "mlp_width": 64}
MODEL = TinyTransformer(TransformerShape(vocab_size=64, context=320, **SHAPE), seed=0)
PER_TOKEN = 384
"""Keys and values of one layer of 32 numbers in float32, and one of them again for a copy: 3 x 32 x 4 bytes."""


def sized(conversations):
    """Memory for so many of 320 tokens: each may have room for 2 x 320 + 64 tokens, and the logits of 64 words."""
    return apply_overrides(SMALL, {"engine.cache_gib": repr(conversations * (704 * PER_TOKEN + 256) / 2**30)})


@pytest.mark.parametrize(
    ("rl", "count", "where"),
    [
        ({}, 16, "rl"),  # 4 groups of 4
        ({"algorithm": "remax"}, 20, "rl"),  # and a greedy one each
        ({"mode": "async", "max_staleness": 2}, 48, "rl"),  # those of three steps
        ({"mode": "async", "max_staleness": 9}, 64, "rl"),  # of all four
        ({"mode": "async", "max_staleness": 0}, 16, "rl"),
        ({"mode": "async", "max_staleness": 0, "extra_attempts": 1}, 20, "rl"),
        ({"groups_per_step": 1, "group_size": 2}, 4, "an evaluation"),
        ({"steps": 0}, 4, "an evaluation"),
    ],
    ids=str,
)
def test_what_is_played_at_a_time_is_counted(rl, count, where):
    assert played_at_once(changed(**rl)) == (count, where)


def test_evaluations_and_rejection_sampling_count_too():
    config = apply_overrides(SMALL, {"eval.tasks": "90", "eval.attempts": "2"})
    assert played_at_once(config) == (180, "an evaluation")
    assert played_at_once(apply_overrides(config, {"eval.at_once": "10"})) == (16, "rl")
    many = {"rejection.rounds": "1", "rejection.tasks_at_once": "50", "rejection.attempts": "4"}
    assert played_at_once(apply_overrides(config, many)) == (200, "rejection")


def test_one_line_says_how_many_conversations_fit():
    few = sized(5)
    said = told_of_memory(few, local_engine(few, MODEL))
    assert said is not None
    assert "\n" not in said
    assert said.startswith("memory: rl plays 16 conversations at a time, and 5 of 320 tokens fit for certain")
    assert "engine.cache_gib" in said
    enough = sized(16)
    assert told_of_memory(enough, local_engine(enough, MODEL)) is None
    assert told_of_memory(SMALL, local_engine(SMALL, MODEL)) is None


def test_memory_for_not_even_one_is_refused_before_anything_is_done(tmp_path):
    config = sized(0.9)
    folder = RunFolder.create(tmp_path, config)
    with pytest.raises(ConfigError, match=r"engine.cache_gib 0.000227 holds no conversation of 320 tokens"):
        train(config, folder, Reporter(), resume=False)
    assert list(folder.checkpoints.iterdir()) == []
    assert folder.metrics() == []


def test_the_engine_is_as_the_configuration_sets_it(tmp_path):
    settings = {"engine.cache_gib": "0.5", "engine.max_running": "3", "engine.chunk_tokens": "64"}
    settings |= {"engine.at_publication_keys": "keep", "rl.mode": "async", "rl.top_k": "5"}
    config = apply_overrides(SMALL, settings)
    context = RunContext(config, RunFolder.create(tmp_path, config), Reporter())
    try:
        for engine in (context.engine, context.current):
            assert engine.store.cache.budget.limit == 2**29
            assert (engine.max_running, engine.chunk_tokens, engine.at_publication) == (3, 64, "keep")
            assert engine.sampling == config.rl.sampling
        assert (context.engine.schedule, context.current.schedule) == ("continuous", "lockstep")
        assert context.engine.model is not context.model
    finally:
        context.close()


def test_a_run_plays_the_same_whatever_fits(tmp_path):
    """Conversations that found no room are computed again: the samples are those of a run with room for all."""
    rl = {"steps": 1, "eval_every": 0, "traces_every": 1}
    spoken = []
    for config in (changed(**rl), apply_overrides(sized(3), {f"rl.{name}": str(value) for name, value in rl.items()})):
        config = apply_overrides(config, {"warm_start.steps": "0", "eval.tasks": "0", "tasks.reward": "random"})
        folder = RunFolder.create(tmp_path, config)
        train(config, folder, Reporter(), resume=False)
        spoken.append([[node.sampled_ids for node in trace.nodes] for trace in folder.iter_traces("rl", 1)])
    assert spoken[0] == spoken[1]


def test_whoever_evaluates_a_run_of_servers_leaves_them_alone(tmp_path):
    served = {"model.name": "a/model", "engine.kind": "vllm", "engine.servers": "http://127.0.0.1:9"}
    config = apply_overrides(TrainConfig(recipe="served"), served)
    assert in_process(config.engine).kind == "local"
    assert in_process(sized(2).engine) == sized(2).engine
    with open_context(SMALL, Reporter()) as context:
        assert context.served is None


def test_what_a_sampler_does_not_know_is_left_out():
    stats = VLLMStats()
    assert prefilled_since(stats, stats.prefilled) is None
    assert stats.seconds == 0.0
    with stats.sampling():
        first = stats.seconds
        with stats.sampling():
            pass
        assert 0.0 < first <= stats.seconds  # one is still under way
    ended = stats.seconds
    assert ended == stats.seconds > 0.0
