"""Draws invert the distribution, in vocabularies that are searched in chunks too."""

import pytest
import torch

from agentrl.engine import draw as module
from agentrl.engine.draw import draw

CHUNK = 1024


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def way(request, monkeypatch):
    """On a machine without a compiler both are torch."""
    if request.param == "torch":
        monkeypatch.setattr(module, "_compiled", lambda: None)


def inverted(logits, uniform):
    cumulative = logits.double().softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]


@pytest.mark.parametrize("words", [3, 2 * CHUNK, 2 * CHUNK + 1, 3 * CHUNK, 5000])
def test_tokens_and_their_log_probabilities(words):
    generator = torch.Generator().manual_seed(words)
    logits = 3 * torch.randn(400, words, generator=generator)
    logits[:, 1] = -torch.inf
    uniform = torch.rand(400, dtype=torch.float64, generator=generator)
    tokens, logprobs = draw(logits.clone(), uniform, torch.zeros(400, dtype=torch.bool))
    # The sums here are in float32 and those above in float64: a token at an edge may fall to either side.
    assert (tokens == inverted(logits, uniform)).float().mean() > 0.995
    assert (tokens != 1).all()
    expected = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("words", [10, 4000])
def test_the_ends_of_the_unit_interval_give_words_that_can_be_drawn(words):
    logits = torch.full((2, words), -torch.inf)
    logits[:, 3], logits[:, words - 4] = 0.0, 1.0
    tokens, logprobs = draw(logits, torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64), torch.zeros(2).bool())
    assert tokens.tolist() == [3, words - 4]
    # exp(0) and exp(1) of 1 + e
    assert logprobs.tolist() == pytest.approx([-1.3132616875, -0.3132616875], abs=1e-6)


def test_a_greedy_row_takes_the_likeliest_token_and_its_probability():
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
    tokens, logprobs = draw(logits, torch.tensor([0.0, 0.0], dtype=torch.float64), torch.tensor([True, False]))
    assert tokens.tolist() == [1, 0]
    assert logprobs.tolist() == pytest.approx([-0.4076059644, -2.4076059644], abs=1e-6)


@pytest.mark.parametrize("words", [5, 63, 64, 65, 4000])
def test_logits_that_are_not_numbers_give_no_probability(words):
    for wrong in (torch.nan, torch.inf):
        logits = torch.zeros(3, words)
        logits[1, words // 2] = wrong
        tokens, logprobs = draw(logits, torch.full((3,), 0.3, dtype=torch.float64), torch.zeros(3).bool())
        assert logprobs.isnan().tolist() == [False, True, False]
        assert ((tokens >= 0) & (tokens < words)).all()
    hidden = torch.full((1, words), -torch.inf)
    assert draw(hidden, torch.tensor([0.3], dtype=torch.float64), torch.zeros(1).bool())[1].isnan().all()


def test_words_far_below_the_likeliest_are_not_drawn():
    logits = torch.full((2, 200), -150.0)
    logits[:, 70] = 0.0
    tokens, logprobs = draw(logits, torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64), torch.zeros(2).bool())
    assert (tokens.tolist(), logprobs.tolist()) == ([70, 70], [0.0, 0.0])


def test_both_ways_draw_the_same(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(300, 700, generator=generator)
    uniform = torch.rand(300, dtype=torch.float64, generator=generator)
    greedy = torch.arange(300) % 3 == 0
    ours = draw(logits.clone(), uniform, greedy)
    monkeypatch.setattr(module, "_compiled", lambda: None)
    theirs = draw(logits.clone(), uniform, greedy)
    assert (ours[0] == theirs[0]).float().mean() > 0.995  # but for edges
    same = ours[0] == theirs[0]
    torch.testing.assert_close(ours[1][same], theirs[1][same], rtol=0.0, atol=1e-6)
