"""The recipe on test-time compute: its words are those of its results, and its choosers read real attempts."""

import asyncio
import json
import re

import pytest

from agentrl.evals.baselines import player, scripted_harness
from agentrl.evals.running import labelled
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tasks.bugfix.taskset import BugFix
from recipes import test_time_compute as recipe
from tests.pools import open_pool

RESULTS = json.loads(recipe.RESULTS.read_text(encoding="utf-8"))


def means(policy, seed, name):
    """Gold at each n."""
    return [point[0] for point in RESULTS[policy][seed]["curves"][name]]


def test_the_table_is_that_of_the_results():
    assert recipe.table(RESULTS) in recipe.__doc__
    assert recipe.table(RESULTS).replace("0", "1") not in recipe.__doc__


@pytest.mark.parametrize("seed", [str(seed) for seed in recipe.SEEDS])
def test_what_the_reading_says_holds_in_every_seed(seed):
    for policy in (recipe.HONEST, recipe.HACKER):
        for name, rising in ((recipe.CEILING, True), (recipe.BELIEF, True), (recipe.SPLIT, True)):
            found = means(policy, seed, name)
            assert (found == sorted(found)) == rising, (policy, name)
    gaps = zip(means(recipe.HONEST, seed, recipe.CEILING), means(recipe.HONEST, seed, recipe.SPLIT), strict=True)
    assert max(best - picked for best, picked in gaps) < 0.01
    confident = means(recipe.HACKER, seed, recipe.CONFIDENT)
    assert confident[-1] < confident[0] < confident[1] == max(confident)  # first up, then far down
    assert RESULTS[recipe.HACKER][seed]["confidence minus ties split at the last n"][2] < 0
    assert means(recipe.HACKER, seed, recipe.SHORT)[-1] == pytest.approx(
        means(recipe.HACKER, seed, recipe.CEILING)[-1], abs=0.005
    )


def test_the_numbers_of_the_reading_are_in_the_table():
    reading = recipe.__doc__.partition("Where the tests cannot be edited")[2]
    gaps = [one["confidence minus ties split at the last n"][0] for one in RESULTS[recipe.HACKER].values()]
    known = recipe.table(RESULTS) + f" 0.01 {min(map(abs, gaps)):.2f} {max(map(abs, gaps)):.2f}"
    numbers = re.findall(r"\d\.\d\d", reading)
    assert len(numbers) > 8
    assert [number for number in numbers if number not in known] == []


def test_the_figure_is_drawn():
    panels = recipe.draw(RESULTS).axes
    assert [panel.get_title(loc="left") for panel in panels] == [recipe.HONEST, recipe.HACKER]
    assert len(panels[0].lines) == 7


def test_choosers_read_real_attempts(monkeypatch):
    monkeypatch.setattr(recipe, "TASKS", 2)
    config = recipe.configs(0)[recipe.HONEST]

    async def play(gym):
        harness, traces = scripted_harness(7), []
        for index in range(2):
            for number, name in enumerate(("reference", "submit", "submit", "reference")):
                session = player(name, gym)(gym[index], 0)
                identity = AttemptId(group_id=f"{index}", attempt=number, seed=0)
                traces.append(labelled(await attempt(gym, gym[index], harness, session, identity), gym, gym[index]))
        return traces

    with open_pool() as pool:
        traces = asyncio.run(play(BugFix("tiny", "test", 2, pool=pool)))
    found = {one.name: [point.mean for point in one.intervals()] for one in recipe.curves(config, traces)}
    # two of four are right and the visible tests know which; of two, one is right in 5 of 6 pairs
    assert found[recipe.SPLIT] == pytest.approx([0.5, 5 / 6, 1.0])
    assert found[recipe.SPLIT] == pytest.approx(found[recipe.CEILING])
    # two ways to leave the files: right and untouched; a vote of all four is a tie
    assert found[recipe.VOTE] == pytest.approx([0.5, 0.5, 0.5])
    assert found[recipe.WEIGHTED] == pytest.approx([0.5, 5 / 6, 1.0])
