"""What the tests of the policy objectives share: a policy small enough to list, and poison for masked places."""

import math

import torch

POISON = [math.nan, math.inf, -math.inf, 1e9, -1e9]


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


class Tree:
    """Every sequence of at most three tokens over three symbols, of which the last ends a sequence: 15 in all.

    The 7 prefixes that can be continued have a row of logits each, so there are 21 parameters and nothing is sampled:
    an expectation is a sum over the sequences. Tokens are flat, as in a packed batch.
    """

    end = 2
    rewards_N = tensor([1.0, -0.5, 0.0, 2.0, 0.3, -1.0, 0.7, 0.0, 1.5, -2.0, 0.25, 1.0, -0.75, 0.5, 0.1])

    def __init__(self, seed=3):
        self.logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.logits.requires_grad_()
        rows = [
            (number, prefix, symbol) for number, path in enumerate(self.sequences()) for prefix, symbol in steps(path)
        ]
        self.sequence_T, self.prefix_T, self.symbol_T = (torch.tensor(column) for column in zip(*rows, strict=True))
        self.mask_T = torch.ones(len(rows), dtype=torch.bool)

    @classmethod
    def sequences(cls, head=()):
        for symbol in range(3):
            path = (*head, symbol)
            if symbol == cls.end or len(path) == 3:
                yield path
            else:
                yield from cls.sequences(path)

    def logprobs_T(self):
        return self.logits.log_softmax(-1)[self.prefix_T, self.symbol_T]

    def probability_N(self, logprobs_T):
        return torch.zeros(15, dtype=torch.float64).index_add(0, self.sequence_T, logprobs_T).exp()

    def gradient(self, scalar):
        return torch.autograd.grad(scalar, self.logits)[0]

    def exact(self):
        """Gradient of the expected reward: the sum over all sequences, differentiated."""
        return self.gradient(self.probability_N(self.logprobs_T()) @ self.rewards_N)

    def expected(self, objective, sampler=None, rewards_N=rewards_N, **keywords):
        """Minus the expected gradient of an objective, summed over tokens, when ``sampler`` (this policy) samples."""
        logprobs_T = self.logprobs_T()
        old_T = (sampler or self).logprobs_T().detach()
        loss = objective(logprobs_T, old_T, rewards_N[self.sequence_T], self.mask_T, **keywords)
        chance_T = self.probability_N(old_T)[self.sequence_T]
        return -self.gradient((chance_T * loss.loss_T).sum())


def steps(path):
    """(row of the prefix, symbol) along a path: row 0 is the start, 1 and 2 follow it, 3 to 6 follow those."""
    prefix = 0
    for symbol in path:
        yield prefix, symbol
        prefix = 2 * prefix + 1 + symbol
