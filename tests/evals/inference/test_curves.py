"""Grids of attempts and curves over what is sampled."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.evals.inference import Grid, best_of, ceiling, doublings, revision, vote
from agentrl.types import Fault, Message, Node, Score, Stop, Trace


def trace(task, attempt, gold, proxy, tokens=1, answer="", error=None):
    """An attempt with a verdict, an opinion, and so many tokens."""
    node = Node(
        parent=None,
        message=Message(role="assistant", content=answer),
        sampled_ids=(1,) * tokens,
        logprobs=(-0.5,) * tokens,
        versions=(0,) * tokens,
    )
    return Trace(
        id=f"{task}-{attempt}",
        task_id=task,
        group_id="g",
        attempt=attempt,
        seed=0,
        nodes=(node,),
        stop=Stop.DONE,
        scores=(Score(name="gold", value=gold), Score(name="proxy", value=proxy, weight=0.0)),
        error=error,
    )


GOLD = [[0, 1, 1, 0], [1, 0, 0, 0]]
PROXY = [[0.2, 0.5, 0.7, 0.9], [1, 1, 0, 0]]
TRACES = [trace(f"t{i}", n, GOLD[i][n], PROXY[i][n], tokens=1 + n) for i in range(2) for n in range(4)]


def test_a_grid_holds_what_was_scored():
    lost = Fault(boundary="sandbox", message="gone")
    grid = Grid.of([*TRACES[:7], replace(TRACES[7], error=lost)])
    assert grid.tasks == ("t0", "t1")
    np.testing.assert_array_equal(grid.score("gold"), [[0, 1, 1, 0], [1, 0, 0, np.nan]])
    np.testing.assert_array_equal(grid.tokens(), [[1, 2, 3, 4], [1, 2, 3, np.nan]])
    assert doublings(grid) == (1, 2, 3)
    with pytest.raises(StoreError, match="no attempt has a score 'visible'"):
        grid.score("visible")
    with pytest.raises(StoreError, match="attempt 0 at t0 occurs twice"):
        Grid.of([*TRACES, TRACES[0]])
    with pytest.raises(StoreError, match="none of 1 attempts was scored"):
        Grid.of([replace(TRACES[0], error=lost)])


def test_a_curve_is_an_expectation_over_attempts_and_their_tokens():
    grid = Grid.of(TRACES)
    found = best_of("proxy", grid, grid.score("proxy"), grid.score("gold"), (1, 2, 4))
    # the first task at k = 2 by a published example: 0.5. The second, subsets 01: a tie, 0.5; 02, 03: 1;
    # 12, 13: 0; 23: a tie of two wrong ones. (0.5 + 1 + 1) / 6
    assert found.values[1] == pytest.approx([0.5, 2.5 / 6])
    assert found.values[2] == pytest.approx([0.0, 0.5])
    assert found.tokens.tolist() == [2.5, 5.0, 10.0]  # 2.5 each
    assert [one.mean for one in found.intervals()] == pytest.approx([0.375, (0.5 + 2.5 / 6) / 2, 0.25])


def test_gold_falls_under_a_proxy_that_prefers_the_wrong_ones():
    grid = Grid.of(TRACES[:4] + [replace(one, task_id="t2") for one in TRACES[:4]])
    gold, proxy = grid.score("gold"), grid.score("proxy")
    ks = (1, 2, 3, 4)
    picked, oracle = best_of("proxy", grid, proxy, gold, ks), ceiling(grid, gold, ks)
    believed = best_of("belief", grid, proxy, proxy, ks)
    means = [one.mean for one in picked.intervals()]
    assert means == sorted(means, reverse=True)
    assert means[-1] == 0.0
    assert (np.diff(believed.values, axis=0) > 0).all()  # while the proxy thinks that all gets better
    assert (oracle.values >= picked.values).all()
    lost = picked.against(oracle, 4)
    assert lost.difference.mean == -1.0
    with pytest.raises(ValueError, match="proxy has no k = 8"):
        picked.against(oracle, 8)


def test_a_vote_is_over_answers():
    rows = [trace("t", n, float(a == "7"), 0.0, answer=a) for n, a in enumerate(["7", "7", "7", "5", "5", "9"])]
    rows += [replace(one, task_id="u") for one in rows]
    grid = Grid.of(rows)
    answers = grid.answers(lambda one: one.nodes[0].message.content)
    assert vote("vote", grid, answers, grid.score("gold"), (3,)).values[0] == pytest.approx([0.6, 0.6])
    silent = grid.answers(lambda one: None)
    assert (silent == -1).all()


def test_revision_spends_what_all_rounds_sampled():
    grid = Grid.of(TRACES)
    gold = np.array([[[0, 1], [0, 0]], [[1, 1], [0, 1]]])  # tasks, attempts, rounds
    tokens = np.array([[[10, 4], [10, 6]], [[20, 5], [20, 5]]])
    found = revision(grid, gold, tokens)
    assert found.ks == (1, 2)
    assert found.values.tolist() == [[0.0, 0.5], [0.5, 1.0]]
    assert found.tokens.tolist() == [15.0, 20.0]  # 10 and 20; and 10 + 5 and 20 + 5


def test_every_pick_is_the_enumerated_one():
    rng = np.random.default_rng(0)
    gold, proxy = rng.integers(0, 2, (2, 6)).astype(float), rng.integers(0, 3, (2, 6)).astype(float)
    grid = Grid.of([trace(f"t{i}", n, gold[i, n], proxy[i, n]) for i in range(2) for n in range(6)])
    found = best_of("proxy", grid, grid.score("proxy"), grid.score("gold"), (3,)).values[0]
    for i in range(2):
        worth = []
        for drawn in map(list, combinations(range(6), 3)):
            best = proxy[i, drawn] == proxy[i, drawn].max()
            worth.append(gold[i, drawn][best].mean())
        assert found[i] == pytest.approx(np.mean(worth))
