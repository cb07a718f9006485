"""The passes between the attentions of a plain decoder, one call of C each, with the products of torch's own BLAS.

A step of a small model is some forty operations that Python starts, each of which finds its code and its objects in
memory again after an attention has read megabytes. Here it is one for each attention and one more. The model's modules
are looked at anew whenever a step is laid out anew, and where their weights lie at each step; where a module is more
than a plain projection (adapters, hooks, other types) there are no such passes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from agentrl.policy.base import Attend
from agentrl.policy.compiled import refuse
from agentrl.policy.native import BLOCK, SOURCE, Kernels, Turns

_INT, _REAL, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_PAIR = _POINTER * 2


class _Widths(ctypes.Structure):
    _fields_ = tuple((name, _INT) for name in "DQKF")


class _Behind(ctypes.Structure):
    _fields_ = (("o", _PAIR), ("norm", _POINTER), ("gate", _PAIR), ("up", _PAIR), ("down", _PAIR), ("epsilon", _REAL))


class _Before(ctypes.Structure):
    _fields_ = (
        ("norm", _POINTER),
        *((name, _PAIR) for name in "qkv"),
        ("q_norm", _POINTER),
        ("k_norm", _POINTER),
        *((name, _REAL) for name in ("epsilon", "q_epsilon", "k_epsilon", "factor")),
    )


class NotPlain(Exception):
    """A module is more than a plain projection."""


class Weights(NamedTuple):
    """A model's weights and where they lie.

    Attributes:
        before: what is before each attention, and the last norm.
        behind: what is behind each attention.
        windows: how far each layer sees.
        all: the weights.
        addresses: theirs.
    """

    before: Sequence[_Before]
    behind: Sequence[_Behind]
    windows: Sequence[int | None]
    all: Sequence[Tensor]
    addresses: Sequence[int]


class Segments:
    """The passes of one model.

    Args:
        base: the model without its output projection.
        kernels: have the passes.
        product: the address of the BLAS function.
    """

    def __init__(self, base: Any, kernels: Kernels, product: int) -> None:
        self.base, self.kernels, self.product = base, kernels, product
        attention, mlp = base.layers[0].self_attn, base.layers[0].mlp
        wide, keys, gated = (module.out_features for module in (attention.q_proj, attention.k_proj, mlp.gate_proj))
        self.widths, self.width = _Widths(attention.q_proj.in_features, wide, keys, gated), attention.head_dim
        self._known: Weights | None = None
        self._step: ref[object] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Segments:
        return Segments(deepcopy(self.base, memo), self.kernels, self.product)

    def __call__(self, x_MD: Tensor, turns: Turns, attend: Attend) -> Tensor:
        """Hidden states (M, D) from embeddings, which are overwritten.

        Raises:
            NotPlain: nothing has been computed.
        """
        weights = self._weights_of(attend)
        tokens, w = len(x_MD), self.widths
        room = x_MD.new_empty(BLOCK * (w.D + w.F + max(w.D, w.F)))
        last_MD = torch.empty_like(x_MD)
        attended, behind = None, None
        for number, before in enumerate(weights.before):
            q, k, v = (x_MD.new_empty(tokens, size // self.width, self.width) for size in (w.Q, w.K, w.K))
            numbers = (x_MD, room, q, k, v, last_MD)
            self.kernels.between(w, behind, before, self.product, turns, attended, numbers)
            if number < len(weights.behind):
                attended = attend(number, q, k, v, window=weights.windows[number])
                behind = weights.behind[number]
        return last_MD

    def _weights_of(self, attend: Attend) -> Weights:
        """Those found before, where this is the same step a token further and they lie where they lay."""
        step, known = getattr(attend, "__self__", None), self._known
        if known is None or step is None or self._step is None or self._step() is not step:
            known = None
        if known is None or [x.data_ptr() for x in known.all] != known.addresses:
            known = self._known = self._weights()
            self._step = None if step is None else ref(step)
        return known

    def _weights(self) -> Weights:
        w = self.widths
        before, behind = [], []
        for layer in self.base.layers:
            parts = layer._modules
            attention, mlp = parts["self_attn"], parts["mlp"]._modules
            own = attention._modules
            norms = [own.get(name) for name in ("q_norm", "k_norm")]
            before.append(
                _Before(
                    _norm(parts["input_layernorm"]),
                    *(
                        _pair(own[name], size, w.D)
                        for name, size in (("q_proj", w.Q), ("k_proj", w.K), ("v_proj", w.K))
                    ),
                    *(None if norm is None else _norm(norm) for norm in norms),
                    parts["input_layernorm"].variance_epsilon,
                    *(0.0 if norm is None else norm.variance_epsilon for norm in norms),
                    attention.scaling,
                )
            )
            after = parts["post_attention_layernorm"]
            behind.append(
                _Behind(
                    _pair(own["o_proj"], w.D, w.Q),
                    _norm(after),
                    _pair(mlp["gate_proj"], w.F, w.D),
                    _pair(mlp["up_proj"], w.F, w.D),
                    _pair(mlp["down_proj"], w.D, w.F),
                    after.variance_epsilon,
                )
            )
        norm = self.base.norm
        before.append(_Before(norm=_norm(norm), epsilon=norm.variance_epsilon))
        windows = [getattr(layer.self_attn, "sliding_window", None) for layer in self.base.layers]
        every = [*self.base.parameters()]
        return Weights(before, behind, windows, every, [x.data_ptr() for x in every])


def segments(base: Any, kernels: Kernels) -> Segments | None:
    """The passes of a model; None where torch has no BLAS under its usual name, or they give other numbers."""
    product = blas_product()
    if product is None:
        return None
    if not _agree(kernels, product, base.layers[0].self_attn.head_dim):
        refuse(SOURCE, "its formulas", "the operations of a layer are called one by one, which is slower")
        return None
    return Segments(base, kernels, product)


@cache
@torch.inference_mode()
def _agree(kernels: Kernels, product: int, width: int) -> bool:
    """Compare a pass with its formulas, on more tokens than one block has; numbers are of size one, so that each part
    of them counts."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int, size: float = 1.0) -> Tensor:
        return size * torch.randn(*shape, generator=generator)

    tokens, w = BLOCK + 3, _Widths(20, 2 * width, width, 28)
    shapes = {"o": (w.D, w.Q), "gate": (w.F, w.D), "up": (w.F, w.D), "down": (w.D, w.F)}
    shapes |= {"q": (w.Q, w.D), "k": (w.K, w.D), "v": (w.K, w.D)}
    of = {name: (drawn(*shape, size=shape[1] ** -0.5), drawn(shape[0])) for name, shape in shapes.items()}
    norms = [drawn(size) for size in (w.D, w.D, width, width)]
    x, attended = drawn(tokens, w.D), drawn(tokens, w.Q)
    cos, sin = (drawn(5, width // 2).repeat(1, 2) for _ in range(2))
    turns = Turns(positions_M=torch.arange(tokens) % 5, cosines_TE=cos, sines_TE=sin)

    pairs = {name: _PAIR(*(x.data_ptr() for x in both)) for name, both in of.items()}
    addresses = [norm.data_ptr() for norm in norms]
    behind = _Behind(pairs["o"], addresses[0], *(pairs[name] for name in ("gate", "up", "down")), 0.5)
    before = _Before(addresses[1], *(pairs[name] for name in "qkv"), *addresses[2:], 0.5, 0.25, 0.125, 2.0)
    room, last = drawn(BLOCK * (w.D + 2 * w.F)), drawn(tokens, w.D)
    ours = [drawn(tokens, size) for size in (w.Q, w.K, w.K)]
    stream = x.clone()
    kernels.between(w, behind, before, product, turns, attended, (stream, room, *ours, last))

    def given(name: str, x: Tensor) -> Tensor:
        return linear(x, *of[name])

    def turned(x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        x = rms_norm(x.view(tokens, -1, width), (width,), norm, epsilon)
        low, high = x.chunk(2, -1)
        at = turns.positions_M[:, None]
        return (x * cos[at] + torch.cat((-high, low), -1) * sin[at]).flatten(1)

    x = x + given("o", attended)
    hidden = rms_norm(x, (w.D,), norms[0], 0.5)
    x = x + given("down", silu(given("gate", hidden)) * given("up", hidden))
    hidden = rms_norm(x, (w.D,), norms[1], 0.5)
    q, k, v = (given(name, hidden) for name in "qkv")
    theirs = (x, 2.0 * turned(q, norms[2], 0.25), turned(k, norms[3], 0.125), v)
    return all(bool((a - b).abs().max() <= 1e-5 * b.abs().max()) for a, b in zip((stream, *ours), theirs, strict=True))


def _pair(module: Any, rows: int, columns: int) -> Any:
    """Addresses of a plain projection's weight and bias."""
    if type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
        raise NotPlain
    given: Any = module._parameters
    weight, bias = given["weight"], given["bias"]
    if weight.shape != (rows, columns):
        raise NotPlain
    return _PAIR(_address(weight), None if bias is None else _address(bias))


def _norm(module: Any) -> int:
    if module._forward_hooks or module._forward_pre_hooks:
        raise NotPlain
    return _address(module._parameters["weight"])


def _address(x: Tensor) -> int:
    if x.dtype is not torch.float32 or not x.is_contiguous() or x.device.type != "cpu":
        raise NotPlain
    return x.data_ptr()


@cache
def blas_product() -> int | None:
    """The address of sgemm in torch's own library; None where it has none under that name."""
    path = next(Path(torch.__file__).with_name("lib").glob("libtorch_cpu.*"), None)
    try:
        return None if path is None else ctypes.cast(ctypes.CDLL(str(path)).sgemm_, _POINTER).value
    except (OSError, AttributeError):
        return None
