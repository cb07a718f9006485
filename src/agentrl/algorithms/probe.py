"""A loss that somebody else wrote, called on made-up steps: what it takes, what it gives, and its gradient.

A loss is a callable ``loss(logprobs_T, old_logprobs_T, advantages_T, mask_T)``: four flat tensors with one entry per
token, whatever the callable names them, of which ``mask_T`` is boolean and True at trained tokens. By name it is
also given those of these that it takes:

* ``sequence_T``: int64, shape [T], the number of the sequence that each token is of, from 0;
* ``num_tokens``: int, trained tokens in the whole optimizer step;
* ``num_sequences``: int, sequences of the whole step that have a trained token.

It returns one of two things, and this decides what it is:

* **losses per token**: a tensor of shape [T], or a `PolicyLoss` (or any object with ``loss_T``);
* **a share of the step**: one scalar, which summed over the micro-batches of a step is the step's loss. A mean needs
  the totals of the step for that; one over the micro-batch is not a share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agentrl.errors import ConfigError, TrainerError

NAMED = ("sequence_T", "num_tokens", "num_sequences")
SIGNATURE = "loss(logprobs_T, old_logprobs_T, advantages_T, mask_T, *, sequence_T, num_tokens, num_sequences)"
_WRITE = (
    f"write {SIGNATURE} with those of the last three that it needs, and bind settings with functools.partial; it "
    "returns losses per token of shape [T], a PolicyLoss, or one scalar that is this micro-batch's share of the step"
)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a micro-batch or a step, flat, shape [T] each; ``sequence_T`` counts from 0."""

    logprobs_T: Tensor
    old_logprobs_T: Tensor
    advantages_T: Tensor
    mask_T: Tensor
    sequence_T: Tensor

    @property
    def totals(self) -> Totals:
        """What a step of these tokens counts."""
        return Totals(int(self.mask_T.sum()), len(set(self.sequence_T[self.mask_T].tolist())))

    def take(self, index: Tensor) -> Self:
        """The tokens at these places, in this order."""
        return type(self)(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def followed_by(self, other: Tokens) -> Self:
        """These tokens and then the others."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return type(self)(**{name: torch.cat(pair) for name, pair in pairs.items()})

    def to(self, dtype: torch.dtype) -> Self:
        """The same numbers in another precision."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{k: v.to(dtype) if v.is_floating_point() else v for k, v in columns.items()})


class Totals(NamedTuple):
    """Trained tokens of the whole step, and its sequences that have one."""

    num_tokens: int
    num_sequences: int


class Outcome(NamedTuple):
    """What a loss came to: ``loss`` of shape [T] or a scalar, and the gradient of its sum; nothing carries a graph.

    ``raw`` is what the callable itself returned.
    """

    loss: Tensor
    gradient_T: Tensor
    raw: Any


def example_step() -> Tokens:
    """A step of five uneven sequences in float64, with masked tokens inside and after them.

    One advantage per sequence: two good, two bad, one of 0. The ratios run from 0.4 to 2.2, and those of two
    sequences stay within 1e-4 of 1, where a narrow clip of the whole sequence lets them through.
    """
    draw = torch.Generator().manual_seed(11)
    masks = ["1", "1011", "1110111", "01111", "110"]
    advantages, spreads = [1.0, -0.7, 0.0, 1.6, -1.2], [0.5, 0.5, 0.5, 1e-4, 1e-4]
    mask_T = torch.tensor([letter == "1" for mask in masks for letter in mask])
    sequence_T = torch.tensor([number for number, mask in enumerate(masks) for _ in mask])
    old_T = -0.1 - 2.9 * torch.rand(len(mask_T), generator=draw, dtype=torch.float64)
    moved_T = 1.6 * torch.rand(len(mask_T), generator=draw, dtype=torch.float64) - 0.8
    spread_T = torch.tensor(spreads, dtype=torch.float64)[sequence_T]
    return Tokens(
        logprobs_T=old_T + spread_T * moved_T,
        old_logprobs_T=old_T,
        advantages_T=torch.tensor(advantages, dtype=torch.float64)[sequence_T],
        mask_T=mask_T,
        sequence_T=sequence_T,
    )


class Loss:
    """A callable that has been looked at once: which of the named arguments it takes, and which of the two it is.

    Raises:
        ConfigError: it cannot be called this way, it raised on a plain step, or it returned something else; the
            message says what to write.
    """

    def __init__(self, function: Callable[..., Any], name: str = "the loss") -> None:
        self._function, self.name = function, name
        self._named = _named_arguments(function, name)
        step = example_step()
        try:
            raw = self._call(step, step.totals)
        except Exception as error:  # what another's code raises is what we are here to tell
            raise ConfigError(f"{name} raised {type(error).__name__} on a plain step: {error}; {_WRITE}") from error
        self.per_token = self._is_per_token(raw, len(step.mask_T))
        first, again = self.outcome(step), self.outcome(step)
        if not torch.equal(first.loss.nan_to_num(), again.loss.nan_to_num()):
            raise ConfigError(f"{name} gave two values for one step; switch off what is random in it and check again")

    def outcome(self, tokens: Tokens, totals: Totals | None = None) -> Outcome:
        """Value and gradient on these tokens.

        Args:
            tokens: one micro-batch.
            totals: those of the step that it is part of; its own when None.

        Raises:
            TrainerError: the shape of what came back is not that of its kind.
            Exception: whatever the callable raises.
        """
        logprobs_T = tokens.logprobs_T.detach().clone().requires_grad_()
        loss, raw = self.value(tokens, logprobs_T, totals)
        return Outcome(loss.detach(), gradient(loss, logprobs_T), raw)

    def value(self, tokens: Tokens, logprobs_T: Tensor, totals: Totals | None = None) -> tuple[Tensor, Any]:
        """The loss as a tensor, and what the callable returned, at these log-probabilities."""
        moved = Tokens(**{**vars(tokens), "logprobs_T": logprobs_T})
        raw = self._call(moved, totals or tokens.totals)
        loss = _tensor(raw)
        expected = tokens.mask_T.shape if self.per_token else torch.Size()
        if loss is None or loss.shape != expected:
            shape = "no tensor" if loss is None else f"shape {tuple(loss.shape)}"
            raise TrainerError(f"it returned {shape} for {len(tokens.mask_T)} tokens, not {tuple(expected)}")
        return loss, raw

    def _call(self, tokens: Tokens, totals: Totals) -> Any:
        known = {"sequence_T": tokens.sequence_T, **totals._asdict()}
        columns = (tokens.logprobs_T, tokens.old_logprobs_T, tokens.advantages_T, tokens.mask_T)
        return self._function(*columns, **{name: known[name] for name in self._named})

    def _is_per_token(self, raw: Any, num_tokens: int) -> bool:
        loss = _tensor(raw)
        if loss is None or not loss.is_floating_point():
            raise ConfigError(f"{self.name} returned {type(raw).__name__}, which is no loss; {_WRITE}")
        if loss.shape not in {torch.Size(), torch.Size([num_tokens])}:
            raise ConfigError(
                f"{self.name} returned shape {tuple(loss.shape)} for {num_tokens} tokens (a loss per sequence stands "
                f"at each of its tokens, or is reduced to a scalar); {_WRITE}"
            )
        return loss.dim() == 1


def gradient(loss: Tensor, argument_T: Tensor) -> Tensor:
    """Gradient of the sum of a loss with respect to one argument: 0 where the loss does not depend on it."""
    if not loss.requires_grad:
        return torch.zeros_like(argument_T)
    (found_T,) = torch.autograd.grad(loss.sum(), argument_T, allow_unused=True, retain_graph=True)
    return torch.zeros_like(argument_T) if found_T is None else found_T


def _named_arguments(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} is no function whose arguments can be read; {_WRITE}") from error
    own = {p.name for p in signature.parameters.values() if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    taken = tuple(word for word in NAMED if word in own)
    try:
        signature.bind(*range(4), **dict.fromkeys(taken))
    except TypeError as error:
        raise ConfigError(f"{name}{signature} cannot be called with a step ({error}); {_WRITE}") from error
    return taken


def _tensor(raw: Any) -> Tensor | None:
    loss = getattr(raw, "loss_T", raw)
    return loss if isinstance(loss, Tensor) else None


class Diverged(Exception):
    """With its argument moved by a hair the code did other things, so what it held constant cannot be told."""


class Frozen(TorchFunctionMode):
    """While active, what a loss takes out of the graph is kept (first run) or put back as it was (later runs).

    So a value with ``detach()``, ``.data``, ``no_grad()`` or ``item()`` in it becomes the surrogate that the code
    declares: a function of its argument whose derivative the gradient has to be.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[Any, Any]] = []
        self._next: int | None = None
        self._stopped = False

    @property
    def stops(self) -> bool:
        """Whether anything was taken out of the graph."""
        return bool(self._kept)

    def again(self) -> Frozen:
        """Ready for another run, which gets what the first one kept."""
        self._next, self._stopped = 0, False
        return self

    def finish(self) -> None:
        """After a later run.

        Raises:
            Diverged: it did less than the first one.
        """
        if self._next != len(self._kept):
            raise Diverged

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch._C._set_grad_enabled:
            # Not is_grad_enabled(): gradients are off in the forward of an autograd function too, which is no constant.
            self._stopped = not args[0]
            return result
        if func not in _STOPS and not self._stopped and not torch.is_inference_mode_enabled():
            return result
        return self._keep(func, result) if self._next is None else self._restore(func, result, args)

    def _keep(self, func: Any, result: Any) -> Any:
        self._kept.append((func, result.clone() if isinstance(result, Tensor) else result))
        return result

    def _restore(self, func: Any, result: Any, args: tuple[Any, ...]) -> Any:
        assert self._next is not None
        if self._next >= len(self._kept) or self._kept[self._next][0] != func:
            raise Diverged
        kept = self._kept[self._next][1]
        self._next += 1
        if not isinstance(result, Tensor) or not isinstance(kept, Tensor):
            return kept
        if result.shape != kept.shape:
            raise Diverged
        return result.copy_(kept) if args and result is args[0] else kept.clone()


_STOPS = (
    torch.Tensor.detach,
    torch.Tensor.detach_,
    torch.Tensor.data.__get__,  # type: ignore[attr-defined]
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.__float__,
)
