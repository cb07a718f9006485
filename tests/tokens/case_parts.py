"""Short ways to write conversations in the tests of public faults."""

import itertools

from agentrl.tokens.chat import messages_from_chat
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.tokens.rows import demonstration
from agentrl.tokens.samples import samples
from tests.tokens.real import vocabulary

END = 151645


def renderer(thinking=True):
    return ChatMLRenderer(vocabulary(), thinking=thinking)


def flat(spans):
    return list(itertools.chain.from_iterable(spans))


def rendered(chat, tools=()):
    return flat(renderer().render(messages_from_chat(chat), tools))


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def calls(*functions, ids=None):
    ids = ids or [None] * len(functions)
    return [
        {"type": "function", "function": {"name": name, "arguments": arguments}} | ({"id": call_id} if call_id else {})
        for (name, arguments), call_id in zip(functions, ids, strict=True)
    ]


def imitated(messages, tools=()):
    (sample,) = samples(demonstration(renderer(), messages, tools, trace_id="t"), None, objective="ce")
    return sample
