"""Small random models of Qwen3's kind with its real tokenizer, each in a folder of its own."""

import json
import shutil

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from tests.tokens.real import FOLDER

END, END_OF_TEXT = 151_645, 151_643
SIZES = {
    "vocab_size": 151_936,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "pad_token_id": END_OF_TEXT,
    "eos_token_id": [END, END_OF_TEXT],
}


def plain(seed=0, **sizes):
    """A model as its library computes it; ``sizes`` are what is other than in SIZES."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(Qwen3Config(**SIZES | sizes), dtype=torch.float32).eval()


def save(folder, seed=0, **sizes):
    """Its folder, with the tokenizer."""
    plain(seed, **sizes).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(FOLDER / name, folder / name)
    return folder


def save_base(folder, seed=0, **sizes):
    """The same as base models are: nothing says how it converses."""
    config = save(folder, seed, **sizes) / "tokenizer_config.json"
    told = json.loads(config.read_text())
    assert told.pop("chat_template")
    config.write_text(json.dumps(told))
    return folder
