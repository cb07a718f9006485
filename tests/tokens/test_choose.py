"""Which renderer a model gets: ours where its template writes what Qwen3's does, never by the vocabulary alone."""

import pytest

from agentrl.config import load_recipe
from agentrl.errors import RendererError
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.choose import choose_renderer
from agentrl.tokens.template import TemplateRenderer
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import Message
from tests.tokens.real import needs_assets, vocabulary
from tests.tokens.templates import CHATML, QWEN25, small_tokenizer

pytestmark = needs_assets
USER = Message(role="user", content="Which fruit is blue?")


def with_template(template: str) -> Vocabulary:
    """Qwen3's vocabulary with another template."""
    real = vocabulary()
    return Vocabulary(real._tokenizer, {**real.config, "chat_template": template})


@pytest.mark.parametrize("thinking", [True, False])
def test_qwen3_gets_our_own(thinking: bool) -> None:
    found = choose_renderer(vocabulary(), thinking=thinking)
    assert isinstance(found, ChatMLRenderer)
    assert found.thinking is thinking


def test_a_template_without_empty_thoughts_is_followed() -> None:
    # later models have Qwen3's vocabulary, and open a reply without thoughts whatever is asked for
    real = vocabulary().config["chat_template"]
    changed = real.replace("enable_thinking is defined and enable_thinking is false", "false")
    assert changed != real
    found = choose_renderer(with_template(changed), thinking=False)
    control = vocabulary().control("<think>")
    assert isinstance(found, TemplateRenderer)
    assert control not in found.generation_prompt()
    assert control in choose_renderer(vocabulary(), thinking=False).generation_prompt()


def test_a_template_with_a_system_message_of_its_own_is_followed() -> None:
    found = choose_renderer(with_template(QWEN25), thinking=False)
    assert isinstance(found, TemplateRenderer)
    ids = [index for span in found.render([USER], ()) for index in span]
    assert found.decode(ids).startswith("<|im_start|>system\nYou help.")


def test_a_template_that_writes_history_anew_is_refused() -> None:
    counting = (
        "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(RendererError, match="nothing can be appended to a reply"):
        choose_renderer(with_template(counting), thinking=False)


def test_a_model_without_a_template_is_refused_unless_a_renderer_is_named() -> None:
    # The vocabulary of a base model has the marks of ChatML, and the model was never taught them.
    base = with_template("")
    with pytest.raises(RendererError, match=r"has no chat template.* put a chat_template.jinja .* or set hf.renderer"):
        choose_renderer(base, thinking=False)
    assert isinstance(choose_renderer(base, thinking=False, kind="chatml"), ChatMLRenderer)
    with pytest.raises(RendererError, match="has no chat template"):
        choose_renderer(base, thinking=False, kind="template")


def test_a_model_without_a_template_and_without_marks_needs_another_model() -> None:
    with pytest.raises(RendererError, match=r"lacks the control tokens of ChatML \(<think>, .*made to converse"):
        choose_renderer(Vocabulary(small_tokenizer(CHATML)), thinking=False)
    with pytest.raises(RendererError, match="no control token '<think>'"):
        choose_renderer(Vocabulary(small_tokenizer(CHATML)), thinking=False, kind="chatml")


def test_the_recipe_of_a_base_model_names_its_renderer() -> None:
    assert load_recipe("gemma3-270m-bugfix").hf.renderer == "chatml"


def test_a_renderer_may_be_named() -> None:
    real = vocabulary()
    assert isinstance(choose_renderer(real, thinking=True, kind="template"), TemplateRenderer)
    assert isinstance(choose_renderer(with_template(QWEN25), thinking=False, kind="chatml"), ChatMLRenderer)
    library = pytest.importorskip("agentrl.tokens.library")
    for thinking in (True, False):  # and it is told whether the model thinks
        found = choose_renderer(real, thinking=thinking, kind="library:qwen3")
        assert isinstance(found, library.LibraryRenderer)
        assert found.generation_prompt() == ChatMLRenderer(real, thinking=thinking).generation_prompt()
    assert choose_renderer(real, thinking=False, kind="library:qwen3-vl").stop_ids == found.stop_ids  # has no switch
    with pytest.raises(RendererError):
        choose_renderer(real, thinking=False, kind="library:no-such-family")


def test_a_template_that_prints_the_day_takes_it_from_the_settings() -> None:
    dated = QWEN25.replace("You help.", "You help. Today is {{ strftime_now('%Y-%m-%d') }}.")
    assert dated != QWEN25
    with pytest.raises(RendererError, match="today"):
        choose_renderer(with_template(dated), thinking=False)
    found = choose_renderer(with_template(dated), thinking=False, today="2026-01-31")
    assert "Today is 2026-01-31." in found.decode([index for span in found.render([USER], ()) for index in span])
    with pytest.raises(RendererError, match="is no date"):
        choose_renderer(with_template(dated), thinking=False, today="2026-02-31")
