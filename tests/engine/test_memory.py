"""The memory that a process may take: of the machine, and of the control groups that it is in."""

import os

import pytest

from agentrl.engine.memory import Memory, host_bytes, host_memory

MIB = 2**20
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MEMINFO = "MemTotal:       8388608 kB\nMemFree:          1024 kB\nMemAvailable:   4194304 kB\n"


def machine(folder, cgroup, mounts=""):
    """A folder as /proc is, of a process that holds 10 MiB on a machine of 8 GiB, 4 of them free."""
    (folder / "self").mkdir()
    (folder / "meminfo").write_text(MEMINFO)
    (folder / "self" / "status").write_text("Name:\tpython\nVmRSS:\t   10240 kB\n")
    (folder / "self" / "cgroup").write_text(cgroup)
    (folder / "self" / "mountinfo").write_text(mounts)
    return folder


def mount(folder, kind, root="/", options="rw"):
    return f"31 23 0:28 {root} {folder} rw,nosuid - {kind} {kind} {options}\n"


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.")).write_text(f"{text}\n")


def test_without_groups_it_is_that_of_the_machine(tmp_path):
    proc = machine(tmp_path, "0::/\n")
    assert host_bytes(proc) == PHYSICAL
    assert host_memory(proc) == Memory(free=(4096 + 10) * MIB, total=8192 * MIB)


def test_a_group_of_version_2_bounds_it(tmp_path):
    tree = tmp_path / "fs"
    group(tree / "pod", memory_max=300 * MIB, memory_current=120 * MIB)
    stat = f"anon {70 * MIB}\nfile {50 * MIB}\ninactive_file {30 * MIB}\nactive_file {10 * MIB}\nshmem {10 * MIB}"
    group(tree / "pod", memory_stat=stat)
    proc = machine(tmp_path, "0::/pod\n", mount(tree, "cgroup2"))
    assert host_bytes(proc) == 300 * MIB
    # 300 - (120 - 40 of files, which the kernel takes back) are free, and 10 of this process
    assert host_memory(proc) == Memory(free=(220 + 10) * MIB, total=300 * MIB)


def test_the_least_limit_on_the_way_up_counts(tmp_path):
    tree = tmp_path / "fs"
    group(tree / "slice", memory_max=200 * MIB, memory_current=190 * MIB)
    group(tree / "slice" / "pod", memory_max=500 * MIB, memory_current=1 * MIB)
    group(tree / "slice" / "pod" / "box", memory_max="max", memory_current=1 * MIB)
    group(tree / "other", memory_max=1 * MIB)  # of somebody else
    proc = machine(tmp_path, "0::/slice/pod/box\n", mount(tree, "cgroup2"))
    assert host_bytes(proc) == 200 * MIB
    assert host_memory(proc) == Memory(free=(10 + 10) * MIB, total=200 * MIB)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/docker/abc", "/docker/abc"),  # mounted from the container's own group on
        ("/", "/"),  # a namespace of groups
        ("/../../system", "/"),  # a process from outside of the namespace
        ("/docker/abc", "/elsewhere"),  # the path of the host, and a mount that begins at another group
    ],
)
def test_a_container_sees_its_own_group_at_the_mount(tmp_path, path, root):
    tree = tmp_path / "fs"
    group(tree, memory_max=77 * MIB, memory_current=7 * MIB)
    proc = machine(tmp_path, f"0::{path}\n", mount(tree, "cgroup2", root))
    assert host_bytes(proc) == 77 * MIB


def test_a_group_of_version_1_bounds_it(tmp_path):
    tree, cpu = tmp_path / "memory", tmp_path / "cpu"
    group(tree, memory_limit_in_bytes=9223372036854771712, memory_usage_in_bytes=9 * MIB)  # none
    group(tree / "job", memory_limit_in_bytes=400 * MIB, memory_usage_in_bytes=150 * MIB)
    group(tree / "job", memory_stat=f"inactive_file {99 * MIB}\ntotal_inactive_file {20 * MIB}\ntotal_active_file 0")
    group(cpu / "job", memory_limit_in_bytes=1 * MIB)
    mounts = mount(cpu, "cgroup", options="rw,cpu") + mount(tree, "cgroup", options="rw,memory")
    proc = machine(tmp_path, "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n", mounts)
    assert host_bytes(proc) == 400 * MIB
    assert host_memory(proc) == Memory(free=(400 - 130 + 10) * MIB, total=400 * MIB)


def test_a_limit_above_the_machine_changes_nothing(tmp_path):
    tree = tmp_path / "fs"
    group(tree / "pod", memory_max=2**62, memory_current=0)
    proc = machine(tmp_path, "0::/pod\n", mount(tree, "cgroup2"))
    assert host_bytes(proc) == PHYSICAL
    assert host_memory(proc) == Memory(free=(4096 + 10) * MIB, total=8192 * MIB)


def test_a_group_that_is_full_leaves_what_the_process_holds(tmp_path):
    tree = tmp_path / "fs"
    group(tree / "pod", memory_max=50 * MIB, memory_current=60 * MIB)
    assert host_memory(machine(tmp_path, "0::/pod\n", mount(tree, "cgroup2"))) == Memory(free=10 * MIB, total=50 * MIB)


def test_without_proc_the_machine_says_how_much_there_is(tmp_path):
    assert host_bytes(tmp_path) == PHYSICAL
    assert host_memory(tmp_path) is None


def test_of_this_process_it_is_at_most_that_of_the_machine():
    assert 0 < host_bytes() <= PHYSICAL
