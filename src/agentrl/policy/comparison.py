"""The comparison that a Hugging Face model must pass before it is trained: its own forward pass against ours.

A few short sequences with a common beginning show what the model computes beyond what is known here. Where layers see
only so many tokens back, a sequence across the edge of that window shows that it lies where we think.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.policy.base import Policy
from agentrl.train.packing import count, pack
from agentrl.types import Sample

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference between the model's own forward pass and ours, relative to the largest number in it."""
LONGEST_WINDOW, LONGEST_ON_CPU = 8192, 1024
"""Wider windows are not walked across: it would take minutes."""
_PREFIX = (1, 2, 3)
_TAILS = ((5, 6, 7, 8, 9), (10, 11, 12, 13), (14, 3, 2, 15))


def compare(policy: Policy, logit_scale: float, replace_attention: Callable[[], None]) -> None:
    """Compare the forward pass of ``policy.model`` with that of the policy.

    Args:
        policy: of a Hugging Face model whose attention is still its own.
        logit_scale: what the policy multiplies hidden states by before the output projection.
        replace_attention: makes the model's attention ours.

    Raises:
        ConfigError: the numbers differ.
    """
    model: Any = policy.model
    vocabulary = len(model.get_output_embeddings().weight)
    short = _rows(_PREFIX, _TAILS, vocabulary)
    window = window_of(model.config)
    across = max(1, window - 2)  # the tail begins inside the window of the first token and ends outside
    long = _rows(range(across), _TAILS[:1], vocabulary) if 0 < window <= longest_window(policy.device) else []
    hidden_KD, logits_KV = (torch.cat(parts) for parts in zip(*(_own(model, row) for row in short), strict=True))
    far = [_own_hidden(model, row, across) for row in long]
    replace_attention()
    found = policy(_batch(policy, short, len(_PREFIX)))
    _compare("last hidden states", found.hidden_KD, hidden_KD * logit_scale)
    _compare("logits", found.logits_KV, logits_KV)
    for row, far_KD in zip(long, far, strict=True):
        found = policy(_batch(policy, [row], across))
        _compare(f"last hidden states of sequences longer than {window} tokens", found.hidden_KD, far_KD * logit_scale)


def longest_window(device: torch.device) -> int:
    """The widest window that is walked across on a device, in tokens."""
    return LONGEST_ON_CPU if device.type == "cpu" else LONGEST_WINDOW


def window_of(config: Any) -> int:
    """How many tokens back the layers with a window see, themselves included; 0 where there are none."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return 0
    return getattr(config, "sliding_window", None) or 0


def _rows(prefix: Sequence[int], tails: Sequence[Sequence[int]], vocabulary: int) -> list[list[int]]:
    """Sequences with a common beginning, the last two of one length."""
    return [[token % vocabulary for token in (*prefix, *tail)] for tail in tails]


def _own(model: Any, row: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Hidden states and logits before each token behind the prefix, with the model's own attention."""
    ids = torch.tensor([row], device=model.device)
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return _own_hidden(model, row, len(_PREFIX)), logits[0, len(_PREFIX) - 1 : -1]


def _own_hidden(model: Any, row: Sequence[int], prefix: int) -> Tensor:
    ids = torch.tensor([row], device=model.device)
    hidden: Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden[0, prefix - 1 : -1]


def _batch(policy: Policy, rows: Sequence[Sequence[int]], prefix: int) -> Any:
    samples = [_sample(row, prefix) for row in rows]
    return pack([samples], count(samples)).to(policy.device)


def _sample(row: Sequence[int], prefix: int) -> Sample:
    return Sample(
        token_ids=tuple(row),
        weights={"ce": tuple(float(place >= prefix) for place in range(len(row)))},
        logprobs=(None,) * len(row),
        advantages=(0.0,) * len(row),
        trace_id="probe",
        group_id="probe",
    )


def _compare(what: str, ours: Tensor, theirs: Tensor) -> None:
    gap = float((ours - theirs).abs().max() / theirs.abs().max())
    if not gap <= TOLERANCE[theirs.dtype]:
        raise ConfigError(
            f"{what} differ by {gap:.1e} from its own forward pass; it computes something that is not known here"
        )
