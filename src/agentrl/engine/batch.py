"""The requests that get a token in a step, and the draw of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from agentrl.engine.draw import draw
from agentrl.engine.random import uniforms
from agentrl.engine.requests import Request
from agentrl.engine.store import Conversation
from agentrl.errors import SamplerError
from agentrl.train.truncation import kept
from agentrl.types import Sampling

_AHEAD = 32
"""Steps whose random numbers are computed at a time."""


class Batch:
    """Requests that are sampled together, and what stays the same as long as they are.

    Args:
        requests: of conversations that are computed to their end.
        device: of their logits.

    Attributes:
        requests: see above.
        conversations: theirs.
        last_ids: the token that each got last.
    """

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        self.requests = list(requests)
        self.last_ids: list[int] = []
        self.conversations: list[Conversation] = [request.session.conversation for request in requests]
        sessions = [request.session for request in requests]
        self._seeds_B = np.array([session.seed for session in sessions], dtype=np.uint64)
        self._drawn_B = np.array([session.num_drawn for session in sessions], dtype=np.uint64)
        self._greedy_B = torch.tensor([session.greedy for session in sessions], device=device)
        self._uniforms: list[Tensor] = []
        """Of the next steps, the nearest last."""
        self._may_stop = frozenset[int]().union(*(request.stop_ids for request in requests))
        self._reads_text = any(request.stop_strings for request in requests)
        self._left = min(request.max_tokens - len(request.token_ids) for request in requests)
        self._masked = any(request.masking is not None for request in requests)

    def ask_maskings(self, vocabulary: int) -> dict[Request, SamplerError]:
        """Have each masking say what may come next. Returns those that fail, and why."""
        failed: dict[Request, SamplerError] = {}
        for request in self.requests if self._masked else ():
            try:
                request.restrict(vocabulary)
            except SamplerError as error:
                failed[request] = error
        return failed

    @torch.inference_mode()
    def sample(self, logits_BV: Tensor, sampling: Sampling, version: int) -> None:
        """Append one sampled token to each request.

        Args:
            logits_BV: what follows each; overwritten.
            sampling: how tokens are drawn.
            version: of the weights that the logits come from.

        Raises:
            SamplerError: logits that are not numbers.
        """
        scaled_BV = logits_BV if sampling.temperature == 1.0 else logits_BV.div_(sampling.temperature)
        if sampling.truncates or self._masked:
            _restrict(self.requests, scaled_BV, sampling)
        drawn_B, logprob_B = draw(scaled_BV, self._uniform(scaled_BV.device), self._greedy_B)
        self.last_ids = drawn_B.tolist()
        for request, token, logprob in zip(self.requests, self.last_ids, logprob_B.tolist(), strict=True):
            if math.isnan(logprob):
                raise SamplerError("the model's logits are not numbers; its weights may have NaN or infinity")
            request.append(token, logprob, version)
        self._left -= 1

    @property
    def may_be_complete(self) -> bool:
        """Whether some reply may be complete; most tokens do not end one."""
        return self._left <= 0 or self._reads_text or not self._may_stop.isdisjoint(self.last_ids)

    def _uniform(self, device: torch.device) -> Tensor:
        """A random number for each request."""
        if not self._uniforms:
            count = max(1, min(_AHEAD, self._left))
            steps = np.arange(count, dtype=np.uint64)[:, None]
            ahead = torch.from_numpy(uniforms(self._seeds_B, self._drawn_B + steps)).to(device)
            self._drawn_B += np.uint64(count)
            self._uniforms = [*ahead.flip(0)]
        return self._uniforms.pop()


def _restrict(requests: Sequence[Request], scaled_BV: Tensor, sampling: Sampling) -> None:
    """Hide what cannot be drawn, and note what can, where that is not everything."""
    for place, request in enumerate(requests):
        if request.next_ids is not None:
            hidden = torch.ones(scaled_BV.shape[1], dtype=torch.bool, device=scaled_BV.device)
            hidden[torch.tensor(request.next_ids, device=scaled_BV.device)] = False
            scaled_BV[place].masked_fill_(hidden, -math.inf)
    if sampling.truncates:
        scaled_BV.masked_fill_(~kept(scaled_BV, sampling), -math.inf)
    for request in requests:
        if request.masking is not None and request.next_ids is None and not sampling.truncates:
            request.support.append(_everything(scaled_BV.shape[1]))
    places = [place for place, one in enumerate(requests) if sampling.truncates or one.next_ids is not None]
    if places:
        kept_BV = scaled_BV[places] > -math.inf
        ids_S = kept_BV.nonzero()[:, 1].cpu()
        for place, ids in zip(places, torch.split(ids_S, kept_BV.sum(1).tolist()), strict=True):
            requests[place].support.append(tuple(ids.tolist()))


@lru_cache(maxsize=4)
def _everything(vocabulary: int) -> tuple[int, ...]:
    """All ids, once for all tokens that anything may follow: one tuple of a large vocabulary takes megabytes."""
    return tuple(range(vocabulary))
