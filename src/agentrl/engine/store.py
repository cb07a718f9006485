"""What is cached of conversations: prompts that several begin with, tails of their own, and who goes when memory ends.

A conversation's opening ids are its prompt, in a slot that all conversations with the same opening share. A prompt that
begins like another one copies what they have in common and computes the rest. What no conversation needs stays, for
others that begin so, until memory is wanted or the weights change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.engine.memory import host_bytes
from agentrl.engine.prefixes import PrefixTree
from agentrl.engine.requests import EngineStats
from agentrl.errors import SamplerError
from agentrl.policy.base import Policy
from agentrl.policy.cache import KeyValueCache, Piece
from agentrl.policy.slots import CacheFull, Slot, copy

WORTH_SHARING = 16
"""Tokens that a prompt must have in common with another one to take them from it."""


@dataclass(eq=False)
class Opening:
    """A prompt that is cached or is going to be.

    Attributes:
        token_ids: all of it.
        slot: its keys and values; None until the first of them are computed.
        logits_V: what follows it; None until it is computed to its end.
        users: open conversations that begin with it.
        used_at: the time, counted in uses, at which somebody last began with it.
        follows: another prompt, and how many tokens are taken from it as soon as it has them.
        is_kept: whether conversations that come may still find it.
    """

    token_ids: tuple[int, ...]
    slot: Slot | None = None
    logits_V: Tensor | None = None
    users: int = 0
    used_at: int = 0
    follows: tuple[Opening, int] | None = None
    is_kept: bool = True

    @property
    def length(self) -> int:
        """Tokens that are computed."""
        return 0 if self.slot is None else self.slot.length


@dataclass(eq=False)
class Conversation:
    """Token ids, and what of them is cached.

    Attributes:
        token_ids: given and sampled.
        num_opening: how many of them are the opening; 0 until it is known.
        opening: the cached prompt; None where nothing is cached.
        tail: what comes behind it; None until there is something.
        place: among the conversations of the engine, by when they joined; None before.
        most: tokens that were cached at some time.
        used_at: the time, counted in uses, at which it was last sampled.
        on_older_keys: whether its keys come from weights that are no more.
    """

    token_ids: list[int] = field(default_factory=list)
    num_opening: int = 0
    opening: Opening | None = None
    tail: Slot | None = None
    place: int | None = None
    most: int = 0
    used_at: int = 0
    on_older_keys: bool = False

    @property
    def num_cached(self) -> int:
        """Tokens that need not be computed, from the first on."""
        if self.opening is None or self.opening.slot is None:
            return 0
        return self.opening.slot.length + (0 if self.tail is None else self.tail.length)

    @property
    def num_missing(self) -> int:
        """Tokens that are not cached."""
        return len(self.token_ids) - self.num_cached

    @property
    def first_logits_V(self) -> Tensor | None:
        """What follows the prompt; None where it is not computed, or something has come behind it."""
        if self.opening is None or len(self.token_ids) > self.num_opening:
            return None
        return self.opening.logits_V


class ConversationStore:
    """Prompts and tails of one engine.

    Args:
        model: computes them.
        max_bytes: the most that they may take; None for a quarter of the memory of the device, or of what the control
            group of this process allows.
        stats: where is counted what is shared, computed again and dropped.
    """

    def __init__(self, model: Policy, max_bytes: int | None, stats: EngineStats) -> None:
        self.cache = KeyValueCache(model, max_bytes or _memory(model.device) // 4)
        self.stats = stats
        self._prompts: PrefixTree[Opening] = PrefixTree()
        self._clock = 0

    def attach(self, conversation: Conversation) -> Opening:
        """The prompt of a conversation that has none cached: one that is there already, or one to be computed."""
        if not conversation.num_opening:
            conversation.num_opening = len(conversation.token_ids)
        ids = tuple(conversation.token_ids[: conversation.num_opening])
        opening = self._prompts.get(ids)
        if opening is None:
            opening = self._new(ids, again=conversation.most > 0)
        else:
            self.stats.shared += len(ids)
        opening.users += 1
        opening.used_at = conversation.used_at = self._now()
        conversation.opening = opening
        return opening

    def next_opening(self, opening: Opening) -> Opening:
        """The prompt to compute before another one is complete: itself, or one that it takes its beginning from."""
        while opening.follows is not None:
            source, shared = opening.follows
            if not source.is_kept or source.length >= shared:
                break
            opening = source
        return opening

    def prompt_piece(self, opening: Opening, most: int) -> Piece:
        """The next tokens of a prompt, at most so many.

        Raises:
            CacheFull: there is no room for it.
        """
        if opening.follows is not None:
            self._take_over(opening, *opening.follows)
        if opening.slot is None:
            opening.slot = self._slot_of(opening)
        start = opening.slot.length
        end = min(len(opening.token_ids), start + max(1, min(most, self.cache.widest(start + most))))
        return Piece(
            slot=opening.slot,
            prompt=None,
            token_ids=opening.token_ids[start:end],
            previous_id=opening.token_ids[start - 1] if start else 0,
            ends=end == len(opening.token_ids),
        )

    def tail_piece(self, conversation: Conversation, most: int) -> Piece:
        """The next tokens of a conversation whose prompt is cached, at most so many.

        Raises:
            CacheFull: there is no room for them; what is cached stays.
        """
        opening, tail, tails = conversation.opening, conversation.tail, self.cache.tails
        assert opening is not None, "the conversation has a prompt"
        start = conversation.num_cached
        total = len(conversation.token_ids)
        end = total
        if total > start + 1:  # a token that follows the last always fits
            end = min(total, start + max(1, min(most, self.cache.widest(start + most))))
        behind = end - opening.length
        if tail is None or behind > tail.bucket.room:
            tail = conversation.tail = tails.take(behind) if tail is None else tails.moved(tail, behind)
        if conversation.most > start:
            self.stats.recomputed += min(conversation.most, end) - start
        conversation.most = max(conversation.most, end)
        conversation.used_at = self._now()
        ids = conversation.token_ids
        return Piece(tail, opening.slot, ids[start:end], ids[start - 1], end == total)

    def further(self, conversations: Sequence[Conversation], ids: Sequence[int]) -> Tensor:
        """Logits (B, V) behind one more token of each conversation of the step before, where the cache can go on."""
        logits_BV = self.cache.go_on(ids)
        for conversation in conversations:
            conversation.most += 1  # all that was ever cached of one that is sampled is cached
            conversation.used_at = self._now()
        return logits_BV

    def drop(self, conversation: Conversation) -> None:
        """Forget what is cached of a conversation; its prompt stays for others, if some of it is computed."""
        if conversation.tail is not None:
            self.cache.tails.give_back(conversation.tail)
        if conversation.opening is not None:
            conversation.opening.users -= 1
            self._let_go(conversation.opening)
        conversation.opening = conversation.tail = None
        conversation.on_older_keys = False

    def rewind(self, conversation: Conversation, num_tokens: int) -> None:
        """Keep the first tokens of a conversation, and of what is cached as much as belongs to them."""
        del conversation.token_ids[num_tokens:]
        opening = conversation.opening
        if num_tokens < conversation.num_opening:
            self.drop(conversation)
            conversation.num_opening = 0
        elif conversation.on_older_keys and num_tokens == conversation.num_opening:
            self.drop(conversation)  # what follows the prompt was computed from older weights too
        elif conversation.tail is not None and opening is not None:
            # the last token is computed again when nothing follows it, since what comes next is not kept
            kept = max(0, num_tokens - opening.length - 1)
            self.cache.tails.cut(conversation.tail, kept)
        conversation.most = min(conversation.most, conversation.num_cached)

    def change_weights(self, conversations: Iterable[Conversation], *, keep: bool) -> None:
        """New weights: no conversation that comes finds a prompt of the old ones.

        Args:
            conversations: all that are open.
            keep: whether they go on with the keys that they have. One whose next token is not computed from new
                weights otherwise is computed anew all the same.
        """
        for opening in list(self._prompts):
            self._forget(opening)
        for conversation in conversations:
            if keep and conversation.num_missing and conversation.tail is not None:
                conversation.on_older_keys = True
            else:
                self.drop(conversation)

    def clear(self) -> None:
        """Forget all prompts that no open conversation begins with."""
        for opening in [one for one in self._prompts if not one.users]:
            self._forget(opening)

    def make_room(self, idle: Sequence[Conversation], planned: Collection[Opening]) -> bool:
        """Drop what is needed least: prompts that nobody uses nor computes, then conversations that wait for a tool; of
        each kind what was used longest ago. False when there is nothing.

        What is free already is handed back first, and not before it is needed elsewhere: that moves all slots of its
        room."""
        if self.cache.has_free:
            self.release()
            return True
        unused = [one for one in self._prompts if not one.users and one.slot is not None and one not in planned]
        waiting = [one for one in idle if one.opening is not None]
        if unused:
            self._forget(min(unused, key=lambda one: one.used_at))
        elif waiting:
            self.drop(min(waiting, key=lambda one: one.used_at))
        else:
            return False
        self.stats.evicted += 1
        return True

    def no_room_for(self, tokens: int) -> SamplerError:
        """What to say of a conversation for which there is no room, though nothing else is cached."""
        needed, limit = tokens * self.cache.bytes_per_token, self.cache.budget.limit
        return SamplerError(
            f"a conversation of {tokens} tokens needs {needed / 2**20:.1f} MiB of keys and values or more, in slots of "
            f"powers of two; cache_bytes allows {limit / 2**20:.1f} MiB: raise it, or play shorter conversations"
        )

    def release(self) -> None:
        """Hand back the memory of slots that are free."""
        self.cache.prompts.shrink()
        self.cache.tails.shrink()

    def _new(self, ids: tuple[int, ...], *, again: bool) -> Opening:
        shared, source = self._prompts.longest(ids)
        shared = min(shared, len(ids) - 1)  # what follows the last token must be computed
        opening = Opening(ids)
        if source is not None and shared >= WORTH_SHARING:
            opening.follows = (source, shared)
        else:
            shared = 0
        self._prompts.add(ids, opening)
        self.stats.shared += shared
        if again:
            self.stats.recomputed += len(ids) - shared
        else:
            self.stats.prefilled += len(ids) - shared
        return opening

    def _take_over(self, opening: Opening, source: Opening, shared: int) -> None:
        """Copy what a prompt has in common with another one. One that went away meanwhile has nothing to give."""
        if source.is_kept and source.slot is not None:
            opening.slot = self._slot_of(opening)
            copy(source.slot, opening.slot, min(shared, source.length))
        opening.follows = None

    def _slot_of(self, opening: Opening) -> Slot:
        """A slot for a prompt, and room for the logits of what follows it.

        Raises:
            CacheFull: there is no memory for both.
        """
        budget, size = self.cache.budget, self.cache.logits_bytes
        budget.take(size)
        try:
            return self.cache.prompts.take(len(opening.token_ids))
        except CacheFull:
            budget.used -= size
            raise

    def _forget(self, opening: Opening) -> None:
        self._prompts.remove(opening.token_ids)
        opening.is_kept = False
        if not opening.users:
            self._free(opening)

    def _let_go(self, opening: Opening) -> None:
        """Of a prompt that a conversation has left: nothing is kept of one that nobody can use."""
        if opening.users:
            return
        if not opening.is_kept:
            self._free(opening)
        elif opening.slot is None:
            self._forget(opening)

    def _free(self, opening: Opening) -> None:
        if opening.slot is not None:
            self.cache.prompts.give_back(opening.slot)
            self.cache.budget.used -= self.cache.logits_bytes
        opening.slot = opening.logits_V = None

    def _now(self) -> int:
        self._clock += 1
        return self._clock


def _memory(device: torch.device) -> int:
    """Of the device, in bytes, as far as this process may take it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return host_bytes()
