"""The packed, prefix-shared forward and backward against one sequence at a time with a full causal mask."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.policy.transformer import TinyTransformer, TransformerShape, rotary_table
from agentrl.train.packing import count, micro_batches, pack
from agentrl.types import Sample

VOCABULARY = 11
SHAPE = TransformerShape(vocab_size=VOCABULARY, layers=2, width=16, heads=2, mlp_width=24, context=40)
MODEL = TinyTransformer(replace(SHAPE, value_head=True), seed=3).double()


def plain_hidden(model, ids):
    """The definition, one sequence, no sharing: (T, D) after the last normalisation."""
    heads, width = model.shape.heads, model.shape.head_width

    def norm(x, weight):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

    def turn(x):
        frequency = 100.0 ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
        angle = (torch.arange(len(ids), dtype=x.dtype)[:, None] * frequency)[:, None, :]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), -1
        ).flatten(-2)

    ids = torch.tensor(ids)
    hidden = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    x = model.embedding.weight[ids] + model.previous.weight[torch.cat((torch.tensor([0]), ids[:-1]))]
    for block in model.blocks:
        q, k, v = (norm(x, block.norm_attention) @ block.qkv.weight.T).view(-1, 3, heads, width).unbind(1)
        scores = torch.einsum("qhe,khe->hqk", turn(q), turn(k)) / math.sqrt(width)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        x = x + torch.einsum("hqk,khe->qhe", weights, v).flatten(1) @ block.out.weight.T
        x = x + (norm(x, block.norm_mlp) @ block.up.weight.T).relu().square() @ block.down.weight.T
    return norm(x, model.norm)


def plain_logprobs(model, sample):
    """Log-probability of every token but the first, given those before it."""
    logits = plain_hidden(model, sample.token_ids) @ model.embedding.weight.T
    ids = torch.tensor(sample.token_ids)
    return logits.log_softmax(-1)[:-1].gather(1, ids[1:, None]).squeeze(-1)


def gradients(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)])


def plain_loss(model, samples):
    return -sum(
        (torch.tensor(s.weights["pg"][1:]) * torch.tensor(s.advantages[1:]) * plain_logprobs(model, s)).sum()
        for s in samples
    )


def packed_logprobs(model, batch):
    return model(batch).logits_KV.log_softmax(-1).gather(1, batch.target_K[:, None]).squeeze(-1)


def packed_gradients(model, samples, max_tokens):
    total = 0.0
    for batch in micro_batches(samples, max_tokens=max_tokens):
        loss = -(batch.weights_K["pg"] * batch.advantages_K * packed_logprobs(model, batch)).sum()
        total = total + gradients(model, loss)
    return total


def make_sample(ids, trained, group, advantage=1.0):
    weights = tuple(1.0 if flag and t else 0.0 for t, flag in enumerate(trained))
    return Sample(
        token_ids=tuple(ids),
        weights={"pg": weights},
        logprobs=tuple(-1.0 if weight else None for weight in weights),
        advantages=(advantage,) * len(ids),
        trace_id=f"{group}-0",
        group_id=group,
    )


@st.composite
def steps(draw):
    """Samples in one to three groups, each with a common opening (or none) and uneven continuations."""
    samples = []
    for group in range(draw(st.integers(1, 3))):
        opening = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=6))
        for _ in range(draw(st.integers(1, 3))):
            own = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=7))
            flags = draw(st.lists(st.booleans(), min_size=len(own) - 1, max_size=len(own) - 1))
            advantage = draw(st.sampled_from([-1.0, 0.5, 2.0]))
            trained = [*(False for _ in opening), *flags, True]
            samples.append(make_sample([*opening, *own], trained, f"g{group}", advantage))
    return samples


@settings(max_examples=12, deadline=None)
@given(steps(), st.integers(1, 60), st.randoms(use_true_random=False))
def test_any_packing_gives_the_gradient_of_one_sequence_at_a_time(samples, max_tokens, random):
    expected = gradients(MODEL, plain_loss(MODEL, samples))
    shuffled = random.sample(samples, len(samples))  # groups, and members within a group
    found = packed_gradients(MODEL, shuffled, max_tokens)
    assert (found - expected).norm() <= 1e-6 * expected.norm()


@settings(max_examples=8, deadline=None)
@given(steps())
def test_packed_logprobs_and_values_are_those_of_one_sequence_at_a_time(samples):
    groups = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    batch = pack(list(groups.values()), count(samples))
    logprobs, values = packed_logprobs(MODEL, batch), MODEL(batch).values_K
    for number, sample in enumerate(s for group in groups.values() for s in group):
        trained = torch.tensor(sample.weights["pg"][1:]) != 0
        here = batch.sequence_K == number
        torch.testing.assert_close(logprobs[here], plain_logprobs(MODEL, sample)[trained], rtol=1e-6, atol=1e-6)
        hidden = plain_hidden(MODEL, sample.token_ids)[:-1][trained]
        torch.testing.assert_close(values[here], MODEL.value(hidden).squeeze(-1), rtol=1e-6, atol=1e-6)


def test_the_check_notices_a_wrong_gradient():
    samples = [make_sample([1, 2, 3, 4], [0, 0, 1, 1], "g")]
    right = gradients(MODEL, plain_loss(MODEL, samples))
    wrong = packed_gradients(MODEL, [make_sample([1, 2, 3, 4], [0, 0, 0, 1], "g")], 100)
    assert (wrong - right).norm() > 1e-2 * right.norm()


def test_in_float32_the_gradient_is_the_same_to_a_millionth():
    model = TinyTransformer(SHAPE, seed=5)
    exact = TinyTransformer(SHAPE, seed=5).double()
    samples = [
        make_sample([1, 2, 3, *range(4, 4 + n)], [0, 0, 0, *([1] * n)], f"g{g}", (-1.0) ** n)
        for g in range(2)
        for n in range(1, 5)
    ]
    expected = gradients(exact, plain_loss(exact, samples))
    for max_tokens in (1, 100):
        found = packed_gradients(model, samples, max_tokens).double()
        assert (found - expected).norm() <= 2e-6 * expected.norm()


def test_a_neighbours_tokens_change_nothing_to_the_bit():
    model = TinyTransformer(SHAPE, seed=5)
    ours = [make_sample([1, 2, 3, 4], [0, 0, 1, 1], "ours"), make_sample([1, 2, 5], [0, 0, 1], "ours")]

    def scored(neighbours, sibling):
        group = [ours[0], make_sample([1, 2, *sibling], [0, 0, 1, 1, 1], "ours"), ours[1]]
        batch = pack([neighbours, group], count(ours))
        first = len(neighbours)
        return packed_logprobs(model, batch)[(batch.sequence_K == first) | (batch.sequence_K == first + 2)]

    some = [make_sample([6, 7, 8, 9], [0, 0, 1, 1], "other")]
    others = [make_sample([2, 10, 4, 4], [0, 0, 1, 1], "other")]
    assert torch.equal(scored(some, [7, 7, 7]), scored(others, [8, 9, 10]))
    own = replace(ours[0], token_ids=(1, 2, 3, 5))
    assert not torch.equal(packed_logprobs(model, pack([[own]], count([own]))), scored(some, [7, 7, 7])[:2])


@pytest.mark.parametrize("later", [(5, 9), (6, 4), (10, 10)])
def test_a_later_token_changes_no_earlier_prediction(later):
    def first(ids):
        batch = pack([[make_sample(ids, [0, 0, 1, 1, 1], "g")]], count([]))
        return MODEL(batch).logits_KV[0]

    assert torch.equal(first([1, 2, 3, 4, 5]), first([1, 2, 3, *later]))


@pytest.mark.parametrize("value_head", [False, True])
def test_weights_are_drawn_from_the_seed_alone(value_head):
    shape = replace(SHAPE, value_head=value_head)
    torch.manual_seed(1)
    first = TinyTransformer(shape, seed=7).state_dict()
    torch.manual_seed(2)
    again, other = TinyTransformer(shape, seed=7).state_dict(), TinyTransformer(shape, seed=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_the_number_of_parameters_by_hand():
    # two embeddings 2*11*16, per layer qkv 3*16*16, out 16*16, mlp 2*16*24, norms 2*16; final norm 16
    assert TinyTransformer(SHAPE, seed=0).num_parameters == 2 * 11 * 16 + 2 * (4 * 256 + 768 + 32) + 16
    default = TinyTransformer(TransformerShape(vocab_size=250), seed=0)
    assert default.num_parameters < 1_000_000
    assert TinyTransformer(SHAPE, seed=0)(_batch()).values_K is None


def _batch():
    return pack([[make_sample([1, 2], [0, 1], "g")]], count([]))


def test_the_rotary_table_by_hand():
    table = rotary_table(3, 4)
    # position 2, pair 1: angle 2 * 100^(-1/2) = 0.2; queries carry 1 / sqrt(4)
    assert table.shape == (3, 2, 1, 2)
    assert table[2, 1, 0, 1].item() == pytest.approx(complex(math.cos(0.2), math.sin(0.2)))
    assert table[2, 0, 0, 0].item() == pytest.approx(0.5 * complex(math.cos(2.0), math.sin(2.0)))
