"""Room in a conversation of messages: results are dropped or the policy sums up, and the trace says what and why."""

import asyncio
import json
import math

import pytest

from agentrl.engine.openai import OpenAIPolicy
from agentrl.errors import ConfigError, SamplerError
from agentrl.evals.attempts import attempt_of
from agentrl.harness.chat import ChatLoop
from agentrl.harness.chat_session import Conversations
from agentrl.harness.compaction import Compaction
from agentrl.harness.loop import Limits, Transcript
from agentrl.records import trace_from_json, trace_to_json
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tokens.samples import samples
from agentrl.types import Message, Stop, Task
from agentrl.ui.show import attempt as shown
from tests.engine.chat_server import Answer, ChatServer, call, said
from tests.harness.parts import World
from tests.ui.test_show import text

pytest.importorskip("httpx")
TASK = Task(id="t", prompt=(Message(role="user", content="fix test_1!"),))
DROP = Compaction(kind="drop_results", fill=1.0, marker="gone!!")
SUM_UP = Compaction(kind="summarize", summary=50, marker="gone!!", request="sum up", go_on="go on")
LONG = "x" * 588
"""The server of these tests counts 4 tokens a message and one for each three letters, the 262 of the tools included.
The prompt has (262 + 11) / 3 + 4 = 95, a call (4 + 2) / 3 + 4 = 6, a result of this length 200, a marker 6. So a
conversation has 95, 301, 507 and 713 when the first, second, third and fourth reply is asked for."""
REFUSED = Answer({"error": {"message": "the maximum context length is exceeded"}}, 400)


def read(name="c", arguments="{}"):
    return said(None, [call("read", arguments, name)])


def submit():
    return said(None, [call("submit", "{}", "end")])


def num_tokens(messages, letters=262):
    """As the server counts."""
    for one in messages:
        functions = [found["function"] for found in one.get("tool_calls", ())]
        letters += 12 + len(one.get("content") or "") + sum(len(f["name"] + f["arguments"]) for f in functions)
    return math.ceil(letters / 3)


class World1(World):
    """A set of one task, which is its own world. A reply without a call ends an attempt."""

    id = "worlds"

    def environment(self, task):
        return self


def play(*answers, player=None, compaction=DROP, results=(), window=None, counted=True, **limits):
    """An attempt with what the server was sent and took. It has a ``window``, counts, and refuses what does not fit."""
    left, taken = list(answers), []

    def script(number, body):
        size = num_tokens(body["messages"])
        if window is not None and size > window:
            return REFUSED
        taken.append(body["messages"])
        body = (player.pop(body) if player else left.pop(0)).body
        said = num_tokens([body["choices"][0]["message"]], 0)
        usage = {"prompt_tokens": size, "completion_tokens": said, "total_tokens": size + said}
        return Answer({**body, "usage": usage if counted else {}})

    with ChatServer(script) as server:
        policy = OpenAIPolicy(server.endpoint(retries=0))
        loop = ChatLoop(Limits(**{"turns": 9, "reply": 100, "context": 10**6, **limits}), compaction=compaction)
        session = Conversations(policy.session, 1)
        identity = AttemptId(group_id="g", attempt=0, seed=1)
        trace = asyncio.run(attempt(World1(results), TASK, loop, session, identity))
        assert policy._open == 0
    assert [path_of(trace, index) for index in replies(trace)] == [list(map(plain, sent)) for sent in taken]
    assert trace_from_json(trace_to_json(trace)) == trace
    assert samples(trace, 1.0) == ()
    return trace, server, taken


def replies(trace):
    return [n for n, node in enumerate(trace.nodes) if node.message.role == "assistant" and not node.copied]


def plain(sent):
    return sent["role"], sent["content"] or "", [one["function"]["name"] for one in sent.get("tool_calls", ())]


def path_of(trace, index):
    """What a reply was given, by the trace: the messages of its branch."""
    found, index = [], trace.nodes[index].parent
    while index is not None:
        message = trace.nodes[index].message
        # calls of a summary are never sent again
        found.append((message.role, message.content, [one.name for one in message.tool_calls]))
        index = trace.nodes[index].parent
    return found[::-1]


def tools_of(messages):
    return [one["content"] for one in messages if one["role"] == "tool"]


def test_the_oldest_results_make_room_and_the_trace_says_so():
    # 713 and the reserve of 1 do not fit into 600; without one result, 200 - 6, there are 519.
    trace, server, taken = play(read("a"), read("b"), read("c"), submit(), results=[LONG] * 3, context=600)
    assert (trace.stop, trace.num_turns) == (Stop.DONE, 4)
    assert [tools_of(sent) for sent in taken[-2:]] == [[LONG, LONG], ["gone!!", LONG, LONG]]
    assert [one.get("tool_call_id") for one in taken[-1] if one["role"] == "tool"] == ["a", "b", "c"]
    (branch,) = trace.metadata["branches"]
    first = branch["node"]
    assert branch["why"] == ["no room in 600 tokens: 1 results dropped"]
    assert [node.copied for node in trace.nodes[first:]] == [True, True, True, True, False, False, False]
    assert trace.nodes[first].parent == 1  # the prompt and the first reply are shared
    assert trace.nodes[first].message.content == "gone!!"
    assert trace.nodes[2].message.content == LONG  # what was dropped stays where it was told
    keys = [key.rpartition("-")[0] for key in server.keys]
    assert len(set(keys[:3])) == 1
    assert keys[3] not in keys[:3]  # another conversation: a cache of the endpoint cannot mix them up
    # what was told, the last call included, had 713 - 200
    assert branch["removed"] == 194
    assert f"branch: node {first}, why {branch['why']}, removed {branch['removed']}" in text(shown(trace))


def test_more_is_dropped_than_would_do_where_the_configuration_says_so():
    for fill, dropped in ((1.0, 1), (0.6, 2)):  # 519 fits into 600, and 519 - 194 = 325 into 360
        compaction = Compaction(kind="drop_results", fill=fill, marker="gone!!")
        answers = (read("a"), read("b"), read("c"), submit())
        trace, _, taken = play(*answers, results=[LONG] * 3, context=600, compaction=compaction)
        assert trace.metadata["branches"][0]["why"] == [f"no room in 600 tokens: {dropped} results dropped"]
        assert tools_of(taken[-1]).count("gone!!") == dropped


def test_what_the_policy_has_not_read_is_never_dropped():
    # 95 and 6 were counted by the endpoint, the result has 1200 / 3 + 4 = 404
    trace, server, _ = play(read(), submit(), results=["x" * 1200], context=400)
    assert (trace.stop, len(server.requests)) == (Stop.CONTEXT_FULL, 1)
    cut = {"stop": "context_full", "what": "conversation", "tokens": 505, "estimated": 404, "context": 400}
    assert trace.metadata["cuts"] == [cut]
    assert "branches" not in trace.metadata
    assert trace.nodes[-1].message.content == "x" * 1200


def test_a_shorter_result_than_the_marker_stays():
    trace, _, taken = play(read("a"), read("b"), submit(), results=["ok", LONG], context=240)
    assert trace.stop is Stop.CONTEXT_FULL
    assert "branches" not in trace.metadata
    assert len(taken) == 2


def test_without_compaction_a_full_context_ends_the_attempt():
    trace, _, taken = play(read(), read(), submit(), results=[LONG] * 2, context=400, compaction=Compaction())
    assert trace.stop is Stop.CONTEXT_FULL
    assert len(taken) == 2


# An endpoint that refuses.


def test_a_refused_conversation_is_made_shorter_and_sent_again():
    trace, server, taken = play(read("a"), read("b"), read("c"), submit(), results=[LONG] * 3, window=600)
    assert trace.stop is Stop.DONE
    assert len(server.requests) == 5  # four replies and a refusal
    assert tools_of(taken[-1])[0] == "gone!!"
    (branch,) = trace.metadata["branches"]
    assert branch["why"] == ["no room in about 713 tokens: 1 results dropped"]
    # the refused request is in no count
    assert trace.metadata["usage"]["prompt_tokens"] == 95 + 301 + 507 + 519
    # three calls of 6, and submit{} with 8 / 3 + 4, rounded up
    assert attempt_of(trace, "m").tokens == 3 * 6 + 7


def test_every_refusal_drops_more_until_nothing_is_left_to_drop():
    # 507 + 6 + 704 = 1217 are refused, so are 1217 - 194 = 1023, and 1023 - 194 = 829
    results = [LONG, LONG, "y" * 2100]
    trace, server, taken = play(read("a"), read("b"), read("c"), submit(), results=results, window=800)
    assert trace.stop is Stop.CONTEXT_FULL
    (cut,) = trace.metadata["cuts"]
    assert (cut["what"], cut["tokens"], cut["context"]) == ("conversation", 829, "the endpoint's")
    assert (len(taken), len(server.requests)) == (3, 6)
    whys = [branch["why"] for branch in trace.metadata["branches"]]
    assert whys == [[f"no room in about {tokens} tokens: 1 results dropped"] for tokens in (1217, 1023)]


def test_a_prompt_that_is_refused_ends_the_attempt():
    trace, server, _ = play(window=5)
    assert (trace.stop, len(server.requests)) == (Stop.CONTEXT_FULL, 1)
    assert trace.error is None


# Summaries.


def test_the_policy_sums_up_and_goes_on_from_its_summary():
    answers = (read("a"), read("b"), said("I saw it."), submit())
    trace, _, taken = play(*answers, results=[LONG, LONG], context=565, compaction=SUM_UP)
    assert (trace.stop, trace.num_turns) == (Stop.DONE, 4)
    assert [one["content"] for one in taken[2]][-2:] == [LONG, "sum up"]
    assert [(one["role"], one["content"]) for one in taken[3]] == [
        ("user", "fix test_1!"),
        ("assistant", "I saw it."),
        ("user", "go on"),
    ]
    (branch,) = trace.metadata["branches"]
    # 507, and held back for a marker 6, the request 6 and the summary 50: 569 > 565
    assert branch["why"] == ["no room in 565 tokens: summarized"]
    again = trace.nodes[branch["node"]]
    assert (again.parent, again.copied, again.message.content) == (0, True, "I saw it.")
    # told were 507, the request with 6 and the summary with 9 / 3 + 4; prompt and summary stay
    assert branch["removed"] == 507 + 6 + 7 - (95 + 7)


def test_a_summary_is_held_back_from_replies():
    for compaction, room in ((SUM_UP, 300 - 95 - 62), (DROP, 300 - 95)):
        _, server, _ = play(submit(), context=300, reply=500, compaction=compaction)
        assert server.requests[0]["max_tokens"] == room


def test_calls_of_a_summary_are_not_carried_out_and_not_sent_again():
    answers = (read("a"), read("b"), said("I saw it.", [call("read", "{}", "z")]), submit())
    trace, _, taken = play(*answers, results=[LONG, LONG, "never"], context=565, compaction=SUM_UP)
    assert trace.metadata["ignored"] == [{"calls": 1, "why": "they stand in a summary"}]
    assert "never" not in [node.message.content for node in trace.nodes]
    assert all("tool_calls" not in one for one in taken[-1])


def test_a_result_that_leaves_no_room_for_a_summary_is_withheld_and_noted():
    trace, _, taken = play(read("a"), said("too long"), submit(), results=["x" * 1200], context=300, compaction=SUM_UP)
    assert trace.stop is Stop.DONE
    assert tools_of(taken[1]) == ["gone!!"]
    assert trace.metadata["withheld"] == [{"tokens": 404 - 6, "messages": ["x" * 1200]}]


@pytest.mark.parametrize(
    ("summary", "stop", "cut"),
    [
        (said("I s", finish="length"), Stop.MAX_TOKENS, {"stop": "max_tokens", "what": "summary", "tokens": 5}),
        (REFUSED, Stop.CONTEXT_FULL, {"stop": "context_full", "what": "summary", "context": "the endpoint's"}),
    ],
)
def test_a_summary_that_is_cut_ends_the_attempt(summary, stop, cut):
    with_choices = [read("a"), read("b"), summary] if summary is not REFUSED else [read("a"), read("b")]
    window = None if summary is not REFUSED else 510  # the request makes 513
    trace, _, _ = play(*with_choices, results=[LONG, LONG], context=565, compaction=SUM_UP, window=window)
    assert trace.stop is stop
    assert trace.metadata["cuts"] == [cut]


def test_after_a_refusal_the_policy_sums_up_what_it_had_read():
    answers = (read("a"), said("seen"), submit())
    trace, server, taken = play(*answers, results=["x" * 1200], window=400, compaction=SUM_UP)
    assert trace.stop is Stop.DONE
    assert len(server.requests) == 4
    assert tools_of(taken[1]) == ["gone!!"]
    assert trace.metadata["withheld"][0]["messages"] == ["x" * 1200]
    assert trace.metadata["branches"][0]["why"] == ["no room in about 505 tokens: summarized"]


# What cannot be counted, or sent again.


def test_where_the_endpoint_counts_nothing_the_limit_holds_by_an_estimate_and_it_is_said():
    answers = [read(str(n)) for n in range(9)]
    trace, _, taken = play(*answers, results=[LONG] * 9, context=400, counted=False, compaction=Compaction())
    assert trace.stop is Stop.CONTEXT_FULL
    assert len(taken) == 2
    (cut,) = trace.metadata["cuts"]
    assert cut["tokens"] == cut["estimated"] == 507
    how = "3 bytes of UTF-8 a token and 4 tokens a message"
    assert trace.metadata["counts"] == [{"replies_without": 2, "estimated_at": how}]
    assert f"counts: replies_without 2, estimated_at {how}" in text(shown(trace))
    assert "counts" not in play(submit())[0].metadata


def test_room_is_made_by_an_estimate_too():
    answers = (*(read(str(n)) for n in range(5)), submit())
    trace, _, taken = play(*answers, results=[LONG] * 5, context=400, counted=False)
    assert trace.stop is Stop.DONE
    # 507 - 194 = 313, and with each further turn and drop 206 - 194 = 12 more
    assert tools_of(taken[-1]) == ["gone!!"] * 4 + [LONG]


def test_a_call_that_could_not_be_read_has_no_arguments_to_be_sent_again_and_it_is_noted():
    answers = (read("a", "{pa"), read("b"), read("c"), submit())
    trace, _, taken = play(*answers, results=[LONG] * 2, context=500)
    assert trace.metadata["branches"][0]["calls_without_arguments"] == 1
    first = next(one for one in taken[-1] if one.get("tool_calls"))
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {}
    well_formed, _, _ = play(read("a"), read("b"), read("c"), submit(), results=[LONG] * 3, context=600)
    assert "calls_without_arguments" not in well_formed.metadata["branches"][0]


def test_a_session_that_cannot_begin_again_is_refused_before_anything_is_sent():
    class Plain:
        async def reply(self, messages, tools, *, max_tokens):
            raise AssertionError

    with pytest.raises(SamplerError, match=r"Plain cannot begin a conversation again, as compaction drop_results"):
        asyncio.run(ChatLoop(Limits(), compaction=DROP).run(TASK, World(), Plain(), Transcript()))


def test_a_summary_that_can_never_fit_is_refused():
    # marker and request: 6 / 3 + 4 each
    with pytest.raises(
        ConfigError, match="a summary of 50 tokens and its request need 62 tokens, and the context has 62"
    ):
        ChatLoop(Limits(context=62), compaction=SUM_UP)
    ChatLoop(Limits(context=63), compaction=SUM_UP)


def test_compaction_and_prompts_are_part_of_what_makes_two_agents_the_same():
    prompts = {"system_prompts": {"math": "Add."}}
    loops = [ChatLoop(Limits(), **kept) for kept in ({}, {"compaction": DROP}, {"compaction": SUM_UP}, prompts)]
    assert len({loop.fingerprint for loop in loops}) == 4
