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
import time
from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from agentrl.engine.batch import Batch
from agentrl.engine.plan import plan
from agentrl.engine.requests import Decode, EngineStats, Request
from agentrl.engine.session import LocalSession
from agentrl.engine.store import Conversation, ConversationStore, Opening
from agentrl.errors import SamplerError
from agentrl.policy.base import Policy
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
        self._running: dict[Request, None] = {}
        self._batch: Batch | None = None
        """Those of the last step, where it computed all of them to their end and nothing else, and none has left."""
        self._closed: list[Conversation] = []
        """Those that were closed during a round of ``lockstep``."""
        self._num_places = 0
        self._crowded = self._in_step = False
        self._work: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Version of the weights that are sampled from now."""
        return self._version

    def publish(self, version: int) -> None:
        """Name the weights that the model now holds. Conversations that are open go on with them, replies that are
        being sampled too, with the version of each token.

        Raises:
            SamplerError: conversations are open and the schedule is ``lockstep``, or a step is being computed.
        """
        if self._in_step:
            raise SamplerError("a token is being sampled; publish between two steps, not in masking or decode")
        if self._open and self.schedule == "lockstep":
            raise SamplerError(f"{len(self._open)} conversations are open; publish when they are closed")
        conversations = [session.conversation for session in self._open]
        self.store.change_weights(conversations, keep=self.at_publication == "keep")
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
        if session.request is not None:
            raise SamplerError("the conversation waits for a reply; ask for the next one behind it")
        session.request = request
        self._waiting.append(request)
        self._wake()

    def give_up(self, request: Request) -> None:
        """Forget a reply that nobody waits for any more, or that failed; its conversation is as it was before."""
        session = request.session
        if session.request is not request:
            return
        session.request = None
        self._leave(request)
        if request.start is not None:
            self.store.rewind(session.conversation, request.start)
            session.num_drawn = request.drawn_before

    def forget(self, session: LocalSession) -> None:
        """Close a conversation, and free what is cached of it. A reply that it waits for fails."""
        if session not in self._open:
            return
        del self._open[session]
        if session.request is not None:
            self._refuse(session.request, SamplerError("the conversation was closed before its reply was complete"))
        self._closed.append(session.conversation)
        if self.schedule == "continuous" or not (self._running or self._next):
            self._drop_closed()
        if not self._open and self.schedule == "lockstep":
            self.store.clear()
        self._wake()

    def rewind(self, session: LocalSession, num_tokens: int) -> None:
        """Shorten a conversation to its first tokens.

        Raises:
            SamplerError: it waits for a reply.
        """
        if session.request is not None:
            raise SamplerError("the conversation waits for a reply; rewind it before or after")
        self.store.rewind(session.conversation, num_tokens)

    def conversations_that_fit(self, tokens: int) -> int:
        """How many conversations of so many tokens can be cached at once for certain, if they share nothing."""
        return self.store.cache.sequences_that_fit(tokens)

    def _leave(self, request: Request) -> None:
        self._batch = None
        for requests in (self._waiting, self._next):
            if request in requests:
                requests.remove(request)
        if request in self._running:
            del self._running[request]
            self._crowded = False

    def _refuse(self, request: Request, error: BaseException) -> None:
        """Fail a request alone."""
        self.give_up(request)
        request.fail(error)

    def _drop_closed(self) -> None:
        """Free what is cached of conversations that were closed. In lockstep this waits for the end of a round, since
        what there is room for must not depend on the clock."""
        for conversation in self._closed:
            self.store.drop(conversation)
        self._closed.clear()
        self._crowded = False

    def _wake(self) -> None:
        # a task that was cancelled before it began, with its loop, has not said that it is done
        idle = self._work is None or self._work.done()
        if idle and (self._running or self._next or self._may_join()):
            self._work = asyncio.get_running_loop().create_task(self._sample_all())

    def _may_join(self) -> bool:
        """Whether it is the turn of requests that wait."""
        if self.schedule == "lockstep":
            return bool(self._waiting) and len(self._waiting) == len(self._open)
        return bool(self._waiting)

    def _join(self) -> None:
        """Take requests into the batch, as many as there may be."""
        if self._may_join():
            self._drop_closed()
            if self.schedule == "lockstep":  # who is computed side by side must not depend on who came first
                self._waiting.sort(key=lambda request: request.order)
            self._next += self._waiting
            self._waiting.clear()
        while self._next and self._has_room():
            request = self._next.pop(0)
            if self._take_context(request):
                self._running[request] = None

    def _has_room(self) -> bool:
        if not self._running:
            self._crowded = False
        return not self._crowded and (self.max_running is None or len(self._running) < self.max_running)

    def _take_context(self, request: Request) -> bool:
        """Append to a conversation what was given; one that leaves no room for a reply fails alone."""
        if request.start is not None:  # it had to go for others, and comes back
            return True
        try:
            request.take_context(self.model.context)
        except SamplerError as error:
            self._refuse(request, error)
            return False
        if request.start:
            self.stats.prefilled += len(request.context_ids)
        conversation = request.session.conversation
        if conversation.place is None:
            self._num_places += 1
            conversation.place = self._num_places
        return True

    async def _sample_all(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(self.model.sampling_threads or threads)
        try:
            while True:
                self._join()
                if not self._running:
                    return
                started = time.perf_counter()
                self._in_step = True
                try:
                    self._step()
                except BaseException as error:  # handed to every caller that waits
                    self._fail(error)
                    if not isinstance(error, Exception):
                        raise
                finally:
                    self._in_step = False
                self.stats.seconds += time.perf_counter() - started
                await asyncio.sleep(0)  # replies are handed out, and whoever publishes or closes has a turn
        finally:
            self._work = None
            torch.set_num_threads(threads)

    def _step(self) -> None:
        """Compute what fits in a step, and sample a token for each conversation that is computed to its end."""
        batch, self._batch = self._batch, None
        if batch is not None and self.store.cache.can_go_on and batch.requests == [*self._running]:
            self.stats.steps += 1
            self._batch = batch  # until one of them leaves
            self._sample(batch, self.store.further(batch.conversations, batch.last_ids))
            return
        openings, pieces, tails = plan(self._running.keys(), self.store, self.chunk_tokens, self._make_room)
        logits_BV = None
        if pieces or openings:
            self.stats.steps += 1
            logits_BV = self.store.cache.advance([*openings.values(), *pieces])
        row = 0
        for opening, piece in openings.items():
            if piece.ends and logits_BV is not None:
                opening.logits_V, row = logits_BV[row].clone(), row + 1
        ready = [request for request, piece in zip(tails, pieces, strict=True) if piece.ends]
        first = {request: request.session.conversation.first_logits_V for request in self._running}
        begun = {request: logits_V for request, logits_V in first.items() if logits_V is not None}
        parts = [] if logits_BV is None or not ready else [logits_BV[row:]]
        parts += [torch.stack([*begun.values()])] if begun else []
        if parts:
            batch = Batch([*ready, *begun], parts[0].device)
            self._batch = batch if len(ready) == len(pieces) and not openings and not begun else None
            self._sample(batch, parts[0] if len(parts) == 1 else torch.cat(parts))

    def _make_room(self, planned: Collection[Opening]) -> None:
        """Drop what is needed least; where nothing is left, one request has to wait."""
        idle = [session.conversation for session in self._open if session.request not in self._running]
        if not self.store.make_room([*idle, *self._closed], planned):
            self._send_back()

    def _send_back(self) -> None:
        """Take the request that came last out of the batch, to come back when another one is done. One that is alone
        cannot be computed at all."""
        last, _ = self._running.popitem()
        self.store.drop(last.session.conversation)
        self.stats.evicted += 1
        if self._running:
            self._next.insert(0, last)
            self._crowded = True
        else:
            self._refuse(last, self.store.no_room_for(len(last.session.token_ids)))

    def _sample(self, batch: Batch, logits_BV: Tensor) -> None:
        """A token for each request; those that are complete leave the batch at once."""
        errors = batch.ask_maskings(logits_BV.shape[1])
        for request, error in errors.items():  # they fail alone
            self._refuse(request, error)
        if errors:
            places = [place for place, request in enumerate(batch.requests) if request not in errors]
            if not places:
                return
            batch, logits_BV = Batch([batch.requests[n] for n in places], logits_BV.device), logits_BV[places]
        batch.sample(logits_BV, self.sampling, self._version)
        self.stats.sampled += len(batch.requests)
        self.stats.on_older_keys += sum(conversation.on_older_keys for conversation in batch.conversations)
        for request in batch.requests if batch.may_be_complete else ():
            try:
                reason = request.finish_reason
            except SamplerError as error:
                self._refuse(request, error)
                continue
            if reason is not None:
                self._leave(request)
                request.answer(reason)

    def _fail(self, error: BaseException) -> None:
        """Tell everybody whose reply was sampled. Nothing that is cached can be trusted: what is not a number would
        reach whoever gets the memory next."""
        for request in list(self._running):
            self._refuse(request, error)
        self.store.change_weights([*(session.conversation for session in self._open), *self._closed], keep=False)
        self.store.release()
