"""Jobs one after another in one box: nothing of one is left for the next, and none reaches the process that serves."""

import asyncio
import os
import textwrap
from pathlib import Path

import pytest

from agentrl.sandbox import Calls, Job, Limits, Pool, Suite
from agentrl.sandbox.jobs import encode_job
from agentrl.sandbox.lanes import WarmLane, open_lane
from agentrl.sandbox.walls import memory
from tests.sandbox.backends import backends, open_backend

LIMITS = Limits(wall_s=10.0, cpu_s=5.0)


@pytest.fixture(scope="module", params=[name for name, _ in backends()])
def pool(request):
    with Pool(open_backend(request.param), size=1, limits=LIMITS, cache_size=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def warm_pool():
    with Pool(open_backend("zygote"), size=1, limits=LIMITS, cache_size=0) as opened:
        yield opened


def job(source, *calls, function="f"):
    return Job(
        files={"m.py": textwrap.dedent(source)}, run=Calls(module="m", calls=tuple((function, c) for c in calls))
    )


def outcomes(pool, source, *calls):
    return pool.run_sync([job(source, *(calls or ((),)))])[0].outcomes


HONEST = "def f():\n    return 7"


def works(pool):
    return outcomes(pool, HONEST)[0].value == 7


def test_every_backend_runs_calls_and_suites_alike(pool):
    files = {
        "m.py": "def f(x):\n    return x + 1\n",
        "test_m.py": "from m import f\ndef test_a():\n    assert f(1) == 3\n",
    }
    calls = pool.run_sync([Job(files=files, run=Calls(module="m", calls=(("f", (1,)), ("f", ("x",)))))])[0]
    assert [(o.status, o.value, o.exception) for o in calls.outcomes] == [
        ("value", 2, ""),
        ("raised", None, "TypeError"),
    ]
    (test,) = pool.run_sync([Job(files=files, run=Suite(paths=("test_m.py",)))])[0].tests
    assert (test.name, test.status, test.call, test.got, test.expected) == (
        "test_m.py::test_a",
        "failed",
        "f(1)",
        "2",
        "3",
    )


LEAVES_FILES = """
    import os
    def f():
        seen = []
        for place in (".", "/tmp", "/dev/shm"):
            try:
                seen += [name for name in os.listdir(place) if name.startswith("left")]
                open(os.path.join(place, "left"), "w").write("x")
                os.makedirs(os.path.join(place, "left-folder/inner"))
                os.symlink("/", os.path.join(place, "left-link"))
            except OSError:
                pass
        return seen
"""


def test_files_of_one_job_are_gone_for_the_next(pool):
    if pool.backend.name == "subprocess":
        pytest.skip("without walls /dev/shm is the machine's")
    assert [outcomes(pool, LEAVES_FILES)[0].value for _ in range(3)] == [[], [], []]
    assert works(pool)


ON_FOLDERS = {
    "mode": "os.chmod(place, 0o555)",
    "time": "os.utime(place, (1, 2))",
    "attribute": "os.setxattr(place, 'user.left', b'x')",
    "file and no more": "open(place + '/left', 'w').close(); os.unlink(place + '/left')",
}


@pytest.mark.parametrize("change", ON_FOLDERS)
@pytest.mark.parametrize("place", [".", "/tmp", "/dev/shm"])
def test_what_one_job_makes_of_a_folder_is_unmade_for_the_next(warm_pool, place, change):
    source = f"""
        import os
        def f(place, change):
            state = os.stat(place)
            seen = [state.st_mode, state.st_mtime == 2, os.listxattr(place)]
            if change:
                try:
                    {ON_FOLDERS[change]}
                except OSError:
                    pass  # no such attributes on this kernel
            return [seen, os.getpid()]
    """
    first, second, third = (outcomes(warm_pool, source, (place, mine))[0].value for mine in (False, True, False))
    assert first[0] == second[0] == third[0]
    assert second[1] == first[1] + 1
    assert third[1] == 2 or change == "attribute"  # another server


@pytest.mark.parametrize("mode", [0, 0o555])
def test_a_folder_that_one_job_closed_is_open_for_the_next(pool, mode):
    closes = f"import os\ndef f():\n    os.utime('.', (1, 2))\n    os.chmod('.', {mode})\n    return 'closed'"
    state = "import os\ndef f():\n    state = os.stat('.')\n    return [state.st_mode, state.st_mtime == 2]"
    before = outcomes(pool, state)[0].value
    assert outcomes(pool, closes)[0].value == "closed"
    assert outcomes(pool, state)[0].value == before
    assert works(pool)


def test_memory_of_one_job_is_out_of_reach_of_the_next(warm_pool):
    looks = """
        import ctypes
        def f(parts):
            sought, found = b"-".join(map(bytes, parts)), 0
            for line in open("/proc/self/maps"):
                place, modes, *_ = line.split()
                if modes.startswith("rw") and "[v" not in line:
                    first, last = (int(number, 16) for number in place.split("-"))
                    found += ctypes.string_at(first, last - first).count(sought)
            return found
    """

    def found(word, more=""):
        return outcomes(warm_pool, looks + more, ([[*part.encode()] for part in word.split("-")],))[0].value

    alone = found("its-nothing")  # what is sought is in the memory of who seeks it
    assert found("its-own", more="    # its-own") > alone
    for size in (0, 20_000, 200_000):
        outcomes(warm_pool, f"# its-source{size}!\n#{'#' * size}\ndef f(x):\n    return f'its-answer{{x}}!'", (size,))
        assert found(f"its-source{size}!") == alone
        assert found(f"its-answer{size}!") == alone


SPAWNS = """
    import os, subprocess, time
    def f():
        mine = set(name for name in os.listdir("/proc") if name.isdigit())
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    while True:
                        try: time.sleep(60)
                        except BaseException: pass
                os._exit(0)
        time.sleep(0.05)
        return len(mine)
"""


def test_processes_of_one_job_are_gone_for_the_next(warm_pool):
    assert [outcomes(warm_pool, SPAWNS)[0].value for _ in range(3)] == [2, 2, 2]  # the server and the job itself


AGAINST_THE_SERVER = {
    "kill": "for n in range(1, 65):\n        try: os.kill(1, n)\n        except OSError: pass",
    "kill its group": "for p in (0, 1):\n        try: os.killpg(os.getpgid(p), 9)\n        except OSError: pass",
    "kill everybody": "os.kill(-1, 9)",
    "stop": "os.kill(1, signal.SIGSTOP)",
    "limits": "resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
    "memory": "open('/proc/1/mem', 'r+b').write(b'x')",
    "descriptors": "[os.open('/proc/1/fd/%d' % n, os.O_RDWR) for n in range(3, 8)]",
    "environment": "open('/proc/1/environ').read() and 1/0",
    "trace": "ctypes.CDLL(None, use_errno=True).ptrace(16, 1, 0, 0)",
    "descriptor of a process": "signal.pidfd_send_signal(os.pidfd_open(1), 9)",
    "out of memory first": "open('/proc/1/oom_score_adj', 'w').write('1000')",
    "close its folders": "[os.chmod(place, 0) for place in ('.', '/tmp', '/dev/shm')]",
    "a name that is no text": "ctypes.CDLL(None).prctl(15, b'\\xff\\xfe)', 0, 0, 0) or busy(0.4)",
    "leave no process": "[os.fork() for _ in range(40)] and time.sleep(60)",
}


BUSY = """
def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass
"""


@pytest.mark.parametrize("attack", AGAINST_THE_SERVER)
def test_a_job_does_not_reach_the_process_that_serves(warm_pool, attack):
    imports = "import ctypes, os, resource, signal, time"
    source = f"{imports}\n{BUSY}def f():\n    {AGAINST_THE_SERVER[attack]}\n    return 'done'"
    before = warm_pool.stats
    outcomes(warm_pool, source)
    assert warm_pool.stats.lost == before.lost  # it had its result, whatever that is, and was not made to vanish
    assert works(warm_pool)


def test_a_job_cannot_slow_down_the_next(warm_pool):
    source = """
        import os
        def f(change):
            state = os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0)
            refused = 0
            if change:
                for call in (
                    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
                    lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
                    lambda: os.sched_setaffinity(1, {0}),
                    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
                ):
                    try: call()
                    except PermissionError: refused += 1
                os.nice(1)
            return state, refused
    """
    before = outcomes(warm_pool, source, (False,))[0].value
    assert outcomes(warm_pool, source, (True,))[0].value == (before[0], 4)
    assert outcomes(warm_pool, source, (False,))[0].value == before


def test_the_line_to_us_is_closed_in_a_job(warm_pool):
    source = """
        import os
        def f():
            said = []
            for descriptor in range(3, 512):
                try:
                    os.fstat(descriptor)
                    said.append(os.readlink(f"/proc/self/fd/{descriptor}").partition(":")[0])
                except OSError:
                    pass
            return said
    """
    assert outcomes(warm_pool, source)[0].value == ["pipe"]  # where its reports go


def test_a_forged_report_is_of_the_one_who_writes_it(warm_pool):
    source = """
        import os
        def f():
            for descriptor in range(3, 64):
                try: os.write(descriptor, b'{"status":"value","value":1}\\n' * 50)
                except OSError: pass
            os._exit(0)
    """
    assert outcomes(warm_pool, source)[0].value == 1  # of the values that it could return as well
    assert outcomes(warm_pool, "def f():\n    return 2")[0].value == 2


def test_a_forked_process_that_runs_on_reports_nothing(pool):
    source = "import os\nif os.fork() == 0:\n    raise ValueError\nos.wait()\ndef f():\n    return 7"
    assert [(o.status, o.value) for o in outcomes(pool, source, (), ())] == [("value", 7)] * 2


@pytest.mark.parametrize(("mib", "ends"), [(0.1, {"finished"}), (2.5, {"finished", "died"}), (8, {"died"})])
def test_a_program_that_is_too_large_to_be_read_is_its_own_doing(mib, ends):
    filler = {"b.py": "\udcff" * int(mib * (1 << 20))}  # six bytes each on the way
    with Pool(open_backend("zygote"), size=1, limits=Limits(wall_s=20.0, cpu_s=5.0, memory_mib=64)) as small:
        honest = job(HONEST, ())
        (result,) = small.run_sync([Job(files={**honest.files, **filler}, run=honest.run)])
        assert result.end in ends
        assert small.stats.lost == 0
        assert works(small)


def test_memory_that_is_used_up_is_the_doing_of_the_program():
    source = """
        import os, time
        def f():
            for _ in range(6):
                if os.fork() == 0:
                    block = bytearray(40 << 20)
                    for i in range(0, len(block), 4096): block[i] = 1
                    time.sleep(30)
            time.sleep(30)
    """
    with Pool(open_backend("zygote"), size=1, limits=Limits(wall_s=20.0, memory_mib=100)) as small:
        result = small.run_sync([job(source, ())])[0]
        assert (result.end, result.repeatable, small.stats.lost) == ("died", False, 0)
        assert works(small)


def test_a_fork_bomb_ends_with_its_job(warm_pool):
    source = "import os\ndef f():\n    while True:\n        try: os.fork()\n        except OSError: pass"
    with Pool(open_backend("zygote"), size=1, limits=Limits(wall_s=1.0)) as hasty:
        assert hasty.run_sync([job(source, ())])[0].end in ("timeout", "died")
        assert hasty.stats.lost == 0
        hasty.limits = Limits(wall_s=60.0)  # the bomb's second is not that of the next job
        assert works(hasty)


def test_a_server_is_replaced_after_many_jobs(monkeypatch):
    monkeypatch.setattr("agentrl.sandbox.lanes._MAX_USES", 3)

    async def numbers():
        backend = open_backend("zygote")
        try:
            lane = await open_lane(backend, LIMITS)
            assert isinstance(lane, WarmLane)
            wanted = job("import os\ndef f():\n    return os.getpid()", ())
            payload = encode_job(wanted)
            return [(await lane.run(wanted, payload, LIMITS)).outcomes[0].value for _ in range(7)]
        finally:
            await backend.close()

    assert asyncio.run(numbers()) == [2, 3, 4, 2, 3, 4, 2]  # process ids begin anew


@pytest.mark.faults
def test_a_thousand_jobs_leave_nothing(warm_pool):
    leaves = """
        import os, time
        def f(n):
            if os.fork() == 0:
                os.setsid()
                time.sleep(60)
            os.mkdir(f"d{n}")
            for place in ("/tmp/x", "/dev/shm/x"):
                open(place, "w").write("x")
            return n
    """

    def traces():
        mounts = Path("/proc/self/mounts").read_text()
        return len(os.listdir("/proc/self/fd")), mounts, len(memory.descendants(os.getpid()))

    works(warm_pool)
    before = traces()
    for number in range(1000):
        source = leaves if number % 4 == 0 else HONEST.replace("f()", "f(n)")
        assert outcomes(warm_pool, source, (number,))[0].value == (number if number % 4 == 0 else 7)
    works(warm_pool)
    assert traces() == before
    assert warm_pool.stats.lost == 0
