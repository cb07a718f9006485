"""Tokens of conversations in messages: what an endpoint counted stands, the rest is estimated, and it is said how."""

from pathlib import Path

import pytest

from agentrl.harness.chat_count import ChatCount, Count
from agentrl.types import Message, ToolCall, ToolSpec
from tests.tokens.real import needs_assets, vocabulary


def user(text):
    return Message(role="user", content=text)


def said(text, reasoning=None):
    return Message(role="assistant", content=text, reasoning=reasoning)


ASKED, ANSWER, RESULT = user("x" * 60), said("y" * 30), user("z" * 90)
# raw: 60 / 3 + 4 = 24, 30 / 3 + 4 = 14, 90 / 3 + 4 = 34


def test_without_any_count_everything_is_estimated():
    count = ChatCount(())
    assert count.of([ASKED, ANSWER, RESULT]) == Count(24 + 14 + 34, 24 + 14 + 34)
    assert count.how == "3 bytes of UTF-8 a token and 4 tokens a message"
    assert count.num_uncounted == 0


def test_bytes_are_counted_and_calls_and_tools_are_part_of_it():
    call = Message(role="assistant", tool_calls=(ToolCall(name="read", arguments={"path": "ü.py"}),))
    # read{"path": "ü.py"} has 4 + 16 characters, one of which is of two bytes: 21 / 3 + 4
    assert ChatCount(()).estimate([call]) == 11
    tool = ToolSpec(name="t", description="", parameters={})
    # [{"name": "t", "description": "", "parameters": {}}] has 52 bytes; 52 / 3 + 24 = 41.3, rounded up
    assert ChatCount([tool]).of([ASKED]) == Count(42, 42)


def test_what_the_endpoint_counted_stands_and_scales_the_estimate_of_the_rest():
    count = ChatCount(())
    count.learn([ASKED], ANSWER, {"prompt_tokens": 12, "completion_tokens": 10, "total_tokens": 22})
    assert count.of([ASKED, ANSWER]) == Count(22, 0)
    # 12 tokens were estimated as 24, so that of the next 34 there will be 17
    assert count.of([ASKED, ANSWER, RESULT]) == Count(22 + 17, 17)
    assert count.how.endswith(", times 0.50 after what the endpoint counted")


@pytest.mark.parametrize(
    ("usage", "expected", "num_uncounted"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 10}, Count(22, 0), 0),
        ({"total_tokens": 50}, Count(50, 0), 0),
        ({"prompt_tokens": 12}, Count(12 + 7, 7), 0),  # 14 at a scale of 0.5
        ({"completion_tokens": 10}, Count(24 + 14, 24 + 14), 1),
        ({}, Count(24 + 14, 24 + 14), 1),
    ],
)
def test_endpoints_that_say_less(usage, expected, num_uncounted):
    count = ChatCount(())
    count.learn([ASKED], ANSWER, usage)
    assert count.of([ASKED, ANSWER]) == expected
    assert count.num_uncounted == num_uncounted


def test_a_reply_without_a_count_is_estimated_behind_those_that_were_counted():
    count = ChatCount(())
    count.learn([ASKED], ANSWER, {"prompt_tokens": 24, "total_tokens": 100})
    count.learn([ASKED, ANSWER, RESULT], ANSWER, {})
    assert count.of([ASKED, ANSWER, RESULT, ANSWER]) == Count(100 + 34 + 14, 34 + 14)
    assert count.num_uncounted == 1


def test_thoughts_that_are_not_sent_again_do_not_fill_the_context():
    count = ChatCount(())
    thoughtful = said("y" * 30, reasoning="r" * 300)
    # of 120 sampled tokens 300 / 3 = 100 were thoughts
    count.learn([ASKED], thoughtful, {"prompt_tokens": 24, "completion_tokens": 120, "total_tokens": 144})
    assert count.of([ASKED, thoughtful]) == Count(44, 0)
    # never less than what is sent again: 24 and the visible 14
    count.learn([ASKED], thoughtful, {"prompt_tokens": 24, "completion_tokens": 60, "total_tokens": 84})
    assert count.of([ASKED, thoughtful]) == Count(38, 0)


def test_a_message_in_the_place_of_another_changes_the_count_by_an_estimate():
    count = ChatCount(())
    count.learn([ASKED, RESULT], ANSWER, {"prompt_tokens": 58, "total_tokens": 80})
    short = user("zzz")  # 5 in the place of 34
    old, new = [ASKED, RESULT, ANSWER], [ASKED, short, ANSWER]
    assert count.rewritten(old, new).of([*new, RESULT]) == Count(80 - 29 + 34, 29 + 34)
    assert count.of(old) == Count(80, 0)  # the other is as it was
    assert count.rewritten(old, [ASKED, ANSWER]).of([ASKED, ANSWER]) == Count(38, 38)
    # what was never counted is not removed from what was
    longer, changed = [*old, RESULT], [*old, short]
    assert count.rewritten(longer, changed).of(changed) == Count(80 + 5, 5)


@needs_assets[1]
@needs_assets[0]
def test_the_estimate_is_near_what_a_real_tokenizer_counts():
    words = vocabulary()
    text = Path(__file__).read_text(encoding="utf-8")
    estimated, counted = ChatCount(()).estimate([user(text)]), len(words.encode(text))
    assert 0.8 < estimated / counted < 1.5
