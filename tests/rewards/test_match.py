"""Which answer a reply marks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rewards.match import extract


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        # case W20: which box counts. The last, whatever stood before it; naming two gains nothing
        (r"first \boxed{1} ... no, \boxed{2}", "2"),
        (r"\boxed{1}, \boxed{2}", "2"),
        (r"an unfinished \boxed{2", None),
        (r"\boxed{1} and then \boxed{2", None),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{}", None),
        (r"\boxed {x}", "x"),
        ("<answer> 42 </answer>", "42"),
        ("<answer>1</answer> or <answer>2</answer>", "2"),
        ("<answer>a\nb</answer>", "a\nb"),
        ("<answer>42", None),
        ("<answer></answer>", None),
        ("2+40=42\n#### 42\n", "42"),
        ("#### 1\n#### 2", "2"),
        ("a #### 3", None),  # not at the start of a line
        ("the answer is 42", None),
        ("", None),
    ],
)
def test_the_last_marked_answer_is_read(reply, answer):
    assert extract(reply) == answer


# case W06: an answer outside a fixed tail window
@given(st.integers(0, 2000), st.sampled_from([r"\boxed{42}", "<answer>42</answer>", "#### 42"]))
def test_it_does_not_matter_how_much_follows(length, marked):
    assert extract(f"so\n{marked}\n" + "x" * length) == "42"


def test_one_rule_reads_nothing_that_another_marks():
    replies = {"box": r"\boxed{1}", "tag": "<answer>1</answer>", "hash": "#### 1"}
    for rule in replies:
        assert [extract(reply, rule) for reply in replies.values()] == [
            "1" if name == rule else None for name in replies
        ]
