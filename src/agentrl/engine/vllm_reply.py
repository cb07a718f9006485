"""What a vLLM server answers, read without trust: every number that is trained on is checked here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.errors import SamplerError
from agentrl.types import Completion, Sampling

_NO_LOGPROB = -9999.0
"""What the server writes for a log-probability that is minus infinity or not a number."""


class StaleReply(SamplerError):
    """Tokens of weights that were not asked for. They are thrown away, and the server needs the weights."""


class AbortedReply(SamplerError):
    """The server ended the reply before it was done."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One reply that is asked for.

    Attributes:
        name: unique among all requests.
        token_ids: the whole conversation.
        seed: of its draws.
        greedy: takes the likeliest token each time.
        max_tokens: of the reply, the stop id included.
        stop_ids: end the reply.
    """

    name: str
    token_ids: Sequence[int]
    seed: int
    greedy: bool
    max_tokens: int
    stop_ids: frozenset[int]


def body(request: Request, model: str, sampling: Sampling, label: str) -> dict[str, Any]:
    """The request in the server's form. Every setting is written out, since a server takes those that are not from
    files beside its weights; and its cache is keyed by the label of the weights, so that no keys of others serve."""
    drawn = Sampling() if request.greedy else sampling
    return {
        "request_id": request.name,
        "model": model,
        "token_ids": list(request.token_ids),
        "cache_salt": label,
        "sampling_params": {
            "n": 1,
            "temperature": 0.0 if request.greedy else drawn.temperature,
            "top_p": drawn.top_p,
            "top_k": drawn.top_k,
            "min_p": drawn.min_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": request.seed,
            "max_tokens": request.max_tokens,
            "min_tokens": 0,
            "stop_token_ids": sorted(request.stop_ids),
            "ignore_eos": True,
            "detokenize": False,
            "logprobs": drawn.top_k,
        },
    }


def read(answer: Mapping[str, Any], request: Request, sampling: Sampling, versions: Mapping[str, int]) -> Completion:
    """The reply in a server's answer.

    Args:
        answer: of the server.
        request: what was asked.
        sampling: what it was asked with.
        versions: of the labels whose weights may have sampled it.

    Raises:
        StaleReply: other weights sampled it.
        AbortedReply: it was ended from outside.
        SamplerError: numbers that a sampler cannot have produced.
    """
    try:
        (choice,) = answer["choices"]
        token_ids = tuple(choice["token_ids"])
        rows = choice["logprobs"]["content"]
        named = tuple(row["token_id"] for row in rows)
        logprobs = tuple(float(row["logprob"]) for row in rows)
    except (LookupError, TypeError, ValueError) as error:
        raise SamplerError(
            f"an answer without a reply and its log-probabilities ({type(error).__name__} {error}): {str(answer)[:300]}"
        ) from error
    if choice.get("finish_reason") == "abort":
        raise AbortedReply(f"the server aborted the reply after {len(token_ids)} tokens")
    if named != token_ids:
        raise SamplerError(
            f"{len(token_ids)} tokens came with the log-probabilities of {len(named)}, and not all are of the same ids"
        )
    _check_numbers(logprobs)
    truncated = sampling.truncates and not request.greedy
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        versions=_versions(choice.get("weight_versions"), len(token_ids), versions),
        finish_reason=_finish(token_ids, request, choice.get("finish_reason")),
        support=support(choice, rows) if truncated else (),
    )


def _check_numbers(logprobs: Sequence[float]) -> None:
    for position, logprob in enumerate(logprobs):
        if not _NO_LOGPROB < logprob <= 0.0:
            raise SamplerError(
                f"the log-probability at sampled position {position} is {logprob}: the server computed none for the "
                "token that it drew (weights that are not finite, or a distribution on one token)"
            )


def _finish(token_ids: Sequence[int], request: Request, reason: Any) -> Literal["stop", "length"]:
    """Why the reply ended, by its tokens; the server must say the same."""
    stops = [place for place, token in enumerate(token_ids) if token in request.stop_ids]
    if reason == "stop" and stops == [len(token_ids) - 1]:
        return "stop"
    if reason == "length" and not stops and len(token_ids) == request.max_tokens:
        return "length"
    raise SamplerError(
        f"a reply of {len(token_ids)} tokens, the last {token_ids[-1:]}, ended for {reason!r}; {request.max_tokens} "
        f"tokens or one of the ids {sorted(request.stop_ids)} were to end it"
    )


def _versions(spans: Any, length: int, versions: Mapping[str, int]) -> tuple[int, ...]:
    """The version of each token, from the server's own record of which weights sampled it."""
    found: list[int] = []
    try:
        for span in spans:
            if span["version"] not in versions:
                raise StaleReply(f"tokens were sampled by the weights {span['version']!r}")
            if span["start"] != len(found):
                break
            found += [versions[span["version"]]] * (span["end"] - span["start"])
    except (LookupError, TypeError) as error:
        raise SamplerError(f"the server does not say which weights sampled its tokens: {spans!r}") from error
    if len(found) != length:
        raise SamplerError(f"the server names the weights of {len(found)} tokens of {length}: {spans!r}")
    return tuple(found)


def support(choice: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    """The ids that each token was drawn from: the server's sampling masks, or else all whose log-probability is
    finite among the likeliest, which are all there are when their probabilities sum to 1.

    Raises:
        SamplerError: neither is there.
    """
    masks = choice.get("sampling_mask")
    if masks is not None:
        return tuple(tuple(sorted(mask)) for mask in masks)
    return tuple(_listed(position, row) for position, row in enumerate(rows))


def _listed(position: int, row: Mapping[str, Any]) -> tuple[int, ...]:
    kept = {entry["token_id"]: entry["logprob"] for entry in row["top_logprobs"] if entry["logprob"] > _NO_LOGPROB}
    total = sum(map(math.exp, kept.values()))
    if abs(total - 1.0) > 1e-3:
        raise SamplerError(
            f"the {len(kept)} listed tokens at sampled position {position} have a probability of {total:.4f} together, "
            "so that the ids it was drawn from are not known; set top_k as well, or start the server with "
            "--return-sampling-mask"
        )
    return tuple(sorted(kept))
