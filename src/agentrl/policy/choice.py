"""Which forward pass sampling takes, where that is decided by measurement.

On the CPU it is that of `plain.py`, which is known to be the quickest there. On a CUDA device the model's own layers,
the few operations of `plain.py`, and the compiled pieces of `pieces.py` without and with CUDA graphs are tried when the
first token is sampled. A way is taken if its numbers agree with those of the own layers at every number of tokens that
it is compiled for, and if it was measured to be quicker; one that cannot be compiled is left out, and the reason kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from agentrl.policy.agreement import OwnLayers, agrees
from agentrl.policy.base import Attend
from agentrl.policy.pieces import SIZES, Compilation, PieceError, Pieces, first_line
from agentrl.policy.plain import Forward, is_plain, plain_forward, plain_ways

OWN = "the model's own layers"
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
TOKENS = 60
"""Of a step that is timed: some dozens of conversations, and not one of `SIZES`."""
ROUNDS = 10
"""So often each way is timed, in turns; its quickest time counts."""
MARGIN = 0.95
"""A way must take no more than this share of the time of a simpler one, so that noise does not decide."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of a way that was tried.

    Attributes:
        name: of the way.
        seconds: of a step of `TOKENS` tokens without attention; None where it was refused.
        refused: why, or None.
    """

    name: str
    seconds: float | None = None
    refused: str | None = None

    def __str__(self) -> str:
        outcome = self.refused if self.seconds is None else f"{1e3 * self.seconds:.2f} ms"
        return f"{self.name}: {outcome}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The forward pass that was taken, and what the others did.

    Attributes:
        forward: hidden states (M, D) of ids and positions (M).
        name: of the way.
        trials: of all ways, simple ones first; none where nothing had to be measured.
    """

    forward: Forward
    name: str
    trials: tuple[Trial, ...] = ()

    def __str__(self) -> str:
        tried = f" (a step of {TOKENS} tokens: {'; '.join(map(str, self.trials))})" if self.trials else ""
        failure = self.forward.failure if isinstance(self.forward, Guarded) else None
        return f"sampled by {self.name}{tried}" + (f"; given up: {failure}" if failure else "")


class Guarded:
    """Pieces, and what computes the steps that they do not take. When they fail they are given up, and what failed is
    computed by the other: a step may be attended to twice, its keys and values are written where they were.

    Attributes:
        failure: why they were given up, or None.
    """

    failure: str | None = None

    def __init__(self, pieces: Pieces, other: Forward) -> None:
        self.pieces, self.other, self.name = pieces, other, pieces.name

    def __call__(self, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
        if self.failure is None and self.pieces.takes(ids_M):
            try:
                return self.pieces(ids_M, positions_M, attend)
            except PieceError as error:
                self.failure = str(error)
        return self.other(ids_M, positions_M, attend)


def choose_forward(base: Any, layers: OwnLayers, compilation: Compilation | None = None) -> Choice:
    """The forward pass of a model while sampling.

    Args:
        base: the model without its output projection.
        layers: its own layers.
        compilation: has the ways measured, with pieces that are compiled so. None for what the device is known for: no
            measurement on the CPU; on a CUDA device one with pieces without and with CUDA graphs.
    """
    own = partial(layers, base)
    if compilation is None and base.device.type != "cuda":
        return _choice(plain_forward(base, own))
    if not is_plain(base, DTYPES):
        return _choice(own)
    asked = (Compilation(), Compilation(graphs=True)) if compilation is None else (compilation,)
    simple: list[Forward] = [own, *reversed(plain_ways(base))]
    return quickest(base, layers, simple, [Pieces(base, one) for one in asked])


@torch.inference_mode()
def quickest(base: Any, layers: OwnLayers, simple: Sequence[Forward], compiled: Sequence[Pieces]) -> Choice:
    """Of the own layers, which come first, and of those that agree with them."""
    ways: list[Forward] = [*simple, *compiled]
    refusals = [None, *(_refusal(base, way, layers) for way in ways[1:])]
    seconds = _seconds(base, [way for way, refusal in zip(ways, refusals, strict=True) if refusal is None])
    trials = tuple(
        Trial(name=_name(way), seconds=seconds.get(id(way)), refused=refusal)
        for way, refusal in zip(ways, refusals, strict=True)
    )
    best = _best(ways, seconds)
    if isinstance(best, Pieces):
        best = Guarded(best, _best(simple, seconds))
    return _choice(best, trials)


def _choice(forward: Forward, trials: tuple[Trial, ...] = ()) -> Choice:
    return Choice(forward=forward, name=_name(forward), trials=trials)


def _name(way: Forward) -> str:
    return getattr(way, "name", OWN)


def _refusal(base: Any, way: Forward, layers: OwnLayers) -> str | None:
    """Why a way must not be taken."""
    sizes = SIZES if isinstance(way, Pieces) else (TOKENS,)
    try:
        apart = [size for size in sizes if not agrees(base, way, layers, size - 1)]
    except RuntimeError as error:  # of a compiler, or of types or memory that a way needs and the own layers do not
        return f"failed: {first_line(error)}"
    return f"gives other numbers than {OWN} with {apart[0] - 1} tokens" if apart else None


def _seconds(base: Any, ways: Sequence[Forward]) -> dict[int, float]:
    """The quickest of some steps without attention, by the identity of the way."""
    positions = torch.arange(TOKENS, device=base.device)
    ids = positions % base.config.vocab_size
    found = dict.fromkeys(map(id, ways), float("inf"))
    for _ in range(ROUNDS):
        for way in ways:
            _wait(base)
            started = time.perf_counter()
            way(ids, positions, _look_at_itself)
            _wait(base)
            found[id(way)] = min(found[id(way)], time.perf_counter() - started)
    return found


def _look_at_itself(
    layer: int,  # noqa: ARG001
    q_MHE: Tensor,
    k_MKE: Tensor,
    v_MKE: Tensor,
    *,
    window: int | None = None,  # noqa: ARG001
) -> Tensor:
    return v_MKE.repeat_interleave(q_MHE.shape[1] // k_MKE.shape[1], 1).flatten(1)


def _wait(base: Any) -> None:
    """Until the device has computed what it was told to."""
    if base.device.type == "cuda":
        torch.cuda.synchronize(base.device)


def _best(ways: Sequence[Forward], seconds: Mapping[int, float]) -> Forward:
    """The first, or a later one that is clearly quicker."""
    best, *others = (way for way in ways if id(way) in seconds)
    for way in others:
        if seconds[id(way)] < MARGIN * seconds[id(best)]:
            best = way
    return best
