"""The pool: order, memory, lost boxes, event loops and threads, and nothing left behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import SandboxError, TaskError
from agentrl.sandbox import Calls, Job, Limits, Pool, lanes
from agentrl.sandbox.pool import Lease
from agentrl.sandbox.walls import memory
from tests.pools import open_pool
from tests.sandbox.backends import open_backend, why_not

SLEEPY = "import time\ndef f(x):\n    time.sleep(30)\n"


def double(x, **files):
    return Job(files={"m.py": "def f(x):\n    return 2 * x\n", **files}, run=Calls(module="m", calls=(("f", (x,)),)))


def sleepy(x):
    return Job(files={"m.py": SLEEPY}, run=Calls(module="m", calls=(("f", (x,)),)))


def values(results):
    return [result.outcomes[0].value for result in results]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def processes():
    return set(memory.descendants(os.getpid()))


@settings(max_examples=10, deadline=None)
@given(numbers=st.lists(st.integers(0, 40), max_size=60))
def test_results_come_in_the_order_of_the_jobs_with_or_without_a_loop(numbers, pool):
    jobs = [double(number) for number in numbers]
    assert values(pool.run_sync(jobs)) == [2 * number for number in numbers]
    assert values(asyncio.run(pool.run_many(jobs))) == [2 * number for number in numbers]


def test_jobs_larger_than_a_pipe_do_not_deadlock():
    big = "#" * 300_000
    with open_pool(2, cache_size=0) as pool:
        jobs = [double("x" * 10_000 + str(i), **{"big.py": big}) for i in range(8)]
        assert all(len(value) > 20_000 for value in values(pool.run_sync(jobs)))
        assert all(len(value) > 20_000 for value in values(asyncio.run(pool.run_many(jobs))))


def test_what_was_started_is_finished_in_order_and_shared_with_who_asks_for_the_same():
    with open_pool(2) as pool:
        first, second = pool.start([double(1), double(2)]), pool.start([double(2), double(3)])
        assert values(pool.run_sync([double(4)])) == [8]
        assert [values(t.result() for t in tickets) for tickets in (second, first)] == [[4, 6], [2, 4]]
        assert (pool.stats.hits, pool.stats.misses) == (1, 4)


def test_nothing_starts_before_the_first_job_and_a_burst_starts_all():
    before = processes()
    with open_pool(2) as pool:
        assert processes() == before
        pool.run_sync([double(1)])
        one = len(processes())
        asyncio.run(pool.run_many([double(i) for i in range(2, 6)]))
        assert len(before) < one < len(processes())
        assert len(pool._lanes) == 2


def test_equal_jobs_run_once():
    with open_pool(1) as pool:
        first = pool.run_sync([double(1), double(2), double(1)])
        assert (pool.stats.hits, pool.stats.misses) == (1, 2)  # the third shared the first one's run
        again = asyncio.run(pool.run_many([double(1), double(1), double(3)]))
        assert (pool.stats.hits, pool.stats.misses) == (3, 3)
        assert values(first) == [2, 4, 2]
        assert values(again) == [2, 2, 6]
        assert pool.stats.seconds > 0


def test_equal_jobs_awaited_together_share_one_run():
    with open_pool(2) as pool:
        assert values(asyncio.run(pool.run_many([double(1)] * 10))) == [2] * 10
        assert (pool.stats.hits, pool.stats.misses) == (9, 1)


def test_jobs_that_differ_in_a_type_or_a_file_do_not_share_a_result():
    with open_pool(1) as pool:
        found = values(pool.run_sync([double(1), double(1.0), double(True), double("1"), double(1, **{"n.py": ""})]))
        assert list(map(type, found)) == [int, float, int, str, int]
        assert pool.stats.hits == 0


def test_the_memory_forgets_the_least_recently_used():
    with open_pool(1, cache_size=2) as pool:
        for x in (1, 2, 1, 3, 1, 2):  # misses 1, 2; hit 1; miss 3 drops 2; hit 1; miss 2
            pool.run_sync([double(x)])
        assert (pool.stats.hits, pool.stats.misses) == (2, 4)


def test_a_pool_without_memory_runs_everything():
    with open_pool(1, cache_size=0) as pool:
        pool.run_sync([double(1)])
        pool.run_sync([double(1)])
        assert pool.stats.misses == 2


def test_timeouts_by_the_clock_and_deaths_are_not_remembered():
    dying = Job(files={"m.py": "import os\nos._exit(0)"}, run=Calls(module="m", calls=(("f", ()),)))
    with open_pool(1) as pool:
        for job, wall_s, end in ((sleepy(1), 0.2, "timeout"), (dying, 60.0, "died")):
            pool.limits = Limits(wall_s=wall_s)
            assert [pool.run_sync([job])[0].end for _ in range(2)] == [end, end]
        assert (pool.stats.hits, pool.stats.misses, pool.stats.timeouts) == (0, 4, 2)


def test_a_timeout_by_processor_time_is_remembered():
    endless = Job(files={"m.py": "def f():\n    while True: pass"}, run=Calls(module="m", calls=(("f", ()),)))
    with open_pool(1, Limits(wall_s=30.0, cpu_s=0.05)) as pool:
        assert [pool.run_sync([endless])[0].end for _ in range(3)] == ["timeout"] * 3
        assert (pool.stats.hits, pool.stats.misses, pool.stats.timeouts) == (2, 1, 1)


def zygote_pool(size):
    """A pool whose fork server can be killed."""
    return Pool(open_backend("zygote"), size=size)


def lost(pool, *numbers):
    """What became of those of some jobs, one after the other, that had no result."""
    errors = [ticket.exception(timeout=60) for x in numbers for ticket in pool.start([double(x)])]
    return [str(error) for error in errors if error]


async def kill_while_running(pool, jobs):
    tasks = [asyncio.ensure_future(pool.run(job)) for job in jobs]
    while not pool.backend.process_ids:
        await asyncio.sleep(0.01)
    while len(memory.descendants(pool.backend.process_ids[0])) < 2 + 3 * len(jobs):  # keeper, server and job of each
        await asyncio.sleep(0.01)
    os.kill(pool.backend.process_ids[0], signal.SIGKILL)
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_killed_backend_loses_its_jobs_as_errors_of_ours_and_is_replaced():
    with zygote_pool(2) as pool:
        found = asyncio.run(kill_while_running(pool, [sleepy(1), sleepy(2)]))
        assert [type(result) for result in found] == [SandboxError] * 2
        assert "the job was lost, not failed" in str(found[0])
        assert (pool.stats.lost, pool.stats.restarts) == (2, 2)
        assert values(asyncio.run(pool.run_many([double(4), double(5)]))) == [8, 10]


def test_a_backend_killed_while_idle_costs_one_job_at_most():
    with zygote_pool(1) as pool:
        pool.run_sync([double(1)])
        os.kill(pool.backend.process_ids[0], signal.SIGKILL)
        assert len(lost(pool, 2, 3, 4)) <= 1  # which of them notices is a matter of luck
        assert values(pool.run_sync([double(5)])) == [10]


@pytest.mark.parametrize("when", [0, 3, 10, 30])
def test_a_job_server_killed_at_any_time_is_an_error_of_ours_or_an_answer(when):
    """The keeper of a box, and the server in it, die at a moment of their own; the next job works."""
    with zygote_pool(1) as pool:
        pool.run_sync([double(0)])
        victim = memory.descendants(pool.backend.process_ids[0])[-1]  # process 1 of the box
        tickets = pool.start([sleepy(when)] if when else [double(-1)])
        time.sleep(when / 1000)
        os.kill(victim, signal.SIGKILL)
        errors = [str(ticket.exception(timeout=60) or "") for ticket in tickets]
        found = [error for error in errors if error] + lost(pool, 7, 8)
        assert len(found) <= 1
        assert all("lost, not failed" in error for error in found)
        assert values(pool.run_sync([double(9)])) == [18]


def test_a_server_that_falls_silent_is_given_up_and_replaced(monkeypatch):
    monkeypatch.setattr(lanes, "_GRACE_S", 0.2)
    with Pool(open_backend("zygote"), size=1) as pool:
        assert values(pool.run_sync([double(1)])) == [2]
        patient, pool.limits = pool.limits, Limits(wall_s=0.3)
        server = memory.descendants(pool.backend.process_ids[0])[-1]
        os.kill(server, signal.SIGSTOP)
        with pytest.raises(SandboxError, match=r"gave no answer within 0.2 s"):
            asyncio.run(pool.run(double(2)))
        monkeypatch.undo()
        pool.limits = patient
        assert values(pool.run_sync([double(3)])) == [6]


def test_a_fault_of_ours_with_one_job_does_not_end_the_lane(monkeypatch):
    with open_pool(1) as pool:
        monkeypatch.setattr(lanes, "read_result", lambda job, end, output: [][0])
        with pytest.raises(SandboxError, match="IndexError: list index out of range; the job was lost"):
            pool.run_sync([double(1)])
        monkeypatch.undo()
        ticket = pool.start([double(1)])[0]
        assert values([ticket.result(timeout=60)]) == [2]


def test_a_cancelled_job_does_not_disturb_the_next():
    async def cancel_one(pool):
        task = asyncio.ensure_future(pool.run(double(1)))
        await asyncio.sleep(0)
        task.cancel()
        return await pool.run_many([double(2), double(1)])

    with open_pool(1) as pool:
        assert values(asyncio.run(cancel_one(pool))) == [4, 2]


def test_a_loop_that_ended_with_jobs_in_flight_does_not_disturb_the_next():
    async def leave(pool):
        task = asyncio.ensure_future(pool.run(sleepy(1)))
        await asyncio.sleep(0.1)
        assert not task.done()

    with open_pool(1) as pool:
        asyncio.run(leave(pool))
        assert values(asyncio.run(pool.run_many([double(1)]))) == [2]
        asyncio.run(leave(pool))


def test_a_blocking_run_inside_a_loop_serves_the_jobs_of_the_loop_too():
    async def both(pool):
        task = asyncio.ensure_future(pool.run(double(1)))
        await asyncio.sleep(0)
        blocking = pool.run_sync([double(2)])
        return [*blocking, await task, await pool.run(double(3))]

    with open_pool(1) as pool:
        assert values(asyncio.run(both(pool))) == [4, 2, 6]


def test_any_thread_and_any_loop_may_use_a_pool_at_the_same_time():
    found = {}

    def use(pool, first):
        found[first] = values(asyncio.run(pool.run_many([double(first + i) for i in range(10)])))

    with open_pool(2) as pool:
        threads = [threading.Thread(target=use, args=(pool, first)) for first in (0, 100, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {first: [2 * (first + i) for i in range(10)] for first in (0, 100, 200)}


def test_jobs_go_on_while_the_loop_that_asked_is_busy():
    async def ask_and_block(pool):
        task = asyncio.ensure_future(pool.run(double(1)))
        await asyncio.sleep(0)
        deadline = time.monotonic() + 20
        while pool.stats.seconds == 0 and time.monotonic() < deadline:
            time.sleep(0.01)  # as a model that samples
        return pool.stats.seconds > 0, (await task).outcomes[0].value

    with open_pool(1) as pool:
        assert asyncio.run(ask_and_block(pool)) == (True, 2)


def test_a_closed_pool_leaves_no_file_process_or_thread():
    with open_pool(1) as pool:
        pool.run_sync([double(0)])  # what is imported on first use is there
    gc.collect()
    before = (open_files(), processes(), threading.active_count())
    for _ in range(3):
        pool = open_pool(2)
        asyncio.run(pool.run_many([double(i) for i in range(4)]))
        assert processes() > before[1]
        pool.close()
        pool.close()
    gc.collect()
    until(lambda: (open_files(), processes(), threading.active_count()) == before)


OWNER = """
import sys, time
from agentrl.sandbox import Calls, Job, Limits
from agentrl.sandbox import lanes
from agentrl.sandbox.pool import Lease
from agentrl.sandbox.walls import memory
from tests.sandbox.backends import open_backend, why_not
from tests.pools import open_pool
import os
pool = open_pool(2, Limits(wall_s=60.0, cpu_s=50.0))
pool.run_sync([Job(files={"m.py": "def f(x):\\n    return x"}, run=Calls(module="m", calls=(("f", (1,)),)))])
pool.start([Job(files={"m.py": "def f(x):\\n    while True: pass"}, run=Calls(module="m", calls=(("f", (1,)),)))])
time.sleep(1.0)
print(*memory.descendants(os.getpid())[1:], flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_killed_owner_leaves_no_process():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    left = [Path(f"/proc/{word}") for word in owner.stdout.readline().split()]
    assert len(left) >= 2
    assert all(path.exists() for path in left)
    owner.kill()
    owner.communicate()
    until(lambda: not any(path.exists() for path in left))


def until(true):
    """Wait for something that must come soon."""
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_loses_what_is_still_wanted():
    async def close_early(pool):
        task = asyncio.ensure_future(pool.run(sleepy(1)))
        await asyncio.sleep(0.1)
        pool.close()
        return await asyncio.gather(task, return_exceptions=True)

    (error,) = asyncio.run(close_early(open_pool(1)))
    assert "pool was closed" in str(error)


def test_a_closed_pool_refuses_jobs():
    pool = open_pool(1)
    pool.close()
    with pytest.raises(SandboxError, match="make a new Pool"):
        pool.run_sync([double(1)])


def test_a_job_that_cannot_be_sent_is_refused_before_anything_runs(pool):
    with pytest.raises(TaskError, match="not plain data"):
        pool.run_sync([double(object())])


@pytest.mark.parametrize("settings", [{"size": 0}, {"cache_size": -1}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SandboxError, match="need at least 1 and 0"):
        Pool(**settings)


def test_the_number_of_boxes_changes_no_result():
    jobs = [
        Job(
            files={"m.py": f"def f():\n    return hash('a'), {i} // {i % 3}"}, run=Calls(module="m", calls=(("f", ()),))
        )
        for i in range(20)
    ]
    with open_pool(1) as one, open_pool(3) as three:
        assert one.run_sync(jobs) == asyncio.run(three.run_many(jobs))


@pytest.mark.skipif(bool(why_not("zygote")), reason=why_not("zygote"))
def test_a_lease_ends_its_own_pool_and_no_other():
    with open_pool(1) as given:
        lease = Lease(given)
        assert lease.get() is given
        lease.close()
        assert values(given.run_sync([double(1)])) == [2]
    own = Lease(None)
    own.close()  # nothing was made yet
    pool = own.get()
    assert own.get() is pool
    own.close()
    own.close()
    with pytest.raises(SandboxError, match="closed"):
        pool.run_sync([double(1)])
