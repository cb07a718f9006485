"""Sampling one step at a time over the cache gives what one forward pass over the whole conversation gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import SamplerError
from agentrl.policy.cache import ConversationCache
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.packing import count, pack
from agentrl.types import Sample

VOCABULARY = 13
SHAPE = TransformerShape(vocab_size=VOCABULARY, layers=2, width=16, heads=2, mlp_width=24, context=64)
MODEL = TinyTransformer(SHAPE, seed=1)


def full_logits(ids):
    """Logits (V,) after the last id, by the training forward."""
    ids = (*ids, 0)  # something to predict
    weights = (*[0.0] * (len(ids) - 1), 1.0)
    whole = Sample(
        token_ids=ids,
        weights={"ce": weights},
        logprobs=(None,) * len(ids),
        advantages=weights,
        trace_id="t",
        group_id="g",
    )
    with torch.inference_mode():
        return MODEL(pack([[whole]], count([whole]))).logits_KV[0]


def opened(prefixes, members):
    cache = ConversationCache(MODEL, prefixes, members)
    return cache, cache.prefill(prefixes)


def near(found, expected):
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)


token = st.integers(0, VOCABULARY - 1)
prefixes = st.lists(st.lists(token, min_size=1, max_size=5), min_size=1, max_size=3)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_chunks_for_any_conversations_give_the_full_forward(data):
    openings = data.draw(prefixes)
    members = data.draw(st.integers(1, 3))
    cache, logits = opened(openings, members)
    near(logits, torch.stack([full_logits(opening) for opening in openings]))
    said = {(g, n): list(openings[g]) for g in range(len(openings)) for n in range(members)}
    slot_of = {name: name for name in said}
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):  # some conversations end
            names = data.draw(st.lists(st.sampled_from(sorted(slot_of)), min_size=1, unique=True))
            slot_of = dict(zip(names, cache.keep([slot_of[name] for name in names]), strict=True))
        names = data.draw(st.lists(st.sampled_from(sorted(slot_of)), min_size=1, unique=True))
        new = [data.draw(st.lists(token, min_size=1, max_size=3)) for _ in names]
        logits = cache.advance([slot_of[name] for name in names], new)
        for name, ids, row in zip(names, new, logits, strict=True):
            said[name] += ids
            near(row, full_logits(said[name]))


def test_past_the_first_room_for_tokens():
    cache, _ = opened([[1, 2]], 1)
    ids = [3, 4, 5] * 15  # 45 tokens: the room of 32 has to grow
    for start in range(0, 45, 5):
        logits = cache.advance([(0, 0)], [ids[start : start + 5]])
    near(logits[0], full_logits([1, 2, *ids]))


def test_what_a_conversation_computes_is_not_moved_by_another_one():
    def second(first_ids):
        cache, _ = opened([[1, 2, 3], [4]], 2)
        cache.advance([(0, 0), (0, 1), (1, 0)], [first_ids, [5], [6, 7]])
        return cache.advance([(0, 1)], [[8, 9]])

    assert torch.equal(second([1]), second([12]))


def test_when_most_conversations_end_the_rest_moves_up_and_goes_on_as_before():
    def play(keep):
        cache, _ = opened([[1, 2], [3, 4, 5], [6]], 4)
        slots = [(g, n) for g in range(3) for n in range(4)]
        cache.advance(slots, [[g + 1, n] for g, n in slots])
        left = [(1, 3), (2, 0)]
        kept = cache.keep(left) if keep else left
        assert (kept == left) is not keep
        return cache, cache.advance(kept, [[7, 8], [9]])

    (small, moved), (large, stayed) = play(keep=True), play(keep=False)
    assert (small.groups, small.members) == (2, 1)
    assert (large.groups, large.members) == (3, 4)
    near(moved, stayed)
    near(moved[0], full_logits([3, 4, 5, 2, 3, 7, 8]))


def test_a_cache_that_is_mostly_in_use_is_left_alone():
    cache, _ = opened([[1], [2]], 2)
    assert cache.keep([(0, 0), (0, 1), (1, 1)]) == [(0, 0), (0, 1), (1, 1)]
    assert (cache.groups, cache.members) == (2, 2)


def test_more_than_the_context_is_refused_and_changes_nothing():
    with pytest.raises(SamplerError, match="65 tokens exceeds the context of 64"):
        opened([[1] * 65], 1)
    opening = [2] * 60
    cache, _ = opened([opening], 1)
    with pytest.raises(SamplerError, match="context of 64"):
        cache.advance([(0, 0)], [[3] * 5])
    near(cache.advance([(0, 0)], [[3] * 3])[0], full_logits([*opening, 3, 3, 3]))
    cache.advance([(0, 0)], [[3]])  # the 64th
    with pytest.raises(SamplerError, match="context of 64"):
        cache.advance([(0, 0)], [[3]])
