"""Landlock without root, where programs run as the user whose files lie around: what it refuses, and what not."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import agentrl
from tests.sandbox.backends import why_not

if why_not("landlock"):
    pytest.skip(why_not("landlock"), allow_module_level=True)

OTHER_USER = 12345

PROGRAM = """
import errno, os, shutil, socket, stat, sys, tempfile
victim, parent = sys.argv[1], int(sys.argv[2])
def attempt(name, step, *words):
    try:
        step(*words); print(name, "done", sep="|")
    except OSError as error:
        print(name, errno.errorcode[error.errno], sep="|")
attempt("read", open, victim)
attempt("write", open, victim, "a")
attempt("truncate", os.truncate, victim, 0)
attempt("list", os.listdir, os.path.dirname(victim))
attempt("unlink", os.unlink, victim)
attempt("rename", os.rename, victim, "mine")
attempt("link", os.link, victim, "mine")
attempt("attribute", os.setxattr, victim, "user.a", b"x")
attempt("set-id", os.chmod, victim, 0o4700)
attempt("set-group", os.chmod, victim, 0o2700)
attempt("write for all", os.chmod, victim, 0o602)
attempt("signal", os.kill, parent, 0)
attempt("socket", socket.socket)
attempt("shadow", open, "/etc/passwd")
attempt("times", os.utime, victim, (0, 0))
attempt("read for all", os.chmod, victim, 0o644)
attempt("no rights", os.chmod, victim, 0)

open("script", "w").write("#!/bin/sh\\necho runs\\n")
attempt("own +x", os.chmod, "script", 0o755)
attempt("own run", lambda: os.posix_spawn("./script", ["script"], {}))
os.wait()
attempt("own copy", shutil.copy2, "script", "copy")
attempt("own folder", lambda: tempfile.TemporaryDirectory().cleanup())
attempt("own readable", os.chmod, "copy", 0o444)
"""

SCRIPT = """
import asyncio, json, os, sys
from agentrl.sandbox.base import Spec
from agentrl.sandbox.landlocked import LandlockBackend
async def main(victim, program):
    backend = LandlockBackend()
    support = backend.probe()
    box = await backend.start(Spec(files={"program.py": program.encode()}))
    done = await box.exec(["python", "-I", "program.py", victim, str(os.getpid())])
    await backend.close()
    said = dict(line.split("|") for line in done.stdout.decode().splitlines() if "|" in line)
    told = {"said": said, "err": done.stderr.decode(), "missing": support.missing, "user": os.geteuid()}
    print(json.dumps(told))
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def folder():
    """A folder that any user can pass, with our package."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(agentrl.__file__).parent, Path(name) / "agentrl", ignore=ignored)
        yield Path(name)


@pytest.fixture
def said(folder):
    """What the program could do, run by a user who is not root."""
    victim = folder / "victim"
    victim.write_text("secret")
    victim.chmod(0o600)
    python, who = sys.executable, {}
    if os.geteuid() == 0:
        python = "/usr/bin/python3"
        if not Path(python).exists():
            pytest.skip("no interpreter that another user can run")
        os.chown(victim, OTHER_USER, OTHER_USER)
        who = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": []}
    done = subprocess.run(
        [python, "-c", SCRIPT, str(victim), PROGRAM],
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        cwd="/",
        **who,
    )
    assert done.returncode == 0, done.stderr
    assert victim.stat().st_size == len("secret")
    return json.loads(done.stdout)


def test_what_it_keeps_from_files_of_the_same_user_and_what_it_says_it_does_not(said):
    assert said["user"] != 0
    done = {name for name, how in said["said"].items() if how == "done" and not name.startswith("own ")}
    assert done == {"times", "read for all", "no rights"}
    refused = {how for name, how in said["said"].items() if name not in done and not name.startswith("own ")}
    assert refused <= {"EACCES", "EPERM", "EXDEV"}
    (told,) = [line for line in said["missing"] if line.startswith("a user of its own")]
    assert "make your files unreadable, or readable to other users, and set their times" in told


def test_its_own_files_it_can_do_with_as_it_likes(said):
    own = {name: how for name, how in said["said"].items() if name.startswith("own ")}
    assert len(own) == 5
    assert set(own.values()) == {"done"}, (own, said["err"])
