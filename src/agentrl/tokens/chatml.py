"""ChatML with Hermes tool calls: the language of Qwen3.

    <|im_start|>system        # Tools ... <|im_end|>
    <|im_start|>user          repair a.py<|im_end|>
    <|im_start|>assistant     <think> ... </think> <tool_call> ... </tool_call><|im_end|>     the policy samples this
    <|im_start|>user          <tool_response> ... </tool_response><|im_end|>                  results, all in one turn
    <|im_start|>assistant

`render` gives the ids that the model's own chat template gives, id for id, for every conversation that the template
can express. In two places we differ from it on purpose:

*Text is text.* The template pastes contents into one string, so that a tool's output which spells ``<|im_end|>`` ends
the turn and can open a turn of the assistant. Here a content never becomes a control token: what spells one is
written in ordinary pieces, and decodes to the same text.

*What was sampled stays.* The template drops the thoughts of earlier turns when the user writes again, and the empty
thoughts that it put before a reply when thinking is off. A conversation is extended here by appending to the sampled
ids, so its ids never change. Who wants the template's shorter history takes `follow`, which says that the ids before
do not stay, and why; the conversation then goes on in a new branch of the trace, whose prompt is written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentrl.errors import RendererError
from agentrl.tokens.chat import check_results, tool_to_chat
from agentrl.tokens.toolcalls import CLOSE, OPEN, THINK, THOUGHT, dump, read_reply
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.types import Message, ToolCall, ToolSpec

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
RESPONSE, RESPONDED = "<tool_response>", "</tool_response>"
_MARKS = (THINK, THOUGHT, OPEN, CLOSE, RESPONSE, RESPONDED)
MARKS = (START, END, END_OF_TEXT, *_MARKS)
"""The control tokens that a vocabulary must have."""
_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_Parts = list[int | str]
"""A control token by its id, a text by itself."""


class Continuation(NamedTuple):
    """How a conversation goes on. ``rewritten`` says why the ids before do not stay: then ``spans`` are those of the
    whole conversation, one a message, to start a branch with. Otherwise ``spans`` are those of the new messages."""

    rewritten: str | None
    spans: tuple[tuple[int, ...], ...]


class ChatMLRenderer:
    """Messages of Qwen3 to ids and back.

    Args:
        vocabulary: with the control tokens of Qwen3.
        thinking: whether replies begin with thoughts. Without them each reply is opened with empty thoughts.

    Raises:
        RendererError: the vocabulary lacks a control token.
    """

    def __init__(self, vocabulary: Vocabulary, *, thinking: bool = True) -> None:
        self.vocabulary = vocabulary
        self.thinking = thinking
        self._start, self._end = vocabulary.control(START), vocabulary.control(END)
        self._marks = {mark: vocabulary.control(mark) for mark in _MARKS}
        self.stop_ids = frozenset((self._end, vocabulary.control(END_OF_TEXT)))

    @property
    def name(self) -> str:
        """Equal names write and read equally."""
        return f"chatml-v1(thinking={self.thinking})"

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[tuple[int, ...], ...]:
        """The ids of a conversation, one tuple a message; those of the tools stand in the first.

        Raises:
            RendererError: no message, a tool result that answers no call or stands out of order, or a lone surrogate.
        """
        if not messages:
            raise RendererError("a conversation needs a message; begin with one of the user")
        check_results(messages)
        last_query = _last_query(messages)
        opening = self._tools_turn(messages[0], tools) if tools else []
        return tuple(
            self._ids([*(opening if index == 0 else ()), *self._turn(messages, index, last_query, bool(tools))])
            for index in range(len(messages))
        )

    def extend(self, messages: Sequence[Message], sampled_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The ids that append messages to a conversation that ends with a sampled reply, one tuple a message.

        The first begins with what the template puts behind a reply; a reply that was cut, or ended in another way
        than the template's, gets its end of turn there, untrained.

        Raises:
            RendererError: no message, one of the assistant's, or a lone surrogate.
        """
        if not messages:
            raise RendererError("extend() needs at least one message to append")
        if any(message.role == "assistant" for message in messages):
            raise RendererError(
                "the assistant's messages are sampled; extend() appends those of tools, users and system"
            )
        closed = len(sampled_ids) > 0 and sampled_ids[-1] == self._end
        seam: _Parts = ["\n"] if closed else [self._end, "\n"]
        turns = [self._turn(messages, index, -1, False) for index in range(len(messages))]
        return tuple(self._ids([*(seam if index == 0 else ()), *turn]) for index, turn in enumerate(turns))

    def follow(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        sampled_ids: Sequence[int],
        tools: Sequence[ToolSpec],
    ) -> Continuation:
        """Go on as the model's template does.

        Args:
            history: the conversation so far; it ends with the reply.
            messages: what is appended.
            sampled_ids: the reply.
            tools: those of the conversation.
        """
        rewritten = self.rewritten(history, messages)
        if rewritten is None:
            return Continuation(None, self.extend(messages, sampled_ids))
        return Continuation(rewritten, self.render([*history, *messages], tools))

    def rewritten(self, history: Sequence[Message], messages: Sequence[Message]) -> str | None:
        """Why the template writes ``history`` otherwise once ``messages`` follow; None when it only appends."""
        if not any(_is_query(message) for message in messages):
            return None
        thoughts = [index for index, message in enumerate(history) if message.reasoning]
        if not thoughts:
            return None
        return f"a new message of the user drops the thoughts of earlier replies (message {thoughts[0]})"

    def generation_prompt(self) -> tuple[int, ...]:
        """The ids that open the policy's turn."""
        return self._ids([self._start, "assistant\n", *(() if self.thinking else self._thoughts(""))])

    def write_reply(self, message: Message) -> tuple[int, ...]:
        """The ids with which the policy would say a message, stop id included (for demonstrations).

        Thoughts are written where the message has some, be they empty; None writes no thoughts.

        Raises:
            RendererError: thoughts although thinking is off, or a lone surrogate.
        """
        if message.reasoning is not None and not self.thinking:
            raise RendererError(
                "thinking is off, and the message has thoughts; set hf.thinking to true, or remove them "
                "(in Python: ChatMLRenderer(thinking=True))"
            )
        thoughts = [] if message.reasoning is None else self._thoughts(message.reasoning)
        return self._ids([*thoughts, *self._said(message, message.content), self._end])

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message in a reply. Never raises: what is malformed is said in a call's `problem`."""
        stopped = len(sampled_ids) > 0 and sampled_ids[-1] in self.stop_ids
        return read_reply(self.decode(sampled_ids[:-1] if stopped else sampled_ids), tools).message()

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people, control tokens spelt out."""
        return self.vocabulary.decode(token_ids)

    def _turn(self, messages: Sequence[Message], index: int, last_query: int, has_first: bool) -> _Parts:
        """The parts of one message. ``has_first``: a system message at the start stands elsewhere already."""
        message = messages[index]
        if message.role == "tool":
            return self._result(messages, index)
        if message.role == "assistant":
            return self._assistant(messages, index, last_query)
        if message.role == "system" and index == 0 and has_first:
            return []
        return [self._start, f"{message.role}\n{message.content}", self._end, "\n"]

    def _tools_turn(self, first: Message, tools: Sequence[ToolSpec]) -> _Parts:
        system = f"{first.content}\n\n" if first.role == "system" else ""
        listed = "".join(f"\n{dump(tool_to_chat(tool))}" for tool in tools)
        how = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        form = '\n{"name": <function-name>, "arguments": <args-json-object>}\n'
        begin, close = self._marks[OPEN], self._marks[CLOSE]
        head = f"system\n{system}{_TOOLS_BEFORE}{listed}{how}"
        return [self._start, head, begin, close, " XML tags:\n", begin, form, close, self._end, "\n"]

    def _result(self, messages: Sequence[Message], index: int) -> _Parts:
        """A tool's result; those in a row share one turn of the user."""
        first = index == 0 or messages[index - 1].role != "tool"
        last = index + 1 == len(messages) or messages[index + 1].role != "tool"
        body = ["\n", self._marks[RESPONSE], f"\n{messages[index].content}\n", self._marks[RESPONDED]]
        return [*([self._start, "user"] if first else ()), *body, *([self._end, "\n"] if last else ())]

    def _assistant(self, messages: Sequence[Message], index: int, last_query: int) -> _Parts:
        message = messages[index]
        shown = index > last_query and (index + 1 == len(messages) or bool(message.reasoning))
        thoughts = self._thoughts(message.reasoning or "") if shown else []
        content = message.content.lstrip("\n") if shown else message.content
        return [self._start, "assistant\n", *thoughts, *self._said(message, content), self._end, "\n"]

    def _thoughts(self, reasoning: str) -> _Parts:
        inside = reasoning.strip("\n")
        return [self._marks[THINK], f"\n{inside}\n", self._marks[THOUGHT], "\n\n"]

    def _said(self, message: Message, content: str) -> _Parts:
        """Text and calls. The text of a malformed reply has its calls in it, with their markers."""
        if any(call.problem for call in message.tool_calls):
            return self._with_marks(content)
        parts: _Parts = [content]
        for number, call in enumerate(message.tool_calls):
            parts += self._call(call, apart=bool(message.content) or number > 0)
        return parts

    def _call(self, call: ToolCall, *, apart: bool) -> _Parts:
        written = f'\n{{"name": "{call.name}", "arguments": {dump(call.arguments)}}}\n'
        return ["\n" if apart else "", self._marks[OPEN], written, self._marks[CLOSE]]

    def _with_marks(self, text: str) -> _Parts:
        """A text whose markers of thoughts and calls are control tokens, as the policy writes them."""
        for mark, index in self._marks.items():
            before, found, after = text.partition(mark)
            if found:
                return [*self._with_marks(before), index, *self._with_marks(after)]
        return [text]

    def _ids(self, parts: Sequence[int | str]) -> tuple[int, ...]:
        """Neighbouring texts are encoded together, as the template's string is."""
        ids: list[int] = []
        text = ""
        for part in parts:
            if isinstance(part, str):
                text += part
            else:
                ids += (*self.vocabulary.text_ids(text), part)
                text = ""
        return (*ids, *self.vocabulary.text_ids(text))


def _is_query(message: Message) -> bool:
    """Whether the template takes a message for a new question, and not for a tool's result in disguise."""
    content = message.content
    return message.role == "user" and not (content.startswith(RESPONSE) and content.endswith(RESPONDED))


def _last_query(messages: Sequence[Message]) -> int:
    """Index of the last question; without any, of the last message."""
    queries = [index for index, message in enumerate(messages) if _is_query(message)]
    return queries[-1] if queries else len(messages) - 1
