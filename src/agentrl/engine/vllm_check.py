"""Is a vLLM server the one that was asked for? Asked before a run, and of each server that was started again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.engine.vllm_reply import support
from agentrl.engine.vllm_server import GENERATE, ServerError, VLLMServer
from agentrl.errors import ConfigError, SamplerError
from agentrl.types import Sampling


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What distinguishes a model from others, as its ``config.json`` has it.

    Attributes:
        vocab_size: how many ids it knows.
        context: the longest conversation, in tokens.
        model_type: such as ``qwen3``.
        hidden_size: the width.
        num_hidden_layers: the depth.

    Raises:
        ConfigError: a number below 1.
    """

    vocab_size: int
    context: int
    model_type: str
    hidden_size: int
    num_hidden_layers: int

    def __post_init__(self) -> None:
        if min(self.vocab_size, self.context, self.hidden_size, self.num_hidden_layers) < 1:
            raise ConfigError(f"{self}: every number is at least 1")


async def check(
    server: VLLMServer,
    model: str,
    shape: ModelShape,
    probes: Mapping[str, Sequence[int]],
    *,
    transfer: bool,
    timeout_s: float,
) -> None:
    """Make sure that a server serves this model and takes weights, by questions that one answers which is paused.

    Args:
        server: is asked.
        model: its name there.
        shape: which it must have.
        probes: texts with the ids that its tokenizer must write, if it has one.
        transfer: whether it must take weights by our backend.
        timeout_s: for each question.

    Raises:
        SamplerError: naming what is wrong and how to start the server.
    """
    await _check_name(server, model, shape, timeout_s)
    await _check_routes(server, timeout_s)
    await _check_tokenizer(server, model, probes, timeout_s)
    if transfer:
        await _check_transfer(server, shape, timeout_s)


async def check_sampling(server: VLLMServer, model: str, vocab_size: int, *, timeout_s: float) -> None:
    """Make sure that a server samples over this vocabulary and reports what it samples from.

    It is allowed one id alone: the last that we know must be drawn, with certainty; the one behind it must be unknown.

    Raises:
        SamplerError: naming what is wrong and how to start the server.
    """
    try:
        reply = await server.call("POST", GENERATE, body=_allowing(model, vocab_size - 1), timeout_s=timeout_s)
    except ServerError as error:
        raise _refused_id(server, vocab_size, error) from error
    if _first_logprob(reply) != 0.0:
        raise SamplerError(
            f"{server.url} reports log-probabilities before temperature and truncation, not those that it samples "
            "from; start it with --logprobs-mode processed_logprobs"
        )
    try:
        await server.call("POST", GENERATE, body=_allowing(model, vocab_size), timeout_s=timeout_s)
    except ServerError as error:
        if error.status != 400:
            raise
    else:
        raise SamplerError(
            f"{server.url} knows more than the {vocab_size} ids of the model in training; it serves another model"
        )


async def check_support(server: VLLMServer, model: str, sampling: Sampling, *, timeout_s: float) -> None:
    """Make sure that a server says which ids a token was drawn from, where sampling truncates.

    Raises:
        SamplerError: naming what is wrong and how to start the server.
    """
    drawn = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    answer = await server.call(
        "POST", GENERATE, body=_body(model, [0], logprobs=sampling.top_k, **drawn), timeout_s=timeout_s
    )
    try:
        (choice,) = answer["choices"]
        support(choice, choice["logprobs"]["content"])
    except (LookupError, TypeError, ValueError) as error:
        raise SamplerError(f"{server.url}: an answer without log-probabilities: {str(answer)[:300]}") from error
    except SamplerError as error:
        raise SamplerError(f"{server.url}: {error}") from error


async def score(server: VLLMServer, model: str, token_ids: Sequence[int], *, timeout_s: float) -> tuple[float, ...]:
    """The log-probability of each given token but the first, at temperature 1 over the whole vocabulary.

    Raises:
        SamplerError: the server gave no such numbers.
    """
    body = _body(model, token_ids, logprobs=0, prompt_logprobs=0)
    answer = await server.call("POST", GENERATE, body=body, timeout_s=timeout_s)
    try:
        rows = answer["prompt_logprobs"][1:]
        return tuple(float(row[str(token)]["logprob"]) for token, row in zip(token_ids[1:], rows, strict=True))
    except (LookupError, TypeError, ValueError) as error:
        raise SamplerError(f"{server.url}: no log-probabilities of a prompt: {str(answer)[:300]}") from error


async def _check_name(server: VLLMServer, model: str, shape: ModelShape, timeout_s: float) -> None:
    answer = await server.call("GET", "/v1/models", timeout_s=timeout_s)
    served = {str(entry.get("id")): entry for entry in answer.get("data") or () if isinstance(entry, dict)}
    if model not in served:
        raise SamplerError(
            f"{server.url} serves {', '.join(sorted(served)) or 'no model'}, not {model!r}; set the model's name, or "
            f"start the server with --served-model-name {model}"
        )
    context = served[model].get("max_model_len")
    if not isinstance(context, int) or context < shape.context:
        raise SamplerError(
            f"{server.url} takes conversations of {context} tokens and this run has some of up to {shape.context}; "
            f"start the server with --max-model-len {shape.context}"
        )


async def _check_routes(server: VLLMServer, timeout_s: float) -> None:
    try:
        await server.call("GET", "/weight_info", timeout_s=timeout_s)
    except ServerError as error:
        if error.status != 404:
            raise
        raise SamplerError(
            f"{server.url} has no routes for weights; start vLLM 0.32 with VLLM_SERVER_DEV_MODE=1 in its environment"
        ) from error


def _refused_id(server: VLLMServer, vocab_size: int, error: ServerError) -> SamplerError:
    if error.status in (403, 404):
        return SamplerError(f"{server.url} takes no token ids; start vLLM 0.32 with --enable-scale-out")
    if error.status == 400 and "vocab" in error.problem:
        return SamplerError(
            f"{server.url} knows fewer than the {vocab_size} ids of the model in training; it serves another model"
        )
    return error


def _first_logprob(reply: Mapping[str, Any]) -> Any:
    try:
        return reply["choices"][0]["logprobs"]["content"][0]["logprob"]
    except (LookupError, TypeError):
        return None


async def _check_tokenizer(
    server: VLLMServer, model: str, probes: Mapping[str, Sequence[int]], timeout_s: float
) -> None:
    for text, ids in probes.items():
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            answer = await server.call("POST", "/tokenize", body=body, timeout_s=timeout_s)
        except ServerError as error:
            if error.status == 400 and "okenizer not available" in error.problem:
                return  # it was started without one, and writes no ids
            raise
        if list(answer.get("tokens") or ()) != list(ids):
            raise SamplerError(
                f"{server.url} writes {text[:60]!r} as {answer.get('tokens')} and this run as {list(ids)}; it serves "
                "a model with another tokenizer"
            )


async def _check_transfer(server: VLLMServer, shape: ModelShape, timeout_s: float) -> None:
    try:
        answer = await server.call("POST", "/collective_rpc", body={"method": "agentrl_model"}, timeout_s=timeout_s)
        found = dict(answer["results"][0])
    except (ServerError, LookupError, TypeError) as error:
        if isinstance(error, ServerError) and error.status is None:
            raise
        raise SamplerError(
            f"{server.url} cannot take weights by the route 'transfer'; start it with --worker-extension-cls "
            'agentrl.engine.vllm_worker.FolderTransfer and --weight-transfer-config \'{"backend": "agentrl"}\', or '
            "set the route to 'reload'"
        ) from error
    wrong = {name: value for name, value in found.items() if value != getattr(shape, name)}
    if wrong:
        ours = {name: getattr(shape, name) for name in wrong}
        raise SamplerError(f"{server.url} serves another model: it has {wrong} and the model in training {ours}")


def _body(model: str, token_ids: Sequence[int], **params: Any) -> dict[str, Any]:
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 0}
    sampling = {**neutral, "n": 1, "max_tokens": 1, "ignore_eos": True, "detokenize": False, **params}
    return {"model": model, "token_ids": list(token_ids), "sampling_params": sampling}


def _allowing(model: str, token: int) -> dict[str, Any]:
    return _body(model, [0], logprobs=0, allowed_token_ids=[token])
