"""The comparison with TRL compares one step with itself: equal loss and gradient on equal weights and data."""

import mmap
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

pytest.importorskip("trl", reason="trl is only in the extra `bench`: pip install -e '.[bench]'")

import bench_grpo
import grpo_twins

TINY = grpo_twins.Workload(
    name="tiny", vocabulary=30, width=16, layers=1, heads=2, key_heads=1, mlp_width=24, group=3, prompt=6, completion=4
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def weights(contestant) -> torch.Tensor:
    model = contestant.policy.model if isinstance(contestant, grpo_twins.Ours) else contestant.trainer.model
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("settings", [{}, {"checkpointing": True}, {"trained_only": True}])
def test_both_compute_the_same_loss_and_gradient_and_take_the_same_step(settings):
    ours, theirs = grpo_twins.Ours(TINY), grpo_twins.Theirs(TINY, **settings)
    assert "same step" in bench_grpo.prove(ours, theirs)
    fresh = weights(ours).clone()
    ours.step()
    theirs.step()
    moved = (weights(ours) - fresh).abs().max()
    # AdamW's first step is the learning rate for every weight, whatever the size of its gradient.
    assert moved.item() == pytest.approx(grpo_twins.LEARNING_RATE, rel=0.05)
    apart = (weights(ours) - weights(theirs)).abs()
    assert apart.mean() < 0.02 * moved


def test_some_ratios_are_clipped_and_some_are_not():
    ours = grpo_twins.Ours(replace(TINY, group=8, completion=16))
    reported = ours.trainer.step(ours.samples, ours.loss)
    assert 0.02 < reported["clip_share"] < 0.5


def test_another_step_is_refused():
    ours, theirs = grpo_twins.Ours(TINY), grpo_twins.Theirs(TINY)
    theirs.inputs["advantages"] = theirs.inputs["advantages"] * 1.01
    with pytest.raises(SystemExit, match="not the same step"):
        bench_grpo.prove(ours, theirs)


def test_both_get_the_same_tokens():
    data = TINY.data()
    inputs, samples = grpo_twins.as_inputs(data), grpo_twins.as_samples(data)
    rows = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1)
    assert rows.tolist() == [list(sample.token_ids) for sample in samples]
    assert [sum(sample.weights["pg"]) for sample in samples] == [4.0] * 3


def test_least_operations_count_each_different_token_once():
    # Weights of the layer: q and out 2 x 16 x 16, k and v 2 x 16 x 8, gates 3 x 16 x 24: 512 + 256 + 1152 = 1920.
    # 6 + 3 x 4 = 18 different tokens: 2 x 1920 x 18 = 69120. Keys seen: 6^2 / 2 + 3 x (6 x 4 + 4^2 / 2) = 114, at
    # 4 x 16 operations: 7296. Words: 2 x 12 x 16 x 30 = 11520. Forward and twice backward: 3 x 87936.
    assert bench_grpo.least_operations(TINY) == 3 * (69120 + 7296 + 11520)


def test_memory_counts_what_is_resident():
    with mmap.mmap(-1, 64 * 2**20) as held:  # from the system, where an allocator may have as much already
        before = bench_grpo.resident()
        for page in range(0, len(held), 4096):
            held[page] = 1
        after = bench_grpo.resident()
    assert 60e6 < after["VmRSS"] - before["VmRSS"] < 80e6
    assert after["VmHWM"] >= after["VmRSS"] > 60e6
