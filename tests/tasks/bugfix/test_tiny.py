"""The tiny level: small programs whose comments say what they do, or are silent about the very thing that broke."""

import ast
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tasks.bugfix import tiny

SAMPLE = list(itertools.islice(tiny.candidates(random.Random(17)), 300))


def texts(candidate):
    return candidate.files[tiny.MAIN_PATH], candidate.reference[tiny.MAIN_PATH]


def body(text):
    return text.rstrip("\n").split("\n")


def test_many_kinds_of_bug_and_every_template_occur():
    kinds = Counter(candidate.kind for candidate in SAMPLE)
    assert len(kinds) >= 6
    assert set(kinds) <= set(tiny.KINDS)
    assert len({candidate.family for candidate in SAMPLE}) == len(tiny.TEMPLATES)


def test_a_part_of_the_tasks_is_silent():
    silent = [candidate.instruction == "silent" for candidate in SAMPLE]
    # SILENT_SHARE is 0.5, less the few programs without a bug in an open slot; four standard errors of 300 are 0.12.
    assert 0.36 <= sum(silent) / len(silent) <= 0.62
    assert {candidate.kind for candidate, is_silent in zip(SAMPLE, silent, strict=True) if is_silent} == {
        *("arithmetic", "comparison", "constant", "initial_value"),
    }


def open_slots(draft):
    return [piece for line in draft.lines for piece in line.code if isinstance(piece, tiny.Slot) and piece.open]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, len(tiny.TEMPLATES) - 1))
def test_kin_are_the_programs_that_differ_in_open_slots_only(seed, template):
    draw = tiny._Draw(random.Random(seed))
    first, second = tiny.TEMPLATES[template](draw), tiny.TEMPLATES[template](draw)
    shut = [
        [piece.code for line in draft.lines for piece in line.code if isinstance(piece, tiny.Slot) and not piece.open]
        for draft in (first, second)
    ]
    assert (first.kin == second.kin) == (shut[0] == shut[1])
    assert open_slots(first)


def test_a_silent_task_is_about_an_open_slot_and_stays_with_all_that_look_like_it():
    # What stands at a silent place does not show; so the split must not depend on it.
    by_text = {}
    for candidate in itertools.islice(tiny.candidates(random.Random(4)), 1500):
        by_text.setdefault(candidate.files[tiny.MAIN_PATH], []).append(candidate)
    twins = [found for found in by_text.values() if len({c.reference[tiny.MAIN_PATH] for c in found}) > 1]
    assert len(twins) > 20  # one broken program, several repairs
    for found in twins:
        assert {c.instruction for c in found} == {"silent"}
        assert len({c.kin for c in found}) == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_every_program_is_small_and_differs_from_its_reference_in_the_code_of_one_line(seed):
    for candidate in itertools.islice(tiny.candidates(random.Random(seed)), 5):
        broken, reference = map(body, texts(candidate))
        assert 3 <= len(broken) <= 8
        assert len(broken) == len(reference)
        differing = [
            number for number, pair in enumerate(zip(broken, reference, strict=True), 1) if len(set(pair)) == 2
        ]
        assert differing == [candidate.line]
        assert candidate.line >= tiny.FIRST_LINE
        comments = [[line.partition(tiny.COMMENT)[2] for line in lines] for lines in (broken, reference)]
        assert comments[0] == comments[1]
        for text in texts(candidate):
            assert ast.parse(text).body[0].name == candidate.function == "f"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_a_comment_is_silent_about_the_broken_thing_exactly_when_the_task_is(seed):
    for candidate in itertools.islice(tiny.candidates(random.Random(seed)), 5):
        broken, reference = texts(candidate)
        silent = candidate.instruction == "silent"
        assert broken.split().count("some") == reference.split().count("some") == silent
        if silent:  # about the line that is broken, and what broke there has others of its kind
            now, right = (tiny.code_of(text, candidate.line) for text in (broken, reference))
            assert "some" in body(broken)[candidate.line - 1]
            change = tiny.swap(now, right)
            assert change.before != change.after
            assert {change.before, change.after} <= set(change.ring)
            assert len(change.ring) >= 3  # one guess is not enough


def test_a_told_program_says_its_operators_and_numbers():
    draft = tiny._choice(tiny._Draw(random.Random(3)))
    slots = [piece for line in draft.lines for piece in line.comment if isinstance(piece, tiny.Slot)]
    told = draft.source()
    assert len(slots) == 5  # a comparison and its number, an operation and its number, the other answer
    for slot in slots:
        differing = [pair for pair in zip(body(told), body(draft.source(slot)), strict=True) if pair[0] != pair[1]]
        ((says, silent),) = differing
        code, _, words = says.partition(tiny.COMMENT)
        assert slot.code in code
        assert slot.words in words
        assert silent == code + tiny.COMMENT + words.replace(slot.words, "some", 1)


def test_a_line_says_in_words_what_its_code_does():
    operator, number = tiny.Slot(code=">="), tiny.Slot(code="2")
    line = tiny.Line(depth=1, code=("if x ", operator, " ", number, ":"), comment=("x", operator, number))
    assert line.text() == "    if x >= 2:  # x at least 2"
    assert line.text(operator) == "    if x >= 2:  # x some 2"
    assert tiny.Line(depth=2, code=("return t",)).text() == "        return t"


def test_hidden_inputs_are_not_the_visible_ones():
    for candidate in SAMPLE:
        visible, hidden = (
            [repr(arguments) for arguments in inputs] for inputs in (candidate.visible, candidate.hidden)
        )
        assert not set(visible) & set(hidden)
        assert len(set(visible)) == len(visible) == tiny.NUM_VISIBLE
        assert len(hidden) == len(set(hidden)) == tiny.NUM_HIDDEN


def test_the_stream_depends_on_the_random_numbers_alone():
    again = list(itertools.islice(tiny.candidates(random.Random(17)), 20))
    assert again == SAMPLE[:20]
    assert list(itertools.islice(tiny.candidates(random.Random(18)), 20)) != again


def test_the_prompt_names_the_test_and_shows_the_program_with_line_numbers():
    (message,) = tiny.prompt("def f(a, b):\n    return a\n", "test_2")
    assert (message.role, message.content) == ("user", "fix test_2\n1|def f(a, b):\n2|    return a")


@pytest.mark.parametrize(
    ("column", "code"),
    [
        (4, None),  # `r`
        (8, "7"),
        (10, "+"),
        (9, None),  # the space between
    ],
)
def test_the_slot_that_begins_at_a_column(column, code):
    line = tiny.Line(depth=1, code=("r = ", tiny.Slot(code="7"), " ", tiny.Slot(code="+"), " a"))
    assert line.text() == "    r = 7 + a"
    slot = line.slot_at(column)
    assert (slot and slot.code) == code


@pytest.mark.parametrize(
    ("before", "after", "swap"),
    [
        ("t = t + x * 2", "t = t + x - 2", (10, "*", "-")),
        ("if x > 3:", "if x >= 3:", (5, ">", ">=")),
        ("for i in range(2, n + 1):", "for i in range(2, n):", (18, "n + 1", "n")),
        ("for i in range(2, n):", "for i in range(3, n):", (15, "2", "3")),
        ("t = 1", "t = 4", None),  # 4 is no number of the level
        ("t = 1", "t = 1", None),
        ("return x + 1", "return 1 + x", None),
        ("return x + 1", "return x - 2", None),  # two pieces
        ("for i in range(2, n):", "for i in range(2, n - 1):", None),
        ("if x > 3:", "if x + 3:", None),  # of different rings
    ],
)
def test_the_one_piece_in_which_two_lines_differ(before, after, swap):
    found = tiny.swap(before, after)
    assert (found and (found.column, found.before, found.after)) == swap
    assert found is None or {found.before, found.after} <= set(found.ring)
