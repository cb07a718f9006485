"""How many tokens a conversation in messages has: what the endpoint counted, and an estimate of the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple

from agentrl.types import Message, ToolSpec

BYTES_PER_TOKEN, TOKENS_PER_MESSAGE = 3, 4
"""Of UTF-8, and of what a template writes around a message. With Qwen3's tokenizer, attempts at BugFix have from 2.8 to
3.8 bytes a token, so that the estimate is more often above the count than below it."""


class Count(NamedTuple):
    """Tokens of a conversation, and how many of them are an estimate because the endpoint has not counted them."""

    tokens: int
    estimated: int


class ChatCount:
    """Counts the tokens of one attempt's conversation.

    What the endpoint said of the latest reply is taken as it is; the messages behind it are estimated from their bytes,
    by a scale that makes the estimate of the latest request what the endpoint counted for it. An endpoint that counts
    nothing leaves an estimate of everything.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._tools = _bytes_of_tools(tools) if tools else 0
        self._rate = (1, BYTES_PER_TOKEN)  # whole numbers, so that what was counted is estimated as what it was
        self._counted = Count(0, 0)
        self._num_counted = 0
        self.num_uncounted = 0
        """Replies for which the endpoint gave no count."""

    @property
    def how(self) -> str:
        """How tokens are estimated."""
        tokens, size = self._rate
        scale = tokens * BYTES_PER_TOKEN / size
        known = "" if scale == 1.0 else f", times {scale:.2f} after what the endpoint counted"
        return f"{BYTES_PER_TOKEN} bytes of UTF-8 a token and {TOKENS_PER_MESSAGE} tokens a message{known}"

    def of(self, messages: Sequence[Message]) -> Count:
        """The tokens of a conversation that begins as the one that was counted last."""
        if self._num_counted:
            estimated = self.estimate(messages[self._num_counted :])
            return Count(self._counted.tokens + estimated, self._counted.estimated + estimated)
        estimated = self._tokens(self._tools + _num_bytes(messages))
        return Count(estimated, estimated)

    def estimate(self, messages: Sequence[Message]) -> int:
        """The tokens of messages by themselves, without the tools."""
        return self._tokens(_num_bytes(messages))

    def learn(self, sent: Sequence[Message], reply: Message, usage: Mapping[str, int]) -> None:
        """Take what the endpoint counted.

        Args:
            sent: the conversation that was replied to.
            reply: the reply. Thoughts that stand beside it are not sent again, and so are not counted here; hidden ones
                are, until the next request is counted.
            usage: what the endpoint counted, by name.
        """
        prompt, total = usage.get("prompt_tokens"), usage.get("total_tokens")
        if prompt and sent:
            self._rate = (prompt, self._tools + _num_bytes(sent))
        said = self.estimate([reply])
        if total is None and prompt is not None and "completion_tokens" in usage:
            total = prompt + usage["completion_tokens"]
        if total is not None:
            thoughts = self._tokens(_size(reply.reasoning or ""))
            least = 0 if prompt is None else prompt + said
            self._counted = Count(max(min(total, least), total - thoughts), 0)
        elif prompt is not None:
            self._counted = Count(prompt + said, said)
        else:
            self.num_uncounted += 1
            return
        self._num_counted = len(sent) + 1

    def rewritten(self, old: Sequence[Message], new: Sequence[Message]) -> ChatCount:
        """The count of the conversation ``new``, which has other messages in the place of some of ``old``; the
        difference is an estimate. One of another length is estimated whole."""
        other = copy(self)
        if len(old) != len(new):
            other._num_counted = 0
            return other
        pairs = zip(old[: self._num_counted], new[: self._num_counted], strict=True)
        changed = [pair for pair in pairs if pair[0] is not pair[1]]
        change = self.estimate([now for _, now in changed]) - self.estimate([before for before, _ in changed])
        other._counted = Count(self._counted.tokens + change, self._counted.estimated + abs(change))
        return other

    def _tokens(self, num_bytes: int) -> int:
        """Rounded up."""
        tokens, size = self._rate
        return -(-num_bytes * tokens // size)


def _num_bytes(messages: Sequence[Message]) -> int:
    """What is sent of messages, and as many bytes as what stands around each is reckoned to have."""
    return sum(TOKENS_PER_MESSAGE * BYTES_PER_TOKEN + _size(_text(message)) for message in messages)


def _text(message: Message) -> str:
    """What of a message is sent: thoughts are not."""
    calls = (f"{call.name}{json.dumps(dict(call.arguments), ensure_ascii=False)}" for call in message.tool_calls)
    return "".join((message.content, *calls))


def _bytes_of_tools(tools: Sequence[ToolSpec]) -> int:
    plain = [{"name": one.name, "description": one.description, "parameters": dict(one.parameters)} for one in tools]
    return _size(json.dumps(plain, ensure_ascii=False))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
