"""A model's chat template, which writes a whole conversation as one text, and the ids of that text.

The template's control tokens become controls. What spells one in a message, a tool or an argument stays ordinary text:
before rendering it is parted, and put together again before encoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from agentrl.errors import RendererError
from agentrl.tokens.chat import chat_of, tool_to_chat
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import Message, ToolSpec

try:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError as error:
    raise ImportError("chat templates need the package transformers: pip install 'agentrl[hf]'") from error

_CLOCK = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")


class ChatTemplate:
    """Conversations to ids, by a template of Hugging Face.

    Args:
        vocabulary: whose configuration holds the template.
        options: variables of the template, such as ``{"enable_thinking": False}``.
        today: the date that a template may print. One that asks for the clock needs it, because two runs would
            otherwise see different prompts.

    Raises:
        RendererError: no template, one without the default among several, or one that needs ``today``.
    """

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any], today: date | None) -> None:
        self.vocabulary = vocabulary
        self.source = _with_date(_source(vocabulary.config.get("chat_template")), today)
        self.options = {**_special_tokens(vocabulary.config), **options}

    def ids(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = False
    ) -> tuple[int, ...]:
        """The ids of a whole conversation; with ``prompt``, of the opening of the next reply as well.

        Raises:
            RendererError: the template refuses the conversation.
        """
        chat = chat_of(messages, self.vocabulary)
        specs = self.vocabulary.part([tool_to_chat(tool) for tool in tools])
        return self.vocabulary.ids_of_parted(self.text(chat, specs, prompt=prompt))

    def text(self, chat: list[Any], tools: list[Any], *, prompt: bool = False) -> str:
        """What the template writes for a conversation.

        Raises:
            RendererError: the template refuses the conversation.
        """
        try:
            found: Any = render_jinja_template(
                [chat], tools=tools or None, chat_template=self.source, add_generation_prompt=prompt, **self.options
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(message["role"] for message in chat)
            raise RendererError(f"the chat template refuses a conversation of {roles}: {error}") from error
        return str(found[0][0])


def _source(template: Any) -> str:
    """The template's text; among several with names, the default one."""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        if "default" not in named:
            raise RendererError(
                f"none of the chat templates {', '.join(named)} is the default; choose one as the only one"
            )
        template = named["default"]
    if not template:
        raise RendererError(
            "the tokenizer has no chat template; a base model needs one that fits it: put it beside the tokenizer as "
            "chat_template.jinja, or use ChatMLRenderer (hf.renderer or --renderer chatml) where the vocabulary has "
            "<|im_start|> and <|im_end|>"
        )
    return str(template)


def _with_date(source: str, today: date | None) -> str:
    """The template with a fixed date where it asks for the clock."""
    if _CLOCK.search(source) is None:
        return source
    if today is None:
        raise RendererError(
            "the chat template prints the day; fix it for all runs: today=datetime.date(2026, 1, 1), which is hf.today "
            "in a configuration and --today of eval and check parity"
        )
    return _CLOCK.sub(lambda found: f"{found[1]}{today.strftime(found[2])}{found[1]}", source)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The variables ``bos_token``, ``eos_token`` and so on."""
    named = {key: value for key, value in config.items() if key.endswith("_token") and value}
    return {
        key: value["content"] if isinstance(value, Mapping) else value
        for key, value in named.items()
        if not isinstance(value, bool)
    }
