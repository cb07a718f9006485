"""The in-process engine: continuous batching over a bounded key-value cache with shared prefixes.

Each step computes what is missing of some conversations and samples one token for each that is ready. Prompts are
computed a chunk at a time beside conversations that sample, once for all that begin alike; what a conversation has
said and was told stays cached as long as it is open, unless memory runs out. Steps run in the event loop and are not
interrupted: whoever publishes does so between two of them, so no token comes from weights that are half new.

Two schedules. ``continuous``: a request joins at the next step, whatever the others do, so which numbers are computed
together depends on the clock, and with it their last bits. ``lockstep``: requests join when every open conversation
waits for a reply and none is sampled; what is computed together depends on the tokens alone, and a run repeats bit for
bit.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Collection, Sequence
from typing import Literal

import torch
from torch import Tensor

from agentrl.engine.requests import Decode, EngineStats, Request, sample_next
from agentrl.engine.session import LocalSession
from agentrl.engine.store import ConversationStore, Opening
from agentrl.errors import SamplerError
from agentrl.policy.base import Policy
from agentrl.policy.cache import Piece
from agentrl.policy.slots import CacheFull
from agentrl.types import Sampling

Schedule = Literal["lockstep", "continuous"]
AtPublication = Literal["drop", "keep"]

CHUNK_TOKENS = 2048
"""New context that is computed in a step, if nothing else is asked for."""


class LocalEngine:
    """Samples from a policy in the process that trains it; publishing costs no copy.

    Args:
        model: the policy whose weights are sampled as they are at each step.
        sampling: how tokens are drawn; log-probabilities are those of the distribution that it leaves, and where it
            truncates, each token comes with the ids that it was drawn from.
        version: of the weights.
        schedule: see the module.
        cache_bytes: the most that keys and values may take; None for a quarter of the memory of the device. When it
            is used up, prompts that nobody needs go first, then conversations that wait for tools, then those that
            came last; they are computed again when they go on.
        max_running: conversations that are sampled at a time; the others wait in the order in which they came.
        chunk_tokens: new context that is computed in a step, beside the tokens that are sampled.
        at_publication: what becomes of the keys of open conversations: ``drop`` computes them anew with the new
            weights, ``keep`` goes on with those of the old ones, and counts the tokens sampled so.
        decode: ids to text, for stop strings.

    Raises:
        SamplerError: a size that is not above 0.
    """

    def __init__(
        self,
        model: Policy,
        *,
        sampling: Sampling = Sampling(),  # noqa: B008
        version: int = 0,
        schedule: Schedule = "lockstep",
        cache_bytes: int | None = None,
        max_running: int | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        at_publication: AtPublication = "drop",
        decode: Decode | None = None,
    ) -> None:
        sizes = {"cache_bytes": cache_bytes, "max_running": max_running, "chunk_tokens": chunk_tokens}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise SamplerError(f"{name} is {value}; write a number above 0")
        self.model = model
        self.sampling = sampling
        self.schedule: Schedule = schedule
        self.max_running, self.chunk_tokens = max_running, chunk_tokens
        self.at_publication: AtPublication = at_publication
        self.decode = decode
        self.stats = EngineStats()
        self.store = ConversationStore(model, cache_bytes, self.stats)
        self._version = version
        self._open: dict[LocalSession, None] = {}
        self._waiting: list[Request] = []
        self._next: list[Request] = []
        """Those that join as soon as there is room, in their order."""
        self._running: list[Request] = []
        self._num_places = 0
        self._crowded = False
        self._work: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Version of the weights that are sampled from now."""
        return self._version

    def publish(self, version: int) -> None:
        """Name the weights that the model now holds. Conversations that are open go on with them, replies that are
        being sampled too, with the version of each token.

        Raises:
            SamplerError: conversations are open and the schedule is ``lockstep``.
        """
        if self._open and self.schedule == "lockstep":
            raise SamplerError(f"{len(self._open)} conversations are open; publish when they are closed")
        keep = self.at_publication == "keep"
        self.store.change_weights((session.conversation for session in self._open), keep=keep)
        self._version = version

    def session(self, seed: int, *, greedy: bool = False) -> LocalSession:
        """Open a conversation whose draws depend on ``seed`` alone; ``greedy`` takes the likeliest token each time."""
        session = LocalSession(self, seed, greedy=greedy)
        self._open[session] = None
        return session

    def submit(self, request: Request) -> None:
        """Take a request.

        Raises:
            SamplerError: its conversation is closed, or waits for another reply.
        """
        session = request.session
        if session not in self._open:
            raise SamplerError("the conversation is closed; open a new session")
        self._abandon_given_up()
        if self._is_busy(session):
            raise SamplerError("the conversation waits for a reply; ask for the next one behind it")
        self._waiting.append(request)
        self._wake()

    def forget(self, session: LocalSession) -> None:
        """Close a conversation, and free what is cached of it."""
        if session not in self._open:
            return
        del self._open[session]
        for requests in self._queues:
            requests[:] = [request for request in requests if request.session is not session]
        self.store.drop(session.conversation)
        self._crowded = False
        if not self._open and self.schedule == "lockstep":
            self.store.clear()
        self._wake()

    def rewind(self, session: LocalSession, num_tokens: int) -> None:
        """Shorten a conversation to its first tokens.

        Raises:
            SamplerError: it waits for a reply.
        """
        self._abandon_given_up()
        if self._is_busy(session):
            raise SamplerError("the conversation waits for a reply; rewind it before or after")
        self.store.rewind(session.conversation, num_tokens)

    def conversations_that_fit(self, tokens: int) -> int:
        """How many conversations of so many tokens can be cached at once, if they share nothing."""
        return self.store.cache.budget.limit // (self.store.cache.bytes_per_token * tokens)

    # Who is sampled.

    def _is_busy(self, session: LocalSession) -> bool:
        return any(request.session is session for requests in self._queues for request in requests)

    @property
    def _queues(self) -> tuple[list[Request], list[Request], list[Request]]:
        return self._waiting, self._next, self._running

    def _wake(self) -> None:
        if self._work is None and (self._running or self._next or self._may_join()):
            self._work = asyncio.get_running_loop().create_task(self._sample_all())

    def _may_join(self) -> bool:
        """Whether it is the turn of requests that wait."""
        if self.schedule == "lockstep":
            return bool(self._waiting) and len(self._waiting) == len(self._open)
        return bool(self._waiting)

    def _join(self) -> None:
        """Take requests into the batch, as many as there may be."""
        if self._may_join():
            if self.schedule == "lockstep":  # who is computed side by side must not depend on who came first
                self._waiting.sort(key=_order)
            self._next += self._waiting
            self._waiting.clear()
        while self._next and self._has_room():
            request = self._next.pop(0)
            if self._take_context(request):
                self._running.append(request)

    def _has_room(self) -> bool:
        if not self._running:
            self._crowded = False
        return not self._crowded and (self.max_running is None or len(self._running) < self.max_running)

    def _take_context(self, request: Request) -> bool:
        """Append to a conversation what was given. One that has no room for it fails alone; a reply ends where the room
        does."""
        if request.start is not None:  # it had to go for others, and comes back
            return True
        conversation, room = request.session.conversation, self.model.context
        wanted = len(conversation.token_ids) + len(request.context_ids)
        if wanted >= room:
            request.fail(SamplerError(f"a conversation of {wanted} tokens leaves no room in the context of {room}"))
            return False
        request.start = len(conversation.token_ids)
        if request.start:
            self.stats.prefilled += len(request.context_ids)
        conversation.token_ids += request.context_ids
        request.max_tokens = min(request.max_tokens, room - wanted)
        if conversation.place is None:
            self._num_places += 1
            conversation.place = self._num_places
        return True

    def _abandon_given_up(self) -> None:
        """Forget requests that nobody waits for any more; their conversations are as they were before."""
        for requests in self._queues:
            for request in [one for one in requests if one.future.done()]:
                requests.remove(request)
                if request.start is not None:
                    self.store.rewind(request.session.conversation, request.start)

    # Steps.

    async def _sample_all(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(self.model.sampling_threads or threads)
        try:
            while True:
                self._abandon_given_up()
                self._join()
                if not self._running:
                    return
                started = time.perf_counter()
                try:
                    self._step()
                except Exception as error:  # handed to every caller that waits
                    self._fail(error)
                self.stats.seconds += time.perf_counter() - started
                await asyncio.sleep(0)  # replies are handed out, and whoever publishes or closes has a turn
        finally:
            self._work = None
            torch.set_num_threads(threads)

    def _step(self) -> None:
        """Compute what fits in a step, and sample a token for each conversation that is computed to its end."""
        openings, pieces, tails = self._plan()
        logits_BV = None
        if pieces or openings:
            self.stats.steps += 1
            logits_BV = self.store.cache.advance([*openings.values(), *pieces])
        row = 0
        for opening, piece in openings.items():
            if piece.ends and logits_BV is not None:
                opening.logits_V, row = logits_BV[row].clone(), row + 1
        begun = [request for request in self._running if self._is_begun(request, tails)]
        ready = [request for request, piece in zip(tails, pieces, strict=True) if piece.ends]
        parts = [] if logits_BV is None or not ready else [logits_BV[row:]]
        parts += [torch.stack([self._logits_of(request) for request in begun])] if begun else []
        if parts:
            self._sample([*ready, *begun], parts[0] if len(parts) == 1 else torch.cat(parts))

    def _plan(self) -> tuple[dict[Opening, Piece], list[Piece], list[Request]]:
        """What to compute: of prompts, and of tails, with the requests that these belong to."""
        left = self.chunk_tokens
        openings: dict[Opening, Piece] = {}
        pieces: list[Piece] = []
        tails: list[Request] = []
        for request in list(self._running):
            if request not in self._running:  # it had to go for one before it
                continue
            conversation = request.session.conversation
            opening = conversation.opening or self.store.attach(conversation)
            is_prompt = opening.logits_V is None
            if is_prompt:
                opening = self.store.next_opening(opening)
            elif not conversation.num_missing:
                continue
            if (left <= 0 and (is_prompt or conversation.num_missing > 1)) or opening in openings:
                continue
            piece = self._placed(request, opening if is_prompt else None, max(1, left), openings)
            if piece is None:
                continue
            if is_prompt:
                openings[opening] = piece
            else:
                pieces.append(piece)
                tails.append(request)
            left -= len(piece.token_ids) if is_prompt or len(piece.token_ids) > 1 else 0
        return openings, pieces, tails

    def _placed(
        self, request: Request, opening: Opening | None, most: int, planned: Collection[Opening]
    ) -> Piece | None:
        """The next tokens of a prompt or of a request's tail, with room made for them; None when there is none now."""
        while request in self._running:
            try:
                if opening is not None:
                    return self.store.prompt_piece(opening, most)
                return self.store.tail_piece(request.session.conversation, most)
            except CacheFull:
                running = {request.session for request in self._running}
                idle = [session.conversation for session in self._open if session not in running]
                if not self.store.make_room(idle, planned):
                    self._send_back(request)
        return None

    def _send_back(self, request: Request) -> None:
        """Take the request that came last out of the batch, to come back when another one is done. One that is alone
        cannot be computed at all."""
        last = self._running.pop()
        self.store.drop(last.session.conversation)
        self.stats.evicted += 1
        if self._running:
            self._next.insert(0, last)
            self._crowded = True
        else:
            cache, tokens = self.store.cache, len(request.session.token_ids)
            request.fail(
                SamplerError(
                    f"a conversation of {tokens} tokens needs {tokens * cache.bytes_per_token / 2**20:.1f} MiB of keys "
                    f"and values or more, in slots of powers of two; cache_bytes allows "
                    f"{cache.budget.limit / 2**20:.1f} MiB: raise it, or play shorter conversations"
                )
            )

    def _is_begun(self, request: Request, tails: Collection[Request]) -> bool:
        """Whether a reply begins right behind a prompt that is computed."""
        conversation = request.session.conversation
        opening = conversation.opening
        known = opening is not None and opening.logits_V is not None
        return known and not conversation.num_missing and request not in tails

    def _logits_of(self, request: Request) -> Tensor:
        opening = request.session.conversation.opening
        assert opening is not None
        assert opening.logits_V is not None
        return opening.logits_V

    def _sample(self, requests: Sequence[Request], logits_BV: Tensor) -> None:
        """A token for each request; those that are complete leave the batch at once."""
        places = []
        for place, request in enumerate(requests):
            try:
                request.restrict(logits_BV.shape[1])
                places.append(place)
            except SamplerError as error:
                self._end(request)
                request.fail(error)
        if len(places) < len(requests):
            requests, logits_BV = [requests[place] for place in places], logits_BV[places]
        if not requests:
            return
        sample_next(requests, logits_BV, self.sampling, self._version)
        self.stats.sampled += len(requests)
        for request in requests:
            self.stats.on_older_keys += request.session.conversation.on_older_keys
            if request.finish_reason is not None:
                self._end(request)
                request.answer()

    def _end(self, request: Request) -> None:
        self._running.remove(request)
        self._crowded = False

    def _fail(self, error: Exception) -> None:
        """Tell everybody who waits. What is cached of their conversations cannot be trusted."""
        failed, self._running = self._running, []
        for request in failed:
            self.store.drop(request.session.conversation)
            request.fail(error)


def _order(request: Request) -> tuple[int, tuple[int, ...], int]:
    """Conversations that go on, in the order in which they joined; then others, by what they say and their seed."""
    conversation = request.session.conversation
    place = sys.maxsize if conversation.place is None else conversation.place
    return place, (*conversation.token_ids, *request.context_ids), request.session.seed
