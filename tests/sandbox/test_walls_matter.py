"""Take one wall away, and an attack that it held gets out: the attacks can tell, and no wall is for show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentrl
from tests.sandbox.backends import why_not

PACKAGE = Path(agentrl.__file__).parent
ROOT = Path(__file__).parents[2]

RUN = """
import asyncio, os, signal, sys
from agentrl.errors import SandboxError
from agentrl.sandbox.base import Spec
from agentrl.sandbox.zygote import ZygoteBackend
from tests.sandbox.attacks import ATTACKS
attack = next(one for one in ATTACKS if one.name == sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
async def main():
    backend = ZygoteBackend()
    box = await backend.start(Spec(files={"program.py": attack.program(attack.bad)}, limits=attack.limits))
    try:
        done = await box.exec(["python", "-I", "-S", "program.py", "/nowhere", str(os.getpid()), "9"])
        held = attack.contained(done) and b"ESCAPED" not in done.stdout
    except SandboxError:
        held = False
    await backend.close()
    print("held" if held else "escaped")
asyncio.run(main())
"""

WALLS = [
    (
        "walls/seccomp.py",
        "    lines += _on_argument(_SOCKET[column]",
        "    _on_argument(_SOCKET[column]",
        "sockets of every kind",
    ),
    ("walls/seccomp.py", "*_if_not(_EQUAL, _AUDIT_ARCHITECTURES[column], _KILL), ", "", "system calls of 32-bit code"),
    ("walls/seccomp.py", "lines += _if(_AT_LEAST, _X32_BIT, _KILL)", "pass", "system calls with x32 numbers"),
    ("walls/seccomp.py", "KERNEL | MACHINE | ", "MACHINE | ", "parts of the kernel that no program of a task needs"),
    ("walls/seccomp.py", " | MEMORY_OUT_OF_SIGHT", "", "memory that belongs to no process"),
    ("walls/seccomp.py", "_refuse_any(_TERMINAL_INJECTIONS)", "[]", "typing into a terminal"),
    ("walls/limits.py", "    _set(resource.RLIMIT_NPROC, processes)\n", "", "more processes than allowed"),
    ("walls/limits.py", "    _set(resource.RLIMIT_NOFILE, OPEN_FILES)\n", "", "use up the descriptors"),
    ("walls/mounts.py", "size={mib}m,", "size=64m,", "fill the disk"),
    ("walls/mounts.py", 'f",nr_inodes={files + 1}" if files else ""', '""', "use up the inodes"),
    ("zygote_box.py", "        capabilities.drop_from_bounding_set()\n", "", "become another user"),
    ("zygote_main.py", "    signal.signal(signal.SIGINT, signal.SIG_DFL)", "    pass", "kill whoever watches"),
    ("zygote_watch.py", 'self.kill("memory")', "pass", "memory bomb of many children"),
    ("zygote_watch.py", "self.buffers.most_bytes(tree)", "0", "memory in the buffers of sockets"),
    ("zygote_watch.py", 'self.kill("output")', "pass", "endless output"),
]


def outcome(folder: Path, file: str, wall: str, instead: str, attack: str) -> str:
    """How an attack ends against a copy of the sandbox with one line changed."""
    copy = folder / "agentrl"
    copy.mkdir(parents=True)
    for path in PACKAGE.iterdir():
        if path.name != "sandbox":
            (copy / path.name).symlink_to(path)
    shutil.copytree(PACKAGE / "sandbox", copy / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    source = (copy / "sandbox" / file).read_text()
    assert source.count(wall) == 1, f"{wall!r} stands {source.count(wall)} times in {file}"
    (copy / "sandbox" / file).write_text(source.replace(wall, instead))
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, attack], env=environment, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("file", "wall", "instead", "attack"), WALLS, ids=[attack for *_, attack in WALLS])
def test_without_the_wall_the_attack_gets_out(tmp_path: Path, file: str, wall: str, instead: str, attack: str) -> None:
    if reason := why_not("zygote"):
        pytest.skip(reason)
    # Some attacks are a race with the watchdog, which a busy machine may let it win once.
    tries = (outcome(tmp_path / str(number), file, wall, instead, attack) for number in range(4))
    assert "escaped" in tries


def test_with_all_walls_the_same_run_is_held(tmp_path: Path) -> None:
    if reason := why_not("zygote"):
        pytest.skip(reason)
    assert outcome(tmp_path, "walls/__init__.py", '"""What keeps', '"""What keeps', "thread bomb") == "held"
