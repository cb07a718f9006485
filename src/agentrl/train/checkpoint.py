"""Checkpoints: model, optimizer and progress, whole or not at all, verified when they are read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.errors import StoreError
from agentrl.files import digest_of, sync_and_digest, write_atomic

_WEIGHTS, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a run goes on from: tensors by name, and the run's progress as plain data."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]


def write_checkpoint(root: Path, name: str, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Write a checkpoint folder; it appears under its name only when it is complete.

    Of the checkpoints under ``root`` the newest ``keep`` stay, and those whose name ends in ``-end``.

    Raises:
        OSError: the folder cannot be written; what was there before is left as it was.
    """
    root.mkdir(parents=True, exist_ok=True)
    partial, path = root / f".{name}.partial", root / name
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _fill(partial, checkpoint)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # a disk that is full has nothing to spare
        raise
    if path.exists():
        _remove(path)
    os.replace(partial, path)
    write_atomic(root / "latest", name.encode())
    passing = sorted((p for p in root.iterdir() if p.is_dir() and not _lasting(p)), key=lambda p: p.stat().st_mtime_ns)
    for old in passing[:-keep]:
        _remove(old)
    return path


def _fill(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    files = {_WEIGHTS: checkpoint.weights, _OPTIMIZER: checkpoint.optimizer}
    for file, tensors in files.items():
        try:
            save_file(dict(tensors), folder / file)  # not through memory, where a model may not fit twice
        except SafetensorError as error:  # which is no OSError, whatever the disk said
            raise OSError(f"{folder / file} cannot be written ({error})") from error
    digests = {file: sync_and_digest(folder / file) for file in files}
    write_atomic(folder / _STATE, json.dumps({"schema": 1, "sha256": digests, **checkpoint.state}).encode())


def _remove(path: Path) -> None:
    """Remove a checkpoint so that a kill never leaves a part of it under its name."""
    hidden = path.with_name(f".{path.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _lasting(path: Path) -> bool:
    return path.name.endswith("-end") or path.name.startswith(".")


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint folder.

    Raises:
        StoreError: it is missing, incomplete or damaged; with the newest one beside it that is whole.
    """
    try:
        state = _verified_state(path)
    except StoreError as error:
        raise StoreError(f"{error}; {_instead(path)}") from error
    try:
        return Checkpoint(weights=load_file(path / _WEIGHTS), optimizer=load_file(path / _OPTIMIZER), state=state)
    except SafetensorError as error:
        raise StoreError(f"{path}: not safetensors ({error})") from error


def _verified_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint whose files have their checksums.

    Raises:
        StoreError: they have not.
    """
    try:
        state: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        digests = {name: digest_of(path / name) for name in (_WEIGHTS, _OPTIMIZER)}
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: not a readable checkpoint ({error})") from error
    for name, digest in digests.items():
        if digest != state.get("sha256", {}).get(name):
            raise StoreError(f"{path / name}: damaged, its checksum differs")
    return state


def _instead(path: Path) -> str:
    """What to go on from in the place of a damaged checkpoint."""
    whole = newest_whole(path.parent)
    if whole is None:
        return "there is no whole one beside it; train again"
    return f"the newest whole one is {whole.name}: to go on from it, write that name into {path.parent / 'latest'}"


def newest_whole(root: Path) -> Path | None:
    """The checkpoint that a run goes on from, if its files have their checksums; else the newest whose files do."""
    found = (
        [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")] if root.is_dir() else []
    )
    newest = sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    latest = latest_checkpoint(root)
    for path in ([latest] if latest else []) + newest:
        try:
            _verified_state(path)
        except StoreError:
            continue
        return path
    return None


def latest_checkpoint(root: Path) -> Path | None:
    """The checkpoint to go on from, or None when there is none yet."""
    pointer = root / "latest"
    return root / pointer.read_text(encoding="utf-8").strip() if pointer.exists() else None


def optimizer_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The optimizers' state under flat names (``<optimizer>.<parameter>.<field>``)."""
    return {
        f"{number}.{index}.{field}": value
        for number, optimizer in enumerate(optimizers)
        for index, fields in optimizer.state_dict()["state"].items()
        for field, value in fields.items()
    }


def restore_optimizers(optimizers: Sequence[torch.optim.Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave.

    Raises:
        StoreError: it was given by optimizers of other weights, such as adapters of another rank.
    """
    for number, optimizer in enumerate(optimizers):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            owner, index, field = name.split(".")
            if int(owner) == number:
                _check_fits(name, tensor, weights[int(index)] if int(index) < len(weights) else None)
                state.setdefault(int(index), {})[field] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _check_fits(name: str, tensor: Tensor, weight: Tensor | None) -> None:
    """A part of an optimizer's state is a single number or has the shape of its weight."""
    if weight is None or (tensor.ndim and tensor.shape != weight.shape):
        found = "there is no such weight" if weight is None else f"the weight is {tuple(weight.shape)}"
        raise StoreError(
            f"the optimizer's state is of another model: {name} is {tuple(tensor.shape)}, and {found}; make the model "
            "with the settings that it was saved with"
        )
