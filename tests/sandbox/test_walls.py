"""The walls one by one: the filter on both architectures, files of a hostile tree, kept output, counted memory."""

from __future__ import annotations

import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl.sandbox
from agentrl.sandbox.walls import beneath, kernel, landlock, memory, seccomp
from agentrl.sandbox.walls.apart import KeptApart, Memory
from agentrl.sandbox.walls.output import Kept

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
FOLDER = Path(agentrl.sandbox.__file__).parent


def refused(number: int) -> int:
    return 0x00050000 | number


def judge(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """What a filter says to a system call: a small interpreter of the instructions that the kernel runs."""
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("IIQ6Q", number, architecture, 0, *padded)
    lines = list(struct.iter_unpack("HBBI", program))
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = lines[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            accumulator = struct.unpack_from("I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        else:
            tests = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}
            tests[0x45] = bool(accumulator & value)
            at += if_true if tests[code] else if_false


def of(machine: str, numbers: tuple[int, int]) -> int:
    return numbers[0] if machine == "x86_64" else numbers[1]


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_on_both_architectures(machine: str) -> None:
    here = ARCHITECTURES[machine]
    closed, opened = (seccomp.program(sockets=sockets, machine=machine) for sockets in (False, True))

    def says(numbers: tuple[int, int], *arguments: int, program: bytes = closed) -> int:
        return judge(program, of(machine, numbers), here, *arguments)

    read, clone, clone3, socket, socketpair = (0, 63), (56, 220), (435, 435), (41, 198), (53, 199)
    assert says(read) == ALLOW
    assert says((165, 40)) == refused(errno.EPERM)  # mount
    assert says((101, 117)) == refused(errno.EPERM)  # ptrace
    assert says((321, 280)) == refused(errno.EPERM)  # bpf
    assert says((500, 500)) == refused(errno.ENOSYS)  # newer than the list
    assert says(clone3) == refused(errno.ENOSYS)
    assert says(clone, 0x00010F00) == ALLOW  # a thread
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert says(clone, 17 | flag) == refused(errno.EPERM)
    assert [says(socket, family) for family in (1, 2, 10, 16)] == [refused(errno.EPERM)] * 4
    assert [says(socket, family, program=opened) for family in (1, 2, 10)] == [ALLOW] * 3
    assert [says(socket, family, program=opened) for family in (16, 17, 38, 40)] == [refused(errno.EPERM)] * 4
    assert [says(socketpair, family) for family in (1, 2)] == [ALLOW, refused(errno.EPERM)]
    assert [says((302, 261), pid) for pid in (0, 1)] == [ALLOW, refused(errno.EPERM)]  # prlimit of oneself, of another
    for numbers in ((142, 118), (144, 119), (314, 274), (203, 122)):  # how one is scheduled oneself, and another
        assert [says(numbers, pid) for pid in (0, 1)] == [ALLOW, refused(errno.EPERM)]
    for numbers, process in (((141, 140), 0), ((251, 30), 1)):  # priorities of a process, a group, all of a user
        assert [says(numbers, process, pid) for pid in (0, 1)] == [ALLOW, refused(errno.EPERM)]
        assert [says(numbers, process + more, 0) for more in (1, 2)] == [refused(errno.EPERM)] * 2
    assert [says((16, 29), 0, request) for request in (0x5401, 0x5412)] == [ALLOW, refused(errno.EPERM)]  # ioctl
    modes = (0o010644, 0o100644, 0o020644, 0o060644)  # mknodat: a pipe, a file, a character device, a disk
    assert [says((259, 33), 0, 0, mode) for mode in modes] == [ALLOW, ALLOW, refused(errno.EPERM), refused(errno.EPERM)]


def test_other_kinds_of_system_calls_end_the_process() -> None:
    x86, arm = (seccomp.program(sockets=False, machine=machine) for machine in ARCHITECTURES)
    assert judge(x86, 0, I386) == KILL
    assert judge(x86, 0, ARCHITECTURES["aarch64"]) == KILL
    assert judge(x86, 0x40000000 | 39, ARCHITECTURES["x86_64"]) == KILL
    assert judge(arm, 0, ARCHITECTURES["x86_64"]) == KILL


def test_arguments_count_as_the_kernel_counts_them() -> None:
    """The upper half of an int argument is thrown away by the kernel, so it cannot hide what is in the lower."""
    program = seccomp.program(sockets=True, machine="x86_64")
    assert judge(program, 41, ARCHITECTURES["x86_64"], (1 << 32) | 16) == refused(errno.EPERM)


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program(sockets=False, machine="riscv64")


def test_the_numbers_are_those_of_this_machines_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists() or platform.machine() != "x86_64":
        pytest.skip("no headers of an x86-64 kernel")
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    known = {name.removeprefix("__NR_"): int(number) for _, name, number in words}
    tables = {**kernel.NUMBERS, **seccomp.DENIED, **seccomp.SCHEDULING}
    compared = {name for name in tables if name in known}
    assert len(compared) > 70
    assert {name: tables[name][0] for name in compared} == {name: known[name] for name in compared}


def test_the_walls_import_in_a_bare_interpreter_that_is_given_their_folder() -> None:
    names = sorted(path.stem for path in (FOLDER / "walls").glob("*.py") if path.stem != "__init__")
    source = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n" + "\n".join(f"import walls.{name}" for name in names)
    subprocess.run([sys.executable, "-I", "-S", "-c", source], check=True)


def test_landlock_by_itself(tmp_path: Path) -> None:
    if landlock.abi() == 0:
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").write_text("x")
    source = f"""
import os
from agentrl.sandbox.walls import kernel, landlock
rules = landlock.ruleset(readable=["/usr", {sys.base_prefix!r}], writable=[{str(tmp_path / "mine")!r}])
kernel.forbid_new_privileges()
landlock.enforce(rules)
open({str(tmp_path / "mine" / "new")!r}, "w").write("x")
for way in ("r", "w"):
    try:
        open({str(tmp_path / "other")!r}, way)
        print("open")
    except PermissionError:
        print("shut")
"""
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["shut", "shut"]
    with pytest.raises(FileNotFoundError):
        landlock.ruleset(readable=[str(tmp_path / "missing")], writable=[])


@given(parts=st.lists(st.binary(max_size=40), max_size=12), limit=st.integers(1, 60))
def test_kept_output_is_the_two_ends_however_it_comes(parts: list[bytes], limit: int) -> None:
    kept, whole = Kept(limit), b"".join(parts)
    for part in parts:
        kept.add(part)
    head = (limit + 1) // 2
    short = whole[:head] + (whole[-(limit - head) :] if limit > head else b"")
    assert kept.data == (whole if len(whole) <= limit else short)
    assert (kept.total, kept.cut) == (len(whole), max(0, len(whole) - limit))


@given(parts=st.lists(st.binary(min_size=1, max_size=40), max_size=12), limit=st.integers(1, 60))
def test_output_kept_apart_is_the_same(parts: list[bytes], limit: int) -> None:
    kept, apart = Kept(limit), KeptApart(limit)
    reader, writer = os.pipe()
    for part in parts:
        kept.add(part)
        os.write(writer, part)
        assert apart.take(reader) == len(part)
    os.close(writer)
    assert apart.take(reader) == 0
    os.close(reader)
    assert (bytes(apart.view), apart.total, apart.cut) == (kept.data, kept.total, kept.cut)
    apart.close()


def test_memory_apart_is_read_to_its_end_and_given_back() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\nmore")
    held, empty = Memory(8), Memory(0)
    held.take_all(reader)
    empty.take_all(reader)  # takes nothing of what is not its own
    assert (held.first_line(), bytes(held.other_lines()), bytes(empty.other_lines())) == (b"one", b"two\n", b"")
    assert (held.starts_with(b"one"), held.starts_with(b"two"), empty.starts_with(b"o")) == (True, False, False)
    assert os.read(reader, 9) == b"more"
    os.close(writer)
    with pytest.raises(EOFError):
        Memory(1).take_all(reader)
    os.close(reader)
    view = held.view
    held.close()
    assert bytes(view) == bytes(8)  # somebody looks still, and finds nothing
    view.release()
    held.close()


@pytest.fixture
def trap(tmp_path: Path) -> tuple[Path, Path]:
    """A workspace full of traps, and a folder outside of it."""
    inside, outside = tmp_path / "workspace", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (inside / "sub").mkdir()
    (inside / "sub" / "good").write_text("good")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    (inside / "loop").symlink_to("loop")
    os.mkfifo(inside / "pipe")
    (inside / "sparse").write_bytes(b"")
    os.truncate(inside / "sparse", 1 << 40)
    (inside / "process").symlink_to("/proc/self/environ")
    return inside, outside


def test_nothing_is_opened_through_a_link_or_outside(trap: tuple[Path, Path]) -> None:
    inside, _ = trap
    folder = os.open(inside, os.O_RDONLY)
    bad = ("link", "folder/secret", "loop", "process", "missing", "../outside/secret", "sub/../../outside")
    try:
        for path in bad:
            with pytest.raises(OSError, match=path):
                os.close(beneath.open_beneath(folder, path, os.O_RDONLY))
        with os.fdopen(beneath.open_beneath(folder, "sub/good", os.O_RDONLY)) as file:
            assert file.read() == "good"
    finally:
        os.close(folder)


def test_memory_of_a_tree_is_counted_and_shared_pages_once() -> None:
    source = """
import os, sys
held = b"x" * (60 << 20)
children = []
for _ in range(3):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tree = memory.descendants(child.pid)
        assert len(tree) == 4
        assert memory.used_bytes(tree, enough=1 << 40) > 4 * (60 << 20)  # the plain sum counts shared pages four times
        assert 60 << 20 < memory.used_bytes(tree, enough=0) < 120 << 20  # 60 MiB and four small interpreters
    assert memory.used_bytes([child.pid], enough=0) == 0


HOLDING = """
import socket, sys
held = [socket.socketpair() for _ in range(%d)]
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("pairs", "expected"), [(10, 0), (50, 100)])
def test_only_many_sockets_are_counted(pairs: int, expected: int) -> None:
    """Each of 50 pairs has two ends: 100 sockets of 208 KiB; and the three standard pipes, where there are so many."""
    command = [sys.executable, "-I", "-S", "-c", HOLDING % pairs]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        pipes = 3 if expected else 0
        assert memory.Buffers().most_bytes([child.pid]) == expected * (208 << 10) + pipes * (64 << 10)
    assert memory.Buffers().most_bytes([child.pid]) == 0
