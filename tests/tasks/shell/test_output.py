"""How an output is shown: as on a terminal, and cut on the boundaries of characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tasks.shell import inside
from agentrl.tasks.shell.output import as_seen, shown, status_note


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("10%\r20%\r100%\n", "100%\n"),
        ("100%\r 5%\n", " 5%%\n"),  # a terminal writes over what was there and leaves the rest
        ("long line\r\x1b[Kshort", "short"),
        ("abc\x1b[2K\rd", "d  "),
        ("ab\b\bcd\b\b\b\be", "ed"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(B \x1b[?25l", "red x "),
        ("bell\x07 nul\0 esc\x1b\n del\x7f", "bell nul␀ esc␛\n del␡"),
        ("\x1b[", "␛["),
        ("bash: [28425: 1 (255)] tcsetattr: Inappropriate ioctl for device\nnext", "next"),
    ],
)
def test_control_characters_do_what_they_do_on_a_terminal(printed, seen):
    assert as_seen(printed) == seen


def test_all_bytes_are_shown_with_one_sign_for_each_that_is_no_text():
    text = shown(bytes(range(256)), b"", 0, 1000)
    assert text.count("\ufffd") == 128
    assert shown(b"\xf0\x28", b"", 0, 10) == "\ufffd("


def test_a_character_is_not_cut_in_two():
    assert shown("ééé".encode(), b"", 0, 2) == "é\n[... 1 of 3 characters left out here ...]\né"
    head, tail = "äö".encode()[:3], "üß".encode()[1:]  # cut in the middle of ö and of ü
    assert shown(head, tail, 100, 10) == "ä\n[... 100 of 102 characters left out here ...]\nß"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_become_text_of_the_size_that_was_asked_for(data, most):
    text = shown(data, b"", 0, most)
    assert text.encode().decode() == text
    head, note, tail = text.partition("\n[... ")
    kept = len(head) + (len(tail.partition("...]\n")[2]) if note else 0)
    assert kept <= most


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=200), st.integers(1, 250))
def test_text_is_shown_as_it_is_up_to_the_cut(text, most):
    answer = shown(text.encode(), b"", 0, most)
    if len(text) <= most:
        assert answer == text
    else:
        left = len(text) - most
        note = f"\n[... {left:,} of {len(text):,} characters left out here ...]\n"
        assert answer == text[: most - most // 2] + note + text[len(text) - most // 2 :]


def test_an_exit_status_above_128_is_named_when_a_signal_has_it():
    assert status_note(1) == "[exit status 1]"
    assert status_note(137) == "[exit status 137, which is that of a program ended by SIGKILL]"
    assert status_note(161) == "[exit status 161]"  # there is no signal 33
    assert status_note(255) == "[exit status 255]"


def test_what_the_supervisor_keeps_of_an_output_are_its_two_ends():
    kept = inside.Kept()
    for part in (b"a" * inside.KEPT_BYTES, b"b" * 10, b"c" * inside.KEPT_BYTES):
        kept.add(part)
    assert (bytes(kept.head), bytes(kept.tail)) == (b"a" * inside.KEPT_BYTES, b"c" * inside.KEPT_BYTES)
    assert kept.cut == 10


def test_the_kinds_of_replies_differ_also_in_a_new_shell():
    kinds = range(inside.READY, inside.REFUSED + 1)
    assert len({kind | more for kind in kinds for more in (0, inside.RESTARTED)}) == 2 * len(kinds)
