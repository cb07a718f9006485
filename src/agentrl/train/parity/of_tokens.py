"""Faults of which token a number is of, and of which ids the sampler was sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from agentrl.policy.base import Policy
from agentrl.train.parity.case import Case, Explanation
from agentrl.train.parity.figures import compare, flat
from agentrl.types import Sample


def shifted(case: Case) -> Iterator[Explanation]:
    """Each token has the number of its neighbour, within replies."""
    found = case.compared
    for by in (1, -1, 2, -2):
        here = np.arange(max(0, -by), len(found.sampler_N) - max(0, by))
        there = here + by
        same = (found.sample_N[here] == found.sample_N[there]) & (found.reply_N[here] == found.reply_N[there])
        here, there = here[same], there[same]
        if len(here):
            places = f"{abs(by)} token{'s' * (abs(by) > 1)} {'after' if by > 0 else 'before'} it"
            yield Explanation(
                "shift",
                f"the sampler's number of each token is the trainer's of the one {places}, for all "
                f"{len(here)} tokens that have one in the same reply",
                found.trainer_N[there] - found.sampler_N[here],
                len(here) / len(found.sampler_N),
            )


def from_elsewhere(case: Case) -> Iterator[Explanation]:
    """The numbers of a first reply are those of other places of its conversation, such as the prompt."""
    found = case.compared
    everywhere = compare_everywhere(case.policy, found.samples, case.temperature)
    rest, moved = [], set()
    for index, row in enumerate(everywhere):
        mine = (found.sample_N == index) & (found.reply_N == 0)
        said_L, first = found.sampler_N[mine], int(found.place_N[mine][0])
        if len(said_L) < 4:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(row[1:], len(said_L)) - said_L
        best = int(np.abs(windows).max(axis=1).argmin())
        rest.append(windows[best])
        moved.add(best + 1 - first)
    if rest and 0 not in moved:
        where = (
            f"{abs(next(iter(moved)))} places {'before' if min(moved) < 0 else 'after'}"
            if len(moved) == 1
            else "other places"
        )
        yield Explanation(
            "shift",
            f"the sampler's numbers of first replies are the trainer's of the tokens at {where} in the conversation",
            flat(rest),
            len(flat(rest)) / len(found.sampler_N),
        )


def compare_everywhere(policy: Policy, samples: Sequence[Sample], temperature: float) -> list[np.ndarray]:
    """The trainer's log-probability of every token of each sample; 0 for the first."""
    whole = [
        replace(
            sample,
            weights={"pg": (0.0,) + (1.0,) * (len(sample.token_ids) - 1)},
            logprobs=(0.0,) * len(sample.token_ids),
            support=(),
            group_id=f"{number}",
        )
        for number, sample in enumerate(map(_bare, samples))
    ]
    found = compare(policy, whole, temperature=temperature)
    return [np.concatenate(([0.0], found.trainer_N[found.sample_N == index])) for index in range(len(whole))]


def _bare(sample: Sample) -> Sample:
    """Its tokens, without what only a loss reads."""
    return replace(sample, returns=(), values=(), reference_logprobs=(), old_logprobs=(), importance=())


# Other ids.

Turn = tuple[tuple[int, ...], tuple[int, ...]]
"""What was given, and what was sampled behind it."""


def other_tokens(case: Case) -> Iterator[Explanation]:
    """The sampler was sent other ids than the trace holds: the usual ways in which that happens."""
    ways: dict[str, Callable[[Sequence[Turn]], Sequence[int]]] = {
        "without the first id of the conversation": lambda turns: _joined(turns)[1:],
        "with the first id of the conversation twice": lambda turns: _joined(turns)[:1] + _joined(turns),
        "without the last id of each earlier reply, its stop token": lambda turns: _joined(
            [(given, sampled[:-1]) for given, sampled in turns[:-1]] + [turns[-1]]
        ),
        "without what came before the last reply's own context": lambda turns: turns[-1][0],
        "without earlier replies": lambda turns: _joined([(given, ()) for given, _ in turns]),
    }
    size = len(case.opening)
    for left in range(size):
        words = f"without the last {size - left} of the {size} ids that open a reply"
        ways[words] = partial(_shorter_openings, case.opening, left)
    reencode = case.reencode
    if reencode is not None:
        ways["with earlier replies written anew from their text"] = lambda turns: _joined(
            [(given, tuple(reencode(sampled))) for given, sampled in turns[:-1]] + [turns[-1]]
        )
    for words, way in ways.items():
        yield from _sent(case, words, way)


def _sent(case: Case, words: str, way: Callable[[Sequence[Turn]], Sequence[int]]) -> Iterator[Explanation]:
    samples = [one for sample in case.compared.samples for one in _by_reply(sample, way)]
    changed = any(sample.group_id == "changed" for sample in samples)
    if not changed:
        return
    numbered = [replace(sample, group_id=f"{number}") for number, sample in enumerate(samples)]
    found = compare(case.policy, numbered, temperature=case.temperature)
    yield Explanation("tokens", f"the trainer agrees when it is given the ids {words}", found.gap_N)


def _by_reply(sample: Sample, way: Callable[[Sequence[Turn]], Sequence[int]]) -> Iterator[Sample]:
    """One sample for each reply, behind the ids that a way makes of what was before; its group says whether these are
    others."""
    turns = turns_of(sample)
    start = 0
    for number, (given, sampled) in enumerate(turns):
        start += len(given)
        before = _joined([*turns[:number], (given, ())])
        sent = tuple(way([*turns[:number], (given, ())])) or before[:1]
        end = start + len(sampled)
        yield Sample(
            token_ids=sent + sampled,
            weights={"pg": (0.0,) * len(sent) + (1.0,) * len(sampled)},
            logprobs=(None,) * len(sent) + sample.logprobs[start:end],
            advantages=(0.0,) * (len(sent) + len(sampled)),
            trace_id=sample.trace_id,
            group_id="same" if sent == before else "changed",
            support=(None,) * len(sent) + sample.support[start:end] if sample.support else (),
        )
        start = end


def turns_of(sample: Sample) -> list[Turn]:
    """The replies of a sample, each with what was given before it; what follows the last is left out."""
    trained = [any(weights[place] for weights in sample.weights.values()) for place in range(len(sample.token_ids))]
    edges = [place for place in range(1, len(trained)) if trained[place] != trained[place - 1]]
    cuts = [0, *edges, len(trained)]
    parts = [sample.token_ids[start:stop] for start, stop in itertools.pairwise(cuts)]
    return [(parts[index], parts[index + 1]) for index in range(0, len(parts) - 1, 2)]


def _joined(turns: Sequence[Turn]) -> tuple[int, ...]:
    return tuple(token for given, sampled in turns for token in (*given, *sampled))


def _shorter_openings(opening: tuple[int, ...], left: int, turns: Sequence[Turn]) -> tuple[int, ...]:
    """All ids, where of each opening only the first are left."""
    cut = len(opening) - left
    return _joined(
        [(given[:-cut] if given[-len(opening) :] == opening else given, sampled) for given, sampled in turns]
    )
