"""A tokenizer of Hugging Face: control tokens apart from text, and what is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from agentrl.errors import RendererError
from agentrl.tokens.vocabulary import BARRIER, Vocabulary
from tests.tokens import conversations, templates
from tests.tokens.real import FOLDER, needs_assets, vocabulary


def small(config=None, controls=templates.CHATML):
    return Vocabulary(templates.small_tokenizer(tuple(controls)), config)


@settings(max_examples=100, deadline=None)
@given(conversations.hostile_text)
def test_text_never_becomes_a_control_token_and_comes_back(text):
    found = small()
    ids = found.text_ids(text)
    assert not set(ids) & set(found.controls.values())
    assert found.decode(ids) == text
    assert found.ids_of_parted(found.part(text)) == ids


def test_the_tokenizers_own_encoding_makes_control_tokens():
    assert small().encode("a<|im_end|>") == (*small().text_ids("a"), small().control("<|im_end|>"))


def test_what_is_parted_is_text_and_the_rest_is_control():
    found = small()
    written = f"<|im_start|>{found.part('x<|im_end|>')}<|im_end|>"
    expected = (found.control("<|im_start|>"), *found.text_ids("x<|im_end|>"), found.control("<|im_end|>"))
    assert found.ids_of_parted(written) == expected
    nested = found.part({"a": ["<|im_end|>", 3, None], "b": ("x",)})
    assert nested == {"a": [f"<{BARRIER}|im_end|>", 3, None], "b": ["x"]}


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", BARRIER])
def test_what_is_no_character_is_replaced_and_breaks_nothing(text):
    # A program under test can print it; that must not end the attempt as a fault of ours.
    found = small()
    assert "\ufffd" in found.decode(found.ids_of_parted(found.part(text)))
    assert found.text_ids(text)


def test_runs_of_spaces_and_tags_that_a_vocabulary_adds_are_text():
    tokenizer = templates.small_tokenizer(("<special>",))
    tokenizer.add_tokens([AddedToken("<b>", special=False, normalized=False), AddedToken("<think>", special=False)])
    found = Vocabulary(tokenizer)
    assert set(found.controls) == {"<special>", "<think>"}
    assert found.text_ids("<b>") == found.encode("<b>") == (tokenizer.token_to_id("<b>"),)
    assert found.text_ids("<think>") != found.encode("<think>")


@pytest.mark.parametrize(
    ("config", "read", "message"),
    [
        (
            {},
            lambda found: found.pad_id,
            'names no pad_token; set "pad_token" in tokenizer_config.json to one of <|endoftext|>',
        ),
        ({"pad_token": None}, lambda found: found.pad_id, "names no pad_token"),
        ({}, lambda found: found.end_id, "names no eos_token"),
        (
            {"eos_token": "</s>"},
            lambda found: found.end_id,
            "no control token '</s>'; it has <|endoftext|>, <|im_start|>",
        ),
        ({}, lambda found: found.control("<x>"), "no control token '<x>'"),
    ],
)
def test_a_missing_pad_or_stop_token_is_named(config, read, message):
    with pytest.raises(RendererError) as caught:
        read(small(config))
    assert message in str(caught.value)


def test_a_token_may_be_named_by_a_mapping():
    assert small({"pad_token": {"content": "<|endoftext|>"}}).pad_id == small().control("<|endoftext|>")


def test_a_model_of_another_vocabulary_is_refused():
    found = small()
    found.check_model(found.num_ids + 100, {"eos_token_id": [found.control("<|im_end|>")], "bos_token_id": None})
    with pytest.raises(RendererError, match=rf"ids up to {found.num_ids - 1} and the model only 10 rows"):
        found.check_model(10, {})
    with pytest.raises(
        RendererError, match="the model's eos_token_id is 2, and control tokens of this vocabulary have"
    ):
        found.check_model(found.num_ids, {"eos_token_id": [found.control("<|im_end|>"), 2]})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no tokenizer.json; name a folder that save_pretrained"),
        ({"tokenizer.json": "{"}, "tokenizer.json is damaged"),
        ({"tokenizer.json": None, "tokenizer_config.json": "{"}, "tokenizer_config.json is damaged"),
    ],
)
def test_a_folder_that_is_missing_or_damaged_is_refused(tmp_path, files, message):
    for name, content in files.items():
        whole = templates.small_tokenizer(templates.CHATML).to_str()
        (tmp_path / name).write_text(whole if content is None else content)
    with pytest.raises(RendererError, match=message):
        Vocabulary.load(tmp_path)


def test_a_template_in_a_file_of_its_own_is_read(tmp_path):
    templates.small_tokenizer(templates.CHATML).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert Vocabulary.load(tmp_path).config == {"eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}


class TestQwen3:
    pytestmark = needs_assets

    def test_its_numbers(self):
        found = vocabulary()
        assert (found.num_ids, found.pad_id, found.end_id) == (151669, 151643, 151645)
        found.check_model(151936, {"eos_token_id": [151645, 151643], "bos_token_id": 151643, "pad_token_id": None})
        assert len(found.controls) == 26

    def test_it_is_the_one_of_transformers(self):
        pytest.importorskip("transformers")
        from tests.tokens.real import transformers_tokenizer

        for text in ("def f(x):\n\treturn x <|im_end|>\n", "e\u0301 naïve 你好 🫠", "<think>\n\n</think>\n\n"):
            assert tuple(transformers_tokenizer().encode(text)) == vocabulary().encode(text)

    @settings(max_examples=50, deadline=None)
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=20))
    def test_a_text_without_controls_has_one_encoding(self, text):
        assert vocabulary().text_ids(text) == vocabulary().encode(text)

    def test_a_saved_folder_writes_the_same_prompt(self, tmp_path):
        # T38: an exported model without its template is served with another one.
        pytest.importorskip("transformers")
        from agentrl.tokens.template import TemplateRenderer
        from agentrl.types import Message
        from tests.tokens.real import transformers_tokenizer

        transformers_tokenizer().save_pretrained(tmp_path)
        saved, original = (TemplateRenderer(found) for found in (Vocabulary.load(tmp_path), vocabulary()))
        question = [Message(role="user", content="Name a prime.")]
        assert saved.render(question, ()) == original.render(question, ())
        assert len(saved.render(question, ())[0] + saved.generation_prompt()) == 12
        assert saved.name == original.name

    def test_the_folder_is_whole(self):
        assert {path.name for path in FOLDER.iterdir()} >= {"tokenizer.json", "tokenizer_config.json"}
