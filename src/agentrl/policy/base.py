"""What the trainer needs of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor, nn

from agentrl.errors import StoreError
from agentrl.train.packing import Batch

if TYPE_CHECKING:
    from agentrl.policy.choice import Choice


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a training forward gives for the trained tokens.

    Attributes:
        hidden_KD: what the output projection is applied to, at the token before each trained one.
        projection_VD: the output projection.
        bias_V: added to the logits, where the model has one.
        values_K: values before each trained token, where there is a value head.
    """

    hidden_KD: Tensor
    projection_VD: Tensor
    bias_V: Tensor | None = None
    values_K: Tensor | None = None

    @property
    def logits_KV(self) -> Tensor:
        """All logits at once: for small vocabularies, and for tests."""
        logits_KV = self.hidden_KD @ self.projection_VD.T
        return logits_KV if self.bias_V is None else logits_KV + self.bias_V


class Attend(Protocol):
    """Attention of new tokens over what is cached of their conversations, which they join."""

    def __call__(self, layer: int, q_MHE: Tensor, k_MKE: Tensor, v_MKE: Tensor, *, window: int | None = None) -> Tensor:
        """The attended values (M, H * E).

        Args:
            layer: from 0.
            q_MHE: queries, scaled; H a multiple of the K heads of the cache.
            k_MKE: keys, which are kept.
            v_MKE: values, which are kept.
            window: how many tokens back a query sees, itself included; None for all.
        """
        ...


class Policy(nn.Module, ABC):
    """A model that can be trained and sampled from: any module with these two forward passes.

    Attributes:
        value: the value head, from width to 1, or None.
        sampling_threads: how many threads sampling is worth; None for all.
        sampling_choice: which forward pass sampling takes, where there are several, once an engine was made.
    """

    value: nn.Linear | None
    sampling_threads: int | None = None
    sampling_choice: Choice | None = None

    @abstractmethod
    def forward(self, batch: Batch) -> Output:
        """The forward pass over a packed batch, exact: no token sees another sequence."""

    @property
    @abstractmethod
    def context(self) -> int:
        """The longest sequence in tokens."""

    @abstractmethod
    def advance(
        self, ids_M: Tensor, previous_ids_M: Tensor, positions_M: Tensor, attend: Attend, last_B: Tensor
    ) -> Tensor:
        """The forward pass over new tokens of several conversations while sampling.

        Args:
            ids_M: the new tokens.
            previous_ids_M: the token before each in its conversation, 0 at the first.
            positions_M: the place of each in its conversation.
            attend: called once in each layer.
            last_B: the places in M whose successors are asked for.

        Returns:
            Logits (B, V) of what follows those tokens, before any temperature.
        """

    @property
    def num_parameters(self) -> int:
        """Numbers that training may change, those that are tied counted once."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def matrices(self) -> Sequence[nn.Parameter]:
        """The parameters that Muon takes; AdamW takes the others. None, unless a model names some."""
        return ()

    def saves(self, name: str) -> bool:  # noqa: ARG002
        """Whether a checkpoint must hold the weight of this name: all, unless a model trains an addition alone."""
        return True

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name, each weight once. They change with the model; clone what must last."""
        return {name: tensor.detach().contiguous() for name, tensor in self._saved()}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights that `tensors` gave.

        Raises:
            StoreError: a weight is missing, unknown, of another shape, or of a type that the model's cannot hold; none
                has been taken then.
        """
        own = dict(self._saved())
        for what, names in (("lack", own.keys() - tensors.keys()), ("have also", tensors.keys() - own.keys())):
            if names:
                raise StoreError(
                    f"these weights are of another model: they {what} {_some(sorted(names))}; make the model with the "
                    "settings that it was saved with"
                )
        for name, tensor in tensors.items():
            weight = own[name]
            holds = torch.promote_types(weight.dtype, tensor.dtype) == weight.dtype
            if weight.shape != tensor.shape or not holds:
                raise StoreError(
                    f"these weights are of another model: {name} is {_kind(tensor)}, and the model's is "
                    f"{_kind(weight)}; make the model with the settings that it was saved with"
                )
        for name, tensor in tensors.items():
            own[name].copy_(tensor)

    def frozen_copy(self) -> Self:
        """The policy as it is now, for reference. Weights that no checkpoint holds never change and are shared."""
        own = {id(tensor) for _, tensor in self._saved()}
        weights = (*self.parameters(), *self.buffers())
        copy = deepcopy(self, {id(tensor): tensor for tensor in weights if id(tensor) not in own})
        return copy.requires_grad_(False).eval()

    def _saved(self) -> Iterator[tuple[str, Tensor]]:
        """The weights themselves, those that are tied under the first of their names."""
        seen: set[int] = set()
        for name, tensor in self.state_dict(keep_vars=True).items():
            if id(tensor) not in seen and self.saves(name):
                seen.add(id(tensor))
                yield name, tensor


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _some(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
