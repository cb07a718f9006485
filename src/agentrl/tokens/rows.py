"""Demonstrations: conversations that somebody wrote, as traces whose replies are to be imitated.

The replies take the place of what a policy samples, so `samples` trains exactly them, stop token included. No mask is
looked up in the text: a message that quotes a turn of the assistant is given like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from agentrl.errors import RendererError
from agentrl.protocols import Renderer
from agentrl.types import Message, Node, Sample, Stop, ToolSpec, Trace

if TYPE_CHECKING:  # real vocabularies need a package that TinyAgent does not
    from agentrl.tokens.chatml import Continuation
    from agentrl.tokens.vocabulary import Vocabulary


@runtime_checkable
class Writer(Renderer, Protocol):
    """A renderer that can also write what the policy would say."""

    def write_reply(self, message: Message) -> tuple[int, ...]:
        """The ids of a reply, its stop id included."""
        ...


@runtime_checkable
class _Follows(Protocol):
    """A renderer whose template may write history anew; see `ChatMLRenderer.follow`."""

    def follow(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        sampled_ids: Sequence[int],
        tools: Sequence[ToolSpec],
    ) -> Continuation: ...


def as_writer(renderer: Renderer) -> Writer:
    """The renderer, if it can write replies.

    Raises:
        RendererError: it can only read them.
    """
    if isinstance(renderer, Writer):
        return renderer
    raise RendererError(f"{renderer.name} reads replies and cannot write any; demonstrations need one that does")


def demonstration(renderer: Writer, messages: Sequence[Message], tools: Sequence[ToolSpec], *, trace_id: str) -> Trace:
    """A conversation as a trace. Each reply stands in the context in which the policy would give it: where the model's
    template drops thoughts once the user asks again, a new branch begins.

    Messages behind the last reply are left out: nothing is trained there.

    Raises:
        RendererError: no reply, a conversation that begins with one, or a message that cannot be written.
    """
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if not replies or replies[0] == 0:
        fault = "begins with a reply of the assistant" if replies else "has no reply of the assistant"
        raise RendererError(f"conversation {trace_id!r} {fault}; a demonstration is a question and its reply")
    nodes: list[Node] = []
    done = 0
    for index in replies:
        parent, spans = _context(renderer, messages[:done], messages[done:index], tools, nodes)
        for message, ids in zip(messages[done if parent is not None else 0 : index], spans, strict=True):
            nodes.append(Node(parent=parent, message=message, context_ids=ids))
            parent = len(nodes) - 1
        nodes.append(
            _reply(parent, messages[index], renderer.generation_prompt(), renderer.write_reply(messages[index]))
        )
        done = index + 1
    return _trace(trace_id, nodes)


def prompt_and_completion(
    vocabulary: Vocabulary, prompt: str, completion: str, *, trace_id: str, end: bool = True
) -> Trace:
    """A pair of texts for a base model, encoded apart: a model that is given the prompt never sees a piece of both.

    Args:
        vocabulary: the model's.
        prompt: what is given.
        completion: what is imitated.
        trace_id: a name.
        end: whether the end of the text is imitated too.
    """
    sampled = (*vocabulary.text_ids(completion), *((vocabulary.end_id,) if end else ()))
    given = Node(parent=None, message=Message(role="user", content=prompt), context_ids=vocabulary.text_ids(prompt))
    return _trace(trace_id, [given, _reply(0, Message(role="assistant", content=completion), (), sampled)])


class Cut(NamedTuple):
    """A sample of at most so many tokens, how many were cut off, and how many of them were to be trained. ``sample`` is
    None where nothing to train is left."""

    sample: Sample | None
    num_cut: int
    num_trained_cut: int


def cut(sample: Sample, max_tokens: int, *, side: Literal["left", "right"] = "right") -> Cut:
    """Shorten a sample. Every list of it is cut by the same slice.

    Args:
        sample: of any length.
        max_tokens: at least 1.
        side: where tokens are taken away.

    Raises:
        RendererError: ``max_tokens`` below 1.
    """
    if max_tokens < 1:
        raise RendererError(f"max_tokens is {max_tokens}; a sample has at least one token")
    length = len(sample.token_ids)
    kept = slice(0, max_tokens) if side == "right" else slice(max(0, length - max_tokens), length)
    shorter = replace(
        sample,
        weights={name: weights[kept] for name, weights in sample.weights.items()},
        **{name: getattr(sample, name)[kept] for name in _PER_TOKEN},
    )
    before, after = (_num_trained(found) for found in (sample, shorter))
    return Cut(shorter if after else None, length - len(shorter.token_ids), before - after)


_PER_TOKEN = (
    "token_ids",
    "logprobs",
    "advantages",
    "versions",
    "returns",
    "values",
    "reference_logprobs",
    "old_logprobs",
    "importance",
    "support",
)


def _num_trained(sample: Sample) -> int:
    """Tokens with any weight."""
    return sum(any(weights) for weights in zip(*sample.weights.values(), strict=True))


def _context(
    renderer: Writer,
    history: Sequence[Message],
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    nodes: Sequence[Node],
) -> tuple[int | None, tuple[tuple[int, ...], ...]]:
    """What is given before the next reply, and the node that it follows; None where a branch begins."""
    if not history:
        return None, renderer.render(messages, tools)
    if not messages:
        raise RendererError(f"two replies of the assistant in a row ({history[-1].content!r}); join them")
    said = nodes[-1].sampled_ids
    if not isinstance(renderer, _Follows):
        return len(nodes) - 1, renderer.extend(messages, said)
    going_on = renderer.follow(history, messages, said, tools)
    return (len(nodes) - 1 if going_on.rewritten is None else None), going_on.spans


def _reply(parent: int | None, message: Message, opening: tuple[int, ...], ids: tuple[int, ...]) -> Node:
    """A reply of the demonstrator, who was certain of it: log-probability 0.0, which no policy gradient may see."""
    zeros = (0.0,) * len(ids), (0,) * len(ids)
    return Node(
        parent=parent, message=message, context_ids=opening, sampled_ids=ids, logprobs=zeros[0], versions=zeros[1]
    )


def _trace(trace_id: str, nodes: Sequence[Node]) -> Trace:
    return Trace(
        id=trace_id, task_id=trace_id, group_id=trace_id, attempt=0, seed=0, nodes=tuple(nodes), stop=Stop.DONE
    )
