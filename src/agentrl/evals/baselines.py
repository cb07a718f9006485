"""A floor and a ceiling for a task set, so that a score has a scale.

The floors know nothing: ``submit`` hands in at once, ``random`` makes random legal calls until it is stopped. The
ceiling, ``reference``, writes the task set's own solution with the tool ``edit`` and hands in. Where a task is a
question without tools, ``submit`` replies with nothing and ``reference`` with the known answer. All three play through
the same environment and the same loop as a policy, in a plain text of their own, so that a small vocabulary does not
limit what they can say.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from agentrl.engine.random import derive_seed
from agentrl.engine.scripted import Script, ScriptedSession
from agentrl.errors import SamplerError
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.protocols import Session, TaskSet
from agentrl.types import Completion, Message, Task, ToolCall, ToolSpec

FLOORS = ("submit", "random")
CEILING = "reference"
REPLY, CONTEXT = 1 << 16, 1 << 22
"""Limits in code points that no script reaches; what limits it is the number of turns."""

SILENCE = ToolCall(name="")
"""A reply without a call, which ends an attempt where there is no tool to hand in with."""

Player = Callable[[Task, int], Session]
"""Opens a scripted conversation for a task with a seed."""


@runtime_checkable
class Solved(Protocol):
    """A task set that knows the right files of its tasks."""

    def solution(self, task_id: str) -> Mapping[str, str]:
        """Path to text of the files that a repair would leave."""
        ...


@runtime_checkable
class Answered(Protocol):
    """A task set of questions that knows right replies to them."""

    def right_reply(self, task_id: str) -> str | None:
        """A reply that is right; None where the set keeps none."""
        ...


class PlainRenderer:
    """Messages as code points, for scripts: id i is the character i, one id ends a reply, and one opens a reply that is
    text and makes no call."""

    END, TEXT = 0x110000, 0x110001
    name = "plain"

    @property
    def stop_ids(self) -> frozenset[int]:
        """The one id that ends a reply."""
        return frozenset((self.END,))

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[tuple[int, ...], ...]:  # noqa: ARG002
        """The ids of each message."""
        return tuple(tuple(map(ord, f"{message.role}: {message.content}\n")) for message in messages)

    def extend(self, messages: Sequence[Message], sampled_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:  # noqa: ARG002
        """The ids of each message that follows a reply."""
        return self.render(messages, ())

    def generation_prompt(self) -> tuple[int, ...]:
        """The ids that open a reply."""
        return (ord(">"),)

    def write(self, call: ToolCall) -> tuple[int, ...]:
        """The ids of a reply that makes one call, or none."""
        text = json.dumps({"name": call.name, "arguments": dict(call.arguments)}) if call.name else ""
        return (*map(ord, text), self.END)

    def say(self, text: str) -> tuple[int, ...]:
        """The ids of a reply that is text."""
        return (self.TEXT, *map(ord, text), self.END)

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:  # noqa: ARG002
        """The reply that `write` or `say` wrote."""
        text = self.decode(sampled_ids)
        if sampled_ids[0] == self.TEXT:
            return Message(role="assistant", content=text)
        if not text:
            return Message(role="assistant")
        return Message(role="assistant", tool_calls=(ToolCall(**json.loads(text)),))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text."""
        return "".join(chr(token) for token in token_ids if token < self.END)


class SpokenSession:
    """A conversation in which every reply is the same text. Its log-probabilities are those of certainty, 0.0."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:  # noqa: ARG002
        """The text. Raises SamplerError when it is longer than ``max_tokens``."""
        ids = PlainRenderer().say(self.text)
        if len(ids) > max_tokens:
            raise SamplerError(f"the reply has {len(ids)} tokens; only {max_tokens} fit")
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), versions=(0,) * len(ids), finish_reason="stop")

    async def rewind(self, num_tokens: int) -> None:
        """What was said before changes nothing."""

    async def close(self) -> None:
        """Nothing to free."""


def scripted_harness(turns: int) -> ToolLoop:
    """The agents' loop with as many turns as they have, for scripts."""
    return ToolLoop(PlainRenderer(), Limits(turns=turns, reply=REPLY, context=CONTEXT))


def player(name: str, task_set: TaskSet) -> Player:
    """A scripted policy of this module by its name.

    Raises:
        ValueError: an unknown name, or a ceiling for a task set that has none, with the reason.
    """
    if name == CEILING:
        reason = no_ceiling(task_set)
        if reason:
            raise ValueError(reason)
    elif name not in FLOORS:
        raise ValueError(f"no scripted policy {name!r}; there are {', '.join((*FLOORS, CEILING))}")

    def open_session(task: Task, seed: int) -> Session:
        if name == CEILING and isinstance(task_set, Answered):
            return SpokenSession(task_set.right_reply(task.id) or "")
        renderer = PlainRenderer()
        return ScriptedSession(_script(name, task_set, task, seed), renderer.write, renderer.decode)

    return open_session


def no_ceiling(task_set: TaskSet) -> str:
    """Why a task set has no ceiling; empty where it has one."""
    if isinstance(task_set, Answered):
        lacking = [task_set[n].id for n in range(len(task_set)) if task_set.right_reply(task_set[n].id) is None]
        return f"{task_set.id} has no ceiling: it keeps no answer of {lacking[0]}" if lacking else ""
    if not isinstance(task_set, Solved):
        return f"{task_set.id} has no ceiling: it has no method solution(task_id) with the right files"
    if len(task_set) and "edit" not in {tool.name for tool in task_set[0].tools}:
        return f"{task_set.id} has no ceiling: its tasks have no tool `edit` to write a solution with"
    return ""


def _script(name: str, task_set: TaskSet, task: Task, seed: int) -> Script:
    if name == "submit":
        return _submit(task)
    if name == "random":
        return _random(task, random.Random(derive_seed(seed, "random", task.id)))
    assert isinstance(task_set, Solved)
    return _reference(task, task_set.solution(task.id))


def _submit(task: Task) -> Script:
    yield _hand_in(task)


def _hand_in(task: Task) -> ToolCall:
    named = any(tool.name == "submit" for tool in task.tools)
    return ToolCall(name="submit") if named else SILENCE


def _random(task: Task, rng: random.Random) -> Script:
    """Random tools with random arguments of the right types, whose texts stand in the task's files."""
    texts = _texts(task)
    while True:
        if not task.tools:
            yield SILENCE
            continue
        tool = rng.choice(task.tools)
        required = tool.parameters.get("required", ())
        properties: Mapping[str, Mapping[str, Any]] = tool.parameters.get("properties", {})
        chosen = [name for name in properties if name in required or rng.random() < 0.5]
        arguments = {name: _value(name, properties[name], task, texts, rng) for name in chosen}
        yield ToolCall(name=tool.name, arguments=arguments)


def _value(name: str, schema: Mapping[str, Any], task: Task, texts: Sequence[str], rng: random.Random) -> Any:
    if schema.get("enum"):
        return rng.choice(list(schema["enum"]))
    kind = schema.get("type")
    if kind == "integer":
        return rng.randint(1, max(1, *(text.count("\n") for text in task.files.values()), 1))
    if kind == "number":
        return rng.random()
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return []
    if kind == "object":
        return {}
    return rng.choice(sorted(task.files)) if name == "path" and task.files else rng.choice(texts)


def _texts(task: Task) -> list[str]:
    """Lines of the task's files, or words of its prompt where it has none."""
    lines = {line.strip() for text in task.files.values() for line in text.split("\n")}
    words = {word for message in task.prompt for word in re.findall(r"\w+", message.content)}
    return sorted(lines - {""}) or sorted(words) or ["a"]


def _reference(task: Task, solution: Mapping[str, str]) -> Script:
    for path, text in solution.items():
        for line, new in edits(task.files.get(path, ""), text):
            yield ToolCall(name="edit", arguments={"line": line, "text": new, "path": path})
    yield _hand_in(task)


def edits(old: str, new: str) -> Iterator[tuple[int, str]]:
    """Line numbers with the texts that replace them, from the bottom up, which turn ``old`` into ``new``.

    An empty text deletes its line.

    >>> list(edits("a\\nb\\nc\\n", "a\\nB\\nc\\nd\\n"))
    [(3, 'c\\nd'), (2, 'B')]
    """
    before, after = (text.removesuffix("\n").split("\n") for text in (old, new))
    for kind, i, i_end, j, j_end in reversed(difflib.SequenceMatcher(None, before, after, False).get_opcodes()):
        fresh = after[j:j_end]
        if kind == "insert":
            beside = i < len(before)
            yield (i + 1, "\n".join([*fresh, before[i]])) if beside else (i, "\n".join([before[-1], *fresh]))
        elif kind in ("replace", "delete"):
            yield from ((line, "") for line in range(i_end, i + 1, -1))
            yield i + 1, "\n".join(fresh)
