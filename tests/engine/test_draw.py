"""Draws invert the distribution, in vocabularies that are searched in chunks too."""

import pytest
import torch

from agentrl.engine.draw import draw

CHUNK = 1024


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
