"""The in-process engine: batched sampling over a shared key-value cache, on a schedule that no clock decides.

Conversations advance in rounds. A round begins when every open conversation waits for a reply, and ends when each
has one; a reply is handed out as soon as it is complete, so that its tool call runs while the others still sample.
Since nothing joins within a round, which numbers are computed together depends on the tokens alone, and a run
repeats bit for bit. No token is computed twice: a conversation's cache lives as long as it does, and conversations
that open in the same round with the same ids share them. Conversations that open in one round are laid out together,
as a wave with a cache of its own.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from agentrl.engine.random import uniforms
from agentrl.errors import SamplerError
from agentrl.policy.base import Policy
from agentrl.policy.cache import ConversationCache, Slot
from agentrl.train.truncation import kept
from agentrl.types import Completion, Sampling


@dataclass
class EngineStats:
    """Work done so far: tokens sampled, tokens computed as context, tokens of shared prompts not computed again,
    and seconds spent computing."""

    sampled: int = 0
    prefilled: int = 0
    shared: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class _Wave:
    """Conversations that share a cache. ``number`` counts the waves of an engine."""

    number: int
    cache: ConversationCache
    members: set[LocalSession]


@dataclass(eq=False)
class _Request:
    session: LocalSession
    context_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int]
    future: asyncio.Future[Completion]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    support: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        if self.token_ids and self.token_ids[-1] in self.stop_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.max_tokens else None


class LocalSession:
    """One conversation with the engine."""

    def __init__(self, engine: LocalEngine, seed: int, *, greedy: bool) -> None:
        self.engine = engine
        self.seed = seed
        self.greedy = greedy
        self.wave: _Wave | None = None
        self.slot: Slot = (0, 0)
        self.num_drawn = 0
        self.token_ids: list[int] = []
        self.num_cached = 0

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:
        """Append ``context_ids`` and sample a reply of at most ``max_tokens``, the stop id included.

        Raises:
            SamplerError: nothing to continue from, no room for a reply, or a closed conversation.
        """
        if max_tokens < 1:
            raise SamplerError(f"max_tokens is {max_tokens}; a reply needs room for at least 1 token")
        if not self.token_ids and not context_ids:
            raise SamplerError("a conversation starts with at least one context id; none was given")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.engine.submit(_Request(self, tuple(context_ids), max_tokens, stop_ids, future))
        return await future

    async def rewind(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` ids of the conversation and forget what came behind them.

        What is kept stays cached, unless a part of the opening ids is cut, which others may share; then the
        conversation is computed anew. The draws go on where they were.

        Raises:
            SamplerError: there are not so many ids.
        """
        if not 0 <= num_tokens <= len(self.token_ids):
            raise SamplerError(f"the conversation has {len(self.token_ids)} tokens; it cannot keep {num_tokens}")
        self.engine.rewind(self, num_tokens)

    async def close(self) -> None:
        """Free the conversation."""
        self.engine.forget(self)


class LocalEngine:
    """Samples from a policy in the process that trains it; publishing costs no copy.

    Args:
        model: the policy whose weights are sampled as they are at the beginning of each round.
        sampling: how tokens are drawn; log-probabilities are those of the distribution that it leaves, and where it
            truncates, each token comes with the ids that it was drawn from.
    """

    def __init__(self, model: Policy, *, sampling: Sampling = Sampling(), version: int = 0) -> None:  # noqa: B008
        self.model = model
        self.sampling = sampling
        self.stats = EngineStats()
        self._version = version
        self._open: set[LocalSession] = set()
        self._pending: list[_Request] = []
        self._sampling: list[_Request] = []
        self._num_waves = 0
        self._round: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Version of the weights that are sampled from now."""
        return self._version

    def publish(self, version: int) -> None:
        """Name the weights that the model now holds.

        Raises:
            SamplerError: conversations are open; their caches belong to the old weights.
        """
        if self._open:
            raise SamplerError(f"{len(self._open)} conversations are open; publish when they are closed")
        self._version = version

    def session(self, seed: int, *, greedy: bool = False) -> LocalSession:
        """Open a conversation whose draws depend on ``seed`` alone; ``greedy`` takes the likeliest token each time."""
        session = LocalSession(self, seed, greedy=greedy)
        self._open.add(session)
        return session

    def submit(self, request: _Request) -> None:
        """Take a request into the next round."""
        if request.session not in self._open:
            raise SamplerError("the conversation is closed; open a new session")
        self._pending.append(request)
        self._start_round_when_all_wait()

    def forget(self, session: LocalSession) -> None:
        """Close a conversation; the cache of a wave goes with its last one."""
        self._open.discard(session)
        self._leave_wave(session)
        self._pending = [request for request in self._pending if request.session is not session]
        self._start_round_when_all_wait()

    def rewind(self, session: LocalSession, num_tokens: int) -> None:
        """Shorten a conversation to its first tokens.

        Raises:
            SamplerError: it waits for a reply.
        """
        if any(request.session is session for request in (*self._pending, *self._sampling)):
            raise SamplerError("the conversation waits for a reply; rewind it before or after")
        del session.token_ids[num_tokens:]
        if session.wave is None or num_tokens >= session.num_cached:
            return
        opening = int(session.wave.cache.prefix_lengths[session.slot[0]])
        if num_tokens < opening:
            self._leave_wave(session)
            return
        session.num_cached = num_tokens
        session.wave.cache.rewind(session.slot, num_tokens - opening, session.token_ids[-1])

    def _leave_wave(self, session: LocalSession) -> None:
        if session.wave is not None:
            session.wave.members.discard(session)
        session.wave, session.num_cached = None, 0

    def _start_round_when_all_wait(self) -> None:
        busy = self._round is not None and not self._round.done()
        if self._pending and len(self._pending) == len(self._open) and not busy:
            self._round = asyncio.get_running_loop().create_task(self._run_round())

    async def _run_round(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(self.model.sampling_threads or threads)
        requests = sorted(self._pending, key=_order)
        self._pending = []
        try:
            await self._sample_all(requests)
        except Exception as error:  # handed to every caller that waits
            for request in requests:
                if not request.future.done():
                    request.future.set_exception(_as_sampler_error(error))
        finally:
            torch.set_num_threads(threads)
            self._round, self._sampling = None, []
            self._start_round_when_all_wait()

    async def _sample_all(self, requests: list[_Request]) -> None:
        started = time.perf_counter()
        requests = self._sampling = self._take_context(requests)
        if not requests:
            return
        logits_BV = self._prefill(requests)
        while True:
            self._draw(requests, logits_BV)
            live = [request for request in requests if request.finish_reason is None]
            finished = [request for request in requests if request.finish_reason is not None]
            for request in finished:
                self._finish(request)
            self.stats.seconds += time.perf_counter() - started
            self._sampling = live
            await asyncio.sleep(0)  # replies are handed out, and deadlines of those who wait are kept
            requests, started = [request for request in live if request.session in self._open], time.perf_counter()
            if not requests:
                return
            logits_BV = self._advance(requests)

    def _take_context(self, requests: Sequence[_Request]) -> list[_Request]:
        """Append to each conversation what was given. One that has no room for it fails alone; a reply ends where the
        room does."""
        room = self.model.context
        fit = []
        for request in requests:
            session = request.session
            wanted = len(session.token_ids) + len(request.context_ids)
            if request.future.done():  # its caller has given up
                continue
            if wanted >= room:
                request.future.set_exception(
                    SamplerError(f"a conversation of {wanted} tokens leaves no room in the context of {room}")
                )
                continue
            session.token_ids += request.context_ids
            request.max_tokens = min(request.max_tokens, room - wanted)
            fit.append(request)
        return fit

    def _prefill(self, requests: list[_Request]) -> Tensor:
        """Give every conversation its new context. Returns the logits (B, V) that follow."""
        self.stats.prefilled += sum(
            len(r.session.token_ids if r.session.wave is None else r.context_ids) for r in requests
        )
        going_on = [request for request in requests if request.session.wave is not None]
        for wave, members in _by_wave(going_on):
            moved = wave.cache.keep([request.session.slot for request in members])
            for left in wave.members - {request.session for request in members}:  # its row may be another's now
                self._leave_wave(left)
            for request, slot in zip(members, moved, strict=True):
                request.session.slot = slot
        parts = [self._advance(going_on)] if going_on else []
        opening = [request for request in requests if request.session.wave is None]
        if opening:
            parts.append(self._open_wave(opening))
        logits_BV = parts[0] if len(parts) == 1 else torch.cat(parts)
        order = [*going_on, *opening]
        if order == requests:
            return logits_BV
        places = {id(request): place for place, request in enumerate(order)}
        return logits_BV[[places[id(request)] for request in requests]]

    def _open_wave(self, requests: list[_Request]) -> Tensor:
        """Lay out a cache for conversations that begin, those that begin alike side by side."""
        groups: dict[tuple[int, ...], list[_Request]] = {}
        for request in requests:
            groups.setdefault(tuple(request.session.token_ids), []).append(request)
        prefixes = list(groups)
        cache = ConversationCache(self.model, prefixes, max(map(len, groups.values())))
        self._num_waves += 1
        wave = _Wave(self._num_waves, cache, {request.session for request in requests})
        for g, group in enumerate(groups.values()):
            for n, request in enumerate(group):
                session = request.session
                session.wave, session.slot, session.num_cached = wave, (g, n), len(session.token_ids)
        shared = sum((len(group) - 1) * len(prefix) for prefix, group in groups.items())
        self.stats.prefilled -= shared
        self.stats.shared += shared
        logits_GV = cache.prefill(prefixes)
        return logits_GV[torch.tensor([request.session.slot[0] for request in requests])]

    def _advance(self, requests: list[_Request]) -> Tensor:
        """Compute what is not cached yet. Returns the logits (B, V) that follow, in the order of the waves, which is
        that of the requests."""
        parts = []
        for wave, members in _by_wave(requests):
            sessions = [request.session for request in members]
            new_ids = [session.token_ids[session.num_cached :] for session in sessions]
            parts.append(wave.cache.advance([session.slot for session in sessions], new_ids))
            for session in sessions:
                session.num_cached = len(session.token_ids)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @torch.inference_mode()
    def _draw(self, requests: list[_Request], logits_BV: Tensor) -> None:
        """Append one sampled token to each request, by inverting the cumulative distribution at its own uniform."""
        seeds = np.array([request.session.seed for request in requests], dtype=np.uint64)
        positions = np.array([request.session.num_drawn for request in requests], dtype=np.uint64)
        uniform_B = torch.from_numpy(uniforms(seeds, positions)).to(logits_BV.device)
        scaled_BV = logits_BV / self.sampling.temperature
        if self.sampling.truncates:
            kept_BV = kept(scaled_BV, self.sampling)
            scaled_BV = scaled_BV.masked_fill(~kept_BV, -math.inf)
            _note_support(requests, kept_BV)
        logprobs_BV = scaled_BV.log_softmax(-1)
        cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
        drawn_B = torch.searchsorted(cumulative_BV, (uniform_B * cumulative_BV[:, -1])[:, None], right=True).squeeze(-1)
        greedy_B = torch.tensor([request.session.greedy for request in requests], device=logits_BV.device)
        if greedy_B.any():
            drawn_B = torch.where(greedy_B, logprobs_BV.argmax(-1), drawn_B)
        chosen_B = logprobs_BV.gather(1, drawn_B[:, None]).squeeze(-1)
        for request, token, logprob in zip(requests, drawn_B.tolist(), chosen_B.tolist(), strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            request.session.num_drawn += 1
            request.session.token_ids.append(token)
        self.stats.sampled += len(requests)

    def _finish(self, request: _Request) -> None:
        """Hand out a complete reply. Its last token is given to the network with the next context."""
        reason = request.finish_reason
        assert reason is not None
        completion = Completion(
            token_ids=tuple(request.token_ids),
            logprobs=tuple(request.logprobs),
            versions=(self._version,) * len(request.token_ids),
            finish_reason=reason,
            support=tuple(request.support),
        )
        if not request.future.done():
            request.future.set_result(completion)


def _order(request: _Request) -> tuple[int, Slot, tuple[int, ...], int]:
    """Which conversations are computed side by side must not depend on the order in which they were opened."""
    session = request.session
    if session.wave is None:  # behind those that go on
        return sys.maxsize, (0, 0), (*session.token_ids, *request.context_ids), session.seed
    return session.wave.number, session.slot, request.context_ids, session.seed


def _by_wave(requests: Sequence[_Request]) -> Iterator[tuple[_Wave, list[_Request]]]:
    """Neighbouring requests of one wave."""
    for wave, members in groupby(requests, key=lambda request: request.session.wave):
        assert wave is not None, "the conversation has been laid out"
        yield wave, list(members)


def _note_support(requests: Sequence[_Request], kept_BV: Tensor) -> None:
    """Give each request the ids that its next token is drawn from."""
    ids_S = kept_BV.nonzero()[:, 1].cpu()
    for request, ids in zip(requests, torch.split(ids_S, kept_BV.sum(1).tolist()), strict=True):
        request.support.append(tuple(ids.tolist()))


def _as_sampler_error(error: Exception) -> SamplerError:
    """An error of its own for each caller, since a raised exception collects the traceback of whoever gets it."""
    known = isinstance(error, SamplerError)
    failure = SamplerError(str(error) if known else f"the engine failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
