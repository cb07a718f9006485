"""The codec of plain data: exact types, nothing of the candidate's takes part in a comparison."""

import json
import math
from collections import OrderedDict
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandbox.values import MAX_DEPTH, NotPlain, Opaque, decode, encode, encode_plain, is_plain, same

scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.text() | st.binary()
)
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
    ),
    max_leaves=12,
)


def travel(value):
    return decode(json.loads(json.dumps(encode(value))))


@given(plain)
def test_plain_data_survives_the_boundary(value):
    assert is_plain(value)
    assert same(travel(value), value)


@given(plain, plain)
def test_same_is_symmetric_and_implies_equal_types(one, other):
    assert same(one, other) == same(other, one)
    if same(one, other):
        assert type(one) is type(other)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (True, 1),
        (0, False),
        (1, 1.0),
        ([1], (1,)),
        ({1, 2}, frozenset({1, 2})),
        ([1, [2, True]], [1, [2, 1]]),
        ({1: "a"}, {True: "a"}),
        ({1: "a"}, {1.0: "a"}),
        ({1}, {True}),
        ("a", b"a"),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (0.1 + 0.2, 0.3),
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, -math.inf),
        (1e308, math.inf),
    ],
)
def test_different_values_and_types_are_not_the_same(actual, expected):
    assert not same(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (math.nan, math.nan),
        ([math.nan], [float("nan")]),
        (0.0, -0.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({(1, 2): [3]}, {(1, 2): [3]}),
        (2**100, 2**100),
        ("\ud800", "\ud800"),
    ],
)
def test_equal_values_are_the_same(actual, expected):
    assert same(travel(actual), expected)


def test_a_tolerance_is_relative_to_the_larger_of_one_and_the_expected_value():
    assert same(0.1 + 0.2, 0.3, tolerance=1e-9)
    assert same(1000.5, 1000.0, tolerance=1e-3)  # |0.5| <= 0.001 * 1000
    assert not same(1001.5, 1000.0, tolerance=1e-3)  # |1.5| > 1
    assert same({"a": [0.3000001]}, {"a": [0.3]}, tolerance=1e-6)
    assert not same(1, 1.0, tolerance=0.5)


class AlwaysEqual:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Sneaky(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Color(IntEnum):
    RED = 1


@pytest.mark.parametrize("value", [AlwaysEqual(), Sneaky(7), Color.RED, OrderedDict(a=1), object, len, 1j, range(3)])
def test_other_types_become_opaque_and_equal_nothing(value):
    assert not is_plain(value)
    assert isinstance(travel(value), Opaque)
    assert not same(travel(value), value)
    assert not same(travel([value]), travel([value]))
    with pytest.raises(NotPlain, match="is not plain data"):
        encode_plain(value)


def test_an_opaque_value_is_not_even_the_same_as_itself():
    opaque = Opaque("thing")
    assert not same(opaque, opaque)
    assert not same({opaque}, {opaque})
    assert not same({opaque: 1}, {opaque: 1})


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


def test_depth_has_a_limit():
    assert is_plain(nested(MAX_DEPTH))
    assert not is_plain(nested(MAX_DEPTH + 1))
    assert not is_plain(nested(100_000))
    cycle = []
    cycle.append(cycle)
    assert not is_plain(cycle)


@pytest.mark.parametrize("value", [[0] * 101, "x" * 101, b"x" * 101, 1 << 500])
def test_size_has_a_limit(value):
    # 101 items; 101 characters; 101 bytes; 501 bits are 125 hexadecimal digits
    assert is_plain(value)
    assert not is_plain(value, max_size=100)
    assert isinstance(decode(encode(value, max_size=100)), Opaque)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"t": [1], "s": [1]},
        {"x": 1},
        {"t": 3},
        {"d": [1]},
        {"s": [[1]]},
        {"i": "zz"},
        {"i": 5},
        {"b": "0"},
        nested(100),
    ],
)
def test_data_that_was_not_encoded_is_refused(data):
    with pytest.raises(ValueError, match=r"encoded|tag"):
        decode(data)
