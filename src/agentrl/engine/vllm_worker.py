"""The end of weight publication that runs inside a vLLM server: weights from a folder, through vLLM's own routes.

vLLM's transports move tensors between GPUs. This one lets a worker map the safetensors files of a folder, in memory
(``/dev/shm``) or on a disk that trainer and server share, so it works on any device, needs no process group that a
crash could leave half open, and can be repeated for a server that was started again. Start the server with

    --worker-extension-cls agentrl.engine.vllm_worker.FolderTransfer --weight-transfer-config '{"backend": "agentrl"}'

Of this package it imports nothing, so that it can be installed beside vLLM without its libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # type: ignore[import-not-found]
    WeightTransferEngineFactory,
)
from vllm.model_executor.model_loader.reload import (  # type: ignore[import-not-found]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

BACKEND = "agentrl"
_DESCRIBED = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")


@dataclass
class FolderInit(WeightTransferInitInfo):  # type: ignore[misc]
    """There is nothing to agree on."""


@dataclass
class FolderUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where the weights lie. ``num_tensors`` is how many there must be."""

    folder: str
    num_tensors: int


class FolderEngine(WeightTransferEngine[FolderInit, FolderUpdate]):  # type: ignore[misc]
    """Takes all weights of a model in one update, or none and says why."""

    init_info_cls = FolderInit
    update_info_cls = FolderUpdate

    def init_transfer_engine(self, init_info: FolderInit) -> None:
        """Nothing is opened."""

    def start_weight_update(self) -> None:
        """Nothing yet: once vLLM makes ready for new weights, the old ones cannot be sampled from any more."""

    def receive_weights(self, update_info: FolderUpdate) -> None:
        """Load every tensor of the folder.

        Raises:
            ValueError: the folder has too few or too many tensors, or they are those of another model. Where that is
                found before the first is loaded, the model is as it was.
        """
        files = sorted(Path(update_info.folder).glob("*.safetensors"))
        shapes = _shapes(files)
        if len(shapes) != update_info.num_tensors:
            raise ValueError(
                f"{update_info.folder} has {len(shapes)} tensors and {update_info.num_tensors} were announced; publish "
                "from a folder that this server can read whole"
            )
        config = self.model_config.hf_text_config
        _check_vocabulary(shapes, config.vocab_size)
        tied = bool(getattr(config, "tie_word_embeddings", False))
        wanted = {name for name, _ in self.model.named_parameters() if not (tied and name.startswith("lm_head."))}
        initialize_layerwise_reload(self.model)
        loaded = self.model.load_weights(_tensors(files))
        missing = wanted - loaded if loaded is not None else set()
        if missing:
            raise ValueError(f"the weights lack {', '.join(sorted(missing)[:3])} of the {len(wanted)} of this model")
        finalize_layerwise_reload(self.model, self.model_config)
        if tied:
            _pack_again(self.model)

    def finish_weight_update(self) -> None:
        """Nothing is left to do."""

    def shutdown(self) -> None:
        """Nothing is open."""


class FolderTransfer:
    """A worker's further methods. That vLLM imports this class is what makes the transport known to it."""

    def agentrl_model(self) -> dict[str, Any]:
        """What model this is, for the client to compare with its own."""
        config = self.model_config.hf_text_config  # type: ignore[attr-defined]
        return {name: getattr(config, name, None) for name in _DESCRIBED}


def _shapes(files: list[Path]) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    return shapes


def _tensors(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


def _check_vocabulary(shapes: dict[str, list[int]], vocab_size: int) -> None:
    """vLLM pads the rows of an embedding, so that fewer than it has would be taken without a word."""
    for name, shape in shapes.items():
        if name.endswith("embed_tokens.weight") and shape[0] != vocab_size:
            raise ValueError(f"{name} has {shape[0]} rows and the vocabulary of this model {vocab_size} words")


def _pack_again(model: torch.nn.Module) -> None:
    """Renew what an output projection computes from the embedding that it shares.

    On a CPU it multiplies by a packed copy. A reload packs the layers that it loads, and this one it does not.
    """
    head = getattr(model, "lm_head", None)
    method = getattr(head, "quant_method", None)
    if method is not None:
        method.process_weights_after_loading(head)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FolderEngine)
