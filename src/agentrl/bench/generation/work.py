"""A workload that every sampler gets alike: random prompts and observations, replies of a fixed length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl.bench.floor import Shape
from agentrl.engine.random import derive_seed

Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Token ids of a workload.

    Attributes:
        shape: how much of it there is.
        prompts: one a group.
        observations: (turns - 1) of them for each conversation, those of a group side by side.
        seeds: one a conversation.
    """

    shape: Shape
    prompts: tuple[Ids, ...]
    observations: tuple[tuple[Ids, ...], ...]
    seeds: tuple[int, ...]

    @property
    def opening(self) -> tuple[Ids, ...]:
        """The prompt of each conversation."""
        return tuple(prompt for prompt in self.prompts for _ in range(self.shape.group))


def make(shape: Shape, vocabulary: int) -> Work:
    """Draw a workload from seed 0; ids 0 and 1 do not occur.

    Args:
        shape: how much of it.
        vocabulary: ids are below this.
    """
    draw = np.random.default_rng(0)

    def ids(count: int) -> Ids:
        return tuple(draw.integers(2, vocabulary, count).tolist())

    return Work(
        shape=shape,
        prompts=tuple(ids(shape.prompt) for _ in range(shape.groups)),
        observations=tuple(
            tuple(ids(shape.observation) for _ in range(shape.turns - 1)) for _ in range(shape.conversations)
        ),
        seeds=tuple(derive_seed(0, "bench", number) for number in range(shape.conversations)),
    )
