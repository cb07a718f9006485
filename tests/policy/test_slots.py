"""Slots: who lies where, what moves, and that the budget holds."""

import random

import pytest
import torch

from agentrl.policy.slots import Budget, CacheFull, LayerShape, Pool, copy

SHAPES = [LayerShape(heads=2, key_width=3, value_width=5, query_heads=4)] * 2
BYTES = 2 * 2 * (3 + 5) * 4  # layers, heads, widths, bytes of a number: a token


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
    sizes = {pool.take(1).bucket.rows for _ in range(700)}
    # by twos; then there is no memory for 512 more, nor for 256, but for 128; for 640 / 16, 680 / 64 and 690 / 64
    assert sorted(sizes) == [4, 8, 16, 32, 64, 128, 256, 512, 640, 680, 690, 700]
    assert pool.budget.used == 700 * 64 * BYTES


def test_two_pools_share_a_budget():
    budget = Budget(5 * 64 * BYTES)
    one, two = Pool(SHAPES, torch.zeros(0), budget), Pool(SHAPES, torch.zeros(0), budget)
    kept = [one.take(1) for _ in range(4)]
    two.take(1)
    with pytest.raises(CacheFull):
        two.take(1)
    one.give_back(kept[0])
    one.shrink()
    assert two.take(1).row == 1


def test_copies_take_the_first_tokens():
    pool = make_pool()
    source, to = pool.take(10), pool.take(100)
    write(source, 3, 10)
    write(to, 4, 20)
    copy(source, to, 6)
    assert (to.length, held(to)) == (6, 3.0)
    to.length = 20
    assert to.bucket.layers[1].values[to.row, 1, :, 0].tolist()[:20] == [3.0] * 6 + [4.0] * 14
