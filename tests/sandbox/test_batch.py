"""Several programs in one process: what comes of each is what comes of it alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import TaskError
from agentrl.sandbox import Batch, Calls, Job, Limits, Suite
from tests.pools import open_pool

PROGRAMS = {
    "good": "def f(x):\n    return [x, 2 * x]\n",
    "stateful": "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)\n",
    "raises": "def f(x):\n    return 6 // x\n",
    "broken": "def f(x:\n",
    "missing": "x = 1\n",
    "failing import": "1 / 0\n",
    "shadows": "import statistics\ndef f(x):\n    return statistics.__name__, hasattr(statistics, 'mean')\n",
    "exits": "import sys\ndef f(x):\n    sys.exit(x)\n",
    "large": "def f(x):\n    return 'x' * 50_000\n",
    "loops": "def f(x):\n    while x: pass\n    return 1\n",
    "loops at once": "while True: pass\n",
}


@pytest.fixture(scope="module")
def brisk_pool():
    with open_pool(1, Limits(wall_s=30.0, cpu_s=0.05)) as pool:
        yield pool


def part(name, *arguments, module="m", **files):
    calls = tuple(("f", (argument,)) for argument in arguments)
    return Job(files={f"{module}.py": PROGRAMS[name], **files}, run=Calls(module=module, calls=calls))


def together(pool, *parts):
    return pool.run_sync([Job(files={}, run=Batch(parts=parts))])[0]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(PROGRAMS)), st.lists(st.integers(0, 2), max_size=3)), max_size=5))
def test_each_part_gives_what_it_gives_alone(brisk_pool, drawn):
    parts = [part(name, *numbers) for name, numbers in drawn]
    shared, alone = together(brisk_pool, *parts).parts, brisk_pool.run_sync(parts)
    assert list(map(repr, shared)) == list(map(repr, alone))  # an opaque value equals nothing


SUITES = {
    "passes": "from m import f\ndef test_a():\n    assert f(1) == [1, 2]\n",
    "fails": "from m import f\ndef test_a():\n    assert f(1) == 3\ndef test_b():\n    assert f(2)\n",
    "raises": "import m\ndef test_a():\n    assert m.g(1) == 3\n",
    "does not parse": "def test_a(:\n",
}


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(sorted(SUITES))), max_size=4))
def test_each_suite_gives_what_it_gives_alone(brisk_pool, drawn):
    parts = [
        Job(files={"m.py": PROGRAMS[name], "test_m.py": SUITES[tests]}, run=Suite(paths=("test_m.py",)))
        for name, tests in drawn
    ]
    assert together(brisk_pool, *parts).parts == tuple(brisk_pool.run_sync(parts))


def test_modules_of_one_part_are_not_there_for_the_next(brisk_pool):
    mine = part("shadows", 1, **{"statistics.py": "", "pack/inner.py": ""})
    result = together(brisk_pool, mine, part("shadows", 1), part("stateful", 1, 1), part("stateful", 1))
    values = [[outcome.value for outcome in part.outcomes] for part in result.parts]
    assert values == [[("statistics", False)], [("statistics", True)], [1, 2], [1]]


def test_a_part_that_never_ends_costs_no_other_part(brisk_pool):
    result = together(brisk_pool, part("loops", 0, 1, 0), part("good", 1), part("loops at once", 1), part("good", 2))
    assert [part.end for part in result.parts] == ["timeout", "finished", "timeout", "finished"]
    assert [outcome.status for outcome in result.parts[0].outcomes] == ["value", "timeout", "timeout"]
    assert result.repeatable


def test_a_part_that_dies_takes_the_rest_with_it_and_leaves_the_first(brisk_pool):
    dying = Job(files={"m.py": "import os\ndef f(x):\n    os._exit(0)"}, run=Calls(module="m", calls=(("f", (1,)),)))
    result = together(brisk_pool, part("good", 1), dying, part("good", 2))
    assert [part.end for part in result.parts] == ["finished", "died", "died"]
    assert [part.repeatable for part in result.parts] == [True, False, False]


def test_a_part_that_swallows_its_interrupt_is_killed(brisk_pool):
    source = """
def f(x):
    while True:
        try:
            sum(range(100_000))  # the interrupt comes in here, not between two lines
        except BaseException: pass
"""
    hard = Job(files={"m.py": source}, run=Calls(module="m", calls=(("f", (1,)),)))
    result = together(brisk_pool, part("good", 1), hard, part("good", 2))
    assert [part.end for part in result.parts] == ["finished", "timeout", "timeout"]
    assert not result.parts[2].repeatable


def test_a_batch_of_nothing_is_nothing(brisk_pool):
    result = together(brisk_pool)
    assert (result.end, result.parts) == ("finished", ())


def test_scripts_cannot_share_a_process(brisk_pool):
    with pytest.raises(TaskError, match="a part that is a Batch; a part must be Calls or Suite"):
        together(brisk_pool, Job(files={}, run=Batch(parts=())))
