"""Low-rank adapters on a Hugging Face model, by `peft`: what is trained in place of all weights.

A layer with weight W computes W + (alpha / rank) B A, of which A and B are trained; B begins at zero. They are put
into the model itself, so that everything else sees the model that it knew. There is no dropout: a token would be
scored by another policy than the one that sampled it. Adapters are held in float32 also where W is not, since steps of
training are smaller than bfloat16 can add.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (2106.09685), section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from agentrl.errors import ConfigError

try:
    from peft import LoraConfig, PeftConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer
except ImportError as error:
    raise ImportError("Hugging Face models need the package peft: pip install 'agentrl[hf]'") from error

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
"""Every linear layer but the output projection."""
_NAME = "default"
_PREFIX = "base_model.model."
"""What peft puts before the names of a model's parts."""
_REFUSED = {
    "lora_dropout": 0.0,
    "use_dora": False,
    "modules_to_save": None,
    "bias": "none",
    "lora_bias": False,
    "trainable_token_indices": None,
    "layer_replication": None,
}
"""Settings of an adapter's file, and the only value of each that is known here."""


def add_adapter(model: Any, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Freeze a model and put adapters into it.

    Args:
        model: a causal language model of `transformers`.
        rank: of the adapters, at least 1.
        alpha: they are scaled by ``alpha / rank``.
        targets: names of linear layers, or ``all-linear`` alone.
        seed: their first weights are drawn from it alone.

    Raises:
        ConfigError: a target that is the name of no linear layer, or of one that no adapter is made for.
    """
    if ALL_LINEAR in targets and len(targets) > 1:
        raise ConfigError(f"hf.lora_targets {', '.join(targets)}: {ALL_LINEAR} means all of them; write it alone")
    chosen = _every_target(model) if ALL_LINEAR in targets else sorted(targets)
    _check_targets(model, chosen)
    scale: Any = int(alpha) if alpha == int(alpha) else alpha  # other programs want an integer where it is one
    config = LoraConfig(r=rank, lora_alpha=scale, target_modules=chosen, task_type="CAUSAL_LM")
    _inject(model, config, seed)


def has_adapter(model: Any) -> bool:
    """Whether adapters were put into a model."""
    return getattr(model, "peft_config", None) is not None


def is_adapter(name: str) -> bool:
    """Whether a name is that of an adapter's weight."""
    return ".lora_" in name


def adapter_settings(model: Any, base: str) -> dict[str, Any]:
    """The settings of a model's adapters as peft writes them, for a base of that name."""
    settings: dict[str, Any] = {**model.peft_config[_NAME].to_dict(), "base_model_name_or_path": base}
    settings["inference_mode"] = True
    return {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}


def adapter_weights(model: Any) -> dict[str, Tensor]:
    """The weights of a model's adapters under the names that peft gives them in files."""
    return {
        _PREFIX + name.replace(f".{_NAME}.", "."): weight.detach().contiguous()
        for name, weight in model.named_parameters()
        if is_adapter(name)
    }


def merged_weights(model: Any) -> dict[str, Tensor]:
    """The weights of a model with its adapters added to the layers that they are for, under the model's own names."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    merged = {}
    for name, tensor in model.state_dict().items():
        owner, _, part = name.rpartition(".base_layer.")
        if owner:
            merged[f"{owner}.{part}"] = _merged(layers[owner], tensor) if part == "weight" else tensor
        elif not is_adapter(name):
            merged[name] = tensor
    return merged


def _merged(layer: Any, weight: Tensor) -> Tensor:
    delta = layer.get_delta_weight(_NAME)
    total: Tensor = (weight.to(delta.dtype) + delta).to(weight.dtype)
    return total.detach()


# An adapter that was saved.


def find_adapter(name: str) -> Path | None:
    """The folder of an adapter, if a name means one."""
    path = Path(name)
    return path if (path / CONFIG).is_file() else None


def read_adapter(folder: Path) -> Any:
    """The settings of a saved adapter.

    Raises:
        ConfigError: they are damaged, or of an adapter that is not known here.
    """
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ConfigError(f"{folder / CONFIG} cannot be read: {error}") from error
    if not isinstance(config, LoraConfig):
        raise ConfigError(f"{folder} has an adapter of kind {config.peft_type}; only LoRA is trained here")
    for setting, only in _REFUSED.items():
        value = getattr(config, setting, only)
        if value != only and value:
            raise ConfigError(f"{folder / CONFIG} has {setting} {value!r}; it must be {only!r} to be trained here")
    if not config.base_model_name_or_path:
        raise ConfigError(f"{folder / CONFIG} names no base model; set base_model_name_or_path")
    return config


def load_adapter(model: Any, folder: Path) -> None:
    """Freeze a model and put a saved adapter into it, to be trained on.

    Raises:
        ConfigError: the file is damaged, or the adapter was made for another model.
    """
    config = read_adapter(folder)
    _inject(model, config, seed=0)
    saved, own = _read(folder / WEIGHTS), adapter_weights(model)
    whose = f"{folder} is the adapter of another model than {config.base_model_name_or_path}"
    for what, names in (("lacks", own.keys() - saved.keys()), ("has also", saved.keys() - own.keys())):
        if names:
            raise ConfigError(f"{whose}: it {what} {min(names)}; set base_model_name_or_path in {CONFIG} to its own")
    for name, weight in own.items():
        if weight.shape != saved[name].shape:
            raise ConfigError(
                f"{whose}: {name} is {tuple(saved[name].shape)} and here {tuple(weight.shape)}; set "
                f"base_model_name_or_path in {CONFIG} to its own"
            )
        weight.copy_(saved[name])


def merge(model: Any) -> None:
    """Add the adapters of a model to its layers and take them out of it; all weights are trained from then on."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            base: Any = module.get_base_layer()
            base.weight.data = _merged(module, base.weight.data)
            model.set_submodule(name, base)
    del model.peft_config
    model.requires_grad_(True)


def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file} is missing or damaged ({error}); save the adapter again") from error


# Putting them in.


def _inject(model: Any, config: Any, seed: int) -> None:
    """Peft draws from the global generator, which is left as it was."""
    config.inference_mode = False
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model, adapter_name=_NAME)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"no adapters can be put into {type(model).__name__}: {error}") from error
    for name, weight in model.named_parameters():
        weight.requires_grad_(is_adapter(name))
        if is_adapter(name):
            weight.data = weight.data.to(torch.promote_types(weight.dtype, torch.float32))


def _every_target(model: Any) -> list[str]:
    """The names of all linear layers but the output projection, without those of the layers that they lie in."""
    return sorted({name.rpartition(".")[2] for name in _linear(model)} - {_output(model)})


def _check_targets(model: Any, targets: Sequence[str]) -> None:
    linear, output = _linear(model), _output(model)
    known = f"take some of {', '.join(_every_target(model))}, or {ALL_LINEAR}"
    for target in targets:
        if target.rpartition(".")[2] == output:
            raise ConfigError(
                f"hf.lora_targets has {target!r}, the output projection, for which no adapter is made; {known}"
            )
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            raise ConfigError(
                f"hf.lora_targets has {target!r}, which is no linear layer of {type(model).__name__}; {known}"
            )


def _linear(model: Any) -> list[str]:
    return [name for name, module in model.named_modules() if _is_linear(module)]


def _output(model: Any) -> str:
    head = model.get_output_embeddings()
    names: list[str] = [name for name, module in model.named_modules() if module is head]
    return names[0].rpartition(".")[2]


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
