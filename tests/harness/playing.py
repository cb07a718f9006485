"""Attempts that the real loop plays with random policies, worlds and limits, and what must hold of each of them."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from agentrl.harness.compaction import Compaction
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.tokens.samples import samples
from agentrl.tokens.toolcalls import MalformedPolicy
from agentrl.types import Message, Stop, Task
from tests.harness.parts import Recorder, World, path_to, trace_of

REPLIES = 40
"""More than any attempt asks for."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One attempt, before it is played."""

    replies: list
    results: list = field(default_factory=list)
    sentences: list = field(default_factory=list)
    prompt: tuple
    limits: Limits
    compaction: Compaction
    malformed: MalformedPolicy = field(default_factory=MalformedPolicy)
    parallel: tuple = ()
    system_prompt: str = ""
    world: type = World


def play(plan, renderer, session_class=Recorder):
    """The trace and the session; an attempt that failed has what happened before."""
    session, transcript = session_class([*plan.replies] * (REPLIES // len(plan.replies) + 1)), Transcript()
    loop = ToolLoop(renderer, plan.limits, plan.malformed, compaction=plan.compaction, system_prompt=plan.system_prompt)
    world = plan.world(plan.results, plan.sentences, plan.parallel)
    asyncio.run(loop.run(Task(id="t", prompt=plan.prompt), world, session, transcript))
    return trace_of(transcript), session


def check(trace, session, plan):
    """Promises 1 and 2, and that nothing is cut in silence."""
    check_what_was_sampled(trace, session)
    check_what_is_trained(trace, session)
    check_limits(trace, session, plan)
    check_copies(trace)


def check_what_was_sampled(trace, session):
    """Every reply is in the trace once, behind exactly the ids that the session held when it was asked for."""
    sampled = [index for index, node in enumerate(trace.nodes) if node.versions]
    assert len(sampled) == len(session.asked)
    for index, asked in zip(sampled, session.asked, strict=True):
        node = trace.nodes[index]
        assert (node.sampled_ids, node.logprobs, node.versions) == (
            asked.completion.token_ids,
            asked.completion.logprobs,
            asked.completion.versions,
        )
        assert path_to(trace.nodes, index) == asked.held + node.sampled_ids
        assert not node.copied


def check_what_is_trained(trace, session):
    """Each sampled token once, in the context in which it was sampled, and nothing else."""
    truth = {
        version: (asked.completion.token_ids[place], asked.completion.logprobs[place], asked.held, place)
        for asked in session.asked
        for place, version in enumerate(asked.completion.versions)
    }
    seen = Counter()
    for sample in samples(trace, 0.5):
        rows = zip(sample.token_ids, sample.weights["pg"], sample.logprobs, sample.versions, strict=True)
        for place, (token, weight, logprob, version) in enumerate(rows):
            if weight == 0.0:
                assert (logprob, version) == (None, None)
                continue
            seen[version] += 1
            expected, its_logprob, held, offset = truth[version]
            assert (token, logprob) == (expected, its_logprob)
            assert sample.token_ids[: place - offset] == held
    assert seen == Counter(truth.keys())


def check_limits(trace, session, plan):
    """No limit is overstepped, and whatever is not the policy's own end is noted."""
    limits = plan.limits
    assert all(len(asked.held) + asked.max_tokens <= limits.context for asked in session.asked)
    summary = plan.compaction.summary if plan.compaction.kind == "summarize" else limits.reserve
    shortest, longest = min(limits.reserve, summary), max(limits.reply, summary)
    assert all(shortest <= asked.max_tokens <= longest for asked in session.asked)
    assert trace.num_turns == len(session.asked)
    assert trace.num_turns <= limits.turns * (2 if plan.compaction.kind == "summarize" else 1)
    cuts = [cut["stop"] for cut in trace.metadata.get("cuts", ())]
    assert cuts == ([] if trace.stop is Stop.DONE else [str(trace.stop)])
    branches = trace.metadata.get("branches", ())
    assert len(branches) == len(session.rewinds)
    assert all(branch["why"] and len(set(branch["why"])) == len(branch["why"]) for branch in branches)
    assert all(note["messages"] for note in trace.metadata.get("withheld", ()))


def check_copies(trace):
    """A reply that stands again in a later branch is the ids that were sampled, unless its template wrote it anew."""
    if any("thoughts" in why for branch in trace.metadata.get("branches", ()) for why in branch["why"]):
        return
    for node in trace.nodes:
        assert not (node.copied and node.sampled_ids)
        if node.copied and node.message.role == "assistant":
            said = [one for one in trace.nodes if one.versions and one.message == node.message]
            assert node.context_ids in {one.context_ids + one.sampled_ids for one in said}


def user(text):
    """A message of the user."""
    return Message(role="user", content=text)
