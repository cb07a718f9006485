"""Tokens of Gemma become the control tokens of ChatML."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

from agentrl.errors import ConfigError
from agentrl.policy import gemma
from agentrl.tokens.chatml import END, MARKS, ChatMLRenderer
from agentrl.tokens.choose import choose_renderer
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import Message

LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyz \n"))


def write_tokenizer(folder, special):
    """A tokenizer of letters, with the names that Gemma gives its tokens."""
    words = {word: index for index, word in enumerate([*special, *LETTERS])}
    tokenizer = Tokenizer(BPE(words, [], unk_token="a"))
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(list(special))
    data = json.loads(tokenizer.to_str())
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": special[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {special[0]: {"id": special[0], "ids": [0], "tokens": [special[0]]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": special[0], "eos_token": "<eos>"}))


def test_the_renamed_vocabulary_converses_in_chatml(tmp_path):
    write_tokenizer(tmp_path, tuple(gemma.RENAMED))
    before = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    end = gemma._rename(tmp_path)
    vocabulary = Vocabulary.load(tmp_path)
    assert set(MARKS) == set(vocabulary.controls)
    # the ids stay: what ended a text ends a turn
    assert end == before["<eos>"] == vocabulary.control(END) == vocabulary.end_id
    renderer = choose_renderer(vocabulary, thinking=False, kind="chatml")
    assert isinstance(renderer, ChatMLRenderer)
    [ids] = renderer.render([Message(role="user", content="mend it")], ())
    assert ids[0] == before["<bos>"]
    assert renderer.decode(ids) == "<|im_start|>user\nmend it<|im_end|>\n"
    # a text that spells a mark is a text
    assert vocabulary.control(END) not in vocabulary.text_ids("ab<|im_end|>")
    # nothing is put before a text any more
    assert vocabulary.encode("ab") == vocabulary.text_ids("ab")


def test_another_models_tokenizer_is_refused(tmp_path):
    write_tokenizer(tmp_path, ("<bos>", "<eos>"))
    with pytest.raises(ConfigError, match=r"has no tokens <unused0>, <em>.*another model's tokenizer"):
        gemma._rename(tmp_path)


def test_the_recipe_takes_the_folder_that_is_made():
    from agentrl.config import load_recipe

    assert load_recipe("gemma3-270m-bugfix").model.name == "assets/gemma3-270m"
