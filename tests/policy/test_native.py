"""What is compiled gives the numbers of torch."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.policy import native_step
from agentrl.policy.native import Turns, kernels
from agentrl.policy.native_step import NativeStep, attention_kernels
from agentrl.policy.slots import Budget, LayerShape, Pool
from agentrl.policy.step import Piece, Step

pytestmark = pytest.mark.skipif(kernels(8) is None, reason="this machine has no C compiler")


@pytest.fixture(scope="module", autouse=True)
def inference():
    with torch.inference_mode():
        yield


def near(found, expected, most=2e-6):
    torch.testing.assert_close(found.double(), expected.double(), rtol=most, atol=most)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("added", [True, False])
def test_the_norm_of_a_sum(added):
    x, y, weight = normal(5, 37), normal(5, 37, seed=1), normal(37, seed=2)
    whole = (x + y if added else x).double()
    expected = whole / (whole.square().mean(1, keepdim=True) + 1e-3).sqrt() * weight
    near(kernels(8).add_norm(x, y if added else None, weight, 1e-3), expected)
    near(x, whole)  # in place


@pytest.mark.parametrize("normed", [True, False])
def test_heads_are_normed_scaled_and_turned_to_their_positions(normed):
    x, weight = normal(3, 2, 8), normal(8, seed=1) if normed else None
    angle = normal(50, 4, seed=2)
    cosines, sines = (torch.cat((part, part), 1) for part in (angle.cos(), angle.sin()))
    positions = torch.tensor([0, 49, 7])
    whole = x.double()
    if normed:
        whole = whole / (whole.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    low, high = (0.25 * whole).split(4, -1)
    at = positions[:, None]
    expected = whole * 0.25 * cosines[at].double() + torch.cat((-high, low), -1) * sines[at].double()
    turns = Turns(positions_M=positions, cosines_TE=cosines, sines_TE=sines)
    kernels(8).rotate(x, weight, 1e-5, 0.25, turns)
    near(x, expected)


def test_the_gate_at_any_size_of_its_input():
    x = torch.tensor([-1e30, -200.0, -100.0, -88.0, -20.0, -1.0, -1e-30, 0.0, 1e-30, 1.0, 20.0, 88.0, 100.0, 1e30])
    y, before = torch.full_like(x, 2.0), x.double()
    kernels(8).gate(x, y)
    near(x, 2 * before * torch.sigmoid(before), 1e-6)
    unknown = torch.tensor([float("nan"), 1.0])
    kernels(8).gate(unknown, torch.ones(2))
    assert unknown.isnan().tolist() == [True, False]


def steps(heads, queries, width, lengths, *, seed=0):
    """Both kinds of a step, and queries, keys and values for it.

    Args:
        lengths: of prompts, and for each the (length, new tokens) of its tails; a prompt of 0 is none.
    """
    shape = LayerShape(heads=heads, key_width=width, value_width=width, query_heads=queries)
    pool, pieces = Pool([shape], torch.zeros(0), Budget(2**40)), []
    for prompt_length, tails in lengths:
        prompt = pool.take(prompt_length) if prompt_length else None
        if prompt:
            prompt.length = prompt_length
        for length, new in tails:
            slot = pool.take(length + new)
            slot.length = length
            pieces.append(Piece(slot=slot, prompt=prompt, token_ids=[3] * new, previous_id=1, ends=True))
    generator = torch.Generator().manual_seed(seed)
    for bucket in pool.buckets.values():
        for x in bucket.layers[0]:
            x.normal_(generator=generator)
    pieces = [pieces[n] for n in torch.randperm(len(pieces), generator=generator).tolist()]
    tokens = sum(len(piece.token_ids) for piece in pieces)
    q, k, v = (normal(tokens, count, width, seed=n) for n, count in enumerate((queries, heads, heads)))
    q *= width**-0.5
    ours = NativeStep(pieces, kernels(width), key_numbers=queries * width)
    theirs = Step(pieces, query_heads=queries, device=torch.device("cpu"))
    return ours, theirs, (q, k, v), pool


tail = st.tuples(st.integers(0, 140), st.sampled_from((1, 1, 1, 2, 3, 17, 70)))
prompts = st.tuples(st.sampled_from((0, 1, 2, 63, 64, 65, 200)), st.lists(tail, min_size=1, max_size=9))


@settings(max_examples=25)
@given(
    st.sampled_from(((1, 1), (2, 4), (2, 6), (4, 4), (1, 16), (2, 34))),
    st.sampled_from((8, 16, 24, 32)),
    st.lists(prompts, min_size=1, max_size=3),
    st.sampled_from((None, 1, 5, 66, 1000)),
    st.sampled_from((1, 3)),
    st.integers(0, 99),
)
def test_attention_of_any_tokens_over_any_slots(heads, width, lengths, window, threads, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_step, "WORTH_A_THREAD", 2**10)
        patch.setattr(native_step.torch, "get_num_threads", lambda: threads)
        ours, theirs, qkv, pool = steps(*heads, width, lengths, seed=seed)
    for name in ("ids_M", "previous_M", "positions_M", "last_B"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist(), name
    assert (ours.longest, ours.num_tokens) == (theirs.longest, theirs.num_tokens)
    found = ours.attend(0, *qkv, window=window)
    kept = {room: [x.clone() for x in bucket.layers[0]] for room, bucket in pool.buckets.items()}
    expected = theirs.attend(0, *qkv, window=window)
    near(found, expected, 1e-5)
    for room, bucket in pool.buckets.items():  # both put the same keys and values into the same places
        assert all(torch.equal(x, y) for x, y in zip(kept[room], bucket.layers[0], strict=True))


def test_threads_share_the_tokens_by_what_they_see(monkeypatch):
    monkeypatch.setattr(native_step.torch, "get_num_threads", lambda: 4)
    many = [(0, [(0, 300)])]
    ours = steps(2, 4, 32, many)[0]
    assert ours.places.parts == [(0, 300)]  # 300 * 301 / 2 keys of 128 numbers are no work for two
    monkeypatch.setattr(native_step, "WORTH_A_THREAD", 2**16)
    parts = steps(2, 4, 32, many)[0].places.parts
    # n (n + 1) / 2 keys are seen by the first n tokens; 11287.5, 22575 and 33862.5 are a quarter, half, three quarters
    assert parts == [(0, 149), (149, 211), (211, 259), (259, 300)]


def test_large_scores_do_not_overflow_and_what_is_no_number_stays_with_its_conversation():
    ours, theirs, (q, k, v), _ = steps(2, 4, 16, [(70, [(3, 1)] * 8), (0, [(5, 1), (80, 20)])])
    near(ours.attend(0, 300 * q, k, v), theirs.attend(0, 300 * q, k, v), 1e-4)
    k[2] = float("nan")
    found = ours.attend(0, q, k, v)
    assert found[2].isnan().all()
    order, _, piece, *_ = ours.places.table.tolist()
    piece_of = dict(zip(order, piece, strict=True))
    others = [row for row in order if piece_of[row] != piece_of[2]]
    assert len(others) >= 8
    assert found[others].isfinite().all()


def test_strides_of_queries_keys_and_values():
    ours, theirs, (q, k, v), _ = steps(4, 4, 16, [(70, [(3, 1)] * 3)])
    both = torch.stack((q, k, v), 1)
    near(ours.attend(0, *both.unbind(1)), theirs.attend(0, q, k, v), 1e-5)
    turned = q.transpose(0, 1).contiguous().transpose(0, 1)
    near(ours.attend(0, turned, k, v), theirs.attend(0, q, k, v), 1e-5)
    near(ours.attend(0, q.double(), k, v), theirs.attend(0, q, k, v), 1e-5)


def test_what_a_module_gives_otherwise_is_put_in_order_first():
    x, y = normal(4, 6), normal(4, 6, seed=1)
    expected = torch.nn.functional.silu(x) * y
    near(kernels(8).gate(x.double().T.contiguous().T, y.T.contiguous().T), expected)
    near(
        kernels(8).add_norm(torch.zeros(4, 6), x.half(), torch.ones(6), 0.0),
        kernels(8).add_norm(x, None, torch.ones(6), 0.0),
        1e-3,
    )


def test_other_layers_are_left_to_torch():
    def asked(like=None, **sizes):
        shape = {"heads": 2, "key_width": 16, "value_width": 16, "query_heads": 4} | sizes
        return attention_kernels([LayerShape(**shape)], torch.zeros(0) if like is None else like)

    assert asked() is not None
    assert asked(key_width=32) is None  # values of another width
    assert asked(key_width=12, value_width=12) is None
    assert asked(key_width=264, value_width=264) is None
    assert asked(torch.zeros(0, dtype=torch.bfloat16)) is None
    assert asked(torch.zeros(0, device="meta")) is None


@pytest.mark.parametrize("fault", ["a tenth", "the first token", "keys left out"])
def test_functions_that_give_other_numbers_are_not_taken(fault, monkeypatch):
    """A compiler may be wrong."""
    wrong = copy.copy(kernels(16))
    right = wrong.attend

    def attend(places, layer, q, k, v, window):
        if fault == "keys left out":
            places.table[6] -= places.table[6].clamp(max=1)  # every prompt a token shorter
        out = right(places, layer, q, k, v, window)
        if fault == "a tenth":
            return out * 1.1
        if fault == "the first token":
            out[0] = out[1]
        return out

    monkeypatch.setattr(native_step, "kernels", lambda _: wrong)
    shape = LayerShape(heads=2, key_width=16, value_width=16, query_heads=4)
    assert attention_kernels([shape], torch.zeros(0)) is wrong
    native_step._agree.cache_clear()
    wrong.attend = attend
    assert attention_kernels([shape], torch.zeros(0)) is None
    native_step._agree.cache_clear()
