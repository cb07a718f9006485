"""A radix tree finds what a search through everything finds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.prefixes import PrefixTree

ids = st.lists(st.integers(0, 2), min_size=1, max_size=7)


def common(a, b):
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), ids), max_size=40), st.lists(ids, min_size=1, max_size=8))
def test_the_longest_beginning_is_that_of_a_search_through_all(acts, questions):
    tree, stored = PrefixTree(), {}
    for adds, key in acts:
        key = tuple(key)
        if adds and key not in stored:
            stored[key] = f"value {key}"
            tree.add(key, stored[key])
        elif not adds and key in stored:
            tree.remove(key)
            del stored[key]
        assert len(tree) == len(stored)
        assert sorted(tree) == sorted(stored.values())
    for question in questions:
        length, value = tree.longest(question)
        assert length == max((common(key, question) for key in stored), default=0)
        if length:
            assert value in [stored[key] for key in stored if common(key, question) == length]
        else:
            assert value is None
        assert tree.get(question) == stored.get(tuple(question))


def nodes(tree):
    found, left = [], [tree._root]
    while left:
        node = left.pop()
        found.append(node)
        left += node.children.values()
    return found


def test_it_has_no_more_nodes_than_sequences_part():
    """Ends and forks have nodes, runs of ids have none: at most two for each sequence, whatever was removed."""
    rng, tree, stored = random.Random(0), PrefixTree(), []
    for n in range(600):
        if stored and rng.random() < 0.45:
            tree.remove(stored.pop(rng.randrange(len(stored))))
        else:
            key = tuple(rng.randrange(2) for _ in range(rng.randint(1, 12)))
            if key not in stored:
                stored.append(key)
                tree.add(key, n)
        assert len(nodes(tree)) <= 2 * len(stored) + 1
    for key in stored:
        tree.remove(key)
    assert len(nodes(tree)) == 1


def test_what_cannot_be_is_refused():
    tree = PrefixTree()
    tree.add((1, 2), "a")
    with pytest.raises(ValueError, match="have a value"):
        tree.add((1, 2), "b")
    with pytest.raises(ValueError, match="no ids"):
        tree.add((), "b")
    with pytest.raises(KeyError):
        tree.remove((1,))
    assert list(tree) == ["a"]
