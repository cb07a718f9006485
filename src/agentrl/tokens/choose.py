"""Which renderer speaks a model's language."""

from __future__ import annotations

from agentrl.errors import RendererError
from agentrl.tokens.chatml import MARKS, ChatMLRenderer
from agentrl.tokens.template import TemplateRenderer
from agentrl.tokens.vocabulary import Vocabulary


def choose_renderer(vocabulary: Vocabulary, *, thinking: bool) -> ChatMLRenderer | TemplateRenderer:
    """Our own for models that know ChatML with Hermes tool calls, such as Qwen3; the model's template for others.

    Args:
        vocabulary: of the model.
        thinking: whether replies may begin with thoughts. A template that has no such switch does as it always does.

    Raises:
        RendererError: there is no template, or one for which appending is not sound.
    """
    if all(mark in vocabulary.controls for mark in MARKS):
        return ChatMLRenderer(vocabulary, thinking=thinking)
    if not vocabulary.config.get("chat_template"):
        raise RendererError(
            "the model has no chat template, and its vocabulary lacks the control tokens of ChatML "
            f"({', '.join(mark for mark in MARKS if mark not in vocabulary.controls)}); take a model that was made to "
            "converse, or put a chat_template.jinja beside its tokenizer.json"
        )
    return TemplateRenderer(vocabulary, options={"enable_thinking": thinking})
