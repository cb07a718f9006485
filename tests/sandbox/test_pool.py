"""The pool: order, memory, dead workers, event loops, and nothing left behind."""

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
from agentrl.sandbox import Calls, Job, Limits, WorkerPool

SLEEPY = "import time\ndef f(x):\n    time.sleep(30)\n"


def double(x, **files):
    return Job(files={"m.py": "def f(x):\n    return 2 * x\n", **files}, run=Calls(module="m", calls=(("f", (x,)),)))


def sleepy(x):
    return Job(files={"m.py": SLEEPY}, run=Calls(module="m", calls=(("f", (x,)),)))


def values(results):
    return [result.outcomes[0].value for result in results]


def pids(pool):
    return [worker.process.pid for worker in pool._workers if worker is not None]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def children():
    return sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))


@settings(max_examples=10, deadline=None)
@given(numbers=st.lists(st.integers(0, 40), max_size=60))
def test_results_come_in_the_order_of_the_jobs_with_or_without_a_loop(numbers, pool):
    jobs = [double(number) for number in numbers]
    assert values(pool.run_sync(jobs)) == [2 * number for number in numbers]
    assert values(asyncio.run(pool.run_many(jobs))) == [2 * number for number in numbers]


def test_jobs_larger_than_a_pipe_do_not_deadlock():
    big = "#" * 300_000
    with WorkerPool(2, cache_size=0) as pool:
        jobs = [double("x" * 10_000 + str(i), **{"big.py": big}) for i in range(8)]
        assert all(len(value) > 20_000 for value in values(pool.run_sync(jobs)))
        assert all(len(value) > 20_000 for value in values(asyncio.run(pool.run_many(jobs))))


def test_what_was_started_is_finished_in_order_and_shared_with_who_asks_for_the_same():
    with WorkerPool(2) as pool:
        first, second = pool.start([double(1), double(2)]), pool.start([double(2), double(3)])
        assert values(pool.run_sync([double(4)])) == [8]
        assert (values(pool.finish(second)), values(pool.finish(first))) == ([4, 6], [2, 4])
        assert (pool.stats.hits, pool.stats.misses) == (1, 4)


def test_one_job_starts_one_worker_and_a_burst_starts_all():
    with WorkerPool(2) as pool:
        assert pids(pool) == []
        pool.run_sync([double(1)])
        assert len(pids(pool)) == 1
        asyncio.run(pool.run_many([double(i) for i in range(2, 6)]))
        assert len(pids(pool)) == 2


def test_equal_jobs_run_once():
    with WorkerPool(1) as pool:
        first = pool.run_sync([double(1), double(2), double(1)])
        assert (pool.stats.hits, pool.stats.misses) == (1, 2)  # the third shared the first one's run
        again = asyncio.run(pool.run_many([double(1), double(1), double(3)]))
        assert (pool.stats.hits, pool.stats.misses) == (3, 3)
        assert values(first) == [2, 4, 2]
        assert values(again) == [2, 2, 6]
        assert pool.stats.seconds > 0


def test_equal_jobs_awaited_together_share_one_run():
    with WorkerPool(2) as pool:
        assert values(asyncio.run(pool.run_many([double(1)] * 10))) == [2] * 10
        assert (pool.stats.hits, pool.stats.misses) == (9, 1)


def test_jobs_that_differ_in_a_type_or_a_file_do_not_share_a_result():
    with WorkerPool(1) as pool:
        found = values(pool.run_sync([double(1), double(1.0), double(True), double("1"), double(1, **{"n.py": ""})]))
        assert list(map(type, found)) == [int, float, int, str, int]
        assert pool.stats.hits == 0


def test_the_memory_forgets_the_least_recently_used():
    with WorkerPool(1, cache_size=2) as pool:
        for x in (1, 2, 1, 3, 1, 2):  # misses 1, 2; hit 1; miss 3 drops 2; hit 1; miss 2
            pool.run_sync([double(x)])
        assert (pool.stats.hits, pool.stats.misses) == (2, 4)


def test_a_pool_without_memory_runs_everything():
    with WorkerPool(1, cache_size=0) as pool:
        pool.run_sync([double(1)])
        pool.run_sync([double(1)])
        assert pool.stats.misses == 2


def test_timeouts_by_the_clock_and_deaths_are_not_remembered():
    dying = Job(files={"m.py": "import os\nos._exit(0)"}, run=Calls(module="m", calls=(("f", ()),)))
    with WorkerPool(1, Limits(wall_s=0.2)) as pool:
        for job, end in ((sleepy(1), "timeout"), (dying, "died")):
            assert [pool.run_sync([job])[0].end for _ in range(2)] == [end, end]
        assert (pool.stats.hits, pool.stats.misses, pool.stats.timeouts) == (0, 4, 2)


def test_a_timeout_by_processor_time_is_remembered():
    endless = Job(files={"m.py": "def f():\n    while True: pass"}, run=Calls(module="m", calls=(("f", ()),)))
    with WorkerPool(1, Limits(wall_s=30.0, cpu_s=0.05)) as pool:
        assert [pool.run_sync([endless])[0].end for _ in range(3)] == ["timeout"] * 3
        assert (pool.stats.hits, pool.stats.misses, pool.stats.timeouts) == (2, 1, 1)


async def kill_while_running(pool, jobs):
    tasks = [asyncio.ensure_future(pool.run(job)) for job in jobs]
    await asyncio.sleep(0.3)
    for pid in pids(pool):
        os.kill(pid, signal.SIGKILL)
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_killed_worker_loses_its_jobs_as_errors_of_ours_and_is_replaced():
    with WorkerPool(2) as pool:
        found = asyncio.run(kill_while_running(pool, [sleepy(1), sleepy(2), sleepy(3)]))
        assert [type(result) for result in found] == [SandboxError] * 3
        assert "ended with status -9; the job was lost, not failed" in str(found[0])
        assert pool.stats.restarts == 2
        assert pool.stats.lost == 3
        assert values(asyncio.run(pool.run_many([double(4), double(5)]))) == [8, 10]


def test_the_program_of_a_killed_worker_dies_with_it(tmp_path):
    note = tmp_path / "pid"
    source = f"import os, time\ndef f():\n    open({str(note)!r}, 'w').write(str(os.getpid()))\n    time.sleep(30)"
    job = Job(files={"m.py": source}, run=Calls(module="m", calls=(("f", ()),)))
    with WorkerPool(1) as pool:
        asyncio.run(kill_while_running(pool, [job]))
    program = Path("/proc", note.read_text(), "stat")
    for _ in range(100):
        if not program.exists() or " Z " in program.read_text():
            return
        time.sleep(0.02)
    raise AssertionError("the program still runs")


def test_a_worker_killed_while_idle_costs_one_job_at_most():
    with WorkerPool(1) as pool:
        pool.run_sync([double(1)])
        os.kill(pids(pool)[0], signal.SIGKILL)
        try:
            pool.run_sync([double(2)])
        except SandboxError:
            assert pool.stats.lost == 1
        assert values(pool.run_sync([double(3)])) == [6]


def test_a_worker_killed_during_a_blocking_run_is_an_error_of_ours():
    with WorkerPool(1) as pool:
        pool.run_sync([double(1)])
        timer = threading.Timer(0.2, os.kill, (pids(pool)[0], signal.SIGKILL))
        timer.start()
        with pytest.raises(SandboxError, match="lost, not failed"):
            pool.run_sync([sleepy(1)])
        timer.join()
        assert values(pool.run_sync([double(2)])) == [4]


def test_a_worker_that_falls_silent_is_given_up_and_replaced():
    with WorkerPool(1) as pool:
        pool.run_sync([double(1)])
        os.kill(pids(pool)[0], signal.SIGSTOP)
        pool._workers[0].patience_s = 0.2
        with pytest.raises(SandboxError, match=r"gave no answer for 0.2 s"):
            asyncio.run(pool.run(double(2)))
        assert values(pool.run_sync([double(3)])) == [6]


def test_a_cancelled_job_does_not_disturb_the_next():
    async def cancel_one(pool):
        task = asyncio.ensure_future(pool.run(double(1)))
        await asyncio.sleep(0)
        task.cancel()
        return await pool.run_many([double(2), double(1)])

    with WorkerPool(1) as pool:
        assert values(asyncio.run(cancel_one(pool))) == [4, 2]


def test_a_loop_that_ended_with_jobs_in_flight_does_not_disturb_the_next():
    async def leave(pool):
        task = asyncio.ensure_future(pool.run(sleepy(1)))
        await asyncio.sleep(0.1)
        assert not task.done()

    with WorkerPool(1) as pool:
        asyncio.run(leave(pool))
        assert values(asyncio.run(pool.run_many([double(1)]))) == [2]
        asyncio.run(leave(pool))


def test_a_blocking_run_inside_a_loop_serves_the_jobs_of_the_loop_too():
    async def both(pool):
        task = asyncio.ensure_future(pool.run(double(1)))
        await asyncio.sleep(0)
        blocking = pool.run_sync([double(2)])
        return [*blocking, await task, await pool.run(double(3))]

    with WorkerPool(1) as pool:
        assert values(asyncio.run(both(pool))) == [4, 2, 6]


def test_two_running_loops_cannot_share_a_pool():
    async def inner(pool):
        await pool.run(double(1))
        thread = threading.Thread(target=lambda: problems.append(attempt(pool)))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)

    def attempt(pool):
        try:
            return asyncio.run(pool.run(double(2)))
        except SandboxError as error:
            return error

    problems = []
    with WorkerPool(1) as pool:
        asyncio.run(inner(pool))
    assert "in use by another running event loop" in str(problems[0])


def test_a_closed_pool_leaves_no_file_process_or_directory():
    gc.collect()
    files, processes = open_files(), children()
    for _ in range(3):
        pool = WorkerPool(2)
        asyncio.run(pool.run_many([double(i) for i in range(4)]))
        directory = pool._directory.name
        assert children() == processes + 2
        pool.close()
        pool.close()
        assert not os.path.exists(directory)
    gc.collect()
    assert (open_files(), children()) == (files, processes)


OWNER = """
import sys, time
from agentrl.sandbox import Calls, Job, Limits, WorkerPool
pool = WorkerPool(2, Limits(wall_s=60.0, cpu_s=50.0))
endless = Job(files={"m.py": "def f(x):\\n    while True: pass"}, run=Calls(module="m", calls=(("f", (1,)),)))
pool.start([Job(files={"m.py": "def f(x):\\n    return x"}, run=Calls(module="m", calls=(("f", (1,)),))), endless])
print(*(worker.process.pid for worker in pool._running()), pool._directory.name, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_killed_owner_leaves_no_worker_no_job_and_no_directory():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    first, second, directory = owner.stdout.readline().split()
    idle, busy = Path(f"/proc/{first}"), Path(f"/proc/{second}")
    until(lambda: job_of(busy))
    job = Path(f"/proc/{job_of(busy)}")
    assert idle.exists()
    assert job.exists()
    owner.kill()
    owner.communicate()
    until(lambda: not (idle.exists() or busy.exists() or job.exists() or os.path.exists(directory)))


def job_of(worker):
    """The process in which a worker runs its job."""
    return (worker / "task" / worker.name / "children").read_text().strip()


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

    (error,) = asyncio.run(close_early(WorkerPool(1)))
    assert "pool was closed" in str(error)


def test_a_closed_pool_refuses_jobs():
    pool = WorkerPool(1)
    pool.close()
    with pytest.raises(SandboxError, match="make a new WorkerPool"):
        pool.run_sync([double(1)])


def test_a_job_that_cannot_be_sent_is_refused_before_anything_runs(pool):
    with pytest.raises(TaskError, match="not plain data"):
        pool.run_sync([double(object())])


@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"cache_size": -1}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SandboxError, match="need at least 1 and 0"):
        WorkerPool(**settings)


def test_the_number_of_workers_changes_no_result():
    jobs = [
        Job(
            files={"m.py": f"def f():\n    return hash('a'), {i} // {i % 3}"}, run=Calls(module="m", calls=(("f", ()),))
        )
        for i in range(20)
    ]
    with WorkerPool(1) as one, WorkerPool(3) as three:
        assert one.run_sync(jobs) == asyncio.run(three.run_many(jobs))
