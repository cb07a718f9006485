"""Which renderer a model gets: ours where its template writes what Qwen3's does, never by the vocabulary alone."""

import pytest

from agentrl.errors import RendererError
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.choose import choose_renderer
from agentrl.tokens.template import TemplateRenderer
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import Message
from tests.tokens.real import needs_assets, vocabulary
from tests.tokens.templates import QWEN25

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


def test_without_a_template_the_vocabulary_decides() -> None:
    assert isinstance(choose_renderer(with_template(""), thinking=False), ChatMLRenderer)


def test_a_renderer_may_be_named() -> None:
    real = vocabulary()
    assert isinstance(choose_renderer(real, thinking=True, kind="template"), TemplateRenderer)
    assert isinstance(choose_renderer(with_template(QWEN25), thinking=False, kind="chatml"), ChatMLRenderer)
    library = pytest.importorskip("agentrl.tokens.library")
    found = choose_renderer(real, thinking=False, kind="library:qwen3")
    assert isinstance(found, library.LibraryRenderer)
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
