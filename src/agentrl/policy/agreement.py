"""Whether another way to compute a decoder gives the numbers of its own layers.

In float32 the numbers are the same but for the order of sums. In half precision two right ways differ by as much as
each is rounded, so that both are compared with the own layers in float32: another way may be as far from them as the
own layers in half precision are, and a little more.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.policy.base import Attend
from agentrl.policy.plain import Forward, probe, same_numbers

OwnLayers = Callable[[Any, Tensor, Tensor, Attend], Tensor]
"""Hidden states (M, D) of ids and positions (M) by the own layers of a model without its output projection."""
ROUNDING = 1.5
"""How many times as far from float32 as the own layers another way in half precision may be."""
PROBES = 3
"""A CUDA graph is recorded at the second time and replayed at the third."""


def agrees(base: Any, way: Forward, layers: OwnLayers, count: int) -> bool:
    """Compare the hidden states of a few tokens, several times with other tokens, and how far each layer sees.

    Args:
        base: the model without its output projection.
        way: another way to compute them.
        layers: the own layers.
        count: how many tokens.
    """
    half = any(parameter.dtype != torch.float32 for parameter in base.parameters())
    close = _no_further if half else _same
    return all(close(base, way, layers, count, first) for first in range(0, 7 * PROBES, 7))


def _same(base: Any, way: Forward, layers: OwnLayers, count: int, first: int) -> bool:
    ours, own = (probe(base, one, count=count, first=first) for one in (way, partial(layers, base)))
    return ours.windows == own.windows and same_numbers(ours.hidden_MD, own.hidden_MD)


def _no_further(base: Any, way: Forward, layers: OwnLayers, count: int, first: int) -> bool:
    ours, own, exact = (
        probe(base, one, count=count, first=first) for one in (way, partial(layers, base), partial(layers, wide(base)))
    )
    far, allowed = (_errors(found.hidden_MD, exact.hidden_MD) for found in (ours, own))
    return ours.windows == own.windows and bool((far <= ROUNDING * allowed).all())


def _errors(found_MD: Tensor, exact_MD: Tensor) -> Tensor:
    """Root mean squares: of all tokens, and of the one that is furthest."""
    square_M = (found_MD.float() - exact_MD).square().mean(-1)
    return torch.stack((square_M.mean(), square_M.max())).sqrt()


def wide(base: Any) -> Any:
    """A decoder that computes in float32 with the weights of another, a layer converted at a time and for as long as it
    computes."""
    twin = copy(base)
    twin._modules = {name: _Wide(module, base.config) for name, module in base.named_children()}
    twin._modules["layers"] = nn.ModuleList(_Wide(layer, base.config) for layer in base.layers)
    twin._modules["embed_tokens"] = _WideOutput(base.embed_tokens, base.config)
    return twin


class _Wide(nn.Module):
    def __init__(self, module: nn.Module, config: Any) -> None:
        super().__init__()
        self._narrow = (module, config)  # in a tuple, so that its weights are not this module's

    def forward(self, *inputs: Any, **named: Any) -> Any:
        module, config = self._narrow
        return deepcopy(module, {id(config): config}).float()(*inputs, **named)


class _WideOutput(_Wide):
    """An embedding is looked up as it is, since a copy of it would be large."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._narrow[0](*inputs, **named).float()
