"""TinyAgent's vocabulary and renderer: about 240 ids, one a word.

It covers Python's tokens of the tiny grammar, the words of its comments, roles, tool calls and test results.
Text in that language is written and read back exactly (`decode(encode(text)) == text`); text outside of it is
refused, never mangled.

A conversation looks like this, one id a word; the policy samples what stands in the last column:

    <user> fix test_1 ⏎ L1 def f ( a , b ) : ⏎ ... <end>   <assistant>   edit L4 return a - b <end>
    <tool> ok <end>                                         <assistant>   test <end>
    <tool> passed <end>                                     <assistant>   submit <end>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from agentrl.errors import RendererError
from agentrl.types import Message, ToolCall, ToolSpec

MAX_LINES = 12
LARGEST_WORD = 99

ROLES = ("<user>", "<assistant>", "<tool>")
CONTROL = ("<pad>", *ROLES, "<end>", "<nl>", "<arg>")
TOOLS = ("read", "test", "edit", "submit")
LINES = tuple(f"L{n}" for n in range(1, MAX_LINES + 1))
INDENTS = ("<in1>", "<in2>", "<in3>")
NUMBERS = tuple(str(n) for n in range(LARGEST_WORD + 1))
DIGITS = tuple(f"<d{n}>" for n in range(10))
PYTHON = (
    *("def", "return", "if", "else", "elif", "for", "in", "while", "and", "or", "not", "range", "len", "append"),
    *("True", "False", "None", "min", "max", "abs", "sum"),
    *("(", ")", "[", "]", ":", ",", ".", "+", "-", "*", "//", "%", "=", "+=", "-=", "*="),
    *("==", "!=", "<", ">", "<=", ">=", '"""'),
)
NAMES = ("f", "a", "b", "c", "i", "n", "r", "t", "x", "xs")
COMMENTS = ("#", "plus", "minus", "times", "above", "below", "at least", "is", "give", "from", "to", "some")
RESULTS = (
    *("fix", "ok", "error", "passed", "failed", "raised", "expected", "submitted", "done"),
    *(f"test_{n}" for n in range(1, 9)),
    *("NameError", "TypeError", "IndexError", "ValueError", "SyntaxError", "ZeroDivisionError", "TimeoutError"),
    *("AttributeError", "UnboundLocalError", "RecursionError", "OverflowError", "AssertionError", "MemoryError"),
    *("KeyError", "IndentationError", "ImportError", "RuntimeError", "StopIteration"),
)
WORDS = tuple(
    dict.fromkeys((*CONTROL, *TOOLS, *LINES, *INDENTS, *NUMBERS, *DIGITS, *PYTHON, *NAMES, *COMMENTS, *RESULTS))
)
IDS: Mapping[str, int] = {word: index for index, word in enumerate(WORDS)}

_NOT_TEXT = frozenset((*CONTROL, *LINES))
_LISTING = re.compile(r"(\d+)\|")
_WORD = re.compile(r'"""|at least\b|//|[=!<>]=|[-+*]=|\d+|[A-Za-z_]\w*|[-+*%=<>()\[\]:,.#]')
_NO_SPACE_BEFORE = frozenset(")]:,.")
_NO_SPACE_AFTER = frozenset("([.")
_OPERANDS = frozenset((*NUMBERS, *NAMES, ")", "]", "True", "False", "None"))
_INDEXABLE = frozenset((*NAMES, ")", "]"))
_CALLABLE = frozenset((*NAMES, "range", "len", "append", "min", "max", "abs", "sum"))


def encode(text: str) -> tuple[int, ...]:
    """Ids of a text in TinyAgent's language: program text, listings (``3|    return a``), results.

    Raises:
        RendererError: naming the first piece that the vocabulary lacks, or a spacing it could not give back.
    """
    words: list[str] = []
    for number, line in enumerate(text.split("\n")):
        line_words = _line_words(line)
        if number and not (line_words and line_words[0] in LINES):
            words.append("<nl>")
        words.extend(line_words)
    ids = tuple(IDS[word] for word in words)
    if decode(ids) != text:
        raise RendererError(
            f"text cannot be written in TinyAgent's spacing: {text!r} would come back as {decode(ids)!r}"
        )
    return ids


@lru_cache(maxsize=1 << 14)
def _line_words(line: str) -> tuple[str, ...]:
    """The words of a line. Programs of the grammar share most of their lines, so they are remembered."""
    return tuple(_split(line))


def _split(line: str) -> Iterator[str]:
    listing = _LISTING.match(line)
    if listing:
        yield _known(f"L{listing[1]}")
        line = line[listing.end() :]
    body = line.lstrip(" ")
    depth, rest = divmod(len(line) - len(body), 4)
    if rest or depth > len(INDENTS):
        raise RendererError(f"indentation of {len(line) - len(body)} spaces in {line!r}; use 0, 4, 8 or 12")
    if depth:
        yield INDENTS[depth - 1]
    position = 0
    for match in _WORD.finditer(body):
        if body[position : match.start()].strip(" "):
            break
        yield from _spell(match[0])
        position = match.end()
    if body[position:].strip(" "):
        raise RendererError(f"TinyAgent's vocabulary has no {body[position:].split()[0]!r} (in {line!r})")


def _spell(word: str) -> Iterator[str]:
    """Numbers above the largest number word are spelt in digits."""
    if word.isdigit() and str(int(word)) == word and int(word) > LARGEST_WORD:
        yield from (f"<d{digit}>" for digit in word)
    else:
        yield _known(word)


def _known(word: str) -> str:
    if word not in IDS or word in CONTROL:
        raise RendererError(f"TinyAgent's vocabulary has no {word!r}")
    return word


def decode(token_ids: Sequence[int]) -> str:
    """The text of ids, in canonical Python spacing. Role and call markers come out as their names."""
    lines: list[list[str]] = [[]]
    for index in token_ids:
        word = WORDS[index]
        if word == "<nl>":
            lines.append([])
        elif word in LINES and lines[-1]:
            lines.append([word])
        else:
            lines[-1].append(word)
    return "\n".join(_spaced(tuple(line)) for line in lines)


@lru_cache(maxsize=1 << 14)
def _spaced(words: tuple[str, ...]) -> str:
    """Join the words of a line with the spaces that canonical Python has."""
    text = ""
    if words and words[0] in LINES:
        text, words = words[0][1:] + "|", words[1:]
    if words and words[0] in INDENTS:
        text, words = text + "    " * (INDENTS.index(words[0]) + 1), words[1:]
    before: str | None = None
    unary = quoted = False
    for word in words:
        glued = (
            before is None
            or word in _NO_SPACE_BEFORE
            or before in _NO_SPACE_AFTER
            or (word == "(" and before in _CALLABLE)
            or (word == "[" and before in _INDEXABLE)
            or unary
            or (word in DIGITS and before in DIGITS)
            or (quoted and (word == '"""' or before == '"""'))
        )
        text += (
            (" " if word == "#" and before is not None else "")
            + ("" if glued else " ")
            + (word[2] if word in DIGITS else word)
        )
        unary = word == "-" and before not in _OPERANDS and before not in DIGITS
        if word == '"""':
            quoted = True
        before = word
    return text


class TinyRenderer:
    """Messages of TinyAgent's conversations to ids and back. Appending never changes what stands before.

    The policy sees an observation that begins with ``error`` as the single word ``error``: the words that help a
    large model to mend a call are not in this vocabulary.
    """

    @property
    def name(self) -> str:
        """There is one way to write and read this language."""
        return "TinyRenderer"

    @property
    def stop_ids(self) -> frozenset[int]:
        """The end marker."""
        return frozenset((IDS["<end>"],))

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(WORDS)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[tuple[int, ...], ...]:  # noqa: ARG002
        """The ids of each opening message. Tool schemas are not spelt out: TinyAgent knows its four tools."""
        return tuple(self._written(message) for message in messages)

    def extend(self, messages: Sequence[Message], sampled_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:  # noqa: ARG002
        """The ids that append user or tool messages.

        Raises:
            RendererError: another role, or text outside of the vocabulary.
        """
        return tuple(self._written(message) for message in messages)

    def _written(self, message: Message) -> tuple[int, ...]:
        if message.role not in ("user", "tool"):
            raise RendererError(f"TinyAgent has no {message.role!r} messages; use user or tool")
        content = "error" if message.content.startswith("error") else message.content
        return (IDS[f"<{message.role}>"], *encode(content), IDS["<end>"])

    def generation_prompt(self) -> tuple[int, ...]:
        """The marker that opens the policy's turn."""
        return (IDS["<assistant>"],)

    def write_call(self, call: ToolCall) -> tuple[int, ...]:
        """The ids with which the policy makes a call, the end marker included (for demonstrations).

        Integer arguments are line numbers and are written as such; arguments are positional. Text ends where the
        call does, or at ``<arg>`` when another argument follows or the text is empty.
        """
        ids = [IDS[_known(call.name)]]
        for number, value in enumerate(call.arguments.values(), start=1):
            if isinstance(value, int):
                ids.append(IDS[_known(f"L{value}")])
            else:
                ids.extend(encode(value))
                if not value or number < len(call.arguments):
                    ids.append(IDS["<arg>"])
        return (*ids, IDS["<end>"])

    def write_reply(self, message: Message) -> tuple[int, ...]:
        """The ids with which the policy would say a message that makes one call, the end marker included.

        Raises:
            RendererError: no call or several, words or thoughts beside it, or text outside of the vocabulary.
        """
        if len(message.tool_calls) != 1 or message.content or message.reasoning:
            raise RendererError("TinyAgent's replies are one tool call each, without content or thoughts")
        return self.write_call(message.tool_calls[0])

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message in a reply. Never raises: what is malformed is said in the call's `problem`."""
        words = [WORDS[index] for index in sampled_ids]
        closed = bool(words) and words[-1] == "<end>"
        body = sampled_ids[:-1] if closed else sampled_ids
        text = decode(body)
        specs = {spec.name: spec for spec in tools}
        name = words[0] if words else ""
        if not closed:
            call = ToolCall(name=name, problem="the reply was cut off before <end>")
        elif name not in specs:
            call = ToolCall(name=name, problem=f"a reply starts with one of {', '.join(specs)}")
        else:
            call = _read_call(specs[name], body[1:])
        return Message(role="assistant", content=text if call.problem else "", tool_calls=(call,))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people."""
        return decode(token_ids)


def _read_call(spec: ToolSpec, ids: Sequence[int]) -> ToolCall:
    """Positional arguments: an integer takes one line word, text takes all up to ``<arg>`` or the end."""
    arguments: dict[str, int | str] = {}
    rest = list(ids)
    for name, schema in spec.parameters["properties"].items():
        if not rest:
            break
        if schema["type"] == "integer":
            word = WORDS[rest.pop(0)]
            if word not in LINES:
                return ToolCall(name=spec.name, problem=f"{name} must be a line number L1..L{MAX_LINES}, not {word!r}")
            arguments[name] = int(word[1:])
        else:
            end = rest.index(IDS["<arg>"]) if IDS["<arg>"] in rest else len(rest)
            if not _is_one_line(rest[:end]):
                return ToolCall(name=spec.name, problem=f"{name} must be one line of program text")
            arguments[name] = decode(rest[:end])
            rest = rest[end + 1 :]
    if rest:
        return ToolCall(name=spec.name, problem=f"{spec.name} has arguments left over: {decode(rest)!r}")
    return ToolCall(name=spec.name, arguments=arguments)


def _is_one_line(ids: Sequence[int]) -> bool:
    """Whether ids are program text that could be shown to the policy again. A line word would begin a listing."""
    if any(WORDS[index] in _NOT_TEXT for index in ids):
        return False
    text = decode(ids)
    try:
        return decode(encode(text)) == text
    except RendererError:
        return False
