"""Publication: new weights to one vLLM server, so that nothing is sampled from a mixture and no old keys are read.

The weights are written to a folder once, and every server takes them from there, a server that was started again too.
While they are laid into a server it is paused and its weights have a label that says so; they get their own label when
they are whole. A trainer that dies in between leaves a server that nobody samples from until the next publication.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.engine.vllm_server import ServerError, VLLMServer
from agentrl.engine.vllm_settings import InFlight, Route
from agentrl.errors import SamplerError

if TYPE_CHECKING:
    from torch import Tensor

_PREFIX = "weights-"
_SHARD_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights in a folder.

    Attributes:
        version: of the trainer.
        label: names them to the servers; unique among all publications of all runs.
        folder: has them as safetensors files.
        num_tensors: how many they are.
    """

    version: int
    label: str
    folder: Path
    num_tensors: int


def write(folder: Path, version: int, label: str, tensors: Mapping[str, Tensor]) -> Weights:
    """Write weights below a folder, whole or not at all.

    Args:
        folder: that every server can read; in memory (``/dev/shm``) it costs no disk.
        version: of the trainer.
        label: unique among all publications of all runs.
        tensors: by the names that the model's checkpoint has. Of those that are tied the first is written.

    Raises:
        SamplerError: there are none, or the folder cannot be written.
    """
    kept = _without_tied(tensors)
    if not kept:
        raise SamplerError("no weights were given to publish")
    name = _PREFIX + label.replace(":", "-")
    final, partial = folder / name, folder / f".{name}"
    try:
        partial.mkdir(parents=True)
        _save(partial, kept)
        os.replace(partial, final)
    except OSError as error:
        raise SamplerError(
            f"weights of version {version} cannot be written to {folder}: {error}; choose a folder with room for the "
            "model twice"
        ) from error
    return Weights(version=version, label=label, folder=final.resolve(), num_tensors=len(kept))


def _without_tied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    seen, kept = set(), {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if place not in seen:
            seen.add(place)
            kept[name] = tensor
    return kept


def _save(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file  # only who publishes needs torch

    shard: dict[str, Tensor] = {}
    number = size = 0
    for name, tensor in tensors.items():
        bytes_ = tensor.numel() * tensor.element_size()
        if shard and size + bytes_ > _SHARD_BYTES:
            save_file(shard, folder / f"model-{number:05}.safetensors")
            shard, size, number = {}, 0, number + 1
        shard[name] = tensor.detach().to("cpu").contiguous()
        size += bytes_
    save_file(shard, folder / f"model-{number:05}.safetensors")


def remove_others(weights: Weights) -> None:
    """Remove older weights beside these, those of a run that died too."""
    for folder in weights.folder.parent.glob(f"*{_PREFIX}*"):
        if folder != weights.folder:
            shutil.rmtree(folder, ignore_errors=True)


async def publish_to(
    server: VLLMServer, weights: Weights, *, route: Route, in_flight: InFlight, timeout_s: float
) -> None:
    """Lay the weights into a server that is up.

    Args:
        server: is paused meanwhile, and stays so if this fails.
        weights: what it shall hold.
        route: ``transfer`` by vLLM's weight transfer and the backend of `vllm_worker`; ``reload`` by the method of any
            server that loads a checkpoint again.
        in_flight: ``wait`` lets replies that are under way end before. ``continue`` goes on with them afterwards, their
            keys computed anew.
        timeout_s: for each step.

    Raises:
        SamplerError: a step failed; a `ServerError` where the server did not answer, or refused.
    """
    mode = "wait" if in_flight == "wait" else "keep"
    await _post(server, "/pause", timeout_s, params={"mode": mode})
    await _post(server, "/update_weight_version", timeout_s, body={"new_version": f"half {weights.label}"})
    if route == "transfer":
        await _transfer(server, weights, timeout_s)
    else:
        await _reload(server, weights, timeout_s)
    await _drop_keys(server, timeout_s, running=in_flight == "continue")
    held = await server.call("GET", "/weight_info", timeout_s=timeout_s)
    if held.get("weight_version") != weights.label:
        raise SamplerError(
            f"{server.url} holds {dict(held)} after {weights.label} was published; another trainer uses it"
        )
    await _post(server, "/resume", timeout_s)


async def _transfer(server: VLLMServer, weights: Weights, timeout_s: float) -> None:
    update = {"update_info": {"folder": str(weights.folder), "num_tensors": weights.num_tensors}}
    finish = {"weight_version": weights.label}
    try:
        await _post(server, "/start_weight_update", timeout_s)
    except ServerError as error:
        if "already" not in error.problem:
            raise
        await _post(server, "/finish_weight_update", timeout_s, body={})  # of a trainer that died within
        await _post(server, "/start_weight_update", timeout_s)
    await _post(server, "/update_weights", timeout_s, body=update)
    await _post(server, "/finish_weight_update", timeout_s, body=finish)


async def _reload(server: VLLMServer, weights: Weights, timeout_s: float) -> None:
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.folder)}}
    await _post(server, "/collective_rpc", timeout_s, body=call)
    await _post(server, "/update_weight_version", timeout_s, body={"new_version": weights.label})


async def _drop_keys(server: VLLMServer, timeout_s: float, *, running: bool) -> None:
    params = {"reset_external": "true", "reset_running_requests": str(running).lower()}
    done = await server.call("POST", "/reset_prefix_cache", timeout_s=timeout_s, params=params)
    if done.get("success") is not True:
        raise SamplerError(f"{server.url}: its prefix cache still holds keys of the old weights: {dict(done)}")


async def _post(
    server: VLLMServer,
    path: str,
    timeout_s: float,
    *,
    body: Mapping[str, object] | None = None,
    params: Mapping[str, str] | None = None,
) -> None:
    await server.call("POST", path, timeout_s=timeout_s, body=body, params=params)
