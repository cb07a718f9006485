"""Slots: who lies where, what moves, and that the budget holds."""

import gc
import random
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.loops.footprint.live import LiveBytes
from agentrl.policy.slots import Budget, CacheFull, LayerShape, Pool, copy

SHAPES = [LayerShape(heads=2, key_width=3, value_width=5, query_heads=4)] * 2
HELD = 2 * 2 * (3 + 5) * 4  # layers, heads, widths, bytes of a number: a token
BYTES = HELD + 2 * 5 * 4  # and the values of a layer once more, for a copy


def make_pool(limit=10**9):
    return Pool(SHAPES, torch.zeros(0), Budget(limit))


@torch.inference_mode()
def write(slot, value, length=None):
    slot.length = slot.bucket.room if length is None else length
    for layer in slot.bucket.layers:
        for x in layer:
            x[slot.row, :, : slot.length] = float(value)


def held(slot):
    found = {v for layer in slot.bucket.layers for x in layer for v in x[slot.row, :, : slot.length].unique().tolist()}
    assert len(found) == 1
    return found.pop()


def test_room_is_the_power_of_two_that_holds_what_is_asked_for():
    pool = make_pool()
    assert [pool.take(n).bucket.room for n in (1, 64, 65, 128, 129, 1000)] == [64, 64, 128, 128, 256, 1024]
    assert pool.bytes_per_token == BYTES
    assert pool.held == pool.budget.used * HELD // BYTES


def test_the_lowest_free_row_is_taken():
    pool = make_pool()
    slots = [pool.take(1) for _ in range(6)]
    assert [slot.row for slot in slots] == list(range(6))
    pool.give_back(slots[4])
    pool.give_back(slots[1])
    assert [pool.take(1).row for _ in range(3)] == [1, 4, 6]


def test_what_is_held_stays_through_growth_moves_and_shrinking():
    pool, rng = make_pool(), random.Random(0)
    slots = {}
    for value in range(400):
        act = rng.random()
        if act < 0.5 or not slots:
            slots[value] = pool.take(rng.randint(1, 200))
            write(slots[value], value)
        elif act < 0.7:
            pool.give_back(slots.pop(rng.choice(list(slots))))
        elif act < 0.85:
            name = rng.choice(list(slots))
            slots[name] = pool.moved(slots[name], rng.randint(1, 400))
        else:
            pool.shrink()
        assert all(held(slot) == name for name, slot in slots.items())
        assert pool.budget.used == sum(b.rows * b.room * BYTES for b in pool.buckets.values())
    pool.shrink()
    assert pool.budget.used == sum(slot.bucket.room * BYTES for slot in slots.values())
    for slot in slots.values():
        pool.give_back(slot)
    pool.shrink()
    assert (pool.budget.used, pool.buckets) == (0, {})


def test_the_budget_is_kept_to_the_last_row():
    pool = make_pool(limit=7 * 64 * BYTES + 5)
    slots = [pool.take(1) for _ in range(7)]  # four rows, then one at a time
    with pytest.raises(CacheFull):
        pool.take(1)
    assert pool.budget.used == 7 * 64 * BYTES
    write(slots[3], 9)
    with pytest.raises(CacheFull):
        pool.moved(slots[3], 65)
    assert held(slots[3]) == 9.0
    pool.give_back(slots[0])
    assert pool.take(1).row == 0


def test_a_bucket_fills_its_memory_in_few_steps():
    """Each step copies all rows."""
    pool = make_pool(limit=700 * 64 * BYTES)
    slots, sizes = [], set()
    for _ in range(700):
        slots.append(pool.take(1))
        sizes.add(slots[-1].bucket.rows)
    # by twos; then there is no memory for 512 more, nor for 256, but for 128; for 640 / 16, 680 / 64 and 690 / 64
    assert sorted(sizes) == [4, 8, 16, 32, 64, 128, 256, 512, 640, 680, 690, 700]
    assert pool.budget.used == 700 * 64 * BYTES


@pytest.mark.parametrize(("limit", "rows"), [(2 * (16 * 64 + 9 * 128), 9), (2 * (16 * 64 + 9 * 128) - 1, 4)])
def test_slots_that_grow_together_get_their_rows_at_once_where_memory_is_plenty(limit, rows):
    pool = make_pool(limit=limit * BYTES)
    slots = [pool.take(1) for _ in range(9)]
    assert pool.buckets[64].rows == 16
    pool.moved(slots[0], 65)
    assert pool.buckets[128].rows == rows


def test_two_pools_share_a_budget():
    budget = Budget(5 * 64 * BYTES)
    one, two = Pool(SHAPES, torch.zeros(0), budget), Pool(SHAPES, torch.zeros(0), budget)
    kept = [one.take(1) for _ in range(4)]
    other = two.take(1)
    with pytest.raises(CacheFull):
        two.take(1)
    one.give_back(kept[0])
    one.shrink()
    assert (other.row, two.take(1).row) == (0, 1)


ACTS = st.lists(st.tuples(st.sampled_from(("take", "move", "give back", "shrink")), st.integers(1, 400)), max_size=60)


def played(pool, acts):
    """Take, move and give back slots as far as there is memory; the most bytes of tensors that were there at once."""
    slots = []
    with LiveBytes() as live:
        for act, number in acts:
            try:
                if act == "take":
                    slots.append(pool.take(number))
                elif act == "shrink":
                    pool.shrink()
                elif slots and act == "move":
                    slots.append(pool.moved(slots.pop(0), number))
                elif slots:
                    pool.give_back(slots.pop(number % len(slots)))
            except CacheFull:
                pool.shrink()
    return live.peak


@settings(max_examples=60, deadline=None)
@given(ACTS, st.integers(1, 40))
def test_at_no_moment_is_there_more_than_the_budget(acts, rows):
    limit = rows * 64 * BYTES
    assert played(make_pool(limit), acts) <= limit


def test_what_is_copied_is_there_twice_for_a_moment_and_paid_for():
    pool = make_pool(limit=8 * 64 * BYTES)
    peak = played(pool, [("take", 1)] * 9)  # 4 rows, then 8: the budget is used up
    assert pool.held == 8 * 64 * HELD
    # keys 2 * 3 numbers of 4 bytes, values 2 * 5, in two layers; of the last one the 4 old rows are there still
    assert peak == 8 * 64 * HELD + 4 * 64 * 2 * 5 * 4 > 8 * 64 * HELD
    assert peak <= pool.budget.limit


def test_fewer_slots_need_a_moment_of_room_too():
    with LiveBytes() as live:
        pool = make_pool(limit=8 * 64 * BYTES)
        slots = [pool.take(1) for _ in range(8)]
        pool.give_back(slots[0])
        live.peak = live.now
        pool.shrink()
    # the keys of a layer have one row less by then, and 7 rows of its values lie beside the old 8
    assert live.peak == 8 * 64 * HELD - 64 * 2 * 3 * 4 + 7 * 64 * 2 * 5 * 4 <= pool.budget.limit
    assert live.now == 7 * 64 * HELD


def test_a_pool_that_is_let_go_goes_at_once():
    """A slot knows its bucket and a bucket its slots; no collector is needed to free them."""
    gc.collect()
    gc.disable()
    try:
        pool = make_pool()
        slots = [pool.take(length) for length in (1, 100, 200)]
        tensors = [weakref.ref(x) for bucket in pool.buckets.values() for layer in bucket.layers for x in layer]
        del pool
        assert all(x() is not None for x in tensors)  # the slots are held
        del slots
        assert all(x() is None for x in tensors)
    finally:
        gc.enable()


def test_copies_take_the_first_tokens():
    pool = make_pool()
    source, to = pool.take(10), pool.take(100)
    write(source, 3, 10)
    write(to, 4, 20)
    copy(source, to, 6)
    assert (to.length, held(to)) == (6, 3.0)
    to.length = 20
    assert to.bucket.layers[1].values[to.row, 1, :, 0].tolist()[:20] == [3.0] * 6 + [4.0] * 14
