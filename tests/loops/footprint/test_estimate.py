"""The parts of an estimate, what they add up to, and what would save some."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config import TrainConfig, apply_overrides, load_recipe
from agentrl.engine.memory import Memory
from agentrl.errors import ConfigError
from agentrl.loops.footprint.advice import changes
from agentrl.loops.footprint.estimate import PHASES, Estimate, Traces, conversations_of, estimate, trace
from agentrl.loops.footprint.outline import outline

QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 1000,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
SMALL = {
    "rl.groups_per_step": "2",
    "rl.group_size": "4",
    "rl.eval_every": "0",
    "eval.tasks": "2",
    "model.context": "128",
}


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """A folder with the shape of a model, and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return str(tmp_path)


def config(**overrides: str) -> TrainConfig:
    return apply_overrides(load_recipe("bugfix-tiny"), SMALL | {k.replace("__", "."): v for k, v in overrides.items()})


def traced(wanted: TrainConfig) -> tuple[Estimate, Traces]:
    traces = trace(wanted, conversations_of(wanted))
    return estimate(wanted, traces, libraries=300 * 2**20), traces


def part(found: Estimate, name: str, phase: str = "sampling") -> int:
    return sum(one.bytes.get(phase, 0) for one in found.parts if one.name == name)


def test_phases_are_the_sums_of_their_parts(qwen: str) -> None:
    found, _ = traced(config(model__name=qwen, rl__kl_coef="0.1"))
    for phase in PHASES:
        assert found.phase(phase) == sum(one.bytes.get(phase, 0) for one in found.parts)
    assert found.needed_on_host == max(map(found.phase, PHASES))
    assert found.needed_on_device == 0


def test_weights_optimizer_and_reference_of_a_model_that_is_trained_whole(qwen: str) -> None:
    found, _ = traced(config(model__name=qwen, rl__kl_coef="0.1"))
    # embedding 1000 x 32, tied to the output; a layer: q 32 x 32, k and v 32 x 16, o 32 x 32, three of 32 x 64, two
    # norms of 32 and two of 8; the last norm
    parameters = 32_000 + 2 * (1024 + 2 * 512 + 1024 + 3 * 2048 + 64 + 16) + 32
    assert found.parameters == found.trained == parameters
    assert [part(found, name) for name in ("weights", "optimizer", "reference")] == [
        4 * parameters,
        8 * parameters,
        4 * parameters,
    ]
    assert part(found, "copies", "checkpoint") == 4 * parameters + 2 * 8 * parameters


def test_adapters_are_all_that_is_trained_and_copied(qwen: str) -> None:
    found, _ = traced(config(model__name=qwen, rl__kl_coef="0.1", hf__lora_rank="2", hf__dtype="bfloat16"))
    # rank 2 times the sum of both sides of each of the seven layers, in float32
    adapters = 2 * 2 * ((32 + 32) + 2 * (32 + 16) + (32 + 32) + 3 * (32 + 64))
    assert found.trained == adapters
    assert part(found, "weights") == 2 * (found.parameters - adapters) + 4 * adapters
    assert part(found, "optimizer") == 8 * adapters
    assert part(found, "reference") == 4 * adapters


def test_checkpointed_layers_keep_less_and_compute_more(qwen: str) -> None:
    _, kept = traced(config(model__name=qwen))
    _, again = traced(config(model__name=qwen, hf__gradient_checkpointing="true"))
    assert again.training.kept < 0.6 * kept.training.kept
    assert again.training.work.flops > 1.1 * kept.training.work.flops


def test_muon_has_one_moment() -> None:
    wanted = config()
    found, _ = traced(wanted)
    matrices = sum(weight.nbytes for weight in outline(wanted).matrices())
    assert part(found, "optimizer") == 2 * part(found, "weights") - matrices


def test_whether_it_fits_and_what_would_save_some() -> None:
    wanted = config()
    found, traces = traced(wanted)
    assert replace(found, host=Memory(free=found.needed_on_host, total=2**40)).fits is True
    assert replace(found, host=Memory(free=found.needed_on_host - 1, total=2**40)).fits is False
    assert replace(found, host=None).fits is None
    saved = changes(wanted, found, traces, libraries=300 * 2**20)
    assert saved
    assert [change.saves for change in saved] == sorted((change.saves for change in saved), reverse=True)
    best = saved[0]
    then, _ = traced(apply_overrides(wanted, best.settings))
    assert found.needed_on_host - then.needed_on_host == pytest.approx(best.saves, rel=0.05)


def test_a_model_without_a_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be had"):
        outline(config(model__name=str(tmp_path)))


@pytest.mark.long
def test_an_estimate_is_close_to_what_real_steps_take() -> None:
    """In a process of its own; the band is wider than what was measured, since allocators differ, and of the times for
    what else the machine does."""
    script = Path(__file__).parents[3] / "benchmarks" / "bench_memory.py"
    done = subprocess.run([sys.executable, script, "small"], capture_output=True, text=True, check=True, timeout=300)
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    assert len(lines) == 2
    assert all(0.8 < float(line[-6]) < 1.25 for line in lines)  # of memory
    assert all(0.5 < float(line[-1]) < 2.0 for line in lines)  # of processor time
