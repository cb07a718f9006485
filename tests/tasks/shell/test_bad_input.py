"""What is not the policy's doing is an error that names the task: never a pass, never a zero."""

import asyncio
import sys
import tempfile

import pytest

from agentrl.errors import SandboxError, ScorerError, TaskError
from agentrl.rewards.judge import HiddenSuite, Judge
from agentrl.sandbox.base import BoxLimits
from agentrl.tasks.shell import RepairFolder, ShellEnvironment, ShellLimits
from agentrl.types import Task
from tests.sandbox.backends import open_backend
from tests.tasks.shell.policies import played, shell
from tests.tasks.shell.worlds import EVERY_BACKEND, FILES, HIDDEN, ONE_BACKEND, Tools


class OneTask:
    """A task set of the task that the environments of other tests have."""

    id = "shell-test"

    def __init__(self, world, hidden=HIDDEN):
        self.world, self.hidden = world, hidden

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return Task(id="shell-test/7", prompt=(), files=FILES)

    def environment(self, task):
        return ShellEnvironment(task, self.world.backend, grader=self.world.judge, hidden=self.hidden)


@pytest.mark.parametrize("path", ["../x.py", "/etc/x.py", "a//b.py", "", "a\0.py", "./x.py"])
def test_a_file_outside_of_the_workspace_is_an_error_of_the_task(path):
    backend = open_backend("zygote")
    task = Task(id="shell-test/7", prompt=(), files={**FILES, path: ""})
    with pytest.raises(TaskError, match=r"^shell-test/7: path .*give a relative path below the workspace"):
        ShellEnvironment(task, backend, grader=Judge(backend), hidden=HIDDEN)


def test_a_task_with_nothing_to_repair_is_an_error():
    backend = open_backend("zygote")
    for files, said in [({}, "they are none"), ({"test_x.py": "", "setup.cfg": ""}, "they are test_x.py, setup.cfg")]:
        task = Task(id="shell-test/7", prompt=(), files=files)
        with pytest.raises(TaskError, match=f"^shell-test/7: no file can be a source to repair.*{said}"):
            ShellEnvironment(task, backend, grader=Judge(backend), hidden=HIDDEN)
    with pytest.raises(TaskError, match=r"^shell-test/7: the file 'a.py' holds half a character"):
        ShellEnvironment(
            Task(id="shell-test/7", prompt=(), files={"a.py": "\udc80"}), backend, grader=Judge(backend), hidden=HIDDEN
        )


def test_a_limit_that_is_not_positive_is_an_error():
    with pytest.raises(SandboxError, match="limit call_s is 0"):
        ShellLimits(call_s=0)
    with pytest.raises(SandboxError, match="limit output_chars is -1"):
        ShellLimits(output_chars=-1)


def check_is_a_fault(trace, boundary, said):
    assert trace.error is not None
    assert trace.error.boundary == boundary
    assert trace.error.message.startswith("shell-test/7: ")
    assert said in trace.error.message
    assert trace.reward is None
    assert trace.scores == ()


@EVERY_BACKEND
def test_a_box_without_bash_is_a_fault(world, changed_inside):
    changed_inside('_ARGV = ["bash"', '_ARGV = ["no-such-bash"')
    trace = world.runner.run(played(OneTask(world), shell("true")))
    said = "no shell can be had in the box: bash cannot be started: No such file or directory"
    check_is_a_fault(trace, "sandbox", said)


@EVERY_BACKEND
def test_a_box_without_an_interpreter_is_a_fault(world, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trace = world.runner.run(played(OneTask(world), shell("true")))
    check_is_a_fault(trace, "sandbox", "No such file or directory")


@ONE_BACKEND
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_helper\ndef test_it():\n    pass\n", "no_such_helper"),
        ("def test_it():\n    undefined\n", "undefined"),
        ("def test_it():\n    raise RuntimeError('broken')\n", "broken"),
    ],
)
def test_a_hidden_test_that_fails_by_itself_is_a_fault(world, source, said):
    broken = HiddenSuite(files={"test_hidden.py": source}, modules=("program",))
    check_is_a_fault(world.runner.run(played(OneTask(world, broken), shell("true"))), "scorer", said)


@EVERY_BACKEND
def test_a_box_that_is_lost_is_a_fault(world):
    async def lost(*, between):
        environment = OneTask(world).environment(OneTask(world)[0])
        tools = Tools(environment)
        await tools.shell("true")
        await environment._box.close()
        try:
            await (tools.shell("true") if between else tools.scores())
        finally:
            await environment.close()

    with pytest.raises(SandboxError, match=r"^shell-test/7: .*(closed|lost)"):
        world.runner.run(lost(between=True))
    with pytest.raises(ScorerError, match=r"^shell-test/7: the workspace could not be read: .*(closed|lost)"):
        world.runner.run(lost(between=False))


@EVERY_BACKEND
def test_a_folder_that_was_deleted_by_the_policy_is_a_zero(world):
    trace = world.runner.run(played(OneTask(world), shell("rm -rf $PWD; rm -rf *; ls -A")))
    assert (trace.error, trace.reward) == (None, 0.0)


@EVERY_BACKEND
def test_an_attempt_without_a_call_is_graded_as_it_began(world):
    trace = world.runner.run(played(OneTask(world)))
    assert (trace.error, trace.reward) == (None, 1.0)  # this task is not broken
    assert [score.value for score in trace.scores] == [1.0, 0.0]


def test_the_time_of_the_whole_attempt_is_bounded():
    async def go():
        backend = open_backend("zygote")
        judge = Judge(backend)
        limits = ShellLimits(box=BoxLimits(wall_s=0.5))
        task = Task(id="shell-test/7", prompt=(), files=FILES)
        environment = ShellEnvironment(task, backend, grader=judge, hidden=HIDDEN, limits=limits)
        try:
            return await Tools(environment).shell("sleep 9"), await Tools(environment).scores()
        finally:
            await environment.close()
            await judge.close()
            await backend.close()

    told, scores = asyncio.run(go())
    assert "the attempt has no more time" in told
    assert scores["hidden_tests"] == 1.0


def folder_of(tmp_path, program, hidden):
    for name, files in (("program", program), ("hidden", hidden)):
        for path, content in files.items():
            place = tmp_path / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    return RepairFolder(tmp_path / "program", hidden=tmp_path / "hidden", issue="It is broken.")


def test_a_folder_becomes_a_task_without_its_history(tmp_path):
    program = {
        "a.py": b"x = 1\r\n",
        "pkg/b.py": b"\xef\xbb\xbfy = 2",
        ".git/HEAD": b"\xff",
        "__pycache__/a.pyc": b"\xff",
    }
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "link.py").symlink_to("/etc/passwd")
    found = folder_of(tmp_path, program, {"test_a.py": b"def test_a():\n    pass\n"})
    assert found[0].files == {"a.py": "x = 1\r\n", "pkg/b.py": "\ufeffy = 2"}
    assert len(found) == 1
    assert [spec.name for spec in found[0].tools] == ["shell", "edit", "submit"]
    with pytest.raises(IndexError):
        found[1]
    with pytest.raises(TaskError, match="task 'other/0' is not of this set; its task is repair-folder-v1/program/0"):
        found.environment(Task(id="other/0", prompt=()))


@pytest.mark.parametrize(
    ("program", "hidden", "said"),
    [
        ({"a.py": b"\xff"}, {"test_a.py": b"def test_a(): pass"}, "a.py: not text in UTF-8 .byte 0."),
        ({"test_a.py": b""}, {"test_a.py": b"def test_a(): pass"}, "^repair-folder-v1/program/0: no file can be"),
        ({"a.py": b""}, {"a.py": b"def test_a(): pass"}, "^repair-folder-v1/program/0: no test in a.py"),
        ({"a.py": b""}, {"test_a.py": b"def test_a(:"}, "^repair-folder-v1/program/0: .* does not parse"),
        ({"a.py": b""}, {}, "no folder '.*hidden'"),
        ({}, {"test_a.py": b"def test_a(): pass"}, "no folder '.*program'"),
    ],
)
def test_a_folder_that_is_no_task_is_an_error(tmp_path, program, hidden, said):
    with pytest.raises(TaskError, match=said):
        folder_of(tmp_path, program, hidden)
