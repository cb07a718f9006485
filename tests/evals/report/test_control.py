"""What a control gained is taken off the gain, task by task."""

import pytest

from agentrl.config import TrainConfig
from agentrl.errors import StoreError
from agentrl.evals.attempts import Attempt
from agentrl.evals.report.control import against_control, differing
from agentrl.evals.table import Table

CONFIG = TrainConfig(recipe="one")
DRAWN = CONFIG.model_copy(update={"tasks": CONFIG.tasks.model_copy(update={"reward": "random"})})


def table(base, trained, first=0):
    sides = (("base", base), ("trained", trained))
    return Table.of(
        Attempt(checkpoint=name, task=f"t{first + t}", number=0, score=float(score))
        for name, scores in sides
        for t, score in enumerate(scores)
    )


def test_gains_are_paired_over_all_four_evaluations():
    run, control = table([0, 0, 0, 1], [1, 1, 0, 1]), table([0, 0, 0, 1], [1, 0, 0, 0])
    found = against_control(run, control, name="c", configs=(CONFIG, DRAWN), same_base=True)
    # gains 1, 1, 0, 0 and 1, 0, 0, -1; their differences 0, 1, 0, 1
    assert (found.gain.mean, found.gain_control.mean, found.excess.mean) == (0.5, 0.0, 0.5)
    assert (found.num_tasks, found.reward) == (4, "random")
    assert found.differing == ("tasks.reward: 'hidden' and 'random'",)
    assert differing(CONFIG, CONFIG) == ()


def test_tasks_are_matched_by_name():
    run, control = table([0, 0, 0], [1, 1, 0]), table([0, 0, 1], [0, 1, 1], first=1)
    found = against_control(run, control, name="c", configs=(CONFIG, CONFIG), same_base=False)
    # shared are t1 and t2: gains 1, 0 and 0, 1
    assert (found.num_tasks, found.excess.mean) == (2, 0.0)
    with pytest.raises(StoreError, match=r"share 1 evaluated task\(s\)"):
        against_control(run, table([0, 0], [1, 1], first=2), name="c", configs=(CONFIG, CONFIG), same_base=False)
