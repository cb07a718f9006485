"""Room in a full context: results are dropped or the policy sums up, in branches whose tokens are exact."""

import asyncio

import pytest

from agentrl.errors import ConfigError, RendererError
from agentrl.harness.compaction import Compaction
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import IDS, TinyRenderer
from agentrl.types import Stop
from tests.harness.parts import TASK, Recorder, World, path_to, trace_of

DROP = Compaction(kind="drop_results", fill=1.0, marker="ok")
SUM_UP = Compaction(kind="summarize", summary=4, marker="ok", request="give", go_on="done")
LONG = "failed f(1) == 2"
"""Seven tokens: failed f ( 1 ) == 2; with its role and its end nine."""


def ids(text):
    return tuple(IDS[word] for word in text.split())


READ, SUBMIT = ids("read <end>"), ids("submit <end>")
USER, OPENING, END = ids("<user> fix test_1 <end>"), ids("<assistant>"), ids("<end>")
RESULT = ids("<tool> failed f ( 1 ) == 2 <end>")
MARKER = ids("<tool> ok <end>")


def play(*replies, compaction, results=(), **limits):
    transcript, session = Transcript(), Recorder(list(replies))
    loop = ToolLoop(TinyRenderer(), Limits(**{"turns": 9, "reply": 8} | limits), compaction=compaction)
    asyncio.run(loop.run(TASK, World(results), session, transcript))
    return transcript, session


def test_the_numbers_that_the_tests_count_with():
    assert (len(USER), len(RESULT), len(MARKER)) == (4, 9, 3)


def test_the_oldest_results_are_dropped_and_replies_stay_the_ids_that_they_were():
    # prompt 4; each turn opens with 1, replies with 2 and gets 9 back: 4 + 12 + 12 = 28, and a third makes 40.
    # In a context of 34 the third reply has room: 28 + 1 + 2 = 31; its result does not: 31 + 9 + 1 + 1 > 34.
    transcript, session = play(READ, READ, READ, SUBMIT, compaction=DROP, results=[LONG] * 3, context=34)
    assert transcript.stop == Stop.DONE
    # Two results are dropped, 2 * 6 tokens: 40 - 12 + 1 + 1 fits into 34, and with one of them 40 - 6 + 2 does not.
    last = session.asked[-1].held
    turn = OPENING + READ
    assert last == USER + turn + MARKER + turn + MARKER + turn + RESULT + OPENING
    assert session.rewinds == [(31, 4 + 3 + 1)]  # up to the first result, whose role is that of the marker too
    (branch,) = transcript.notes["branches"]
    first = branch["node"]
    assert branch == {
        "node": first,
        "why": ["no room in 34 tokens: 2 results dropped"],
        "removed": 12,
    }
    laid = transcript.nodes[first:]
    assert laid[0].parent == 1  # the prompt and the first reply are shared
    assert [node.copied for node in laid] == [True, True, True, True, False, False, False]
    assert [node.sampled_ids for node in laid] == [(), (), (), (), (), SUBMIT, ()]
    assert laid[1].context_ids == turn  # the second reply, as it was sampled
    trace = trace_of(transcript)
    assert trace.num_turns == 4
    first_branch, second_branch = samples(trace, 1.0)
    assert sum(first_branch.weights["pg"]) == 6.0  # three replies of two tokens
    assert sum(second_branch.weights["pg"]) == 2.0  # the last reply alone
    assert second_branch.token_ids == last + SUBMIT


def test_what_the_policy_has_not_read_is_never_dropped():
    # 4 + 3 + 9 + 1 = 17: the only result is unread, so that nothing can be dropped.
    transcript, session = play(READ, SUBMIT, compaction=DROP, results=[LONG], context=17)
    assert (transcript.stop, len(session.replies)) == (Stop.CONTEXT_FULL, 1)
    assert transcript.notes == {"cuts": [{"stop": "context_full", "what": "conversation", "tokens": 17, "context": 17}]}
    assert transcript.nodes[-1].message.content == LONG  # for people, without ids
    assert transcript.nodes[-1].context_ids == ()


def test_more_is_dropped_than_would_do_so_that_the_next_reply_begins_no_branch():
    # The fourth reply fits: 4 + 3 * 12 + 1 + 2 = 43. Its result makes 52: without two results there are 40, which is
    # room enough in 43; but not under 0.7 * 43 = 30, which 52 - 3 * 6 = 34 is neither, and the fourth is unread.
    replies = (READ, READ, READ, READ, SUBMIT)
    for fill, dropped in ((0.7, 3), (1.0, 2)):
        compaction = Compaction(kind="drop_results", fill=fill, marker="ok")
        transcript, _ = play(*replies, compaction=compaction, results=[LONG] * 4, context=43)
        assert transcript.notes["branches"][0]["why"] == [f"no room in 43 tokens: {dropped} results dropped"]


def test_a_result_that_is_no_longer_than_the_marker_stays():
    transcript, session = play(READ, READ, READ, compaction=DROP, results=["ok"] * 3, context=20)
    assert transcript.stop == Stop.CONTEXT_FULL
    assert session.rewinds == []


def test_the_policy_sums_up_and_goes_on_from_its_summary():
    # Held back: marker 3, request 3, opening 1, summary 4, together 11.
    summary = ids("read passed <end>")
    transcript, session = play(
        READ, READ, summary, SUBMIT, compaction=SUM_UP, results=[LONG, LONG], context=40, reserve=2
    )
    # After two turns 4 + 2 * 12 = 28 and 1 + 11 + 2 = 42 > 40.
    turn, request = OPENING + READ + RESULT, ids("<user> give <end>")
    assert session.asked[2].held == USER + turn + turn + request + OPENING
    assert session.asked[2].max_tokens == 4
    go_on = ids("<user> done <end>")
    assert session.asked[3].held == USER + OPENING + summary + go_on + OPENING
    assert session.rewinds == [(28 + 3 + 1 + 3, 4 + 1 + 1)]  # the summary, too, begins with the word read
    assert transcript.stop == Stop.DONE
    (branch,) = transcript.notes["branches"]
    # told before: prompt, two turns, request, opening and summary, 35; of them stand there again prompt and summary, 8
    assert (branch["why"], branch["removed"]) == (["no room in 40 tokens: summarized"], 35 - 8)
    trace = trace_of(transcript)
    first, second = samples(trace, 1.0)
    assert sum(first.weights["pg"]) == 2 + 2 + 3  # the summary is trained where it was sampled
    assert sum(second.weights["pg"]) == 2
    assert second.token_ids == session.asked[3].held + SUBMIT
    assert trace.num_turns == 4


def test_a_result_that_leaves_no_room_for_a_summary_is_withheld_and_noted():
    longer = "failed f(1) == 2 expected 3 failed f(2) == 3 expected 4 failed f(3) == 4 expected 5"
    summary = ids("passed <end>")
    transcript, session = play(READ, summary, SUBMIT, compaction=SUM_UP, results=[longer], context=30)
    request = ids("<user> give <end>")
    assert session.asked[1].held == USER + OPENING + READ + MARKER + request + OPENING
    lost = len(ids("failed f ( 1 ) == 2 expected 3")) * 3 - 1
    assert transcript.notes["withheld"] == [{"tokens": lost, "messages": [longer]}]
    assert transcript.stop == Stop.DONE


def test_a_summary_that_is_cut_ends_the_attempt():
    summary = ids("passed passed passed passed passed <end>")
    transcript, _ = play(READ, READ, summary, compaction=SUM_UP, results=[LONG, LONG], context=40, reserve=2)
    assert transcript.stop == Stop.MAX_TOKENS
    assert transcript.notes["cuts"] == [{"stop": "max_tokens", "what": "summary", "tokens": 4}]


def test_calls_of_a_summary_are_not_carried_out_and_are_counted():
    transcript, _ = play(READ, READ, READ, SUBMIT, compaction=SUM_UP, results=[LONG, LONG], context=40, reserve=2)
    assert transcript.notes["ignored"] == [{"calls": 1, "why": "they stand in a summary"}]
    assert [node.message.content for node in transcript.nodes].count("ok") == 0


def test_a_prompt_that_leaves_no_room_for_a_summary_is_answered_all_the_same():
    # 4 + 1 + 11 held back > 15, but a reply has room: 15 - 5 = 10, limited to 8.
    transcript, session = play(SUBMIT, compaction=SUM_UP, context=15)
    assert session.asked[0].max_tokens == 8
    assert transcript.stop == Stop.DONE


def test_a_reply_leaves_room_for_a_summary():
    _, session = play(SUBMIT, compaction=SUM_UP, context=20)
    assert session.asked[0].max_tokens == 20 - 5 - 11


def test_every_summary_begins_with_the_task():
    summary = ids("passed <end>")
    replies = [READ, READ, summary, READ, READ, summary, SUBMIT]
    transcript, session = play(*replies, compaction=SUM_UP, results=[LONG] * 9, context=40, reserve=2)
    assert transcript.stop == Stop.DONE
    # prompt, two turns, request, opening and summary: 4 + 24 + 3 + 1 + 2, of which prompt, opening and summary stay.
    # The second time there are three of the first summary and its question more, and six of a withheld result fewer.
    assert [found["removed"] for found in transcript.notes["branches"]] == [34 - 7, 34 + 6 - 6 - 7]
    assert session.asked[-1].held[:4] == USER
    for index, node in enumerate(transcript.nodes):
        if node.sampled_ids:
            asked = next(one for one in session.asked if one.completion.versions == node.versions)
            assert path_to(transcript.nodes, index) == asked.held + node.sampled_ids


@pytest.mark.parametrize("kind", ["drop_results", "summarize"])
def test_words_that_the_renderer_does_not_have_are_refused_before_anything_is_played(kind):
    with pytest.raises(RendererError, match="TinyAgent"):
        ToolLoop(TinyRenderer(), Limits(context=4096), compaction=Compaction(kind=kind))


def test_a_summary_that_can_never_fit_is_refused():
    with pytest.raises(ConfigError, match="need 11 tokens, and the context has 11; set summary lower"):
        ToolLoop(TinyRenderer(), Limits(context=11), compaction=SUM_UP)


@pytest.mark.parametrize(("changes", "message"), [({"fill": 0.0}, "fill is 0.0"), ({"summary": 0}, "summary is 0")])
def test_a_compaction_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Compaction(**changes)


def test_compaction_is_part_of_what_makes_two_agents_the_same():
    plain, other = (ToolLoop(TinyRenderer(), Limits(), compaction=one) for one in (Compaction(), DROP))
    assert plain.fingerprint == ToolLoop(TinyRenderer(), Limits()).fingerprint != other.fingerprint
