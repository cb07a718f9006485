"""A sampler that follows a script: for demonstrations, for ceilings and floors, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from agentrl.errors import SamplerError
from agentrl.types import Completion, ToolCall

Script = Generator[ToolCall, str, None]
"""Yields calls and is sent what was observed since the last one, and what was laid again before it."""


class ScriptedSession:
    """A conversation in which a script plays the policy.

    Log-probabilities are 0.0, the script being certain of what it does; they must never meet a policy gradient.
    """

    def __init__(
        self,
        script: Script,
        write: Callable[[ToolCall], tuple[int, ...]],
        read: Callable[[Sequence[int]], str],
    ) -> None:
        self.script = script
        self.write = write
        self.read = read
        self.started = False
        self.num_tokens = 0

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:  # noqa: ARG002
        """The script's next call, written as tokens.

        Raises:
            SamplerError: the script has ended, or its call is longer than ``max_tokens``.
        """
        try:
            call = self.script.send(self.read(context_ids)) if self.started else next(self.script)
        except StopIteration:
            raise SamplerError("the script ended, but the attempt goes on; let it submit") from None
        self.started = True
        ids = self.write(call)
        if len(ids) > max_tokens:
            raise SamplerError(f"the script's call {call.name!r} has {len(ids)} tokens; only {max_tokens} fit")
        self.num_tokens += len(context_ids) + len(ids)
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), versions=(0,) * len(ids), finish_reason="stop")

    async def rewind(self, num_tokens: int) -> None:
        """Forget all but the first ``num_tokens`` ids. The script itself goes on where it was.

        Raises:
            SamplerError: there are not so many ids.
        """
        if not 0 <= num_tokens <= self.num_tokens:
            raise SamplerError(f"the conversation has {self.num_tokens} tokens; it cannot keep {num_tokens}")
        self.num_tokens = num_tokens

    async def close(self) -> None:
        """End the script."""
        self.script.close()
