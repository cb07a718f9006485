"""Negative controls: with one line of the keeper's processes taken out, what the other tests look for is seen."""

import asyncio
import os
import shutil
import textwrap
import time
import uuid
from pathlib import Path

import pytest

from agentrl.sandbox import bubblewrap, keeper
from agentrl.sandbox.base import BoxLimits, Spec
from tests.sandbox.backends import open_backend
from tests.sandbox.test_keeper import living_with

SOURCE = Path(keeper.__file__).resolve().parents[1]


@pytest.fixture
def without(tmp_path, monkeypatch):
    """Have keepers run a copy of the sources in which some text is another."""

    def change(name, old, new):
        package = tmp_path / "agentrl"
        shutil.copytree(SOURCE / "sandbox", package / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SOURCE / "errors.py", package / "errors.py")
        file = package / "sandbox" / name
        text = file.read_text()
        assert text.count(old) == 1, f"{name} has no such line any more: {old}"
        file.write_text(text.replace(old, new))
        monkeypatch.setattr(keeper, "_SOURCE", str(tmp_path))

    return change


def run(name, *argv, **limits):
    async def go():
        box = await open_backend(name).start(Spec(limits=BoxLimits(**limits)))
        try:
            return await box.exec(argv)
        finally:
            await box.close()

    return asyncio.run(go())


def python(source):
    return ("python", "-I", "-S", "-c", textwrap.dedent(source))


def file_of_the_machine():
    """A file that everybody may read, wherever temporary files are."""
    path = Path("/var/tmp") / f"agentrl-{uuid.uuid4().hex}"
    path.write_text("seen")
    path.chmod(0o644)
    return path


def test_landlock_is_what_keeps_files_away(without):
    path = file_of_the_machine()
    try:
        assert b"seen" not in run("landlock", "cat", str(path)).stdout
        without("guard.py", "        landlock.enforce(rules)\n        os.close(rules)\n    if walls", "    if walls")
        assert run("landlock", "cat", str(path)).stdout == b"seen"
    finally:
        path.unlink()


SOCKET = "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); print('made')"


def test_the_filter_is_what_refuses_sockets_to_landlocks_programs(without):
    assert run("landlock", *python(SOCKET)).stdout == b""
    without("guard.py", "        seccomp.install(base64.b64decode(walls.filter))", "        pass")
    assert run("landlock", *python(SOCKET)).stdout == b"made\n"


def test_the_filter_is_what_refuses_sockets_to_bubblewraps_programs(monkeypatch):
    assert run("bubblewrap", *python(SOCKET)).stdout == b""
    options = bubblewrap._options
    monkeypatch.setattr(bubblewrap, "_options", lambda *words: options(*words)[:-2])  # --seccomp 5
    assert run("bubblewrap", *python(SOCKET)).stdout == b"made\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_the_change_of_user_is_what_takes_root_away(without):
    assert run("landlock", "id", "-u").stdout != b"0\n"
    without("guard.py", "        os.setresuid(user, user, user)", "        pass")
    assert run("landlock", "id", "-u").stdout == b"0\n"


@pytest.mark.parametrize("name", ["bubblewrap", "landlock", "subprocess"])
def test_the_watch_is_what_bounds_the_memory_of_many(without, name):
    source = """
        import os, time
        for _ in range(4):
            if os.fork() == 0:
                held = bytearray(os.urandom(1 << 20) * 48); time.sleep(%g); os._exit(0)
        for _ in range(4): os.wait()
    """
    assert run(name, *python(source % 60), memory_mib=128).killed_for == "memory"  # 4 * 48 = 192
    without("watch.py", 'return "memory"', "pass")
    assert run(name, *python(source % 1.5), memory_mib=128).ok


@pytest.mark.parametrize("name", ["landlock", "subprocess"])
def test_the_guard_is_what_ends_daemons(without, name):
    without("guard.py", "ended = tally.end_all(_END_S, by_signal=confined)", "ended = {}")
    mark = f"mark-{uuid.uuid4().hex}"

    async def go():
        box = await open_backend(name).start(Spec())
        await box.exec(["sh", "-c", f"(setsid sh -c 'sleep 60; :' {mark} </dev/null >/dev/null 2>&1 &); sleep 0.2"])
        seen = living_with(mark)
        await box.close()  # the keeper ends what was left
        return seen

    assert asyncio.run(go())
    end = time.monotonic() + 30
    while living_with(mark) and time.monotonic() < end:
        time.sleep(0.02)
    assert not living_with(mark)
