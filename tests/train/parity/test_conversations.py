"""What is sampled for a check: several turns of uneven length, groups that share a prompt, the ids that were sent."""

import asyncio

import pytest

from agentrl.engine.local import LocalEngine
from agentrl.errors import RendererError, SamplerError
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import TinyRenderer
from agentrl.train.parity.conversations import Conversation, converse
from tests.train.parity.lab import CONVERSATIONS, Faulty, model, user

MODEL = model()


def hold(sampler, conversations=CONVERSATIONS, **settings):
    given = {"attempts": 4, "max_tokens": 12, "context": 256, "seed": 0} | settings
    return asyncio.run(asyncio.wait_for(converse(sampler, TinyRenderer(), conversations, **given), 60.0))


class Recording(Faulty):
    """Keeps what each session was sent and what it sampled."""

    def __init__(self, engine):
        super().__init__(engine)
        self.heard = []

    def session(self, seed, *, greedy=False):
        session = super().session(seed)
        kept = []
        self.heard.append(kept)
        sample = session.sample

        async def recorded(context_ids, **settings):
            reply = await sample(context_ids, **settings)
            kept.extend((*context_ids, *reply.token_ids))
            return reply

        session.sample = recorded
        return session


def test_what_is_scored_is_what_was_sent_and_sampled_id_for_id():
    sampler = Recording(LocalEngine(MODEL))
    traces = hold(sampler)
    for trace, heard in zip(traces, sampler.heard, strict=True):
        (sample,) = samples(trace, 0.0)
        assert list(sample.token_ids) == heard
        assert sum(sample.weights["pg"]) == trace.num_sampled


def test_turns_and_lengths_differ_and_groups_share_their_prompt():
    traces = hold(LocalEngine(MODEL))
    turns = [trace.num_turns for trace in traces]
    # answers behind two replies, behind one, behind two: attempts have all turns, one fewer, two fewer, all again
    assert turns == [3, 2, 1, 3, 2, 1, 2, 1, 3, 2, 1, 3]
    lengths = {len(node.sampled_ids) for trace in traces for node in trace.nodes if node.sampled_ids}
    assert {12, 6, 9} <= lengths  # the whole of 12, half, three quarters; a stop token may end one before
    for group in ("a", "b", "c"):
        mine = [trace for trace in traces if trace.group_id == group]
        assert len({trace.nodes[0].context_ids for trace in mine}) == 1
        assert len({tuple(node.sampled_ids for node in trace.nodes) for trace in mine}) == len(mine)


def test_the_same_seed_says_the_same_and_another_something_else():
    said = [
        [node.sampled_ids for trace in hold(LocalEngine(MODEL), seed=seed) for node in trace.nodes]
        for seed in (0, 0, 1)
    ]
    assert said[0] == said[1] != said[2]


def test_a_conversation_ends_where_the_context_does():
    traces = hold(LocalEngine(MODEL), context=30, max_tokens=24)
    lengths = [sum(len(node.context_ids) + len(node.sampled_ids) for node in trace.nodes) for trace in traces]
    assert max(lengths) <= 30
    assert all(trace.num_sampled for trace in traces)
    assert traces[0].num_turns < 3


def test_a_prompt_without_room_for_a_reply_is_named():
    with pytest.raises(SamplerError, match="the prompt of a leaves no room for a reply in a context of 5 tokens"):
        hold(LocalEngine(MODEL), context=5)


def test_what_fails_ends_everything_and_leaves_no_conversation_open():
    engine = LocalEngine(MODEL)
    wrong = (*CONVERSATIONS, Conversation(name="d", prompt=(user("no such words"),)))
    with pytest.raises(RendererError, match="no"):
        hold(engine, wrong)
    engine.publish(1)  # refused while a conversation is open
    assert hold(engine)[0].nodes[1].versions[0] == 1
