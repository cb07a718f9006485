"""Jobs that share a process: what comes of each is what comes of it alone, in fewer processes."""

import asyncio

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import Calls, Job, Limits, Suite, Together
from tests.pools import open_pool

SUITE = "from m import f\ndef test_a():\n    assert f(2) == 4\n"


@pytest.fixture(scope="module")
def brisk_pool():
    with open_pool(2, Limits(wall_s=30.0, cpu_s=0.05)) as pool:
        yield pool


def suite(source):
    return Job(files={"m.py": source, "test_m.py": SUITE}, run=Suite(paths=("test_m.py",)))


def calls(source, *arguments):
    return Job(files={"m.py": source}, run=Calls(module="m", calls=tuple(("f", (x,)) for x in arguments)))


JOBS = [
    suite("def f(x):\n    return 2 * x\n"),
    suite("def f(x):\n    return 3 * x\n"),
    calls("def f(x):\n    return x + 1\n", 1, 2),
    calls("def f(x):\n    while x: pass\n", 0, 1),
    suite("def f(x:\n"),
]


def run_all(runner, jobs):
    async def gathered():
        return await asyncio.gather(*map(runner.run, jobs))

    return asyncio.run(gathered())


def test_each_job_gives_what_it_gives_alone_and_a_share_is_one_job_of_the_pool(brisk_pool):
    alone = brisk_pool.run_sync(JOBS)
    before = brisk_pool.stats.misses
    assert run_all(Together(brisk_pool), JOBS) == alone
    assert brisk_pool.stats.misses - before == 2  # five jobs in two shares


def test_what_a_dying_job_takes_with_it_runs_alone(brisk_pool):
    dying = calls("import os\ndef f(x):\n    os._exit(0)\n", 1)
    first, second, third = run_all(Together(brisk_pool, 1), [JOBS[0], dying, JOBS[2]])
    assert (first.end, second.end, third.end) == ("finished", "died", "finished")


def test_jobs_of_later_turns_are_sent_too(brisk_pool):
    shared = Together(brisk_pool)

    async def one_after_another():
        return [await shared.run(job) for job in JOBS[:3]]

    assert asyncio.run(one_after_another()) == brisk_pool.run_sync(JOBS[:3])


def test_whoever_waits_hears_that_the_machinery_failed():
    pool = open_pool(1)
    pool.close()
    with pytest.raises(SandboxError, match="closed"):
        run_all(Together(pool), JOBS[:2])
