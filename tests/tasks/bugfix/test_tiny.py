"""The tiny level: small programs whose docstring says what they do, or is silent about the very thing that broke."""

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


def test_about_a_third_of_the_bugs_that_can_be_silent_are():
    silent = [candidate.instruction == "silent" for candidate in SAMPLE if candidate.kind in tiny.SILENT_KINDS]
    # SILENT_SHARE is 0.33; not every such bug lies where the docstring says something. Four standard errors below.
    assert 0.2 <= sum(silent) / len(silent) <= 0.44
    # Where the docstring names nothing that the bug changed, it cannot be silent about it.
    others = [candidate for candidate in SAMPLE if candidate.kind not in tiny.SILENT_KINDS]
    assert {candidate.instruction for candidate in others} == {"told"}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_every_program_is_small_and_differs_from_its_reference_in_one_line_of_code(seed):
    for candidate in itertools.islice(tiny.candidates(random.Random(seed)), 5):
        broken, reference = map(body, texts(candidate))
        assert 3 <= len(broken) <= 8
        assert len(broken) == len(reference)
        differing = [
            number for number, pair in enumerate(zip(broken, reference, strict=True), 1) if len(set(pair)) == 2
        ]
        assert differing == [candidate.line]
        assert candidate.line > 2  # neither the signature nor the docstring
        for text in texts(candidate):
            assert ast.parse(text).body[0].name == candidate.function == "f"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_a_docstring_is_silent_about_one_thing_exactly_when_the_task_is(seed):
    for candidate in itertools.islice(tiny.candidates(random.Random(seed)), 5):
        docstring = ast.get_docstring(ast.parse(texts(candidate)[1]).body[0]).split()
        assert docstring.count("some") == (candidate.instruction == "silent")
        assert body(texts(candidate)[0])[1] == body(texts(candidate)[1])[1]  # and says so in the broken copy too


def test_a_told_program_says_its_operators_and_numbers():
    rng = random.Random(3)
    draft = tiny._choice(tiny._Draw(rng))
    slots = [piece for piece in draft.doc if isinstance(piece, tiny.Slot)]
    docstring = draft.source().split("\n")[1]
    assert all(slot.code in docstring for slot in slots)
    assert draft.source(slots[0]).split("\n")[1] == docstring.replace(slots[0].code, "some", 1)
    assert draft.source(slots[0]).split("\n")[2:] == draft.source().split("\n")[2:]


def test_hidden_inputs_are_not_the_visible_ones():
    for candidate in SAMPLE:
        visible, hidden = (
            [repr(arguments) for arguments in inputs] for inputs in (candidate.visible, candidate.hidden)
        )
        assert not set(visible) & set(hidden)
        assert len(set(visible)) == len(visible) == tiny.NUM_VISIBLE
        assert 1 <= len(hidden) == len(set(hidden)) <= tiny.NUM_HIDDEN


def test_the_stream_depends_on_the_random_numbers_alone():
    again = list(itertools.islice(tiny.candidates(random.Random(17)), 20))
    assert again == SAMPLE[:20]
    assert list(itertools.islice(tiny.candidates(random.Random(18)), 20)) != again


def test_the_prompt_names_the_test_and_shows_the_program_with_line_numbers():
    (message,) = tiny.prompt("def f(a, b):\n    return a\n", "test_2")
    assert (message.role, message.content) == ("user", "fix test_2\n1|def f(a, b):\n2|    return a")


@pytest.mark.parametrize(
    ("line", "column", "code"),
    [
        (1, 0, None),  # the signature
        (2, 5, None),  # the docstring
        (3, 4, None),  # `r`
        (3, 8, "7"),
        (3, 9, "7"),  # its end
        (4, 13, "+"),
    ],
)
def test_the_slot_at_a_place(line, column, code):
    draft = tiny.Draft(
        family="x",
        arguments="a",
        lines=(
            (1, ("r = ", tiny.Slot(code="7"))),
            (1, ("return r ", tiny.Slot(code="+"), " a")),
        ),
        doc=(),
    )
    assert draft.source().split("\n")[2:4] == ["    r = 7", "    return r + a"]
    slot = draft.slot_at(line, column)
    assert (slot and slot.code) == code
