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
from agentrl.policy.slots import SMALLEST, Budget, Pool, Slot, layer_shapes
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
        self._last_slots: list[Slot] = []
        """Those that got one token each in the last step, if all did."""
        self._room = self._moves = 0

    @property
    def has_free(self) -> bool:
        """Whether there is memory to hand back."""
        return self.prompts.has_free or self.tails.has_free

    @property
    def bytes_per_token(self) -> int:
        """What a token's keys and values take in all layers, and in a copy of one of them while slots become more."""
        return self.prompts.bytes_per_token

    def sequences_that_fit(self, tokens: int) -> int:
        """How many of so many tokens, each with a prompt of its own, there is memory for; a slot may have up to twice
        the room that is needed."""
        return self.budget.limit // (self.bytes_per_token * (2 * tokens + SMALLEST) + self.logits_bytes)

    def widest(self, length: int) -> int:
        """New tokens that a sequence of so many may get at once, so that the scores stay bounded."""
        return max(16, step.MAX_SCORES // (self.query_heads * max(1, length)))

    @torch.inference_mode()
    def advance(self, pieces: Sequence[Piece]) -> Tensor:
        """Compute new tokens. Returns the logits (B, V) after the last of each piece that asks for them.

        Raises:
            SamplerError: a sequence would exceed the network's context; nothing has been computed then.
        """
        self._last, self._last_slots = None, []
        step = self._step_of(pieces)
        logits_BV = self._compute(step)
        for piece in pieces:
            piece.slot.length += len(piece.token_ids)
        if all(len(piece.token_ids) == 1 and piece.ends for piece in pieces):
            self._last, self._last_slots = step, [piece.slot for piece in pieces]
            self._room = min(slot.bucket.room - slot.length for slot in self._last_slots)
            self._moves = self._all_moves
        return logits_BV

    @property
    def can_go_on(self) -> bool:
        """Whether each sequence of the last step got one token, lies where it lay, and has room for another."""
        return self._last is not None and self._room > 0 and self._moves == self._all_moves

    @torch.inference_mode()
    def go_on(self, ids: Sequence[int]) -> Tensor:
        """As `advance`, with one more token for each sequence of the last step, where that can go on: most steps are
        like the one before them.

        Raises:
            SamplerError: as above.
        """
        assert self._last is not None, "can_go_on says whether there is such a step"
        step, self._last = self._last, None
        step.go_on(ids)
        logits_BV = self._compute(step)
        for slot in self._last_slots:
            slot.length += 1
        self._last, self._room = step, self._room - 1
        return logits_BV

    @property
    def _all_moves(self) -> int:
        return self.prompts.moves + self.tails.moves

    def _compute(self, step: Step | NativeStep) -> Tensor:
        if step.longest > self.model.context:
            raise SamplerError(
                f"a sequence of {step.longest} tokens exceeds the network's context of {self.model.context}"
            )
        return self.model.advance(step.ids_M, step.previous_M, step.positions_M, step.attend, step.last_B)

    def _step_of(self, pieces: Sequence[Piece]) -> Step | NativeStep:
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
