"""A Hugging Face model by its name or folder, ready to be trained; what is wrong with it is said before that."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from agentrl.errors import ConfigError, RendererError
from agentrl.policy import lora
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.settings import HuggingFaceConfig
from agentrl.tokens.vocabulary import Vocabulary

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_ANSWER_S = 5.0
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def load_policy(
    name: str, settings: HuggingFaceConfig, *, value_head: bool, seed: int, vocabulary: Vocabulary | None = None
) -> HuggingFacePolicy:
    """The policy of a model.

    Args:
        name: of a model on the hub, a folder that ``save_pretrained`` wrote, or the folder of a LoRA adapter, whose
            base is loaded with it. An adapter is trained on where ``settings.lora_rank`` is its rank, and added to the
            weights where it is 0.
        settings: how it is loaded and trained.
        value_head: whether it gets one, with weights of zero.
        seed: the first weights of adapters are drawn from it alone.
        vocabulary: the tokenizer that it will be used with.

    Raises:
        ConfigError: no such model, weights that are missing, damaged or of another shape, adapters that do not fit,
            a vocabulary that is not the model's, a device that is not there, or a model that cannot be trained here.
    """
    device = _device(settings.device)
    model = load_model(base_of(name), settings)
    if vocabulary is not None:
        check_vocabulary(model, vocabulary)
    _adapt(model, name, settings, seed)
    policy = HuggingFacePolicy(model.to(device), value_head=value_head, attention=settings.attention)
    if settings.gradient_checkpointing:
        _checkpoint_layers(policy)
    return policy


def base_of(name: str) -> str:
    """The model that a name means; that of its base, where it means an adapter.

    Raises:
        ConfigError: the adapter's settings are damaged or not known here.
    """
    folder = lora.find_adapter(name)
    return name if folder is None else str(lora.read_adapter(folder).base_model_name_or_path)


def hub_folder(name: str, patterns: Sequence[str], what: str = "model") -> Path:
    """A folder with files of a model: its own where the name is one, or what the hub gives for it, or gave before.

    The libraries that load models ask the hub six times for each file, for half a minute; this asks once.

    Args:
        name: of a folder, or of a model on the hub.
        patterns: of the names of its files.
        what: is looked for, for the error.

    Raises:
        ConfigError: there is none, or the hub cannot be reached.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), etag_timeout=_ANSWER_S))
    except Exception as error:  # its HTTP library's own too, which is another in each version of the hub's client
        raise ConfigError(_not_given(name, what, _first_line(error))) from error


def _not_given(name: str, what: str, reason: str) -> str:
    return (
        f"no {what} {name!r}: it is no folder, and the model hub does not give it ({reason}); write a folder that "
        "save_pretrained() wrote, or a name such as Qwen/Qwen3-0.6B. With HF_HUB_OFFLINE=1 in the environment the hub "
        "is not asked, and models that were fetched before are taken"
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def load_model(name: str, settings: HuggingFaceConfig) -> Any:
    """A model of `transformers` in evaluation mode, on the CPU, without its adapter.

    Raises:
        ConfigError: no such model, or weights that are missing, damaged or of another shape.
    """
    hub_folder(name, (_CONFIG,))
    _check_files(Path(name))
    model: Any
    found: Any
    read: Any = AutoModelForCausalLM.from_pretrained
    try:
        with quiet():
            model, found = read(name, dtype=getattr(torch, settings.dtype), output_loading_info=True)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError, AssertionError) as error:
        raise ConfigError(_reason(name, error)) from error  # an assertion: of torch, for a pad beyond the vocabulary
    lacking = sorted(found["missing_keys"])
    if lacking:
        raise ConfigError(
            f"the weights of {name} lack {_some(lacking)}, which would be random; save the whole model again, or "
            "name another one"
        )
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embedding.weight:
        model.config.tie_word_embeddings = False  # a file may hold two where the configuration says one
    return model


def check_vocabulary(model: Any, vocabulary: Vocabulary) -> None:
    """Refuse a model and a tokenizer that do not belong together.

    Args:
        model: of `transformers`.
        vocabulary: the tokenizer.

    Raises:
        ConfigError: the model has fewer rows than the vocabulary has ids, or its special tokens are others.
    """
    special = {name: getattr(model.config, name, None) for name in _SPECIAL}
    if special["pad_token_id"] is not None and special["pad_token_id"] < 0:
        raise ConfigError(
            f"pad_token_id {special['pad_token_id']} in the model's config.json is no token; remove it there, since no "
            "pad is needed"
        )
    if getattr(model, "generation_config", None) is not None:
        special |= {f"generation {name}": getattr(model.generation_config, name, None) for name in _SPECIAL}
    try:
        vocabulary.check_model(len(model.get_input_embeddings().weight), special)
    except RendererError as error:
        raise ConfigError(f"the tokenizer is not that of the model: {error}") from error


def check_stops(model: Any, stop_ids: Collection[int], vocabulary: Vocabulary) -> None:
    """Refuse a model whose replies would never end where its conversations end them.

    A model that names no end of its own is taken: it learns, or knows, the one of its renderer.

    Args:
        model: of `transformers`.
        stop_ids: at which sampling stops.
        vocabulary: its tokenizer.

    Raises:
        ConfigError: there are no stop ids, or the model ends its replies with none of them.
    """
    settings = [("config.json", model.config), ("generation_config.json", getattr(model, "generation_config", None))]
    named = [(file, _ids(getattr(one, "eos_token_id", None))) for file, one in settings]
    file, ends = next(((file, ids) for file, ids in reversed(named) if ids), ("", ()))
    if not stop_ids or (ends and not set(ends) & set(stop_ids)):
        known = f"{_texts(ends, vocabulary)} (eos_token_id of its {file})" if ends else "a token that it does not name"
        raise ConfigError(
            f"replies would never end: the model ends them with {known}, and its conversations at "
            f"{_texts(sorted(stop_ids), vocabulary) or 'none'}; set eos_token_id to one of these, or hf.renderer to "
            "one that stops where the model does"
        )


def _ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _texts(ids: Iterable[int], vocabulary: Vocabulary) -> str:
    return ", ".join(f"{vocabulary.decode((index,))} ({index})" for index in ids)


def _adapt(model: Any, name: str, settings: HuggingFaceConfig, seed: int) -> None:
    """Make what the settings train the only weights with a gradient."""
    folder = lora.find_adapter(name)
    if folder is not None:
        _check_rank(folder, settings)
        _check_targets(folder, settings)
        lora.load_adapter(model, folder)
        if not settings.lora_rank:
            lora.merge(model)
    elif settings.lora_rank:
        lora.add_adapter(
            model,
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            targets=settings.lora_targets,
            seed=seed,
        )
    if settings.dtype == "bfloat16" and not settings.lora_rank:
        warnings.warn(
            "hf.dtype is bfloat16 and all weights are trained: it has three digits, and most steps of training are too "
            "small to change them. Set hf.dtype to float32, or hf.lora_rank to 32 (adapters are held in float32)",
            stacklevel=3,
        )


def _check_rank(folder: Path, settings: HuggingFaceConfig) -> None:
    config = lora.read_adapter(folder)
    wanted, found = (settings.lora_rank, settings.lora_alpha), (config.r, config.lora_alpha)
    if settings.lora_rank and wanted != found:
        raise ConfigError(
            f"hf.lora_rank is {wanted[0]} with hf.lora_alpha {wanted[1]:g}, and the adapter {folder} has rank "
            f"{found[0]} with alpha {found[1]:g}; set them to those to train it on, or lora_rank to 0 to add it to the "
            "weights and train all of them"
        )


def _check_targets(folder: Path, settings: HuggingFaceConfig) -> None:
    given = settings.lora_targets
    if given == HuggingFaceConfig().lora_targets:
        return
    own = lora.read_adapter(folder).target_modules
    found = [own] if isinstance(own, str) else sorted(own)
    if sorted(given) != found:
        raise ConfigError(
            f"hf.lora_targets {', '.join(given)}: model.name is the adapter {folder}, which is for "
            f"{', '.join(found)}; leave hf.lora_targets out, or name its base to begin new adapters"
        )


def _checkpoint_layers(policy: HuggingFacePolicy) -> None:
    """Layers are only computed again in training mode, in which dropouts are not idle."""
    if policy.dropouts:
        raise ConfigError(
            f"hf.gradient_checkpointing with {', '.join(policy.dropouts)}: the dropout would make every forward pass "
            "another; set it to 0 in the model's config.json, or hf.gradient_checkpointing to false"
        )
    try:
        policy.model.activation_checkpointing_enable()
    except ValueError as error:
        raise ConfigError(f"hf.gradient_checkpointing: {error} Set it to false") from error
    policy.train()


def _device(wanted: str) -> torch.device:
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ConfigError("hf.device is cuda, and torch finds none here; set it to cpu or auto")
    return torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and there) else "cpu")


# What can be wrong with files.


def _check_files(folder: Path) -> None:
    """Name the file that is cut short or missing, which the library does not."""
    index = folder / _INDEX
    if index.is_file():
        try:
            parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"{index} is damaged ({error}); fetch or save the model again") from error
        for part in parts:
            if not (folder / part).is_file():
                raise ConfigError(f"{folder / part} is missing, and {_INDEX} names it; fetch or save the model again")
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file} is cut short or damaged ({error}); fetch or save the model again") from error


def _reason(name: str, error: Exception) -> str:
    """One line of what the library says, and what to do."""
    if Path(name).is_dir():
        return f"the model in {name} cannot be loaded: {_first_line(error)}"
    return _not_given(name, "model", _first_line(error))


@contextmanager
def quiet() -> Iterator[None]:
    """Without bars, and without what the library prints about weights, which is said by errors here."""
    library: Any = logging
    verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
