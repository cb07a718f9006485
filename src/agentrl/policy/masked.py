"""Attention over a packed batch with masks: on any device, and in layers that see only so many tokens back.

Each continuation meets the keys of its group's prefix and its own, so no token sees another sequence, whatever the
mask says. Layers with a window leave out what no query of a continuation can see. `packed.py` has the same attention
for the CPU, without masks and without a copy of the prefix for each continuation, but for whole sequences alone.

Shape suffixes: H heads, M flat tokens, E width of a head; R continuations of T tokens each, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agentrl.policy.packed import GroupSpan, Run


class Masks:
    """Which keys a query sees, (T, S). Each is made once for all layers of a batch.

    Args:
        device: where they lie.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[tuple[int, int, int | None], Tensor] = {}

    def see(self, queries: int, before: int, window: int | None) -> Tensor | None:
        """The mask of neighbouring queries over the ``before`` tokens before them and themselves; None where plain
        causal attention sees the same.

        Args:
            queries: T.
            before: S - T.
            window: how many tokens back a query sees, itself included; None for all.
        """
        if not before and (window is None or window >= queries):
            return None
        key = (queries, before, window)
        if key not in self._made:
            query_T1 = torch.arange(before, before + queries, device=self._device)[:, None]
            back_TS = query_T1 - torch.arange(before + queries, device=self._device)
            self._made[key] = (back_TS >= 0) & (back_TS < (before + queries if window is None else window))
        return self._made[key]


def masked_attention(
    q_HME: Tensor,
    k_HME: Tensor,
    v_HME: Tensor,
    groups: tuple[GroupSpan, ...],
    scale: float,
    *,
    masks: Masks,
    window: int | None = None,
) -> Tensor:
    """Causal attention (H, M, E) of a packed batch; ``scale`` is multiplied into the scores.

    Args:
        q_HME: queries.
        k_HME: keys.
        v_HME: values.
        groups: where the groups lie on the flat axis.
        scale: of the scores.
        masks: those of this batch.
        window: how many tokens back a query sees, itself included; None for all.
    """
    parts: list[Tensor] = []
    for group in groups:
        prefix = slice(group.start, group.continues)
        if group.continues > group.start:
            q, k, v = (x[None, :, prefix] for x in (q_HME, k_HME, v_HME))
            parts.append(_attend(q, k, v, masks.see(q.shape[2], 0, window), scale))
        if window is not None:
            prefix = slice(max(group.start, group.continues - window + 1), group.continues)
        parts += [_continue((q_HME, k_HME, v_HME), prefix, run, masks, window, scale) for run in group.runs]
    return torch.cat(parts, dim=1)


def _continue(
    qkv: tuple[Tensor, Tensor, Tensor], prefix: slice, run: Run, masks: Masks, window: int | None, scale: float
) -> Tensor:
    q, *own = map(run.of, qkv)
    before = (x[None, :, prefix].expand(run.rows, -1, -1, -1) for x in qkv[1:])
    k, v = (torch.cat(pair, dim=2) for pair in zip(before, own, strict=True))
    return _attend(q, k, v, masks.see(run.length, prefix.stop - prefix.start, window), scale)


def _attend(q_RHTE: Tensor, k_RHSE: Tensor, v_RHSE: Tensor, mask_TS: Tensor | None, scale: float) -> Tensor:
    """Attention of R rows, one after the other, (H, R * T, E)."""
    out_RHTE = scaled_dot_product_attention(q_RHTE, k_RHSE, v_RHSE, mask_TS, is_causal=mask_TS is None, scale=scale)
    return out_RHTE.transpose(0, 1).flatten(1, 2)
