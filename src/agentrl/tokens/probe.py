"""What a chat template does, found out by rendering conversations: where replies begin and end, and what it appends.

A template is a program that writes a whole conversation anew each time. An agent samples a reply and then needs only
what follows it. That is sound where the longer conversation begins with the ids of the shorter one and the reply, and
what follows the reply depends on nothing but the messages that follow. Both are tried here on conversations that differ
in everything that templates are known to look at.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agentrl.errors import RendererError
from agentrl.tokens.jinja import ChatTemplate
from agentrl.tokens.toolcalls import read_reply
from agentrl.tokens.vocabulary import num_common
from agentrl.types import Message, ToolCall, ToolSpec

Conversation = tuple[Message, ...]
SPEC = ToolSpec(
    name="lookup",
    description="Look up a word.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
CALL = ToolCall(name="lookup", arguments={"word": "plum"})
QUESTION = Message(role="user", content="Which fruit is blue?")
RESULT = Message(role="tool", content="A plum is blue.")
PLAIN, OTHER = (Message(role="assistant", content=text) for text in ("A plum.", "2 < 3, so\nboth are."))
CALLING = Message(role="assistant", content="I look.", tool_calls=(CALL,))
OPENINGS: tuple[Conversation, ...] = (
    (QUESTION,),
    (Message(role="user", content="Say yes.\n"), OTHER, QUESTION),
    (Message(role="system", content="Be brief."), QUESTION),
)


class Proof(NamedTuple):
    """What was found.

    Attributes:
        prompt_ids: they open a reply.
        stop_id: it ends one.
        refused: by role why messages of it cannot be appended, and for ``tools`` why there can be none.
        rewrites: of those roles the ones behind whose messages the template writes the conversation anew, in a way
            from which it goes on by appending; True where it always does, False where only behind thoughts.
    """

    prompt_ids: tuple[int, ...]
    stop_id: int
    refused: Mapping[str, str]
    rewrites: Mapping[str, bool]


class _Trial(NamedTuple):
    """Conversations that end with a question, replies to it, and a message that follows them."""

    openings: Sequence[Conversation]
    replies: Sequence[Message]
    following: Message
    tools: Sequence[ToolSpec]


def prove(template: ChatTemplate) -> Proof:
    """Try a template on probing conversations.

    Raises:
        RendererError: it has no fixed opening of a reply, no token that ends one, or nothing can be appended to one.
    """
    _check_encoding(template)
    prompt = _prompt(template)
    stop = _stop(template)
    trials = _trials(template)
    tools = _tools(template, stop)
    refused = {role: reason for role, trial in trials.items() if (reason := _appending(template, stop, trial))}
    refused |= {} if tools is None else {"tools": tools, "tool": tools}
    if "user" in refused and "tool" in refused:
        raise RendererError(f"nothing can be appended to a reply: {refused['user']}; {nearest(template)}")
    sure = trials["user" if "user" not in refused else "tool"]
    rewrites: dict[str, bool] = {}
    for role in [role for role in trials if role in refused]:
        fault = tools if role == "tool" and tools else _rewriting(template, stop, prompt, trials[role], sure)
        if fault is None:
            plain = [reply for reply in trials[role].replies if not reply.reasoning]
            rewrites[role] = _appending(template, stop, trials[role]._replace(replies=plain)) is not None
        elif fault not in refused[role]:
            refused[role] += f", and no branch can begin there: {fault}"
    return Proof(prompt, stop, refused, rewrites)


def nearest(template: ChatTemplate) -> str:
    """What to use where a template cannot be."""
    if "<|im_start|>" in template.vocabulary.controls and "<think>" in template.vocabulary.controls:
        return "use ChatMLRenderer (hf.renderer or --renderer chatml), which keeps what was sampled"
    return (
        "use LibraryRenderer (hf.renderer or --renderer library:FAMILY; pip install 'agentrl[renderers]'), or a "
        "template that appends"
    )


def _check_encoding(template: ChatTemplate) -> None:
    """Pieces between control tokens, encoded apart, must be what the tokenizer makes of the whole text."""
    chat = [{"role": message.role, "content": message.content} for message in OPENINGS[1]]
    ours, theirs = template.ids(OPENINGS[1]), template.vocabulary.encode(template.text(chat, []))
    if ours != theirs:
        place = num_common(ours, theirs)
        raise RendererError(
            f"the tokenizer writes text beside a control token in a way of its own (at id {place} "
            f"{theirs[place : place + 1]}, not {ours[place : place + 1]}); {nearest(template)}"
        )


def _prompt(template: ChatTemplate) -> tuple[int, ...]:
    """The ids that open a reply, the same behind every conversation."""
    found = set()
    for opening in _possible(template):
        shorter, longer = template.ids(opening), template.ids(opening, prompt=True)
        if longer[: len(shorter)] != shorter:
            raise RendererError("the template writes a conversation otherwise when a reply is to follow")
        found.add(longer[len(shorter) :])
    if len(found) != 1 or found == {()}:
        ways = "in no way (it does not read add_generation_prompt)" if found == {()} else f"in {len(found)} ways"
        raise RendererError(f"the template opens replies {ways}; every reply must begin behind the same ids")
    return found.pop()


def _stop(template: ChatTemplate) -> int:
    """The control token behind a reply's text."""
    written = template.ids((QUESTION, PLAIN))
    said = template.vocabulary.text_ids(PLAIN.content)
    places = [at for at in range(len(written)) if written[at : at + len(said)] == said]
    after = written[places[-1] + len(said) :] if places else ()
    if not after or after[0] not in template.vocabulary.controls.values():
        shown = f"{template.vocabulary.decode(after[:3])!r}" if after else "nothing"
        raise RendererError(f"no control token ends a reply ({shown} follows its text), so sampling would never stop")
    return after[0]


def _trials(template: ChatTemplate) -> dict[str, _Trial]:
    """By role, what is tried with a message of it."""
    openings = _possible(template)
    replies = [PLAIN, OTHER]
    if _thinks(template):
        replies.append(dataclasses.replace(PLAIN, reasoning="Plums come in blue."))
    calling = [dataclasses.replace(reply, tool_calls=(CALL,)) for reply in replies]
    return {
        "system": _Trial(openings, replies, Message(role="system", content="Be brief."), ()),
        "user": _Trial(openings, replies, Message(role="user", content="And red?"), ()),
        "tool": _Trial(openings, calling, RESULT, (SPEC,)),
    }


def _appending(template: ChatTemplate, stop: int, trial: _Trial) -> str | None:
    """Why a message cannot be appended behind replies; None when it can."""
    following, tails = trial.following, set()
    for opening, reply in itertools.product(trial.openings, trial.replies):
        try:
            before = template.ids(opening, trial.tools, prompt=True)
            longer = template.ids((*opening, reply, following), trial.tools)
            forms = _forms(template, opening, reply, trial.tools, stop)
        except RendererError as error:
            return str(error)
        if longer[: len(before)] != before:
            return f"what stands before a reply is written otherwise when a {following.role} message follows it"
        rest = longer[len(before) :]
        form = next((form for form in forms if rest[: len(form)] == form), None)
        if form is None:
            what = "thoughts are dropped from" if reply.reasoning else "another text is written for"
            return f"{what} a reply when a {following.role} message follows it"
        tails.add(rest[len(form) :])
    return None if len(tails) == 1 else f"what follows a reply before a {following.role} message depends on the reply"


def _rewriting(template: ChatTemplate, stop: int, prompt: tuple[int, ...], trial: _Trial, sure: _Trial) -> str | None:
    """Why the conversation that the template writes anew behind a message is no beginning of a branch; None when it
    shows all that was said, opens the next reply as always, and messages that are ``sure`` may be appended there."""
    begun = []
    for opening, reply in itertools.product(trial.openings, trial.replies):
        whole = (*opening, reply, trial.following)
        try:
            written, opened = (template.ids(whole, sure.tools, prompt=asked) for asked in (False, True))
        except RendererError as error:
            return str(error)
        if opened != written + prompt:
            return "the next reply is opened in another way"
        shown = template.vocabulary.decode(written)
        missing = [message.content for message in whole if message.content.strip() not in shown]
        if missing:
            return f"the template leaves {missing[0]!r} out of it"
        begun.append(whole)
    return _appending(template, stop, sure._replace(openings=begun))


def _forms(
    template: ChatTemplate, opening: Conversation, reply: Message, tools: Sequence[ToolSpec], stop: int
) -> list[tuple[int, ...]]:
    """The ids that a policy may sample for a reply, stop id included: as the template writes it at the end of a
    conversation and, where it has no thoughts, without the empty ones that some templates write there."""
    before = template.ids(opening, tools, prompt=True)
    written = template.ids((*opening, reply), tools)[len(before) :]
    last = written[: len(written) - written[::-1].index(stop)] if stop in written else ()
    if reply.reasoning:
        return [last]
    bare = (*template.vocabulary.text_ids(reply.content), stop)
    return [last, _without_thoughts(template, last) if reply.tool_calls else bare]


def _without_thoughts(template: ChatTemplate, ids: tuple[int, ...]) -> tuple[int, ...]:
    closing = template.vocabulary.controls.get("</think>")
    if closing not in ids:
        return ids
    text = ids[ids.index(closing) + 1 :]
    gap = template.vocabulary.text_ids("\n\n")
    return text[len(gap) :] if text[: len(gap)] == gap else text


def _tools(template: ChatTemplate, stop: int) -> str | None:
    """Why tools cannot be used; None when the template shows them and writes calls that our parser reads."""
    try:
        if template.ids((QUESTION,)) == template.ids((QUESTION,), (SPEC,)):
            return "the template does not show tools"
        form = _forms(template, (QUESTION,), CALLING, (SPEC,), stop)[0]
    except RendererError as error:
        return str(error)
    found = read_reply(template.vocabulary.decode(form[:-1]), (SPEC,))
    return None if found.calls == (CALL,) else "the template does not write calls in the form that our parser reads"


def _thinks(template: ChatTemplate) -> bool:
    """Whether the template writes thoughts."""
    thinking = dataclasses.replace(PLAIN, reasoning="Plums come in blue.")
    return template.ids((QUESTION, PLAIN)) != template.ids((QUESTION, thinking))


def _possible(template: ChatTemplate) -> list[Conversation]:
    """The openings that the template takes; one of a single question it must take."""
    template.ids(OPENINGS[0])
    return [opening for opening in OPENINGS if _try(template, opening) is None]


def _try(template: ChatTemplate, conversation: Conversation) -> str | None:
    try:
        template.ids(conversation)
    except RendererError as error:
        return str(error)
    return None
