"""The key-value cache of many conversations, for any policy.

A conversation is a prompt, which others may share, and a tail of its own; each is a slot (`agentrl.policy.slots`).
What is shared is stored once and read once: the queries of all conversations of a prompt meet its keys in one product
(`agentrl.policy.step`).

Shape suffixes: B pieces whose successors are asked for, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.errors import SamplerError
from agentrl.policy import step
from agentrl.policy.base import Policy
from agentrl.policy.native_step import NativeStep, attention_kernels
from agentrl.policy.slots import Budget, Pool, layer_shapes
from agentrl.policy.step import Piece, Step

__all__ = ["KeyValueCache", "Piece", "next_logits"]


class KeyValueCache:
    """Keys and values of prompts and tails, for one version of the weights.

    Args:
        model: computes them.
        max_bytes: the most that they may take.
    """

    def __init__(self, model: Policy, max_bytes: int) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.budget = Budget(max_bytes)
        shapes, like, self.logits_bytes = layer_shapes(model)
        self.query_heads = max(shape.query_heads for shape in shapes)
        self.key_numbers = max(shape.query_heads * shape.key_width for shape in shapes)
        self.prompts, self.tails = (Pool(shapes, like, self.budget) for _ in range(2))
        self.kernels = attention_kernels(shapes, like)
        self._last: Step | NativeStep | None = None

    @property
    def has_free(self) -> bool:
        """Whether there is memory to hand back."""
        return self.prompts.has_free or self.tails.has_free

    @property
    def bytes_per_token(self) -> int:
        """What a token's keys and values take in all layers, and in a copy of one of them while slots become more."""
        return self.prompts.bytes_per_token

    def widest(self, length: int) -> int:
        """New tokens that a sequence of so many may get at once, so that the scores stay bounded."""
        return max(16, step.MAX_SCORES // (self.query_heads * max(1, length)))

    @torch.inference_mode()
    def advance(self, pieces: Sequence[Piece]) -> Tensor:
        """Compute new tokens. Returns the logits (B, V) after the last of each piece that asks for them.

        Raises:
            SamplerError: a sequence would exceed the network's context; nothing has been computed then.
        """
        following = self._step_of(pieces)
        if following.longest > self.model.context:
            raise SamplerError(
                f"a sequence of {following.longest} tokens exceeds the network's context of {self.model.context}"
            )
        self._last = following
        logits_BV = self.model.advance(
            following.ids_M, following.previous_M, following.positions_M, following.attend, following.last_B
        )
        for piece in pieces:
            piece.slot.length += len(piece.token_ids)
        return logits_BV

    def _step_of(self, pieces: Sequence[Piece]) -> Step | NativeStep:
        """Most steps are like the one before them, each conversation a token further."""
        if self._last is not None and self._last.goes_on_with(pieces):
            return self._last.followed_by(pieces)
        if self.kernels is not None:
            return NativeStep(pieces, self.kernels, key_numbers=self.key_numbers)
        return Step(pieces, query_heads=self.query_heads, device=self.device)


def next_logits(model: Policy, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Logits (B, V) of what follows each of some sequences of ids, computed as while sampling."""
    cache = KeyValueCache(model, sys.maxsize)
    slots = [cache.prompts.take(len(ids)) for ids in sequences]
    return cache.advance(
        [
            Piece(slot=slot, prompt=None, token_ids=ids, previous_id=0, ends=True)
            for slot, ids in zip(slots, sequences, strict=True)
        ]
    )
