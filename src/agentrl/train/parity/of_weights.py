"""Faults of the weights: those of an earlier policy, some of them, or of another type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

import numpy as np
import torch

from agentrl.policy.base import Policy
from agentrl.train.parity.case import Case, Explanation, Weights
from agentrl.train.parity.figures import compare


def other_weights(case: Case) -> Iterator[Explanation]:
    """The weights of an earlier policy, whole or in part."""
    now = case.policy.tensors()
    copy: Policy | None = None
    for name, before in case.earlier:
        if copy is None:
            copy = case.policy.frozen_copy()
        changed = _changed_groups(now, before)
        if not changed:
            continue
        copy.load_tensors(before)
        yield Explanation("stale weights", f"the trainer agrees with the weights of {name}", _rest(case, copy))
        for words, groups in _halves(list(changed)):
            old = {tensor for group in groups for tensor in changed[group]}
            copy.load_tensors({key: before[key] if key in old else now[key] for key in now})
            yield Explanation(
                "half-published weights",
                f"the trainer agrees when {words} is still of {name}",
                _rest(case, copy),
            )


def _rest(case: Case, policy: Policy) -> np.ndarray:
    return compare(policy, case.compared.samples, temperature=case.temperature).gap_N


def _changed_groups(now: Weights, before: Weights) -> dict[str, list[str]]:
    """The tensors that differ, by layer, in the order of the model."""
    groups: dict[str, list[str]] = {}
    for name, tensor in now.items():
        if name in before and not torch.equal(tensor, before[name]):
            groups.setdefault(_group(name), []).append(name)
    return groups


def _group(name: str) -> str:
    number = next((part for part in name.split(".") if part.isdecimal()), None)
    return name if number is None else f"layer {number}"


def _halves(groups: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Parts that one may have failed to publish: one alone, all from some on, all up to some."""
    for group in groups:
        if len(groups) > 1:
            yield group, [group]
    for cut in range(1, len(groups)):
        if cut < len(groups) - 1:
            yield f"everything from {groups[cut]} on", groups[cut:]
        if cut > 1:
            yield f"everything before {groups[cut]}", groups[:cut]


def less_exact(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Types less exact than the weights', and what the trainer's numbers would change by with weights rounded to them.

    It is the part of such a sampler's differences that can be foretold: rounding on its way through the network is
    another in each kernel. On a small Qwen3 model with weights in bfloat16 the two correlate by about 0.5, with a slope
    of 1.
    """
    own = next(case.policy.parameters()).dtype
    for dtype in (torch.bfloat16, torch.float16):
        if torch.finfo(dtype).eps > torch.finfo(own).eps:
            copy = deepcopy(case.policy)
            for weight in copy.parameters():
                weight.data = weight.data.to(dtype).to(own)
            scored = compare(copy, case.compared.samples, temperature=case.temperature)
            yield str(dtype).removeprefix("torch."), scored.trainer_N - case.compared.trainer_N
