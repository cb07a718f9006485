"""A data set as samples to imitate: read, written in a model's tokens, held against the context, counted.

found = load_dataset("chat.jsonl", renderer, context=4096)
print(found.told())
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from agentrl.errors import ConfigError, RendererError
from agentrl.protocols import Renderer
from agentrl.tokens.conversations import Conversation, TextPair, read_conversation
from agentrl.tokens.rows import Writer, as_writer, cut, demonstration, prompt_and_completion
from agentrl.tokens.samples import samples
from agentrl.tokens.sources import Entry, read_entries
from agentrl.types import Message, Node, Sample, ToolSpec, Trace

Overlong = Literal["refuse", "cut", "leave_out"]


class Unit(NamedTuple):
    """What is trained or held out together: the samples of one conversation, or of all demonstrations of a task.

    ``about`` is shared by units that must not be parted between training and validation.
    """

    about: str
    samples: tuple[Sample, ...]


@dataclass(kw_only=True)
class Dataset:
    """What was read, and what became of it.

    Attributes:
        units: one for each conversation that is trained, in the order of reading.
        traces: the same as traces.
        num_read: conversations and attempts that were read.
        num_poor: attempts whose reward is missing or too low.
        num_rewritten: attempts whose messages were written in this model's tokens, since others made them.
        num_cut: conversations that were longer than the context and were cut.
        num_left_out: conversations that were longer than the context, of which nothing is trained.
        tokens_cut: tokens of both.
        longest: tokens of the longest conversation.
    """

    units: list[Unit] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    num_read: int = 0
    num_poor: int = 0
    num_rewritten: int = 0
    num_cut: int = 0
    num_left_out: int = 0
    tokens_cut: int = 0
    longest: int = 0

    def told(self) -> str:
        """All counts in a sentence."""
        parts = [f"{self.num_read} read", f"{len(self.units)} to train"]
        for count, what in (
            (self.num_poor, "without enough reward"),
            (self.num_rewritten, "written anew in this model's tokens"),
            (self.num_cut, "cut to the context"),
            (self.num_left_out, "left out as longer than the context"),
            (self.tokens_cut, "tokens cut off"),
        ):
            parts += [f"{count} {what}"] if count else []
        return f"conversations: {', '.join(parts)}; the longest has {self.longest} tokens"


def load_dataset(
    path: Path | str,
    renderer: Renderer,
    *,
    context: int,
    overlong: Overlong = "refuse",
    min_reward: float = 1.0,
    tools: Callable[[], Sequence[ToolSpec]] = tuple,
) -> Dataset:
    """Read a file or a folder of conversations or attempts; see `tokens.sources` and `tokens.conversations`.

    Args:
        path: the file or the folder.
        renderer: of the model that will imitate.
        context: the model's longest sequence in tokens.
        overlong: what becomes of a longer conversation: an error; cut behind that many tokens, so that its last reply
            may lack its end; or left out.
        min_reward: attempts with less are left out.
        tools: those of the task set, for attempts whose tokens are another model's; a trace does not keep them.

    Raises:
        ConfigError: naming file, line and field: what is no conversation, cannot be written in the model's tokens, or
            is too long; or nothing is left to train.
    """
    found = Dataset()
    for entry in read_entries(path):
        found.num_read += 1
        made = _trace(entry, renderer, min_reward, tools, found)
        if made is not None:
            _add(found, *made, entry.name, context, overlong)
    if not found.units:
        raise ConfigError(f"{path}: nothing is left to train; {found.told()}")
    return found


def split(units: Sequence[Unit], share: float, seed: int) -> tuple[list[Unit], list[Unit]]:
    """Units to train and units to validate on, each in their order; what is about the same stays together.

    Args:
        units: all of them.
        share: of the subjects, that is held out; at least one is, and at least one is not.
        seed: of the draw.

    Raises:
        ConfigError: all units are about the same.
    """
    if not share:
        return list(units), []
    subjects = list(dict.fromkeys(unit.about for unit in units))
    if len(subjects) < 2:
        raise ConfigError(
            f"all {len(units)} conversations begin alike, so none can be held out without showing it in training; set "
            "warm_start.validation to 0"
        )
    random.Random(seed).shuffle(subjects)
    held_out = set(subjects[: min(max(1, round(share * len(subjects))), len(subjects) - 1)])
    return [u for u in units if u.about not in held_out], [u for u in units if u.about in held_out]


def _trace(
    entry: Entry, renderer: Renderer, min_reward: float, tools: Callable[[], Sequence[ToolSpec]], found: Dataset
) -> tuple[str, Trace] | None:
    """What a conversation is about, and its trace; None for an attempt that is not good enough."""
    if not isinstance(entry.content, Trace):
        row = read_conversation(entry.content, entry.name)
        return row.opening, _written(row, renderer, tools)
    attempt = entry.content
    if attempt.reward is None or attempt.reward < min_reward:
        found.num_poor += 1
        return None
    if f"/{renderer.name}/" not in str(attempt.metadata.get("harness")):
        found.num_rewritten += 1
        return attempt.task_id, _written(_messages_of(attempt, tools(), entry.name), renderer, tools)
    return attempt.task_id, attempt


def _messages_of(attempt: Trace, tools: Sequence[ToolSpec], name: str) -> Conversation:
    """An attempt of another model as messages."""
    if len(attempt.branches()) != 1:
        raise ConfigError(
            f"{name}: an attempt of another model with several branches cannot be written anew; remove it"
        )
    messages = tuple(node.message for node in attempt.nodes)
    replies = sum(message.role == "assistant" for message in messages)
    return Conversation(name=name, messages=messages, tools=tuple(tools), trained=(True,) * replies)


def _written(row: Conversation | TextPair, renderer: Renderer, tools: Callable[[], Sequence[ToolSpec]]) -> Trace:
    try:
        if isinstance(row, TextPair):
            return _pair(row, renderer)
        writer = as_writer(renderer)
        trace = demonstration(writer, row.messages, row.tools, trace_id=row.name)
        _check_read_back(trace, writer, row.tools or tools())
    except RendererError as error:
        raise ConfigError(f"{row.name}: {error}") from error
    return _untrained(trace, row.trained)


def _pair(row: TextPair, renderer: Renderer) -> Trace:
    vocabulary = getattr(renderer, "vocabulary", None)
    if vocabulary is None:
        raise RendererError(f"{renderer.name} has no vocabulary for plain texts; write the pair as messages")
    return prompt_and_completion(vocabulary, row.prompt, row.completion, trace_id=row.name)


def _check_read_back(trace: Trace, renderer: Writer, tools: Sequence[ToolSpec]) -> None:
    """What the policy is taught to write must be read as the call that it stands for."""
    for node in trace.nodes:
        if not node.message.tool_calls or any(call.problem for call in node.message.tool_calls):
            continue
        wanted, read = (_named(message) for message in (node.message, renderer.parse(node.sampled_ids, tools)))
        if wanted != read:
            raise RendererError(f"the calls {wanted} would be read back as {read}; mend their names and arguments")


def _named(message: Message) -> list[tuple[str, dict[str, object]]]:
    return [(call.name, dict(call.arguments)) for call in message.tool_calls]


def _untrained(trace: Trace, trained: Sequence[bool]) -> Trace:
    """The trace with replies that are only context. Its replies are the first of those that ``trained`` tells of."""
    switches = iter(trained)
    nodes = tuple(node if not node.sampled_ids or next(switches) else _as_context(node) for node in trace.nodes)
    return replace(trace, nodes=nodes)


def _as_context(node: Node) -> Node:
    return replace(
        node, context_ids=node.context_ids + node.sampled_ids, sampled_ids=(), logprobs=(), versions=(), support=()
    )


def _add(found: Dataset, about: str, trace: Trace, name: str, context: int, overlong: Overlong) -> None:
    """Take a conversation in, as far as the context allows."""
    made = samples(trace, None, objective="ce")
    longest = max((len(sample.token_ids) for sample in made), default=0)
    found.longest = max(found.longest, longest)
    if longest > context and overlong == "refuse":
        raise ConfigError(
            f"{name}: the conversation has {longest} tokens, and the context {context}; set model.context to {longest} "
            "or more, or warm_start.overlong to cut or leave_out"
        )
    if longest > context:
        made = _shortened(found, made, context if overlong == "cut" else 0)
    if made:
        found.units.append(Unit(about, made))
        found.traces.append(trace)


def _shortened(found: Dataset, made: Sequence[Sample], context: int) -> tuple[Sample, ...]:
    """What is left of a conversation's samples in a context, counted; nothing in a context of 0."""
    shorter = [cut(sample, context).sample for sample in made] if context else []
    left = tuple(sample for sample in shorter if sample is not None)
    found.tokens_cut += sum(len(sample.token_ids) for sample in made) - sum(len(sample.token_ids) for sample in left)
    found.num_cut += bool(left)
    found.num_left_out += not left
    return left
