"""What counts as the same output."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rewards.judge.printed import COMPARES, same_output

# printed, expected, and whether they are the same: exact, lines, numbers with a tolerance of 0.01
TABLE = [
    (b"6\n", b"6\n", True, True, True),
    (b"6", b"6\n", False, True, True),
    (b"6 \t\r\n\n\n", b"6\n", False, True, True),
    (b"1 2\n3\n", b"1 2 \n3", False, True, True),
    (b" 6\n", b"6\n", False, False, True),  # a blank before is no blank at the end
    (b"\n6\n", b"6\n", False, False, False),
    (b"1\n\n2\n", b"1\n2\n", False, False, False),
    (b"1 2\n", b"1\n2\n", False, False, False),
    (b"1  2\n", b"1 2\n", False, False, True),
    (b"6\n6\n", b"6\n", False, False, False),
    (b"", b"6\n", False, False, False),
    (b"", b"\n", False, True, True),
    (b"YES\n", b"yes\n", False, False, False),
    (b"\xff\x00\n", b"\xff\x00\n", True, True, True),
    (b"\xff\n", b"\xef\xbf\xbd\n", False, False, False),  # bytes are not read as text, so nothing is replaced
    # 0.335 - 0.33 = 0.005 is at most 0.01; 0.35 - 0.33 = 0.02 is more
    (b"0.335\n", b"0.33\n", False, False, True),
    (b"0.35\n", b"0.33\n", False, False, False),
    # 1009 - 1000 = 9 is at most 0.01 * 1000; a whole number has no slack
    (b"1009\n", b"1000.0\n", False, False, True),
    (b"1009.0\n", b"1000\n", False, False, False),
    (b"1000.0\n", b"1000\n", False, False, True),
    (b"1e3\n", b"1000\n", False, False, True),
    (b"+7\n", b"7\n", False, False, True),
    (b"nan\n", b"0.33\n", False, False, False),
    (b"nan\n", b"nan\n", True, True, True),
    (b"1e999\n", b"1e998\n", False, False, False),
    (b"inf\n", b"1.0\n", False, False, False),
    (b"1_0\n", b"10.0\n", False, False, False),
    ("\u0661\n".encode(), b"1.0\n", False, False, False),  # a digit, but not one of ours
    (b"x=0.33\n", b"x=0.331\n", False, False, False),  # a word that is no number is compared as it stands
    (b"9007199254740993\n", b"9007199254740992\n", False, False, False),  # equal as floats: 2**53 + 1 and 2**53
    (b"1" * 5000, b"1" * 5000, True, True, True),
    (b"1" * 4999 + b"2", b"1" * 5000, False, False, False),
    (b"1.0" + b"0" * 5000, b"1.0", False, False, False),  # too long to be read as a number
]


@pytest.mark.parametrize("row", TABLE)
def test_each_way_of_comparing(row):
    actual, expected, *wanted = row
    assert [same_output(actual, expected, compare=how, tolerance=0.01) for how in COMPARES] == wanted


@given(st.binary(max_size=40))
def test_everything_is_the_same_as_itself(data):
    assert all(same_output(data, data, compare=how) for how in COMPARES)


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_each_way_takes_all_that_the_stricter_one_takes(one, other):
    found = [same_output(one, other, compare=how, tolerance=0.0) for how in COMPARES]
    assert found == sorted(found)


@given(st.integers(), st.integers())
def test_whole_numbers_must_be_equal(one, other):
    assert same_output(b"%d" % one, b"%d" % other, compare="numbers", tolerance=0.9) == (one == other)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_floats_must_be_close(one, other):
    close = abs(one - other) <= 1e-3 * max(1.0, abs(other))
    assert same_output(repr(one).encode(), repr(other).encode(), compare="numbers", tolerance=1e-3) == close
