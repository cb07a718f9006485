"""The least that a workload takes, counted by hand."""

import pytest

from agentrl.bench.floor import Floor, Shape, Sizes, Speed, floor, working_set

TINY = Sizes(name="tiny", vocabulary=10, width=4, layers=1, heads=2, key_heads=1, mlp_width=6)
PAIR = Shape(groups=1, group=2, prompt=3, reply=2)


def test_weights_of_a_model():
    assert TINY.head_width == 2
    # queries and output 4 x 4 each, keys and values 4 x 2 each: 48; three matrices of 4 x 6: 72
    assert TINY.layer_weights == 120
    assert TINY.head_weights == 40
    assert TINY.kept_numbers == 4  # one head of keys and one of values, of 2 numbers


def test_tokens_of_a_workload():
    assert (PAIR.conversations, PAIR.sampled, PAIR.longest) == (2, 4, 5)
    assert PAIR.computed == 3 + 2 * 1  # the prompt once, and of two replies the token before the last
    turns = Shape(groups=1, group=2, prompt=3, reply=2, turns=2, observation=5)
    assert turns.longest == 3 + 2 + 5 + 2
    assert turns.computed == 3 + 2 * (2 + 5 + 1)


def test_operations_by_hand():
    # layers: 2 x 120 for each of 5 tokens. Attention: 16 for each pair of a query with a key or itself: 1 + 2 + 3 of
    # the prompt, 4 of each reply's first token. Output: 2 x 40 for each of 4 sampled tokens
    assert floor(TINY, PAIR).operations == 1200 + 16 * (6 + 2 * 4) + 320


def test_bytes_by_hand():
    # two steps read 160 weights each; the second also the keys and values (4 numbers) of 3 prompt tokens and one of
    # each reply
    assert floor(TINY, PAIR).bytes == 4 * (2 * 160 + 4 * (3 + 2))
    assert working_set(TINY, PAIR) == 4 * (160 + 4 * (3 + 2))


def test_a_shared_prompt_is_computed_and_read_once():
    alone = floor(TINY, Shape(groups=2, group=1, prompt=3, reply=2))
    together = floor(TINY, PAIR)
    # three tokens through the layers, six pairs of attention, and one reading of three tokens less
    assert alone.operations - together.operations == 2 * 120 * 3 + 16 * 6
    assert alone.bytes - together.bytes == 4 * 4 * 3


@pytest.mark.parametrize(("bytes_per_s", "seconds", "bound"), [(680.0, 2.0, "bytes"), (13600.0, 1.0, "arithmetic")])
def test_whatever_takes_longer_bounds(bytes_per_s, seconds, bound):
    speed = Speed(operations_per_s=1744.0, bytes_per_s=bytes_per_s)
    least = Floor(operations=1744.0, bytes=1360.0)
    assert (least.seconds(speed), least.bound(speed)) == (seconds, bound)
