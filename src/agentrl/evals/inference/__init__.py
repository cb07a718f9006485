"""Compute at test time: many attempts, one answer.

- `policies` plays: the best of n by a verifier or a reward model, a vote, a weighted vote, revision after revision.
- `curves` says what such a policy is worth at each n, from one evaluation of many attempts a task, without bias and
  with intervals, over the tokens that it samples.
"""

from agentrl.evals.inference.curves import Curve, best_of, ceiling, doublings, revision, vote
from agentrl.evals.inference.grid import Grid
from agentrl.evals.inference.policies import Chosen, Play, best_of_n, majority, pick_best, pick_vote, player_of, revise
from agentrl.evals.inference.voting import vote_of_k

__all__ = [
    "Chosen",
    "Curve",
    "Grid",
    "Play",
    "best_of",
    "best_of_n",
    "ceiling",
    "doublings",
    "majority",
    "pick_best",
    "pick_vote",
    "player_of",
    "revise",
    "revision",
    "vote",
    "vote_of_k",
]
