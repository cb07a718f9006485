"""A run that is killed at any moment and resumed ends as if nothing had happened, and leaves nothing behind."""

import random
import sys

import pytest

from agentrl.store import RunFolder
from tests.loops.killing import Place, result
from tests.loops.test_rl_async import small, trained

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the boxes in /proc")

NUM_OPERATIONS = 115
"""So many file operations below the run folder, metrics left out, a run that nobody kills has at least."""


def test_killed_in_every_phase_and_resumed_a_run_ends_as_one_that_was_left_alone(tmp_path):
    alone, killed = Place(root=tmp_path / "alone").prepare(), Place(root=tmp_path / "killed").prepare()
    running = alone.start()
    assert killed.kill_when(killed.boxes, random.Random(0).uniform(0.0, 0.2))  # while tasks are made
    assert killed.leaves_nothing_behind()
    killed.kill_before(r"open \S*/metrics.jsonl a", 103)  # in the warm start, after its checkpoint at step 100
    assert killed.leaves_nothing_behind()
    killed.kill_before(r"os.rename \S* \S*/checkpoints/rl-000004$")
    leave_half_a_row(killed)
    assert killed.leaves_nothing_behind()
    killed.kill_before(r"os.rename \S* \S*/traces/eval-")  # its row of metrics is written, no checkpoint follows
    assert killed.leaves_nothing_behind()
    expected = result(alone.finished(running))
    same(result(killed.finish()), expected)
    assert alone.leaves_nothing_behind()
    assert killed.leaves_nothing_behind()
    trained = [row for row in expected["metrics"] if row["phase"] == "rl" and (row.get("grad_norm") or 0.0) > 0.0]
    assert len(trained) >= 2, "the run is too easy or too hard to tell whether RL was resumed"


def leave_half_a_row(place: Place) -> None:
    """What a kill in the midst of writing leaves."""
    with (place.folder().path / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "rl", "st')


def same(found: dict[str, object], expected: dict[str, object]) -> None:
    """Compare part by part, so that a failure names the part."""
    for part in expected:
        assert found[part] == expected[part], part


AHEAD = small(mode="async", max_staleness=2, groups_per_step=4, steps=6, checkpoint_every=2)
"""Which attempts are in flight at a moment depends on the clock, so what is compared is which are trained."""


def within_the_bound(folder: RunFolder, bound: int) -> bool:
    """Whether every step has a row, in each of which no token is too old."""
    rows = folder.metrics("rl")
    return [row["step"] for row in rows] == list(range(1, len(rows) + 1)) and all(
        row["age_max"] is not None and row["age_max"] <= bound and row["episodes_unscored"] == 0 for row in rows
    )


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    """The attempts of each step of a run that was left alone."""
    folder = Place(root=tmp_path_factory.mktemp("ahead")).prepare(AHEAD).finish()
    found = trained(folder)
    ids = [one for _, names in found for one in names]
    assert len(found) == 6
    assert len(set(ids)) == len(ids) == 6 * 4 * 2
    return found


@pytest.mark.long
def test_a_run_that_plays_ahead_is_killed_and_trains_each_attempt_once(tmp_path, attempts):
    place = Place(root=tmp_path).prepare(AHEAD)
    place.kill_before(r"open \S*/metrics.jsonl a", 2)  # before its first checkpoint
    place.kill_before(r"open \S*/metrics.jsonl a", 3)  # between two, with groups in flight
    assert place.leaves_nothing_behind()
    place.kill_before(r"os.rename \S* \S*/checkpoints/rl-000004$")
    leave_half_a_row(place)
    folder = place.finish()
    assert trained(folder) == attempts
    assert within_the_bound(folder, 2)
    assert place.leaves_nothing_behind()


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_plays_ahead_is_killed_at_random_moments(tmp_path, attempts, seed):
    """Each time soon after a step that no run before came to, with groups in flight."""
    rng, place = random.Random(seed), Place(root=tmp_path).prepare(AHEAD)
    killed = place.kill_when(place.boxes, rng.uniform(0.0, 1.0))
    for _ in range(4):
        killed += place.kill_after_row(1, rng.uniform(0.0, 0.2))
        assert place.leaves_nothing_behind()
    folder = place.finish()
    assert trained(folder) == attempts
    assert within_the_bound(folder, 2)
    assert killed >= 3


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return result(Place(root=tmp_path_factory.mktemp("alone")).prepare().finish())


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments(tmp_path, expected, seed):
    """While tasks are made, in the warm start of 105 rows, and in RL."""
    rng, place = random.Random(seed), Place(root=tmp_path).prepare()
    killed = place.kill_when(place.boxes, rng.uniform(0.0, 1.0))
    for row in (*sorted(rng.sample(range(2, 106), 2)), *sorted(rng.sample(range(106, 112), 2))):
        killed += place.kill_after_row(row, rng.uniform(0.0, 0.5))
        assert place.leaves_nothing_behind()
    same(result(place.finish()), expected)
    assert killed >= 3


@pytest.mark.faults
@pytest.mark.parametrize("number", sorted(random.Random(0).sample(range(1, NUM_OPERATIONS + 1), 16)))
def test_killed_before_a_file_operation(tmp_path, expected, number):
    place = Place(root=tmp_path).prepare()
    place.kill_before(r"^(?!.*/metrics).*\bruns/", number)
    assert place.leaves_nothing_behind()
    same(result(place.finish()), expected)
