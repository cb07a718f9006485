"""What is measured on a loss for each check of ``invariance.py``: one function a check, from a loss to a deviation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.algorithms.probe import Diverged, Frozen, Loss, Outcome, Tokens, Totals, example_step, gradient

GARBAGE = (math.nan, math.inf, -math.inf, 1e9, -1e9)
_DTYPES = (torch.float32, torch.float64)
_TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}
_ROUGH = 1e-2  # float16 and bfloat16
_STEP = 1e-5  # in nats; a central difference in float64 is good to about 1e-10 there


class Measured(NamedTuple):
    """The largest deviation, what it may be, and a remark. ``limit``: allowed, and worth saying."""

    deviation: float
    tolerance: float
    note: str = ""
    limit: bool = False

    @property
    def excess(self) -> float:
        """The deviation in units of the tolerance; infinite where none is allowed."""
        if self.tolerance:
            return self.deviation / self.tolerance
        return math.inf if self.deviation else 0.0


class NotApplicable(Exception):
    """The check cannot be made on this loss; its text says why."""


def masked(loss: Loss) -> Measured:
    def measured() -> Iterator[Measured]:
        for dtype in _DTYPES:
            step = example_step().to(dtype)
            plain = _with_masked(step, ("logprobs_T", "old_logprobs_T", "advantages_T"), 0.0)
            want = loss.outcome(plain)
            columns = (("logprobs_T",), ("old_logprobs_T",), ("advantages_T",))
            for names, value in product((*columns, tuple(chain(*columns))), GARBAGE):
                got = loss.outcome(_with_masked(plain, names, value))
                moved = max(_gap(got.loss, want.loss), _gap(got.gradient_T, want.gradient_T), _left(got, step.mask_T))
                yield Measured(moved, 0.0, f"{value:g} in {' and '.join(names)} of masked tokens" if moved else "")

    return _worst(measured())


def _with_masked(step: Tokens, names: Sequence[str], value: float) -> Tokens:
    changed = {name: torch.where(step.mask_T, getattr(step, name), value) for name in names}
    return Tokens(**{**vars(step), **changed})


def _left(outcome: Outcome, mask_T: Tensor) -> float:
    """The largest loss or gradient at untrained tokens."""
    columns = [outcome.gradient_T] + ([outcome.loss] if outcome.loss.dim() else [])
    return max(_gap(column[~mask_T], torch.zeros_like(column[~mask_T])) for column in columns)


def token_order(loss: Loss) -> Measured:
    step = example_step()
    draw = torch.Generator().manual_seed(5)
    orders = [torch.randperm(len(step.mask_T), generator=draw) for _ in range(3)]
    return _worst(_moved(loss, step.to(dtype), order) for dtype, order in product(_DTYPES, orders))


def sequence_order(loss: Loss) -> Measured:
    step = example_step()
    number_T, numbers = step.sequence_T, [3, 0, 4, 2, 1]
    order = torch.cat([(number_T == number).nonzero()[:, 0] for number in numbers])
    renumbered = replace(step, sequence_T=torch.tensor(numbers)[number_T])
    same = torch.arange(len(number_T))
    return _worst(
        _moved(loss, step.to(dtype), index, changed.to(dtype))
        for dtype in _DTYPES
        for index, changed in ((order, step), (same, renumbered), (order, renumbered))
    )


def _moved(loss: Loss, step: Tokens, order: Tensor, changed: Tokens | None = None) -> Measured:
    """The step against itself (or a version that has to be as good) with its tokens in another order."""
    want, got = loss.outcome(step), loss.outcome((changed or step).take(order))
    loss_T = want.loss[order] if want.loss.dim() else want.loss
    return _near(got, want._replace(loss=loss_T, gradient_T=want.gradient_T[order]))


def padding(loss: Loss) -> Measured:
    def measured() -> Iterator[Measured]:
        for dtype, num_pads in product(_DTYPES, (1, 7, 64)):
            step = example_step().to(dtype)
            pads = _untrained(step, torch.arange(num_pads) % 5)
            yield _near(_head(loss.outcome(step.followed_by(pads)), len(step.mask_T)), loss.outcome(step))

    return _worst(measured())


def untrained_sequence(loss: Loss) -> Measured:
    def measured() -> Iterator[Measured]:
        for dtype in _DTYPES:
            step = example_step().to(dtype)
            rest = _untrained(step, torch.tensor([5, 5, 5, 6]))
            yield _near(_head(loss.outcome(step.followed_by(rest)), len(step.mask_T)), loss.outcome(step))
            alone = loss.outcome(replace(rest, sequence_T=rest.sequence_T - 5), step.totals)
            zero = Outcome(torch.zeros_like(alone.loss), torch.zeros_like(alone.gradient_T), None)
            yield _near(alone, zero)._replace(note="as a micro-batch of its own")

    return _worst(measured())


def _untrained(step: Tokens, sequence_T: Tensor) -> Tokens:
    column_T = torch.zeros(len(sequence_T), dtype=step.logprobs_T.dtype)
    mask_T = torch.zeros(len(sequence_T), dtype=torch.bool)
    numbers = {"logprobs_T": column_T - 1, "old_logprobs_T": column_T - 1.5, "advantages_T": column_T + 1}
    return Tokens(**numbers, mask_T=mask_T, sequence_T=sequence_T)


def _head(outcome: Outcome, num_tokens: int) -> Outcome:
    loss = outcome.loss[:num_tokens] if outcome.loss.dim() else outcome.loss
    return outcome._replace(loss=loss, gradient_T=outcome.gradient_T[:num_tokens])


_SPLITS = ([[0], [1], [2], [3], [4]], [[0, 1], [2, 3, 4]], [[4, 0], [3], [1, 2]])


def micro_batches(loss: Loss) -> Measured:
    def measured() -> Iterator[Measured]:
        for dtype, split in product(_DTYPES, _SPLITS):
            step = example_step().to(dtype)
            want = loss.outcome(step)
            value, gradient_T = torch.zeros_like(want.loss), torch.zeros_like(want.gradient_T)
            for numbers in split:
                index, part = _part(step, numbers)
                share = loss.outcome(part, step.totals)
                value = value.index_add(0, index, share.loss) if value.dim() else value + share.loss
                gradient_T = gradient_T.index_add(0, index, share.gradient_T)
            yield _near(Outcome(value, gradient_T, None), want)

    return _worst(measured())


def _part(step: Tokens, numbers: Sequence[int]) -> tuple[Tensor, Tokens]:
    """Where these sequences stand in the step, and they as a micro-batch that counts them from 0."""
    index = torch.cat([(step.sequence_T == number).nonzero()[:, 0] for number in numbers])
    part = step.take(index)
    local = {number: place for place, number in enumerate(numbers)}
    return index, replace(part, sequence_T=torch.tensor([local[int(number)] for number in part.sequence_T]))


def finite_differences(loss: Loss) -> Measured:
    step = example_step()
    want = loss.outcome(step)
    if want.loss.dtype != torch.float64:
        raise NotApplicable(f"it computes in {want.loss.dtype}, where differences are too coarse")
    frozen, totals = Frozen(), step.totals
    logprobs_T = step.logprobs_T.clone().requires_grad_()
    with frozen:
        loss.value(step, logprobs_T, totals)
    slopes = [_slope(loss, step, totals, place, frozen) for place in range(len(step.mask_T))]
    got = torch.stack(slopes)
    note = "what it detaches is held constant" if frozen.stops else ""
    return Measured(_gap(got, want.gradient_T) / _size(want.gradient_T), 1e-6, note)


def _slope(loss: Loss, step: Tokens, totals: Totals, place: int, frozen: Frozen) -> Tensor:
    values = []
    for move in (_STEP, -_STEP):
        logprobs_T = step.logprobs_T.clone()
        logprobs_T[place] += move
        logprobs_T.requires_grad_()
        try:
            with frozen.again():
                value, _ = loss.value(step, logprobs_T, totals)
            frozen.finish()
        except Diverged as error:
            raise NotApplicable("what it holds constant depends on the path its code takes") from error
        values.append(value.detach().sum())
    return (values[0] - values[1]) / (2 * _STEP)


def ratio_one(loss: Loss) -> Measured:
    step = example_step()
    step = replace(step, logprobs_T=step.old_logprobs_T)
    outcome = loss.outcome(step)
    got, credit_T = outcome.gradient_T[step.mask_T].double(), step.advantages_T[step.mask_T]
    number_T = step.sequence_T[step.mask_T]
    scales = {n: float((-got / credit_T)[number_T == n].median()) for n in set(number_T[credit_T != 0].tolist())}
    scales = {number: scale if 0 < scale < math.inf else 1.0 for number, scale in scales.items()}
    want = -credit_T * torch.tensor([scales.get(int(n), 0.0) for n in number_T], dtype=torch.float64)
    deviation = _gap(got, want) / _size(want)
    return Measured(deviation, _tolerance(outcome.loss), f"gradient {_scale_in_words(scales, step)}")


def _scale_in_words(scales: Mapping[int, float], step: Tokens) -> str:
    lengths = {number: int((step.mask_T & (step.sequence_T == number)).sum()) for number in scales}
    known = {
        "-A": dict.fromkeys(scales, 1.0),
        "-A / T, T the trained tokens of the step": dict.fromkeys(scales, 1 / step.totals.num_tokens),
        "-A / N, N the sequences of the step": dict.fromkeys(scales, 1 / step.totals.num_sequences),
        "-A / |y|, |y| the tokens of the sequence": {n: 1 / length for n, length in lengths.items()},
        "-A / (N |y|)": {n: 1 / length / step.totals.num_sequences for n, length in lengths.items()},
    }
    for words, expected in known.items():
        if all(math.isclose(scales[n], expected[n], rel_tol=1e-5) for n in scales):
            return words
    low, high = min(scales.values()), max(scales.values())
    return f"-A times {low:.4g}" + ("" if math.isclose(low, high, rel_tol=1e-5) else f" to {high:.4g} by sequence")


def way_back(loss: Loss) -> Measured:
    step = example_step()
    step = replace(step, logprobs_T=step.old_logprobs_T - 0.5 * step.advantages_T.sign())
    outcome = loss.outcome(step)
    there_T = step.mask_T & (step.advantages_T != 0)
    lost = int((~(outcome.gradient_T * step.advantages_T < 0))[there_T].sum())
    return Measured(float(lost), 0.0, f"{lost} of {int(there_T.sum())} tokens have none" if lost else "")


def ratio_overflow(loss: Loss) -> Measured:
    step = example_step().to(torch.float32)
    good = replace(step, advantages_T=step.advantages_T.abs())
    bad = replace(step, advantages_T=-step.advantages_T.abs())
    found = [_not_finite(loss, _drifted(tokens, by)) for tokens, by in ((good, 100.0), (good, -100.0), (bad, -100.0))]
    if any(found):
        return Measured(float(sum(found)), 0.0, f"{sum(found)} numbers are not finite")
    outcome = loss.outcome(_drifted(bad, 100.0))
    columns = torch.cat([outcome.loss.reshape(-1), outcome.gradient_T])
    if columns.isnan().any():
        return Measured(float(columns.isnan().sum()), 0.0, "NaN where negative credit meets a ratio that overflows")
    if columns.isinf().any():
        return Measured(
            0.0, 0.0, "no bound where negative credit meets a large ratio: infinite at exp(100)", limit=True
        )
    return Measured(0.0, 0.0)


def _drifted(step: Tokens, by: float) -> Tokens:
    """Every log-ratio is ``by``, and no log-probability is above 0."""
    low, high = step.old_logprobs_T - abs(by), step.old_logprobs_T
    return replace(step, logprobs_T=high, old_logprobs_T=low) if by > 0 else replace(step, logprobs_T=low)


def _not_finite(loss: Loss, step: Tokens) -> int:
    outcome = loss.outcome(step)
    return int((~outcome.loss.isfinite()).sum() + (~outcome.gradient_T.isfinite()).sum())


def constants(loss: Loss) -> Measured:
    step = example_step()
    old_T, credit_T = (column.clone().requires_grad_() for column in (step.old_logprobs_T, step.advantages_T))
    watched = Tokens(**{**vars(step), "old_logprobs_T": old_T, "advantages_T": credit_T})
    value, _ = loss.value(watched, step.logprobs_T.clone().requires_grad_())
    sizes = {name: float(gradient(value, x).abs().max()) for name, x in (("old", old_T), ("credit", credit_T))}
    words = {"old": "old_logprobs_T", "credit": "advantages_T"}
    leaks = [words[name] for name, size in sizes.items() if size != 0]
    return Measured(max(sizes.values()), 0.0, f"gradient flows into {' and '.join(leaks)}" if leaks else "")


def dtype_and_shape(loss: Loss) -> Measured:
    wrong = []
    for dtype in _DTYPES:
        step = example_step().to(dtype)
        for tokens in (step, step.take(torch.tensor([0]))):
            got = loss.outcome(tokens, step.totals).loss.dtype
            wrong += [f"{got} came back for {dtype}"] if got != dtype else []
    return Measured(float(len(wrong)), 0.0, wrong[0] if wrong else "")


def statistics(loss: Loss) -> Measured:
    step = example_step()
    raw = loss.outcome(step).raw
    ratio_T, clipped_T = getattr(raw, "ratio_T", None), getattr(raw, "clipped_T", None)
    if not isinstance(ratio_T, Tensor) or not isinstance(clipped_T, Tensor):
        raise NotApplicable("it returns no PolicyLoss")
    if clipped_T.dtype != torch.bool or ratio_T.requires_grad or bool(clipped_T[~step.mask_T].any()):
        note = "ratio_T carries no gradient; clipped_T is boolean, and False at untrained tokens"
        return Measured(math.inf, _tolerance(ratio_T), note)
    want_T = torch.where(step.mask_T, (step.logprobs_T - step.old_logprobs_T).exp(), 1.0)
    return Measured(_gap(ratio_T, want_T) / _size(want_T), _tolerance(ratio_T))


def _near(got: Outcome, want: Outcome) -> Measured:
    """Relative to the larger of the loss and, for a scalar, which may cancel, the sum of its gradient's sizes."""
    size = _size(want.loss) if want.loss.dim() else max(_size(want.loss), float(want.gradient_T.abs().sum()))
    gap = max(_gap(got.loss, want.loss) / size, _gap(got.gradient_T, want.gradient_T) / _size(want.gradient_T))
    return Measured(gap, _tolerance(want.loss))


def _size(tensor: Tensor) -> float:
    """The largest absolute value, and 1 where there is none."""
    return float(tensor.abs().max()) or 1.0 if tensor.numel() else 1.0


def _gap(got: Tensor, want: Tensor) -> float:
    """The largest absolute difference; infinite where either is not finite."""
    if not got.numel():
        return 0.0
    gap = float((got - want).abs().max())
    return gap if math.isfinite(gap) else math.inf


def _tolerance(loss: Tensor) -> float:
    return _TOLERANCES.get(loss.dtype, _ROUGH)


def _worst(found: Iterator[Measured]) -> Measured:
    return max(found, key=lambda one: one.excess)
