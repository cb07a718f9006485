"""The comparison with `transformers` compares one model with itself: equal logits, and equal replies at equal draws."""

from collections.abc import Iterator

import pytest
import torch

from agentrl.policy.transformer import TinyTransformer, TransformerShape

pytest.importorskip("transformers", reason="transformers is only in the extra `bench`: pip install -e '.[bench]'")

import bench_generate
import hf_twin

SHAPE = TransformerShape(vocab_size=12, layers=2, width=16, heads=2, mlp_width=24, context=64)
PROMPTS = ((1, 2, 3, 4), (5,), (11, 7, 11))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def network(seed=0):
    """A model with opinions: fresh weights predict nearly uniformly."""
    made = TinyTransformer(SHAPE, seed=seed)
    with torch.no_grad():
        made.embedding.weight.mul_(6.0)
    return made


def workload(turns=3):
    return bench_generate.make_workload("small", PROMPTS, group=2, turns=turns, reply=4)


def test_logits_after_padded_prompts_are_ours():
    ours = network()
    assert bench_generate.largest_difference(ours, hf_twin.Twin(ours), PROMPTS) < 1e-5


@pytest.mark.parametrize("best", [True, False])
def test_generate_gives_our_replies_at_our_draws(best):
    ours = network()
    assert bench_generate.largest_gap(ours, hf_twin.Twin(ours), workload(), best=best) < 1e-5


def test_other_draws_give_other_replies():
    ours, work = network(), workload()
    draws = hf_twin.SameDraws([seed + 1 for seed in work.seeds])
    theirs = bench_generate.library_replies(hf_twin.Twin(ours), work, best=True, processor=draws)
    replies = [[reply.token_ids for reply in replies] for replies in bench_generate.engine_replies(ours, work)]
    assert theirs.shape == (6, 3, 4)  # 3 prompts x 2, turns, tokens of a reply
    assert (theirs != torch.tensor(replies)).any()


def test_the_proof_refuses_other_weights():
    with pytest.raises(SystemExit, match="not the same model"):
        bench_generate.prove(network(), hf_twin.Twin(network(seed=1)), workload())


@pytest.mark.parametrize("best", [True, False])
def test_a_twin_that_takes_padding_for_the_token_before_is_noticed(best, monkeypatch):
    monkeypatch.setattr(hf_twin, "previous_ids", lambda ids, mask: torch.nn.functional.pad(ids[:, :-1], (1, 0)))
    ours = network()
    assert bench_generate.largest_gap(ours, hf_twin.Twin(ours), workload(), best=best) > bench_generate.TOLERANCE


def test_token_before_skips_padding():
    ids = torch.tensor([[0, 0, 5, 6, 0, 7], [3, 4, 0, 0, 8, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 0, 1], [1, 1, 0, 0, 1, 1]])
    assert hf_twin.previous_ids(ids, mask).tolist() == [[0, 0, 0, 5, 6, 6], [0, 3, 4, 4, 4, 8]]


def test_the_standard_model_has_layers_of_our_size():
    # Ours without its second embedding, 12 x 16; the gated feed-forward has 3 matrices of 16 x 16 for our 2 of 16 x 24.
    ours = network().num_parameters - 12 * 16
    assert hf_twin.llama(SHAPE).num_parameters() == ours


def test_least_time_counts_each_token_once():
    # Layers: 2 x (4 x 16 x 16 + 2 x 16 x 24 + 2 norms of 16) = 3648 numbers; words 12 x 16 = 192; a key and a value met
    # cost 4 x 2 x 16 = 128 operations. Prompts of 4, 1 and 3 tokens: 8 x 2 x 3648 + 128 x (16 + 1 + 9) / 2 = 60032.
    # Six replies of one token need the words' scores alone: 6 x 2 x 192 = 2304. In all 62336 operations.
    work = bench_generate.make_workload("one", PROMPTS, group=2, turns=1, reply=1)
    assert bench_generate.least_seconds(network(), work, flops=62336.0, bandwidth=1e12) == pytest.approx(1.0)
    # Read: 4 x (3648 + 192) bytes of weights and 8 tokens of 8 x 2 x 16 = 256 bytes: 15360 + 2048.
    assert bench_generate.least_seconds(network(), work, flops=1e12, bandwidth=17408.0) == pytest.approx(1.0)
