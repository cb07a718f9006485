"""From samples to tensors: what is laid out where, what is counted, and what is refused."""

import math
from collections.abc import Mapping
from dataclasses import is_dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import TrainerError
from agentrl.train.packing import count, micro_batches, pack, shared_prefix
from agentrl.types import Sample


def sample(ids, flags, group="g", trace="t", **lists):
    """A sample whose logprob at position t is -t/10 and whose advantage is t/100."""
    values = {
        "logprobs": tuple(-t / 10 if flag else None for t, flag in enumerate(flags)),
        "advantages": tuple(t / 100 for t in range(len(ids))),
        "weights": {"pg": tuple(map(float, flags))},
    }
    return Sample(token_ids=tuple(ids), trace_id=trace, group_id=group, **(values | lists))


FIRST = sample([5, 6, 7, 8, 9], [0, 0, 1, 0, 1])
SECOND = sample([5, 6, 4, 3], [0, 0, 0, 1])
OTHER = sample([1, 2], [0, 1], group="h")


def continuations(batch):
    """Flat places and group of every continuation, in the order in which they were laid out."""
    found = [
        (row[filled], int(group))
        for bucket in batch.buckets
        for row, filled, group in zip(bucket.index_RT, bucket.mask_RT, bucket.group_R, strict=True)
    ]
    return sorted(found, key=lambda pair: int(pair[0][0]))


def test_continuations_of_like_length_share_a_bucket():
    samples = [sample([1] + [2] * own, [0, *([1] * own)]) for own in (4, 5, 40, 44, 90)]
    batch = pack([samples], count(samples))
    # A bucket takes lengths up to 1.25 times its shortest and 6 more: 4..11, 40..56, 90.
    assert [tuple(bucket.index_RT.shape) for bucket in batch.buckets] == [(2, 5), (2, 44), (1, 90)]
    assert [int(bucket.mask_RT.sum()) for bucket in batch.buckets] == [9, 84, 90]


def test_a_small_batch_number_by_number():
    batch = pack([[FIRST, SECOND], [OTHER]], count([FIRST, SECOND, OTHER]))
    # 5 6 are shared; 7 8 9 and 4 3 continue them; the second group shares 1 and adds 2.
    assert batch.token_ids_M.tolist() == [5, 6, 7, 8, 9, 4, 3, 1, 2]
    assert batch.previous_ids_M.tolist() == [0, 5, 6, 7, 8, 6, 4, 0, 1]
    assert batch.positions_M.tolist() == [0, 1, 2, 3, 4, 2, 3, 0, 1]
    assert batch.prefix_index_GP[batch.prefix_mask_GP].tolist() == [0, 1, 7]
    assert batch.prefix_mask_GP.tolist() == [[True, True], [True, False]]
    assert [places.tolist() for places, _ in continuations(batch)] == [[2, 3, 4], [5, 6], [8]]
    assert [group for _, group in continuations(batch)] == [0, 0, 1]
    # 7 is predicted by the last shared token, 9 by 8, 3 by 4, 2 by 1.
    assert batch.target_K.tolist() == [7, 9, 3, 2]
    assert batch.predictor_K.tolist() == [1, 3, 5, 7]
    assert batch.token_ids_M[batch.predictor_K].tolist() == [6, 8, 4, 1]
    assert batch.sequence_K.tolist() == [0, 0, 1, 2]
    assert batch.old_logprobs_K.tolist() == pytest.approx([-0.2, -0.4, -0.3, -0.1])
    assert batch.advantages_K.tolist() == pytest.approx([0.02, 0.04, 0.03, 0.01])
    assert batch.weights_K["pg"].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert (batch.counts.tokens, batch.counts.sequences, batch.counts.groups) == (11, 3, 2)
    assert batch.counts.weight == {"pg": 4.0}


def test_nothing_is_shared_past_the_first_trained_token():
    # Both rows are 5 6 7, but 6 is trained in the second: only 5 is laid out once.
    batch = pack([[sample([5, 6, 7], [0, 0, 1]), sample([5, 6, 7], [0, 1, 1])]], count([]))
    assert batch.token_ids_M.tolist() == [5, 6, 7, 6, 7]


def test_samples_that_share_nothing_lie_side_by_side():
    batch = pack([[sample([5, 6], [0, 1]), sample([4, 3, 2], [0, 1, 1])]], count([]))
    assert batch.prefix_index_GP.shape == (1, 0)
    assert batch.token_ids_M.tolist() == [5, 6, 4, 3, 2]
    assert batch.previous_ids_M.tolist() == [0, 5, 0, 4, 3]
    assert batch.token_ids_M[batch.predictor_K].tolist() == [5, 4, 3]


def test_each_objective_has_its_own_weights_and_a_sample_may_lack_one():
    both = sample([1, 2, 3], [0, 0, 0], weights={"pg": (0.0, 0.5, 0.0), "ce": (0.0, 0.0, 2.0)})
    batch = pack([[OTHER], [both]], count([OTHER, both]))
    assert batch.target_K.tolist() == [2, 2, 3]
    assert {name: weights.tolist() for name, weights in batch.weights_K.items()} == {
        "pg": [1.0, 0.5, 0.0],
        "ce": [0.0, 0.0, 2.0],
    }
    assert batch.counts.weight == {"pg": 1.5, "ce": 2.0}


def test_a_token_without_a_logprob_gets_no_made_up_number():
    demonstration = sample([1, 2], [0, 1], logprobs=(None, None), weights={"ce": (0.0, 1.0)})
    batch = pack([[demonstration]], count([demonstration]))
    assert math.isnan(batch.old_logprobs_K.item())


@pytest.mark.parametrize("limit", [1, 3, 8, 9, 100])
def test_every_micro_batch_carries_the_counts_of_the_whole_step(limit):
    samples = [FIRST, OTHER, SECOND]
    batches = list(micro_batches(samples, max_tokens=limit))
    assert len(batches) == (1 if limit >= 9 else 2)  # nine tokens lie on the flat axis
    assert {(b.counts.tokens, b.counts.sequences, b.counts.groups, b.counts.weight["pg"]) for b in batches} == {
        (11, 3, 2, 4.0)
    }
    assert sorted(token for batch in batches for token in batch.target_K.tolist()) == [2, 3, 7, 9]


def test_what_trains_nothing_is_not_computed_but_is_counted():
    context = sample([9, 9, 9], [0, 0, 0], group="context")
    (batch,) = micro_batches([context, OTHER, context], max_tokens=100)
    assert batch.token_ids_M.tolist() == [1, 2]
    assert (batch.counts.sequences, batch.counts.groups) == (3, 2)
    assert list(micro_batches([context], max_tokens=1)) == []
    with pytest.raises(TrainerError, match="trained token"):
        pack([[context]], count([context]))


@pytest.mark.parametrize(
    ("lists", "named"),
    [
        ({"logprobs": (None,)}, "logprobs has 1 entries for 2"),
        ({"advantages": (0.0, 0.0, 0.0)}, "advantages has 3 entries for 2"),
        ({"weights": {"pg": (0.0, 1.0), "kl": (1.0,)}}, r"weights\['kl'\] has 1 entries for 2"),
        ({"weights": {"pg": (1.0, 1.0)}}, "first token is trained"),
    ],
)
def test_misaligned_samples_are_refused_by_the_name_of_their_trace(lists, named):
    bad = sample([1, 2], [0, 1], trace="run-3-1", **lists)
    with pytest.raises(TrainerError, match=f"trace run-3-1: .*{named}"):
        list(micro_batches([OTHER, bad], max_tokens=100))


rows = st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=8), min_size=1, max_size=4)


@given(rows, st.integers(1, 6))
def test_the_shared_prefix_is_the_longest_within_the_limit(rows, limit):
    expected = 0
    while expected < limit and len({row[expected] for row in rows}) == 1:
        expected += 1
    assert shared_prefix([np.array(row) for row in rows], limit) == expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_sequence_can_be_read_back_from_the_flat_axis(data):
    """Prefix then own tokens give each sample's ids, and each predictor stands right before its target."""
    groups = []
    for name in data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)):
        tails = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=6), min_size=1, max_size=3))
        common = data.draw(st.lists(st.integers(0, 2), max_size=3))
        made = [sample([*common, *tail], [0, *([0] * len(common)), *([1] * (len(tail) - 1))], name) for tail in tails]
        groups.append(made)
    batch = pack(groups, count([s for group in groups for s in group]))
    targets, sequence = [], 0
    own = continuations(batch)
    for g, group in enumerate(groups):
        prefix = batch.prefix_index_GP[g][batch.prefix_mask_GP[g]]
        for member in group:
            assert own[sequence][1] == g
            places = torch.cat((prefix, own[sequence][0]))
            assert tuple(batch.token_ids_M[places].tolist()) == member.token_ids
            assert batch.previous_ids_M[places].tolist() == [0, *member.token_ids[:-1]]
            assert batch.positions_M[places].tolist() == list(range(len(member.token_ids)))
            trained = np.flatnonzero(member.weights["pg"])
            assert batch.predictor_K[batch.sequence_K == sequence].tolist() == places[trained - 1].tolist()
            targets += [member.token_ids[t] for t in trained]
            sequence += 1
    assert batch.target_K.tolist() == targets


def tensors_of(value):
    """All tensors in a batch, wherever it holds them."""
    if isinstance(value, torch.Tensor):
        yield value
    for part in vars(value).values() if is_dataclass(value) else value.values() if isinstance(value, Mapping) else ():
        yield from tensors_of(part)
    for part in value if isinstance(value, tuple) else ():
        yield from tensors_of(part)


def test_a_batch_moves_to_a_device_whole():
    support = (None, None, (7, 3), None, (9,))
    batch = pack(
        [[replace(FIRST, importance=(1.0,) * 5, support=support), SECOND], [OTHER]], count([FIRST, SECOND, OTHER])
    )
    moved = batch.to(torch.device("meta"))  # has shapes and no numbers
    before, after = list(tensors_of(batch)), list(tensors_of(moved))
    assert {tensor.device.type for tensor in after} == {"meta"}
    assert [(tensor.shape, tensor.dtype) for tensor in after] == [(tensor.shape, tensor.dtype) for tensor in before]
    # Sixteen fields of the batch, a weight, three of each of its buckets, four of the support.
    assert len(after) == 16 + 1 + 3 * len(batch.buckets) + 4
    assert moved.counts == batch.counts
    assert batch.to(torch.device("cpu")) is batch
