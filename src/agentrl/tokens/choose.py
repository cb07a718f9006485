"""Which renderer speaks a model's language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from agentrl.errors import RendererError
from agentrl.protocols import Renderer
from agentrl.tokens.chatml import MARKS, ChatMLRenderer
from agentrl.tokens.jinja import ChatTemplate
from agentrl.tokens.probe import CALLING, OPENINGS, PLAIN, QUESTION, RESULT, SPEC, Conversation
from agentrl.tokens.template import TemplateRenderer
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import ToolSpec

_PROBES: tuple[tuple[Conversation, tuple[ToolSpec, ...]], ...] = (
    *((opening, tools) for opening in OPENINGS for tools in ((), (SPEC,))),
    ((QUESTION, CALLING, RESULT, RESULT), (SPEC,)),
    ((QUESTION, replace(CALLING, reasoning="Plums come in blue."), RESULT), (SPEC,)),
    ((QUESTION, replace(PLAIN, reasoning="Plums come in blue."), QUESTION), ()),
)
"""Conversations and tools that Qwen3's template writes in a way of its own."""


def choose_renderer(
    vocabulary: Vocabulary, *, thinking: bool, kind: str = "auto", today: str | None = None
) -> Renderer:
    """Our own for models whose template writes what Qwen3's does; the model's template for others. Many have Qwen3's
    vocabulary and another template (no empty thoughts, another form of tool calls), and were not made for Qwen3's.

    A model without a template, as base models are, was never taught a way to converse. That ways are known to its
    vocabulary is no reason to guess one: whoever trains it names it.

    Args:
        vocabulary: of the model.
        thinking: whether replies may begin with thoughts. A template, or a family of the library, that has no such
            switch does as it always does.
        kind: ``auto`` chooses as above; ``chatml``, ``template`` and ``library:FAMILY`` name one.
        today: the date that some templates print, as ``2026-01-31``.

    Raises:
        RendererError: there is no template, or one for which appending is not sound; or the renderer that is named does
            not fit the vocabulary.
    """
    day = None if today is None else _date(today)
    if kind == "chatml":
        return ChatMLRenderer(vocabulary, thinking=thinking)
    if kind == "template":
        return TemplateRenderer(vocabulary, options={"enable_thinking": thinking}, today=day)
    if kind != "auto":
        return _of_library(vocabulary, kind.partition(":")[2], thinking=thinking)
    lacking = [mark for mark in MARKS if mark not in vocabulary.controls]
    if not vocabulary.config.get("chat_template"):
        raise RendererError(f"the model has no chat template{_instead(lacking)}")
    if not lacking:
        own = ChatMLRenderer(vocabulary, thinking=thinking)
        if _writes_the_same(own, vocabulary):
            return own
    return TemplateRenderer(vocabulary, options={"enable_thinking": thinking}, today=day)


def _instead(lacking: Sequence[str]) -> str:
    """What to do about a model without a template, whose vocabulary lacks some marks of ChatML, or none."""
    if not lacking:
        return (
            ", so nothing says how it converses; put a chat_template.jinja beside its tokenizer.json, or set "
            "hf.renderer to chatml (--renderer chatml of eval and check parity), whose control tokens its vocabulary "
            "has"
        )
    return (
        f", and its vocabulary lacks the control tokens of ChatML ({', '.join(lacking)}); take a model that was made "
        "to converse, or put a chat_template.jinja beside its tokenizer.json"
    )


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise RendererError(f"{text!r} is no date ({error}); write one such as 2026-01-31") from error


def _of_library(vocabulary: Vocabulary, family: str, *, thinking: bool) -> Renderer:
    try:
        from agentrl.tokens.library import LibraryRenderer  # an extra of its own
        from agentrl.tokens.library_package import options_of

        options = {"enable_thinking": thinking} if "enable_thinking" in options_of(family) else {}
        return LibraryRenderer(vocabulary, family, options)
    except ImportError as error:
        raise RendererError(f"the renderer of {family} needs a package: pip install 'agentrl[renderers]'") from error


def _writes_the_same(own: ChatMLRenderer, vocabulary: Vocabulary) -> bool:
    """Whether the model's template gives our ids for conversations that show what is peculiar to Qwen3's."""
    try:
        template = ChatTemplate(vocabulary, {"enable_thinking": own.thinking}, None)
        return all(
            (*(index for span in own.render(messages, tools) for index in span), *own.generation_prompt())
            == template.ids(messages, tools, prompt=True)
            for messages, tools in _PROBES
        )
    except RendererError:
        return False  # whoever takes the template says what is wrong with it
