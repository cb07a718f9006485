"""The package `renderers` and its families, in our vocabulary.

The library is given a tokenizer in which the spelling of a control token within a text is ordinary text, where
`Vocabulary.part` has parted it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from agentrl.errors import RendererError
from agentrl.tokens.vocabulary import Vocabulary

_OF_NO_FAMILY = {"auto", "default", "custom"}


def create(vocabulary: Vocabulary, family: str, options: Mapping[str, Any]) -> tuple[str, Any]:
    """The library's version and its renderer.

    Raises:
        ImportError: the package is not installed.
        RendererError: no such family or option, or the vocabulary lacks what the family needs.
    """
    try:  # optional: it brings clients of servers and other tokenizers
        import renderers
        from renderers import configs
    except ImportError as error:
        raise ImportError(f"this needs the package renderers: pip install 'agentrl[renderers]' ({error})") from error
    if family not in families():
        raise RendererError(f"the library has no renderer {family!r}; it has {', '.join(families())}")
    try:
        config = TypeAdapter(configs.RendererConfig).validate_python({"name": family, **options})
        return renderers.__version__, renderers.create_renderer(Tokenizer(vocabulary), config)
    except ValidationError as error:
        raise RendererError(f"the library has no renderer {family!r} with {dict(options)}: {error}") from error
    except Exception as error:  # each family raises errors of its own
        raise RendererError(f"the library's renderer {family!r} cannot use this vocabulary: {error}") from error


def options_of(family: str) -> frozenset[str]:
    """Names of the settings of a family; none where the library has no such family.

    Raises:
        ImportError: the package is not installed.
    """
    found = _kinds().get(family)
    return frozenset() if found is None else frozenset(found.model_fields)


def families() -> tuple[str, ...]:
    """The families whose templates the library has written by hand, sorted. Its other names look for a template.

    Raises:
        ImportError: the package is not installed.
    """
    return tuple(sorted(_kinds().keys() - _OF_NO_FAMILY))


def _kinds() -> dict[str, Any]:
    """The class of settings of each of the library's renderers, by name."""
    from renderers import configs  # optional, as above

    return {kind.model_fields["name"].default: kind for kind in get_args(get_args(configs.RendererConfig)[0])}


class Tokenizer:
    """Our vocabulary in the form that the library takes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.name_or_path = "vocabulary"
        self.unk_token_id = None
        self.eos_token_id = vocabulary.end_id

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self.vocabulary.ids_of_parted(text))

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        return self.vocabulary.decode(token_ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.vocabulary.controls.get(token)
