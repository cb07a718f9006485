"""Sampling one step at a time over the cache gives what one forward pass over the whole conversation gives."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import SamplerError
from agentrl.policy import cache as cache_module
from agentrl.policy import step as step_module
from agentrl.policy.cache import KeyValueCache, Piece, next_logits
from agentrl.policy.slots import SMALLEST, layer_shapes
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.packing import count, pack
from agentrl.types import Sample

VOCABULARY = 13
SHAPE = TransformerShape(vocab_size=VOCABULARY, layers=2, width=16, heads=2, mlp_width=24, context=257)
MODEL = TinyTransformer(SHAPE, seed=1)


@pytest.fixture(scope="module", autouse=True, params=["native", "torch"])
def way(request):
    """Who attends; on a machine without a compiler both are torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(cache_module, "attention_kernels", lambda *_: None)
        yield request.param


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


def near(found, expected):
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)


class Talk:
    """A prompt and a tail in a cache, and the ids in them."""

    def __init__(self, cache, prompt_ids, prompt=None):
        self.cache, self.ids = cache, list(prompt_ids)
        self.prompt, self.tail = prompt or cache.prompts.take(len(prompt_ids)), None

    def opening(self):
        return Piece(slot=self.prompt, prompt=None, token_ids=self.ids, previous_id=0, ends=True)

    def more(self, ids, *, ends=True):
        behind = (0 if self.tail is None else self.tail.length) + len(ids)
        tails = self.cache.tails
        self.tail = tails.take(behind) if self.tail is None else tails.moved(self.tail, behind)
        piece = Piece(slot=self.tail, prompt=self.prompt, token_ids=ids, previous_id=self.ids[-1], ends=ends)
        self.ids += ids
        return piece


def opened(prompts, members):
    cache = KeyValueCache(MODEL, sys.maxsize)
    first = [Talk(cache, prompt) for prompt in prompts]
    logits = cache.advance([talk.opening() for talk in first])
    others = [Talk(cache, talk.ids, talk.prompt) for talk in first for _ in range(members - 1)]
    return cache, first, first + others, logits


token = st.integers(0, VOCABULARY - 1)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_pieces_of_any_conversations_give_the_full_forward(data):
    prompts = data.draw(st.lists(st.lists(token, min_size=1, max_size=5), min_size=1, max_size=3))
    cache, first, talks, logits = opened(prompts, data.draw(st.integers(1, 4)))
    near(logits, torch.stack([full_logits(talk.ids) for talk in first]))
    for _ in range(data.draw(st.integers(1, 5))):
        if len(talks) > 1 and data.draw(st.booleans()):  # one ends; its slot is free for another
            gone = talks.pop(data.draw(st.integers(0, len(talks) - 1)))
            if gone.tail is not None:
                cache.tails.give_back(gone.tail)
        if data.draw(st.booleans()):
            cache.tails.shrink()
        chosen = data.draw(st.lists(st.sampled_from(talks), min_size=1, unique=True))
        new = [data.draw(st.lists(token, min_size=1, max_size=data.draw(st.sampled_from((1, 3, 70))))) for _ in chosen]
        asked = [data.draw(st.booleans()) for _ in chosen]
        pieces = [talk.more(ids, ends=ends) for talk, ids, ends in zip(chosen, new, asked, strict=True)]
        logits = cache.advance(pieces)
        expected = [full_logits(talk.ids) for talk, ends in zip(chosen, asked, strict=True) if ends]
        assert len(logits) == len(expected)
        for row, whole in zip(logits, expected, strict=True):
            near(row, whole)


def test_prompts_are_computed_in_pieces_beside_conversations_that_sample():
    cache, _, (talk,), _ = opened([[1, 2, 3]], 1)
    long = [5, 6, 7, 8] * 30
    slot = cache.prompts.take(len(long))
    for start in range(0, 120, 50):
        part = long[start : start + 50]
        before = long[start - 1] if start else 0
        piece = Piece(slot=slot, prompt=None, token_ids=part, previous_id=before, ends=start == 100)
        logits = cache.advance([piece, talk.more([start % 9])])
        near(logits[-1], full_logits(talk.ids))
    near(logits[0], full_logits(long))
    # Negative control: another token before a piece is noticed.
    other = cache.prompts.take(2)
    logits = cache.advance([Piece(slot=other, prompt=None, token_ids=[1, 2], previous_id=4, ends=True)])
    assert (logits[0] - full_logits([1, 2])).abs().max() > 1e-3


def test_a_tail_that_outgrows_its_slot_moves_and_goes_on():
    cache, _, (talk,), _ = opened([[1, 2]], 1)
    rooms = set()
    for start in range(0, 210, 7):
        logits = cache.advance([talk.more([start % 13, 3, 4, 5, 6, 7, 8])])
        rooms.add(talk.tail.bucket.room)
    near(logits[0], full_logits(talk.ids))
    assert rooms == {64, 128, 256}


def test_too_many_scores_are_cut_into_parts(monkeypatch):
    def play():
        _, _, talks, _ = opened([[1, 2, 3] * 20, [4] * 50], 3)
        return talks[0].cache.advance([talk.more([n, 2, 3]) for n, talk in enumerate(talks)]), talks

    whole, _ = play()
    monkeypatch.setattr(step_module, "MAX_SCORES", 2 * 64 * 3)  # of one slot: 2 heads, 3 queries, 64 keys
    parts, talks = play()
    near(parts, whole)
    near(parts, torch.stack([full_logits(talk.ids) for talk in talks]))
    assert talks[0].cache.widest(100) == 16


def test_what_a_conversation_computes_is_not_moved_by_another_one():
    def second(first_ids):
        cache, _, (a, b, *_), _ = opened([[1, 2, 3], [4]], 2)
        cache.advance([a.more(first_ids), b.more([5])])
        return cache.advance([b.more([8, 9])])

    assert torch.equal(second([1]), second([12]))


def test_more_than_the_context_is_refused_and_changes_nothing():
    cache, _, (talk,), _ = opened([[2] * 253], 1)
    with pytest.raises(SamplerError, match="258 tokens exceeds the network's context of 257"):
        cache.advance([talk.more([3] * 5)])
    del talk.ids[-5:]
    near(cache.advance([talk.more([3] * 3)])[0], full_logits([2] * 253 + [3] * 3))
    cache.advance([talk.more([3])])  # the 257th
    with pytest.raises(SamplerError, match="context of 257"):
        cache.advance([talk.more([3])])


def test_logits_of_whole_sequences():
    sequences = [[1, 2, 3], [4], [5, 6]]
    near(next_logits(MODEL, sequences), torch.stack([full_logits(ids) for ids in sequences]))


def test_shapes_are_found_out_with_one_token():
    shapes, like, logits_bytes = layer_shapes(MODEL)
    assert [(s.heads, s.key_width, s.value_width, s.query_heads) for s in shapes] == [(2, 8, 8, 2)] * 2
    assert like.dtype == torch.float32
    assert logits_bytes == VOCABULARY * 4
    # 2 layers x 2 heads x (8 + 8) numbers x 4 bytes, and for a copy the keys of a layer again
    assert KeyValueCache(MODEL, sys.maxsize).bytes_per_token == 2 * 2 * 16 * 4 + 2 * 8 * 4


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.03), (torch.float32, 1e-5)])
def test_scores_are_not_rounded_before_their_exponential(dtype, most):
    """Scores around 20 would be multiples of 1/8 in bfloat16, and weights wrong by 6 %."""
    generator = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(2, 3, n, 16, generator=generator).to(dtype) for n in (4, 50, 50))
    q, hidden = 3 * q, torch.zeros(2, 1, 4, 50)
    hidden[..., 40:] = -1e30
    out, log_sum = step_module._attend(q, keys, values, hidden.expand(-1, -1, 4, -1))
    scores = q.double() @ keys.double().transpose(2, 3) + hidden
    torch.testing.assert_close(log_sum.double(), scores.logsumexp(-1), rtol=0.0, atol=1e-4)
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ values.double(), rtol=0.0, atol=most)
    # Negative control: scores of the type itself.
    rounded = (q @ keys.transpose(2, 3) + hidden.to(dtype)).double().logsumexp(-1)
    assert ((rounded - scores.logsumexp(-1)).abs().max() > 1e-2) == (dtype == torch.bfloat16)


def speaking(number=2, *, already=3):
    """A cache whose last step gave one more token to each of some conversations of one prompt."""
    cache, _, talks, _ = opened([[1, 2, 3]], number)
    for n in range(already):
        cache.advance([talk.more([(n + place) % VOCABULARY]) for place, talk in enumerate(talks)])
    return cache, talks


def go_on(cache, talks, n):
    ids = [(n + 5 * place) % VOCABULARY for place in range(len(talks))]
    for talk, token in zip(talks, ids, strict=True):
        talk.ids.append(token)
    near(cache.go_on(ids), torch.stack([full_logits(talk.ids) for talk in talks]))


def test_a_step_is_followed_by_others_until_a_slot_is_full():
    cache, talks = speaking()
    steps = 0
    while cache.can_go_on:
        go_on(cache, talks, steps)
        steps += 1
    assert steps == SMALLEST - 3
    assert [talk.tail.length for talk in talks] == [SMALLEST] * 2
    near(cache.advance([talk.more([4]) for talk in talks]), torch.stack([full_logits(talk.ids) for talk in talks]))
    assert cache.can_go_on  # in larger slots


def test_nothing_is_laid_out_again_meanwhile(monkeypatch):
    cache, talks = speaking()

    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(type(cache._last), "__init__", refuse)
    for n in range(5):
        go_on(cache, talks, n)
    with pytest.raises(AssertionError):
        cache.advance([talks[0].more([1])])
    assert not cache.can_go_on  # a step that failed is not followed


def prompts_grow(cache, _):
    for _ in range(9):
        cache.prompts.take(3)


def tails_move(cache, talks):
    cache.tails.give_back(talks[0].tail)
    cache.tails.shrink()


@pytest.mark.parametrize(
    "change",
    [
        lambda cache, talks: cache.advance([talks[0].more([1, 2])]),  # two tokens
        lambda cache, talks: cache.advance([talk.more([1], ends=talk is talks[0]) for talk in talks]),
        lambda cache, talks: cache.tails.cut(talks[1].tail, 2),
        lambda cache, talks: cache.tails.give_back(talks[1].tail),
        tails_move,
        prompts_grow,
    ],
    ids=["two tokens", "one is not asked", "cut", "given back", "elsewhere", "prompts elsewhere"],
)
def test_after_a_change_no_step_is_followed(change):
    cache, talks = speaking()
    assert cache.can_go_on
    change(cache, talks)
    assert not cache.can_go_on


def test_a_cut_that_cuts_nothing_changes_nothing():
    cache, talks = speaking()
    cache.tails.cut(talks[0].tail, 3)
    assert cache.can_go_on
    assert not KeyValueCache(MODEL, sys.maxsize).can_go_on  # there is no step before


def test_a_step_beyond_the_context_is_refused_there_too():
    cache, _, (talk,), _ = opened([[2] * 254], 1)
    cache.advance([talk.more([3])])
    go_on(cache, [talk], 1)
    cache.go_on([1])  # the 257th
    with pytest.raises(SamplerError, match="258 tokens exceeds the network's context of 257"):
        cache.go_on([1])
    assert not cache.can_go_on
    assert talk.tail.length == 3
