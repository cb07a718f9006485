"""A `tokenizer.json` of Hugging Face: text to ids and back, with control tokens apart from text.

A control token (``<|im_end|>``, ``<tool_call>``) has a meaning in the conversation, so it must come from a renderer and
never from a text: `text_ids` writes a text that spells a control token as ordinary pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, overload

from agentrl.errors import RendererError

try:
    from tokenizers import AddedToken, Tokenizer
except ImportError as error:
    raise ImportError("real vocabularies need the package tokenizers: pip install 'agentrl[hf]'") from error

_MARK = re.compile(r"<\|.*\|>|</?(think|tool_call|tool_response)>")
"""Added tokens that open or close something although their vocabulary does not call them special."""
_LONE = re.compile("[\ud800-\udfff]")
BARRIER = "\ufdd0"
"""A code point that is no character and that programs may use within themselves."""


class Vocabulary:
    """Text to ids and back.

    Args:
        tokenizer: with its added tokens.
        config: the content of ``tokenizer_config.json``: names of pad and stop tokens, the chat template.
    """

    def __init__(self, tokenizer: Tokenizer, config: Mapping[str, Any] | None = None) -> None:
        self.config = dict(config or {})
        self._tokenizer = tokenizer
        self.controls: Mapping[str, int] = {
            token.content: index for index, token in tokenizer.get_added_tokens_decoder().items() if _is_control(token)
        }
        """The id of each control token by its text."""
        longest_first = sorted(self.controls, key=len, reverse=True)
        self._spelt = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._plain = _without_controls(tokenizer, self.controls)
        self._true_ids = {
            self._plain.token_to_id(token.content): index
            for index, token in tokenizer.get_added_tokens_decoder().items()
            if token.content not in self.controls
        }

    @classmethod
    def load(cls, folder: Path | str) -> Vocabulary:
        """The vocabulary of a model's folder: ``tokenizer.json``, and ``tokenizer_config.json`` where there is one.
        A template of its own file (``chat_template.jinja``) is read too.

        Raises:
            RendererError: a file is missing or damaged.
        """
        path = Path(folder)
        if not (path / "tokenizer.json").is_file():
            raise RendererError(f"{path} has no tokenizer.json; name a folder that save_pretrained() wrote")
        try:
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # the library raises plain Exception
            raise RendererError(f"{path / 'tokenizer.json'} is damaged: {error}") from error
        return cls(tokenizer, _read_config(path))

    @cached_property
    def num_ids(self) -> int:
        """One more than the largest id. A model may have more rows than that, never fewer."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def pad_id(self) -> int:
        """The id that fills up a rectangle of ids. No weight ever stands on it, even where it is a stop token too.

        Raises:
            RendererError: the configuration names none.
        """
        return self._named("pad_token")

    @property
    def end_id(self) -> int:
        """The id that the configuration calls the end of a sequence.

        Raises:
            RendererError: the configuration names none.
        """
        return self._named("eos_token")

    def control(self, text: str) -> int:
        """The id of a control token.

        Raises:
            RendererError: the vocabulary has none of that text.
        """
        found = self.controls.get(text)
        if found is None:
            names = ", ".join(self.controls) or "none at all"
            raise RendererError(f"the vocabulary has no control token {text!r}; it has {names}")
        return found

    def text_ids(self, text: str) -> tuple[int, ...]:
        """The ids of an ordinary text. What spells a control token is written in pieces.

        Half of a surrogate pair, which is no character, becomes U+FFFD: whoever prints one must not end an attempt.
        """
        ids = self._ids(self._plain, text)
        return tuple(self._true_ids.get(index, index) for index in ids) if self._true_ids else ids

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids that the tokenizer itself gives, where every spelling of a control token becomes one."""
        return self._ids(self._tokenizer, text)

    def part(self, value: Any, keep: Collection[str] = ()) -> Any:
        """Texts, in lists and mappings too, whose spellings of control tokens are parted by `BARRIER`, but for those
        in ``keep``.

        For programs that write texts and controls into one string. A barrier that a text brings itself becomes U+FFFD.
        """
        if isinstance(value, str):
            return self._spelt.sub(
                lambda found: found[0] if found[0] in keep else found[0][0] + BARRIER + found[0][1:],
                value.replace(BARRIER, "\ufffd"),
            )
        if isinstance(value, Mapping):
            return {self.part(key, keep): self.part(item, keep) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.part(item, keep) for item in value]
        return value

    def ids_of_parted(self, text: str) -> tuple[int, ...]:
        """The ids of a string that such a program wrote: what is spelt in one piece is a control token."""
        ids: list[int] = []
        position = 0
        for found in self._spelt.finditer(text):
            ids += self.text_ids(text[position : found.start()].replace(BARRIER, ""))
            ids.append(self.controls[found[0]])
            position = found.end()
        return (*ids, *self.text_ids(text[position:].replace(BARRIER, "")))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelt out. Bytes that are no character come out as U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def check_model(self, num_rows: int, special_ids: Mapping[str, int | Sequence[int] | None]) -> None:
        """Refuse a model that was not made for this vocabulary.

        Args:
            num_rows: rows of the model's embedding.
            special_ids: ids that the model's configuration names, such as ``{"eos_token_id": [151645, 151643]}``.

        Raises:
            RendererError: fewer rows than ids, or a special id that is no control token here.
        """
        if num_rows < self.num_ids:
            raise RendererError(
                f"the vocabulary has ids up to {self.num_ids - 1} and the model only {num_rows} rows; "
                "load the tokenizer that belongs to the model, or resize its embedding"
            )
        known = set(self.controls.values())
        named = [(name, index) for name, value in special_ids.items() for index in _as_ids(value)]
        for name, index in named:
            if index not in known:
                raise RendererError(
                    f"the model's {name} is {index}, and control tokens of this vocabulary have the ids "
                    f"{min(known, default=0)} to {max(known, default=0)}; load the tokenizer that belongs to the model"
                )

    def _named(self, name: str) -> int:
        value = self.config.get(name)
        text = value["content"] if isinstance(value, Mapping) else value
        if text is None:
            raise RendererError(
                f'the tokenizer names no {name}; set "{name}" in tokenizer_config.json to one of '
                f"{', '.join(self.controls) or 'its tokens'}"
            )
        return self.control(text)

    @staticmethod
    def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        return tuple(tokenizer.encode(_LONE.sub("\ufffd", text), add_special_tokens=False).ids)


class Texts(Sequence[str]):
    """The text of each id alone, made when it is asked for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return self._vocabulary.num_ids

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._vocabulary.decode([index])


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal ids two sequences begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _is_control(token: AddedToken) -> bool:
    """Whether an added token has a meaning in a conversation. Some vocabularies also add runs of spaces and tags of
    HTML, which are ordinary text."""
    return bool(token.special) or _MARK.fullmatch(token.content) is not None


def _without_controls(tokenizer: Tokenizer, controls: Collection[str]) -> Tokenizer:
    """The same tokenizer, for which the spelling of a control token is a text like others."""
    if len(controls) == len(tokenizer.get_added_tokens_decoder()):  # shares the trained vocabulary and costs nothing
        plain = Tokenizer(tokenizer.model)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if getattr(tokenizer, part) is not None:
                setattr(plain, part, getattr(tokenizer, part))
        return plain
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] not in controls]
    return Tokenizer.from_str(json.dumps(parts))


def _read_config(path: Path) -> dict[str, Any]:
    file, template = path / "tokenizer_config.json", path / "chat_template.jinja"
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise RendererError(f"{file} is damaged: {error}") from error
    if template.is_file():
        config["chat_template"] = template.read_text(encoding="utf-8")
    return config


def _as_ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
