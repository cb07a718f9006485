"""A vocabulary of 512 words that both sides can read: pieces of the texts of the benchmark, and the marks of Qwen3."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl.bench.report import BenchError
from agentrl.tokens.chatml import END, END_OF_TEXT, MARKS

SIZE = 512
TEMPLATE = "qwen3.jinja"


def template() -> str:
    """The chat template of Qwen3 as TRL keeps it, since TRL knows how to read replies only of templates it knows.

    Raises:
        BenchError: TRL is not installed.
    """
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        raise BenchError("TRL is not installed here: pip install 'agentrl[bench]'")
    return (Path(found.origin).parent / "chat_templates" / TEMPLATE).read_text()


def write(folder: Path, texts: Sequence[str]) -> None:
    """Write a tokenizer with 512 entries as a folder that `transformers` and we can load.

    Args:
        folder: that exists.
        texts: which its pieces are learnt from; digits stay apart, so that a text of digits has as many tokens.

    Raises:
        BenchError: TRL is not installed, or the texts have too few pieces.
    """
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    for mark in MARKS:
        special = mark in (END_OF_TEXT, END)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([AddedToken(mark, special=special)])
    if tokenizer.get_vocab_size() != SIZE:
        raise BenchError(f"a vocabulary of {tokenizer.get_vocab_size()} came of the texts; {SIZE} were wanted")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "model_max_length": 2048,
        "chat_template": template(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
