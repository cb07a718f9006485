"""What lies between the attentions of a plain decoder while sampling, compiled by `torch.compile`.

The shapes of attention change with each step, those of everything else with the number of tokens alone. So the model is
cut at its attentions: one piece before the first, one from each to the next, one behind the last. A piece is compiled
once for all layers and any number of tokens. Tokens are filled up to a few numbers, so that CUDA graphs, which are
recorded for each of them, are few.

Adapters, biases and whatever else the projections do take part, since it is they that are called. Weights are looked up
at each step, or are at the addresses that a graph was recorded with, so that updates in place are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentrl.policy.base import Attend
from agentrl.policy.plain import after_attention, before_attention, normed, signed_turns

Backend = str | Callable[..., Any]
"""Of `torch.compile`: a name, or a function of a graph and example inputs that returns what computes it."""


SIZES = (8, 16, 32, 64, 128, 256, 512)
"""Numbers of tokens that a step is filled up to; larger ones are not compiled."""


_NUMBERS = count()


class PieceError(RuntimeError):
    """A piece could not be compiled, or failed while it ran."""


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """How pieces are compiled.

    Attributes:
        backend: of `torch.compile`.
        graphs: whether CUDA graphs are recorded, which ``inductor`` alone does.
    """

    backend: Backend = "inductor"
    graphs: bool = False


class Pieces:
    """Hidden states (M, D) of ids and positions (M).

    Args:
        base: the model without its output projection.
        compilation: how.
    """

    def __init__(self, base: Any, compilation: Compilation) -> None:
        self.base, self.graphs = base, compilation.graphs
        self.name = "compiled pieces in CUDA graphs" if compilation.graphs else "compiled pieces"
        self.made_for = _kind(base)
        self.compiled = False
        self._first, self._middle, self._last = (_compiled(piece, compilation) for piece in (_first, _middle, _last))

    def takes(self, ids_M: Tensor) -> bool:
        """Whether a step is one of those that the pieces are for: as small, with the weights of the type and the device
        that they had, and in inference mode without autocast, since all else would be compiled anew."""
        return (
            len(ids_M) <= SIZES[-1]
            and _kind(self.base) == self.made_for
            and torch.is_inference_mode_enabled()
            and not torch.is_autocast_enabled(ids_M.device.type)
        )

    def __call__(self, ids_M: Tensor, positions_M: Tensor, attend: Attend) -> Tensor:
        """One that it takes.

        Raises:
            PieceError: a piece could not be compiled, or failed.
        """
        if self.graphs:
            # what the graphs gave in the step before may be overwritten
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        tokens, layers = len(ids_M), self.base.layers
        more = next(size for size in SIZES if size >= tokens) - tokens
        ids_P, positions_P = _filled(ids_M, more), _filled(positions_M, more)
        x_PD, cos, sin, *qkv = self._run(self._first, (ids_P, positions_P), self.base)
        for number, layer in enumerate(layers):
            window = getattr(layer.self_attn, "sliding_window", None)
            attended_PD = _filled(attend(number, *(x[:tokens] for x in qkv), window=window), more)
            if number + 1 < len(layers):
                x_PD, *qkv = self._run(self._middle, (x_PD, attended_PD, cos, sin), layer, layers[number + 1])
        hidden_PD: Tensor = self._run(self._last, (x_PD, attended_PD), layer, self.base.norm)
        self.compiled = True
        return hidden_PD[:tokens].clone()  # the next replay of a graph would overwrite it

    def _run(self, piece: Callable[..., Any], tensors: tuple[Tensor, ...], *modules: Any) -> Any:
        if not self.compiled:
            for tensor in tensors:
                torch._dynamo.mark_dynamic(tensor, 0)
        try:
            return piece(*modules, *tensors)
        except Exception as error:  # compilers, and what they call, raise whatever they like
            cause = getattr(error, "inner_exception", error)  # what torch says first is that a backend raised
            raise PieceError(f"{type(cause).__name__}: {first_line(cause)}") from error


def _kind(base: Any) -> tuple[torch.dtype, torch.device]:
    weight = base.norm.weight
    return weight.dtype, weight.device


def _compiled(piece: Callable[..., Any], compilation: Compilation) -> Callable[..., Any]:
    """A piece of one model. The compiler keeps count of what it is asked to compile by code and by name: how often, and
    which numbers change; those of other models would count."""
    assert isinstance(piece, FunctionType)
    own = FunctionType(piece.__code__.replace(co_name=f"{piece.__name__}_{next(_NUMBERS)}"), piece.__globals__)
    mode = "reduce-overhead" if compilation.graphs else None
    return torch.compile(own, fullgraph=True, backend=compilation.backend, mode=mode)


def _filled(x: Tensor, more: int) -> Tensor:
    """With so many zeros behind the first axis, one number behind the other."""
    return pad(x, (*(0, 0) * (x.ndim - 1), 0, more)) if more else x.contiguous()


def first_line(error: Exception) -> str:
    """The first line that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


def _first(base: Any, ids_P: Tensor, positions_P: Tensor) -> tuple[Tensor, ...]:
    x_PD = base.embed_tokens(ids_P)
    turns = signed_turns(base, x_PD, positions_P)
    return (x_PD, *turns, *before_attention(base.layers[0], x_PD, *turns))


def _middle(
    layer: Any, following: Any, x_PD: Tensor, attended_PD: Tensor, cos_P1E: Tensor, sin_P1E: Tensor
) -> tuple[Tensor, ...]:
    x_PD = after_attention(layer, x_PD, attended_PD)
    return (x_PD, *before_attention(following, x_PD, cos_P1E, sin_P1E))


def _last(layer: Any, norm: Any, x_PD: Tensor, attended_PD: Tensor) -> Tensor:
    return normed(norm, after_attention(layer, x_PD, attended_PD))
