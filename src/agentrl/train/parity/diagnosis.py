"""Why trainer and sampler disagree: named where the tokens show it, and only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from agentrl.train.parity import of_sampling, of_tokens, of_weights
from agentrl.train.parity.case import Case, Explanation, Fault
from agentrl.train.parity.figures import Compared, figures

ADVICE: Mapping[Fault, str] = {
    "temperature": "give trainer and sampler the same temperature, and let the sampler report log-probabilities of the "
    "distribution that it draws from",
    "truncation": "take a sampler that reports, for each token, the ids that it could draw, and log-probabilities over "
    "them; or set top_p 1, top_k 0 and min_p 0, in the sampler's own defaults too",
    "shift": "align the sampler's log-probabilities with its ids: entry t is of token t",
    "tokens": "send the sampler the very ids that are kept in the trace, and train on those",
    "stale weights": "look why the last publication did not reach the sampler, or reached it under another name",
    "half-published weights": "publish all weights before anything is sampled, or nothing",
    "changed midway": "publish between conversations, or mark each token with the version that sampled it",
    "precision": "let both compute in the same type, or correct for the difference (rl.correction)",
    "unknown": "compare one conversation token by token, beginning where the differences begin",
}
_LEFT = 1 / 3
"""What an explanation may leave of the differences, at most, beside lying within the tolerance."""
_MIN_COVERED = 0.3
_MANY, _MIN_KEPT = 50, 0.05
"""So many tokens with differences of one sign are no chance, and a truncation keeps more of the probability."""
_MIN_TOKENS = 8
"""Fewer tokens that agree, or that differ, are no pattern."""
_KINDS: tuple[tuple[Callable[[Case], Iterator[Explanation]], int], ...] = (
    (of_sampling.other_temperature, 512),
    (of_sampling.divided_after_softmax, 512),
    (of_sampling.over_everything, 512),
    (of_sampling.unreported_truncation, 512),
    (of_tokens.shifted, 512),
    (of_weights.other_weights, 512),
    (of_tokens.other_tokens, 96),
    (of_tokens.from_elsewhere, 96),
)
"""What is tried, and on how many tokens: from what costs one forward pass to what costs one for each reply."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The likely fault, what shows it, and what to do. ``unknown`` says what it is not."""

    fault: Fault
    evidence: str
    advice: str

    def __str__(self) -> str:
        named = "no known fault explains it" if self.fault == "unknown" else f"likely fault: {self.fault}"
        return f"{named}; {self.evidence}. To do: {self.advice}"


def diagnose(case: Case) -> Diagnosis:
    """Name the fault that makes trainer and sampler disagree.

    First each fault that can be computed is: the one that leaves nothing but rounding is named. Then the pattern of the
    differences is looked at: where they begin, and whether they are those of another precision.
    """
    tried: dict[Fault, float] = {}
    best = _first(case, tried)
    if best is not None:
        rest = float(np.abs(best.rest_N).max())
        before = float(np.abs(case.compared.gap_N).max())
        return _named(best.fault, f"{best.words}: the largest difference is {rest:.2g} then and {before:.2g} now")
    found = _pattern(case) or _precision(_on(case, 512)) or _one_sided(case)
    if found is not None:
        return _named(*found)
    return _named("unknown", _what_it_is_not(case, tried))


def _what_it_is_not(case: Case, tried: Mapping[Fault, float]) -> str:
    """The faults that were tried and what the best of each leaves, and how the differences lie."""
    left = ", ".join(f"{fault} {rest:.2g}" for fault, rest in tried.items())
    gap_N = case.compared.gap_N
    beyond_N = np.abs(gap_N) > case.tolerance.of_one
    weights = "" if "stale weights" in tried else "; no earlier weights were at hand to compare with"
    return (
        f"the best of each kind still leaves a largest difference of {left}; {int(beyond_N.sum())} of {len(gap_N)} "
        f"tokens differ, {int((gap_N[beyond_N] < 0).sum())} of them being likelier to the sampler{weights}"
    )


def _named(fault: Fault, evidence: str) -> Diagnosis:
    return Diagnosis(fault=fault, evidence=evidence, advice=ADVICE[fault])


def _first(case: Case, tried: dict[Fault, float]) -> Explanation | None:
    """The first explanation that leaves rounding alone; what the others leave is noted."""
    cases = {most: _on(case, most) for _, most in _KINDS}
    for explain, most in _KINDS:
        for one in explain(cases[most]):
            if explains(cases[most], one):
                return one
            tried[one.fault] = min(tried.get(one.fault, np.inf), float(np.abs(one.rest_N).max()))
    return None


def explains(case: Case, one: Explanation) -> bool:
    """Whether what an explanation leaves is rounding: within the tolerance, and a third of what was, or less."""
    if one.covers < _MIN_COVERED:
        return False
    left = figures(one.rest_N, np.zeros_like(one.rest_N), case.tolerance)
    return left.within(case.tolerance) and (
        left.root_mean_square <= _LEFT * case.compared.figures(case.tolerance).root_mean_square
    )


def _on(case: Case, max_tokens: int) -> Case:
    return replace(case, compared=worst_samples(case.compared, max_tokens))


def worst_samples(found: Compared, max_tokens: int) -> Compared:
    """The samples with the largest differences, up to so many tokens, at least one sample."""
    size = np.bincount(found.sample_N, minlength=len(found.samples))
    largest = np.zeros(len(found.samples))
    np.maximum.at(largest, found.sample_N, np.abs(found.gap_N))
    order = np.argsort(-largest, kind="stable")
    chosen = sorted(order[: max(1, int((np.cumsum(size[order]) <= max_tokens).sum()))].tolist())
    inside = np.isin(found.sample_N, chosen)
    return Compared(
        samples=tuple(found.samples[index] for index in chosen),
        trainer_N=found.trainer_N[inside],
        sampler_N=found.sampler_N[inside],
        sample_N=np.searchsorted(chosen, found.sample_N[inside]),
        place_N=found.place_N[inside],
        reply_N=found.reply_N[inside],
    )


class _Onset(NamedTuple):
    """Where the differences of a sample begin: its place, how many tokens agree in earlier replies and how many before
    it in its own, and of the tokens from it on how many there are and how many differ."""

    place: int
    earlier: int
    inside: int
    behind: int
    differing: int


def _pattern(case: Case) -> tuple[Fault, str] | None:
    """Differences that begin at one place of a conversation and stay, while everything before agrees."""
    beyond_N = np.abs(case.compared.gap_N) > case.tolerance.of_one
    onsets, agreeing = [], 0
    for index in range(len(case.compared.samples)):
        mine = np.flatnonzero(case.compared.sample_N == index)
        if beyond_N[mine].any():
            onsets.append(_onset(case.compared, mine, beyond_N[mine]))
        else:
            agreeing += len(mine)
    behind = sum(one.behind for one in onsets)
    if behind < _MIN_TOKENS or sum(one.differing for one in onsets) < 0.8 * behind:
        return None
    first = onsets[0]
    others = f", and so in {len(onsets) - 1} others" if len(onsets) > 1 else ""
    if all(one.inside <= 2 for one in onsets):  # whatever was sent, one of a few tokens may be as likely
        agreeing += sum(one.earlier for one in onsets)
        words = (
            f"{agreeing} tokens agree, and from token {first.place} of a conversation on they do not{others}: the "
            "differences begin behind what was given to the sampler and stay, so the weights and settings are right, "
            "and it was sent other ids than the trace holds"
        )
        return ("tokens", words) if agreeing >= _MIN_TOKENS else None
    if all(one.inside > 2 for one in onsets):
        return "changed midway", (
            f"the differences begin within a reply, at token {first.place} of a conversation{others}, and stay, though "
            "no ids are given there: the weights or settings changed while it was sampled"
        )
    return None


def _onset(found: Compared, mine: np.ndarray, beyond: np.ndarray) -> _Onset:
    first = int(np.argmax(beyond))
    inside = int((found.reply_N[mine[:first]] == found.reply_N[mine[first]]).sum())
    place = int(found.place_N[mine[first]])
    return _Onset(place, first - inside, inside, len(beyond) - first, int(beyond[first:].sum()))


def _precision(case: Case) -> tuple[Fault, str] | None:
    """Small differences of both signs that go along with what rounding the weights would change."""
    missing_N = -case.compared.gap_N
    found = []
    for name, change_N in of_weights.less_exact(case):
        if len(missing_N) < 32 or change_N.std() == 0.0 or missing_N.std() == 0.0:
            continue
        correlation = float(np.corrcoef(change_N, missing_N)[0, 1])
        slope = float(change_N @ missing_N) / float(change_N @ change_N)
        if correlation > 0.3 and correlation * len(missing_N) ** 0.5 > 4.0 and 0.5 < slope < 2.0:
            found.append((correlation, name))
    if not found:
        return None
    correlation, name = max(found)
    return "precision", (
        f"the differences (root mean square {np.sqrt(np.square(missing_N).mean()):.2g}, of both signs) go along with "
        f"what weights rounded to {name} change of the trainer's own numbers (correlation {correlation:.2f} over "
        f"{len(missing_N)} tokens)"
    )


def _one_sided(case: Case) -> tuple[Fault, str] | None:
    """Every token likelier to the sampler: a distribution over fewer words, by a rule that was not found."""
    gap_N, noise = case.compared.gap_N, case.tolerance.of_one
    apart, mass = int((gap_N < -noise).sum()), float(np.exp(gap_N.min()))
    if case.has_support or apart < _MANY or mass < _MIN_KEPT or gap_N.max() > noise:
        return None
    return "truncation", (
        f"all {apart} tokens that differ are likelier to the sampler, as when it draws from a part of the vocabulary "
        f"and does not report it (between {mass:.3g} and 1 of the probability would be kept); no single rule of top-p, "
        "top-k or min-p gives these numbers"
    )
