"""Does decoding and encoding give the ids back? How often not, and where.

A policy samples pieces, not text, and many sequences of pieces spell the same text; the tokenizer makes one of them. A
trainer that stores text and encodes it again trains ids that were never sampled, with log-probabilities of others.
Traces keep the ids that were sampled (`samples.py`); this report shows what that is worth, and nothing here makes ids
to train on. It also finds texts that spell a control token, which encoding again would turn into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from agentrl.errors import RendererError
from agentrl.tokens.vocabulary import Vocabulary, num_common
from agentrl.types import Trace

_WINDOW, _AGREED = 16, 4
"""Ids that are compared at once, and how many equal ones in a row end a difference."""
Encode = Callable[[str], Sequence[int]]
Decode = Callable[[Sequence[int]], str]


class Difference(NamedTuple):
    """A stretch of a node's ids that encoding its text writes otherwise. Positions count within the node."""

    trace_id: str
    node: int
    start: int
    ids: tuple[int, ...]
    encoded_ids: tuple[int, ...]
    num_sampled: int


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What encoding again would change in some traces.

    Args:
        num_sampled: sampled tokens that were looked at.
        num_drifted: those of them that would be lost.
        num_nodes: nodes with sampled tokens.
        num_nodes_drifted: those in which any token would be lost or gained.
        differences: every stretch, sampled or given.
    """

    num_sampled: int
    num_drifted: int
    num_nodes: int
    num_nodes_drifted: int
    differences: tuple[Difference, ...]

    @property
    def rate(self) -> float | None:
        """Share of the sampled tokens that would be lost; None when none were sampled."""
        return self.num_drifted / self.num_sampled if self.num_sampled else None


def drift(traces: Iterable[Trace], encode: Encode, decode: Decode) -> Drift:
    """What decoding and encoding would change, node by node.

    Args:
        traces: attempts. They are not changed.
        encode: the tokenizer's own, in which spellings of control tokens become control tokens (`Vocabulary.encode`).
        decode: the tokenizer's own.
    """
    nodes = [(trace.id, index, node) for trace in traces for index, node in enumerate(trace.nodes)]
    found = {
        (trace_id, index): tuple(_differences(trace_id, index, node.context_ids, node.sampled_ids, encode, decode))
        for trace_id, index, node in nodes
    }
    sampled = [(trace_id, index) for trace_id, index, node in nodes if node.sampled_ids]
    return Drift(
        num_sampled=sum(len(node.sampled_ids) for _, _, node in nodes),
        num_drifted=sum(difference.num_sampled for differences in found.values() for difference in differences),
        num_nodes=len(sampled),
        num_nodes_drifted=sum(1 for key in sampled if found[key]),
        differences=tuple(difference for differences in found.values() for difference in differences),
    )


def drift_lines(found: Drift, decode: Decode, *, limit: int = 10) -> list[str]:
    """A report in words: the rate, and some examples with their text and both spellings."""
    if found.rate is None:
        return ["no token was sampled"]
    lines = [
        f"{found.num_drifted} of {found.num_sampled} sampled tokens ({found.rate:.3%}) would be lost by decoding and "
        f"encoding, in {found.num_nodes_drifted} of {found.num_nodes} replies. They are trained as they were sampled."
    ]
    for difference in found.differences[:limit]:
        kept, new = (
            " ".join(f"{token}:{decode([token])!r}" for token in ids) or "nothing"
            for ids in (difference.ids, difference.encoded_ids)
        )
        where = f"{difference.trace_id}, node {difference.node}, at {difference.start}"
        lines.append(f"{where} ({difference.num_sampled} sampled): {kept} -> {new}")
    rest = len(found.differences) - limit
    return [*lines, f"and {rest} more"] if rest > 0 else lines


def vocabulary_drift(traces: Iterable[Trace], vocabulary: Vocabulary) -> Drift:
    """The drift of traces that were sampled with a vocabulary.

    Raises:
        RendererError: an id that the vocabulary does not have, naming the trace: it was sampled with another one.
    """
    return drift(_known(traces, vocabulary.num_ids), vocabulary.encode, vocabulary.decode)


def _known(traces: Iterable[Trace], num_ids: int) -> Iterator[Trace]:
    for trace in traces:
        largest = max((max((*node.context_ids, *node.sampled_ids), default=0) for node in trace.nodes), default=0)
        if largest >= num_ids:
            raise RendererError(
                f"trace {trace.id!r} has the id {largest} and the vocabulary ends at {num_ids - 1}; name the tokenizer "
                "that it was sampled with"
            )
        yield trace


def _differences(
    trace_id: str, index: int, given: Sequence[int], sampled: Sequence[int], encode: Encode, decode: Decode
) -> Iterable[Difference]:
    before = (*given, *sampled)
    after = tuple(encode(decode(before)))
    for a, b, c, d in _changes(before, after):
        yield Difference(trace_id, index, a, before[a:b], after[c:d], num_sampled=max(0, b - max(a, len(given))))


def _changes(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """The stretches in which two sequences differ: from where to where in the one and in the other.

    Differences are short and far apart, so each is looked at within a window that grows until both agree again. A
    comparison of the whole takes time in the square of the length.
    """
    i = j = 0
    while i < len(before) or j < len(after):
        if i < len(before) and j < len(after) and before[i] == after[j]:
            i, j = i + 1, j + 1
            continue
        size_a, size_b = _until_equal(before, after, i, j)
        matcher = SequenceMatcher(None, before[i : i + size_a], after[j : j + size_b], autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag != "equal":
                yield i + a, i + b, j + c, j + d
        i, j = i + size_a, j + size_b


def _until_equal(before: Sequence[int], after: Sequence[int], i: int, j: int) -> tuple[int, int]:
    """How far both sequences must be read on until they agree in several ids; to the ends where they never do."""
    window = _WINDOW
    while True:
        one, other = before[i : i + window], after[j : j + window]
        for block in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
            if block.size >= _AGREED:
                return block.a, block.b
        if i + window >= len(before) and j + window >= len(after):
            tail = num_common(one[::-1], other[::-1])
            return len(one) - tail, len(other) - tail
        window *= 4
