"""A trained Hugging Face policy as a folder that `transformers`, `peft` and vLLM load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from agentrl.errors import ConfigError, RendererError
from agentrl.policy import lora
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.policy.load import check_vocabulary, quiet
from agentrl.tokens.vocabulary import Vocabulary

_NO_VALUE_HEAD = "the value head is left out: it is for training alone, and other programs have no place for it"


def export_model(policy: HuggingFacePolicy, target: Path, *, tokenizer: Path) -> tuple[str, ...]:
    """Write configuration, weights, generation settings and tokenizer. Adapters are added to the weights.

    Args:
        policy: the model; it is left as it is.
        target: the folder to make, which may be there when it is empty. It appears whole or not at all.
        tokenizer: the folder whose files are put beside the weights.

    Returns:
        What whoever asked for it should know, in sentences.

    Raises:
        ConfigError: ``target`` holds something, or ``tokenizer`` has no tokenizer, or that of another model.
    """
    notes = [*_notes(policy), *_tokenizer_notes(policy, tokenizer)]
    with _whole_folder(target) as partial, quiet():
        policy.model.save_pretrained(partial, state_dict=lora.merged_weights(policy.model))
        _copy_tokenizer(tokenizer, partial)
    return tuple(notes)


def export_adapter(policy: HuggingFacePolicy, target: Path, *, tokenizer: Path, base: str) -> tuple[str, ...]:
    """Write the adapter alone, in peft's format.

    Args:
        policy: the model; it is left as it is.
        target: as in `export_model`.
        tokenizer: as in `export_model`.
        base: name or folder of the model that the adapter is for.

    Returns:
        As `export_model`.

    Raises:
        ConfigError: as `export_model`, or there is no adapter.
    """
    if not policy.adapted:
        raise ConfigError("all weights were trained and there is no adapter; export the whole model")
    notes = [*_notes(policy), *_tokenizer_notes(policy, tokenizer)]
    with _whole_folder(target) as partial:
        save_file(lora.adapter_weights(policy.model), partial / lora.WEIGHTS, metadata={"format": "pt"})
        settings = lora.adapter_settings(policy.model, os.path.abspath(base) if Path(base).is_dir() else base)
        (partial / lora.CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        _copy_tokenizer(tokenizer, partial)
    return tuple(notes)


def check_target(target: Path) -> None:
    """Whether a folder can be made there.

    Raises:
        ConfigError: something is there.
    """
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        what = "holds files" if target.is_dir() else "is a file"
        raise ConfigError(f"{target} {what}, which are never overwritten; name a folder that is not there yet")


def _notes(policy: HuggingFacePolicy) -> Iterator[str]:
    if policy.value is not None:
        yield _NO_VALUE_HEAD
    if policy.adapted and not any(
        torch.any(weight) for name, weight in lora.adapter_weights(policy.model).items() if ".lora_B." in name
    ):
        yield "the adapter changes nothing: all of its second factors are zero, as before the first step of training"


def _tokenizer_notes(policy: HuggingFacePolicy, folder: Path) -> Iterator[str]:
    try:
        vocabulary = Vocabulary.load(folder)
    except RendererError as error:
        raise ConfigError(f"without a tokenizer a model cannot be served: {error}") from error
    check_vocabulary(policy.model, vocabulary)
    if not vocabulary.config.get("chat_template"):
        yield "the tokenizer has no chat template, and a server would take one of its own; add chat_template.jinja"


def _copy_tokenizer(source: Path, target: Path) -> None:
    for file in sorted(source.iterdir()):
        if file.is_file() and not (target / file.name).exists():
            shutil.copyfile(file, target / file.name)


@contextmanager
def _whole_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target``, which takes that name when all in it is on the disk."""
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        for path in (*partial.iterdir(), partial):
            _sync(path)
        os.replace(partial, target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
