"""One conversation with the in-process engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.engine.requests import Masking, Request
from agentrl.engine.store import Conversation
from agentrl.errors import SamplerError
from agentrl.types import Completion

if TYPE_CHECKING:
    from agentrl.engine.local import LocalEngine


class LocalSession:
    """One conversation with the engine."""

    def __init__(self, engine: LocalEngine, seed: int, *, greedy: bool) -> None:
        self.engine = engine
        self.seed = seed
        self.greedy = greedy
        self.num_drawn = 0
        self.conversation = Conversation()
        self.request: Request | None = None
        """The reply that it waits for."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids so far, given and sampled."""
        return self.conversation.token_ids

    async def sample(
        self,
        context_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_ids: frozenset[int],
        stop_strings: Sequence[str] = (),
        masking: Masking | None = None,
        deadline_s: float | None = None,
    ) -> Completion:
        """Append ``context_ids`` and sample a reply of at most ``max_tokens``, the stop id included.

        Args:
            context_ids: what comes before the reply, behind what the conversation has.
            max_tokens: of the reply; it ends earlier where the model's context does.
            stop_ids: end a reply.
            stop_strings: end a reply too, as soon as its text has one; the engine needs ``decode`` for them.
            masking: gives the ids that may follow a reply so far, or None for all. What is left is renormalised, and
                the token's ``support`` says what it was.
            deadline_s: after so long the reply is given up.

        Raises:
            SamplerError: nothing to continue from, no room for a reply, a closed conversation, or no reply in time.
                Whatever is raised, a cancellation too, leaves the conversation and its draws as they were before.
        """
        if max_tokens < 1:
            raise SamplerError(f"max_tokens is {max_tokens}; a reply needs room for at least 1 token")
        if not self.token_ids and not context_ids:
            raise SamplerError("a conversation starts with at least one context id; none was given")
        if stop_strings and self.engine.decode is None:
            raise SamplerError("stop_strings need text: give the engine decode=renderer.decode, or stop by stop_ids")
        if isinstance(stop_strings, str) or "" in stop_strings:
            raise SamplerError(f"stop_strings is {stop_strings!r}; write a tuple of strings of at least one letter")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = Request(
            self, tuple(context_ids), max_tokens, stop_ids, future, tuple(stop_strings), masking, self.engine.decode
        )
        self.engine.submit(request)
        try:
            reply = await asyncio.wait_for(future, deadline_s)
        except BaseException as error:
            self.engine.give_up(request)
            if isinstance(error, TimeoutError):
                raise SamplerError(f"no reply within {deadline_s:g} s; {len(request.token_ids)} tokens came") from error
            raise
        self.request = None
        return reply

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
