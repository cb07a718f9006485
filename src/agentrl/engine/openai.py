"""A policy behind an endpoint that speaks OpenAI's chat completions, for evaluation.

It gives messages and no tokens with log-probabilities, so it is played by `harness.chat.ChatLoop` and never trained.

A failed request is sent again as it was, under the same idempotency key, and only the first whole reply is taken: tools
run after it, so a retry can neither run one twice nor make an attempt of two. Nothing is streamed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agentrl.engine.random import derive_seed
from agentrl.errors import ConfigError, SamplerError
from agentrl.harness.chat import ChatReply
from agentrl.types import Completion, Message, ToolCall, ToolSpec

DEFAULT_URL = "https://api.openai.com/v1"
_RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context window")
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a model is, and how long is waited for it.

    Attributes:
        model: its name there.
        base_url: up to and without ``/chat/completions``.
        api_key: sent as a bearer token; empty for none.
        temperature: of sampling; None leaves it to the endpoint.
        concurrency: requests at the same time, at least 1.
        request_s: time for one request, in seconds.
        turn_s: time for one reply with all its retries and the wait for a place, in seconds.
        retries: of a request that failed, at least 0.
        backoff_s: before the first retry; doubled at each, and longer where the endpoint asks for it.

    Raises:
        ConfigError: a value that is out of range, or no HTTP address.
    """

    model: str
    base_url: str = DEFAULT_URL
    api_key: str = field(default="", repr=False)
    temperature: float | None = None
    concurrency: int = 16
    request_s: float = 600.0
    turn_s: float = 1800.0
    retries: int = 5
    backoff_s: float = 1.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"base URL {self.base_url!r}: write an address such as {DEFAULT_URL}")
        if not self.model:
            raise ConfigError("no model is named; write openai:NAME")
        if self.concurrency < 1 or self.retries < 0 or min(self.request_s, self.turn_s, self.backoff_s) <= 0:
            raise ConfigError(f"{self}: concurrency is 1 or more, retries 0 or more, and times are above 0")

    @property
    def limit_name(self) -> str:
        """What the limit of a reply is called: OpenAI's own service renamed it, others kept the name."""
        return "max_completion_tokens" if urlsplit(self.base_url).hostname == "api.openai.com" else "max_tokens"


class OpenAIPolicy:
    """Opens conversations with one model. Their requests share a limit, and connections while any of them is open.

    Raises:
        ConfigError: the package ``httpx`` is missing.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        try:
            self._httpx: Any = importlib.import_module("httpx")  # optional: only models behind an endpoint need it
        except ImportError as error:
            raise ConfigError(
                "models behind an endpoint need the package httpx: pip install 'agentrl[tasks]'"
            ) from error
        self._client: Any = None
        self._places: asyncio.Semaphore | None = None
        self._open = 0

    def session(self, seed: int) -> OpenAISession:
        """Open a conversation. ``seed`` is sent along; few endpoints promise to draw by it."""
        self._open += 1
        return OpenAISession(self, seed)

    async def released(self) -> None:
        """One conversation ended; the last closes the connections."""
        self._open -= 1
        if self._open == 0 and self._client is not None:
            client, self._client, self._places = self._client, None, None
            await client.aclose()

    async def post(self, body: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], float, int]:
        """The endpoint's answer, the seconds waited for a place, and how often the request was sent again.

        Raises:
            SamplerError: it refused, or failed more often than is retried.
        """
        waited = 0.0
        for trial in range(self.endpoint.retries + 1):
            started = time.perf_counter()
            async with self._place():
                waited += time.perf_counter() - started
                found, problem, pause_s = await self._try(body, key)
            if found is not None:
                return found, waited, trial
            if pause_s is None or trial == self.endpoint.retries:
                raise SamplerError(f"{self.endpoint.base_url}: {problem}{f' ({trial + 1} tries)' if trial else ''}")
            await asyncio.sleep(max(pause_s, self._backoff(key, trial)))
        raise AssertionError("the last trial returns or raises")

    def _place(self) -> asyncio.Semaphore:
        """The semaphore of the running loop; connections are made with it, one for each place."""
        if self._places is None:
            self._places = asyncio.Semaphore(self.endpoint.concurrency)
            limits = self._httpx.Limits(max_connections=self.endpoint.concurrency)
            headers = {"Authorization": f"Bearer {self.endpoint.api_key}"} if self.endpoint.api_key else {}
            self._client = self._httpx.AsyncClient(limits=limits, headers=headers, timeout=self.endpoint.request_s)
        return self._places

    def _backoff(self, key: str, trial: int) -> float:
        """Doubled at each trial, up to a minute, with a share that differs between conversations."""
        share = 0.5 + derive_seed(key, trial) / 2**64
        return float(min(60.0, self.endpoint.backoff_s * 2**trial) * share)

    async def _try(self, body: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any] | None, str, float | None]:
        """The answer, or what was wrong with seconds to wait before the next try (None: there is no use in one)."""
        url = f"{self.endpoint.base_url.rstrip('/')}/chat/completions"
        try:
            async with asyncio.timeout(self.endpoint.request_s):
                response = await self._client.post(url, json=body, headers={"Idempotency-Key": key})
        except (TimeoutError, self._httpx.TimeoutException):
            return None, f"no answer within {self.endpoint.request_s:g} s", 0.0
        except self._httpx.HTTPError as error:
            return None, f"{type(error).__name__} {error}".strip(), 0.0
        text = response.text
        if response.status_code == 400 and any(words in text for words in _TOO_LONG):
            return {"too_long": True}, "", None
        if response.status_code != 200:
            problem = f"status {response.status_code}: {text[:300]}"
            return None, problem, _retry_after(response) if response.status_code in _RETRIED else None
        try:
            data = response.json()
            whole = isinstance(data["choices"][0]["message"], dict)
        except (ValueError, LookupError, TypeError):
            whole = False
        return (data, "", None) if whole else (None, f"no chat completion: {text[:300]!r}", 0.0)


class OpenAISession:
    """One conversation; a `harness.chat.ChatSession`."""

    def __init__(self, policy: OpenAIPolicy, seed: int) -> None:
        self._policy, self._seed = policy, seed
        self._key = uuid.uuid4().hex  # by chance: another evaluation of the same task must never share a reply
        self._conversation: list[dict[str, Any]] = []
        self._turn = 0
        self._closed = False

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int) -> ChatReply:
        """Append ``messages`` and have the model reply.

        Raises:
            SamplerError: the endpoint refused, failed too often, gave no reply in time, or one of a form that cannot
                be read. The conversation is then as it was before.
        """
        endpoint = self._policy.endpoint
        sent = [*self._conversation, *map(_outgoing, messages)]
        body: dict[str, Any] = {
            "model": endpoint.model,
            "messages": sent,
            endpoint.limit_name: max_tokens,
            "seed": derive_seed(self._seed, self._turn) % 2**31,
        }
        if tools:
            body["tools"] = [_tool(spec) for spec in tools]
        if endpoint.temperature is not None:
            body["temperature"] = endpoint.temperature
        try:
            async with asyncio.timeout(endpoint.turn_s):
                data, waited_s, retries = await self._policy.post(body, f"agentrl-{self._key}-{self._turn}")
        except TimeoutError:
            raise SamplerError(
                f"{endpoint.base_url}: no reply within {endpoint.turn_s:g} s, retries included"
            ) from None
        if "too_long" in data:
            return ChatReply(
                message=Message(role="assistant"), finish="context", usage={}, served_by=endpoint.model, retries=retries
            )
        choice = data["choices"][0]
        raw = choice["message"]
        message = _incoming(raw, self._turn)
        self._conversation = [*sent, _echo(raw, message)]
        self._turn += 1
        served = [str(data[name]) for name in ("model", "system_fingerprint") if data.get(name)]
        return ChatReply(
            message=message,
            finish="length" if choice.get("finish_reason") == "length" else "stop",
            usage=_usage(data),
            served_by=" ".join(served) or endpoint.model,
            waited_s=waited_s,
            retries=retries,
        )

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:  # noqa: ARG002
        """Always raises SamplerError: there are no tokens."""
        raise SamplerError(
            f"{self._policy.endpoint.model} gives messages and no tokens with log-probabilities: play it with "
            "ChatLoop; it cannot be trained"
        )

    async def rewind(self, num_tokens: int) -> None:  # noqa: ARG002
        """Always raises SamplerError, as `sample` does."""
        await self.sample((), max_tokens=0, stop_ids=frozenset())

    async def close(self) -> None:
        """End the conversation. Safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._policy.released()


def _retry_after(response: Any) -> float:
    """Seconds that the endpoint asks to wait, up to two minutes; 0 where it asks for none that can be read."""
    try:
        return max(0.0, min(120.0, float(response.headers.get("retry-after", 0.0))))
    except ValueError:
        return 0.0


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def _outgoing(message: Message) -> dict[str, Any]:
    """A message of ours as the endpoint takes it. Replies that stand in a prompt are written with their calls."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [
            {
                "id": call.id or f"call_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for number, call in enumerate(message.tool_calls)
        ]
    if message.role == "tool":
        sent["tool_call_id"] = message.tool_call_id or "call_0"
    return sent


def _incoming(raw: Mapping[str, Any], turn: int) -> Message:
    """The reply as a message; its calls carry what is malformed about them.

    Raises:
        SamplerError: content that is neither text, nor parts of text, nor absent.
    """
    calls = raw.get("tool_calls") or ()
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    return Message(
        role="assistant",
        content=_content(raw.get("content")),
        reasoning=reasoning if isinstance(reasoning, str) else None,
        tool_calls=tuple(_call(call, turn, number) for number, call in enumerate(calls)),
    )


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise SamplerError(f"the reply's content is neither text nor parts of text: {str(content)[:200]}")


def _call(raw: Mapping[str, Any], turn: int, number: int) -> ToolCall:
    function = raw.get("function") or {}
    name, text = str(function.get("name") or ""), function.get("arguments") or "{}"
    identity = str(raw.get("id") or f"call_{turn}_{number}")
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        return ToolCall(name=name, id=identity, problem=f"the arguments are not JSON ({error})")
    if not isinstance(arguments, dict):
        return ToolCall(name=name, id=identity, problem=f"the arguments are no JSON object: {text[:80]}")
    return ToolCall(name=name, arguments=arguments, id=identity)


def _echo(raw: Mapping[str, Any], message: Message) -> dict[str, Any]:
    """The reply as the endpoint gets it back: the calls word for word, with the ids that results name."""
    kept: dict[str, Any] = {"role": "assistant", "content": raw.get("content")}
    if message.tool_calls:
        kept["tool_calls"] = [
            {"id": call.id, "type": "function", "function": dict(given.get("function") or {})}
            for call, given in zip(message.tool_calls, raw["tool_calls"], strict=True)
        ]
    elif kept["content"] is None:
        kept["content"] = ""
    return kept


def _usage(data: Mapping[str, Any]) -> dict[str, int]:
    counted = data.get("usage") or {}
    return {name: counted[name] for name in _COUNTS if isinstance(counted.get(name), int)}
