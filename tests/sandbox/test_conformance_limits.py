"""One battery for every backend: limits bind, whatever the walls, and nothing is left behind."""

import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.sandbox.boxes import BRIEF, DAEMON, EVERY_BACKEND, a_box, python, run
from tests.sandbox.zygotes import eventually

pytestmark = EVERY_BACKEND


def test_the_clock_ends_a_program_and_what_it_said_is_kept(backend):
    deaf = "trap '' 1 2 3 6 10 12 13 14 15 24 25 30"
    done = run(backend, "sh", "-c", f"{deaf}; printf started; sleep 60; sleep 60", wall_s=1.0)
    assert done.killed_for == "time"
    assert done.stdout == b"started"
    assert not done.ok


def test_processor_time_ends_a_program(backend):
    done = run(backend, "sh", "-c", "while :; do :; done", limits={"cpu_s": 1})
    assert done.killed_for == "time"
    assert done.wall_s < BRIEF.wall_s


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 40_000])
def test_output_is_cut_in_the_middle(backend, count):
    source = f"import sys; sys.stdout.write('a' + 'b' * {count - 2} + 'c'); sys.stderr.write('e')"
    done = run(backend, *python(source), limits={"output_bytes": 10_000})
    assert len(done.stdout) == min(count, 10_000)
    assert done.cut == max(0, count - 10_000)  # 40,000 - 10,000 = 30,000
    assert (done.stdout[:1], done.stdout[-1:], done.stderr) == (b"a", b"c", b"e")


def test_output_without_end_is_ended(backend):
    done = run(backend, "yes", limits={"output_bytes": 1000})
    assert done.killed_for == "output"
    assert len(done.stdout) == 1000


def test_bytes_that_are_no_text_come_through(backend):
    done = run(backend, *python("import sys; sys.stdout.buffer.write(bytes(range(256)))"))
    assert done.stdout == bytes(range(256))


def test_memory_of_one_process_is_bounded(backend):
    source = "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    print('refused')"
    done = run(backend, *python(source), limits={"memory_mib": 128})
    assert done.stdout == b"refused\n" or done.killed_for == "memory"
    assert run(backend, *python("x = bytearray(64 << 20)"), limits={"memory_mib": 128}).ok


def test_memory_of_all_processes_together_is_bounded(backend):
    source = """
        import os, time
        for _ in range(6):
            if os.fork() == 0:
                x = bytearray(os.urandom(1 << 20) * 48)
                time.sleep(15)
                os._exit(0)
        time.sleep(15)
    """
    done = run(backend, *python(source), limits={"memory_mib": 128})  # 6 * 48 = 288
    assert done.killed_for == "memory"


def test_a_disk_that_fills_is_bounded(backend):
    source = """
        with open("big", "wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20)); file.flush()
    """
    done = run(backend, *python(source), limits={"disk_mib": 4})
    assert not done.ok
    assert b"Error" in done.stderr or done.killed_for == "disk" or done.signal == signal.SIGXFSZ


def test_many_files_are_bounded(backend):
    source = "import time\nfor i in range(100_000): open(str(i), 'w').close()\n"
    done = run(backend, *python(source), limits={"files": 100})
    assert not done.ok


def test_a_fork_bomb_is_bounded(backend):
    if backend == "subprocess" and os.geteuid() == 0:
        pytest.skip("the kernel counts no processes of root")
    source = """
        import os, time
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try: os.fork()
            except OSError: time.sleep(0.01)
    """
    done = run(backend, *python(source), limits={"processes": 20})
    assert done.wall_s < BRIEF.wall_s
    assert run(backend, "echo", "next").stdout == b"next\n"


def test_threads_of_an_honest_program_work(backend):
    source = """
        import concurrent.futures, subprocess
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            print(sum(pool.map(int, map(str, range(100)))))
        print(subprocess.run(["echo", "x"], capture_output=True, check=True).stdout)
    """
    done = run(backend, *python(source))
    assert done.stdout == b"4950\nb'x\\n'\n"


def ours_below(pid):
    """Processes that this one has, by their parents."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found += [int(name), *ours_below(int(name))]
    return found


def traces():
    """What a box could leave: descriptors, mounts, named shared memory, folders, processes."""
    temporary = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith(f"agentrl-box-{os.getpid()}-")}
    return (
        len(os.listdir("/proc/self/fd")),
        Path("/proc/self/mounts").read_text(),
        Path("/proc/sysvipc/shm").read_text(),
        temporary,
        ours_below(os.getpid()),
    )


def test_nothing_is_left(backend):
    async def go():
        for _ in range(5):
            async with a_box(backend, {"a": b""}) as box:
                await box.exec(python(DAEMON.replace("0.2", "0.02")))
                channel = await box.channel(["sleep", "60"])
                await channel.close()
            async with a_box(backend) as box:
                seen.append(traces())

    seen = []
    asyncio.run(go())  # what is made once
    before = traces()
    asyncio.run(go())
    assert eventually(lambda: traces() == before)
    assert seen[-1] != before  # a box that is open is noticed
