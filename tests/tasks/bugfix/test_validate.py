"""What validation keeps and drops, shown on programs made for each reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import TaskError
from agentrl.sandbox.jobs import Limits
from agentrl.sandbox.pool import Pool
from agentrl.tasks.bugfix.candidate import Candidate
from agentrl.tasks.bugfix.validate import Drop, Validator, split_of
from tests.pools import open_pool

REFERENCE = "def f(a):\n    return a + 1\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool(limits=Limits(wall_s=5.0, cpu_s=0.1)) as pool:
        yield pool


def candidate(broken: str, reference: str = REFERENCE) -> Candidate:
    return Candidate(
        family="",
        kind="constant",
        files={"m.py": broken},
        reference={"m.py": reference},
        module="m",
        function="f",
        visible=((1,), (2,)),
        hidden=((3,), (4,)),
        instruction="",
        main_path="m.py",
        line=2,
    )


WRONG = "def f(a):\n    return a + 2\n"
REASONS = [
    (Drop.EQUIVALENT, "def f(a):\n    return 1 + a\n", REFERENCE),
    # wrong from 3 on, where only the hidden tests look
    (Drop.VISIBLE_PASS, "def f(a):\n    return a + 1 if a < 3 else 0\n", REFERENCE),
    (Drop.HIDDEN_PASS, "def f(a):\n    return a + 1 if a > 2 else 0\n", REFERENCE),
    (Drop.REFERENCE_FAILS, WRONG, "def f(a):\n    return 1 / (a - 1)\n"),
    (Drop.REFERENCE_FAILS, WRONG, "def f(a):\n    return object()\n"),
    (Drop.REFERENCE_FAILS, WRONG, "seen = []\ndef f(a):\n    seen.append(a)\n    return len(seen)\n"),
    (Drop.GUESSABLE, WRONG, "def f(a):\n    return 7\n"),
    (Drop.TIMEOUT, "def f(a):\n    while a:\n        pass\n", REFERENCE),
]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("reason", "broken", "reference"), REASONS)
def test_each_reason_drops_its_candidate(pool: Pool, reason: Drop, broken: str, reference: str, together: bool) -> None:
    validator = Validator(pool, together=together)
    assert list(validator.tasks([candidate(broken, reference)])) == []
    assert validator.report.dropped[reason.value] == validator.report.generated == 1


@pytest.mark.parametrize("broken", [WRONG, "def f(a):\n    return float(a + 1)\n", "def f(a):\n    return b\n"])
def test_another_value_another_type_and_an_exception_are_bugs(pool: Pool, broken: str) -> None:
    kept = list(Validator(pool).tasks([candidate(broken)]))
    assert [(task.visible, task.hidden, task.failing) for task in kept] == [((2, 3), (4, 5), 1)]


def test_the_first_failing_visible_test_is_named(pool: Pool) -> None:
    # right at 1, wrong from 2 on: the second visible test is the first that fails
    kept = list(Validator(pool).tasks([candidate("def f(a):\n    return 2\n")]))
    assert [task.failing for task in kept] == [2]


def test_duplicates_other_splits_and_inexpressible_tasks_are_counted(pool: Pool) -> None:
    twice = Validator(pool)
    assert len(list(twice.tasks([candidate(WRONG), candidate(WRONG)]))) == 1
    assert (twice.report.kept, twice.report.dropped["duplicate"]) == (1, 1)
    assert str(twice.report) == "2 generated, 1 kept; dropped: 1 duplicate"

    split = split_of({"m.py": REFERENCE})
    other = Validator(pool, split="test" if split != "test" else "train")
    assert list(other.tasks([candidate(WRONG)])) == []
    assert other.report.dropped["other_split"] == 1

    picky = Validator(pool, expressible=lambda task: max(task.visible) < 3)
    assert list(picky.tasks([candidate(WRONG)])) == []
    assert picky.report.dropped["inexpressible"] == 1


def test_programs_in_one_process_come_to_what_they_come_to_alone(pool: Pool) -> None:
    endings = ["os._exit(0)", "os.kill(os.getpid(), 9)", "sys.exit()"]
    hostile = [candidate(f"import os, sys\ndef f(a):\n    {ending}\n") for ending in endings]
    stream = [candidate(broken, reference) for _, broken, reference in REASONS] + hostile + [candidate(WRONG)]
    alone, shared = Validator(pool), Validator(pool, together=True)
    # the three that end their process are bugs as well; the last program repeats one that was seen before
    assert [task.candidate for task in alone.tasks(stream)] == hostile
    assert [task.candidate for task in shared.tasks(stream)] == hostile
    assert shared.report == alone.report


def test_asking_for_fewer_gives_the_same_first_ones(pool: Pool) -> None:
    stream = [candidate(f"def f(a):\n    return a + {n}\n") for n in range(5)]
    whole = list(Validator(pool).tasks(stream))
    part = list(itertools.islice(Validator(pool).tasks(stream), 2))
    # n = 1 is the reference itself; 0, 2, 3 and 4 are bugs
    assert len(whole) == 4
    assert part == whole[:2]


def test_a_stream_that_has_nothing_new_ends_in_an_error(pool: Pool) -> None:
    validator = Validator(pool)
    with pytest.raises(TaskError, match="no more than 1 different tasks; ask for fewer"):
        list(validator.tasks(itertools.repeat(candidate(WRONG))))


@given(st.integers(0, 999))
def test_the_split_depends_on_the_code_and_not_on_its_docstring(n: int) -> None:
    bare = {"m.py": f"def f(a):\n    return a + {n}\n"}
    documented = {"m.py": f'def f(a):\n    """Adds."""\n    return a + {n}  # sum\n'}
    assert split_of(bare) == split_of(documented)


def test_about_seven_of_ten_programs_are_for_training_and_two_for_testing() -> None:
    # 1000 programs; four standard deviations of a share of 0.7 are 4 * sqrt(0.7 * 0.3 / 1000) = 0.058
    splits = [split_of({"m.py": f"x = {n}\n"}) for n in range(1000)]
    assert abs(splits.count("train") / 1000 - 0.7) < 0.058
    assert abs(splits.count("test") / 1000 - 0.2) < 0.051
    assert splits.count("validation") > 60
