"""The weights that a run's policy had at its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from agentrl.train.checkpoint import read_checkpoint


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    """The policy's weights in a checkpoint, without those of a critic or a sampler of its own.

    Raises:
        StoreError: it is damaged.
    """
    return {name: tensor for name, tensor in read_checkpoint(checkpoint).weights.items() if ":" not in name}


def earlier_weights(root: Path, besides: str = "") -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Name and weights of the checkpoints of a run, the latest written first, each read when it is asked for.

    Args:
        root: where the checkpoints are.
        besides: the name of one that is left out.

    Raises:
        StoreError: one is damaged.
    """
    there = [path for path in root.glob("*") if path.is_dir() and path.name != besides and path.name[0] != "."]
    for path in sorted(there, key=lambda one: one.stat().st_mtime_ns, reverse=True):
        yield f"checkpoint {path.name}", weights_of(path)
