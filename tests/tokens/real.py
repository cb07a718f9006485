"""The real tokenizer and chat template of Qwen3, where `make test-assets` has fetched them."""

import functools
from pathlib import Path

import pytest

from agentrl.tokens.assets import is_there
from agentrl.tokens.vocabulary import Vocabulary

FOLDER = Path(__file__).parents[2] / "assets" / "qwen3"

needs_assets = [
    pytest.mark.assets,
    pytest.mark.skipif(not is_there(FOLDER), reason="no real tokenizer here: make test-assets fetches it"),
]
"""Marks of a module whose tests need them: ``pytestmark = needs_assets``."""


@functools.cache
def vocabulary() -> Vocabulary:
    """The vocabulary of Qwen3."""
    return Vocabulary.load(FOLDER)


@functools.cache
def transformers_tokenizer():
    """The same in `transformers`, which has the model's own chat template."""
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(FOLDER)
