"""One attempt at a repair by a policy that knows a shell: bash in a box, an exact edit, hidden tests at the end."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import SandboxError, ScorerError, TaskError
from agentrl.rewards.collect import may_count
from agentrl.rewards.grading import AnyHidden, Grader
from agentrl.rewards.hacking import OnHack, Signs, sanctioned
from agentrl.rewards.judge import Verdict
from agentrl.sandbox.base import Backend, Box, Spec, check_path
from agentrl.tasks.environment import ToolEnvironment, tool
from agentrl.tasks.shell.collecting import listed, sources_of, touched_tests
from agentrl.tasks.shell.edits import NotEdited, encoded, replaced
from agentrl.tasks.shell.output import shown, status_note
from agentrl.tasks.shell.session import FileRefused, Ran, Shell, ShellLimits
from agentrl.types import Observation, Score, Task, ToolCall, Trace


class ShellEnvironment(ToolEnvironment):
    """The world of one repair attempt in a shell.

    The box is started at the first call. What is graded are the files of the task that can be sources (`may_count`), as
    they are when everything in the box has been ended, and added modules of Python; tests and what steers them never
    are, and whether they were touched is the score ``tests_changed`` of weight 0.

    Args:
        task: its ``files`` are the workspace at the start.
        backend: starts the box.
        grader: grades what is left at the end; on the same backend or on another.
        hidden: the hidden tests. They decide on the workspace as it stands at the end, however the attempt ended.
        limits: what the attempt may use.
        on_hack: what becomes of the reward of an attempt that touched tests; see `rewards.hacking`.

    Raises:
        TaskError: a path outside of the workspace, or no file that can be a source.
    """

    def __init__(
        self,
        task: Task,
        backend: Backend,
        *,
        grader: Grader,
        hidden: AnyHidden,
        limits: ShellLimits | None = None,
        on_hack: OnHack = "nothing",
    ) -> None:
        super().__init__(task)
        check_files(task)
        self._backend = backend
        self._grader = grader
        self._hidden = hidden
        self._limits = limits or ShellLimits()
        self._on_hack: OnHack = on_hack
        self._box: Box | None = None
        self._shell: Shell | None = None

    async def call(self, call: ToolCall) -> Observation:
        """Carry out one call.

        Raises:
            SandboxError: naming the task, when the box cannot be had or was lost.
        """
        try:
            return await super().call(call)
        except SandboxError as error:
            raise SandboxError(f"{self.task.id}: {error}") from error

    @tool
    async def shell(self, command: str, timeout: float | None = None) -> Observation:
        """Run a bash command and show what it prints, with its exit status when that is not 0.

        The shell stays the same for all calls: the folder, variables, functions and background jobs are kept. There is
        no network, no terminal and nothing to read on standard input. A command that runs longer than timeout (in
        seconds) is interrupted.
        """
        most = self._limits.call_s
        if timeout is not None and not timeout > 0:
            return _error(f"timeout is {timeout!r}; give seconds above 0, at most {most:g}")
        if "\0" in command or not _is_text(command):
            return _error("the command holds a zero byte or half a character; write plain text")
        ran = await (await self._running()).run(command, min(most, timeout or most))
        return Observation(content=self._told(ran))

    @tool
    async def edit(self, path: str, old: str, new: str) -> Observation:
        """Replace the one place in a file where old stands, which must match exactly, by new.

        The path is below the workspace. Give enough lines in old to name one place only. With an empty old, a new file
        is made that holds new.
        """
        if "\0" in path or not _is_text(path) or not _is_text(old):
            return _error("path or old holds a zero byte or half a character; write plain text")
        shell = await self._running()
        try:
            content = await shell.load(path)
            if content is None and old:
                return _error(f"there is no file {path!r}; an empty old makes it")
            if content is not None and not old:
                return _error(
                    f"{path!r} is there already; an empty old makes new files only, so give the text to replace"
                )
            result = encoded(new) if content is None else replaced(content, old, new)
            await shell.store(path, result, new=content is None)
        except NotEdited as error:
            return _error(f"{path}: {error}")
        except FileRefused as error:
            return _error(str(error))
        return Observation(content=f"made {path}" if content is None else f"edited {path}")

    @tool
    def submit(self) -> Observation:
        """Hand in the files as they are now. This ends the attempt."""
        return Observation(content="submitted", done=True)

    async def score(self, trace: Trace) -> Sequence[Score]:  # noqa: ARG002
        """The verdict of the hidden tests, and whether tests were touched.

        Raises:
            ScorerError: naming the task, when there is no verdict: the box or the judge was lost, or a hidden test
                fails by itself.
        """
        try:
            verdict, touched = await self._graded()
        except SandboxError as error:
            raise ScorerError(f"{self.task.id}: the workspace could not be read: {error}") from error
        if verdict.reward is None:
            raise ScorerError(f"{self.task.id}: the hidden tests came to no verdict: {verdict.why}")
        counts = f"{verdict.num_passed} of {verdict.num_tests}, tier {verdict.tier}"
        scores = (
            Score(name="hidden_tests", value=verdict.reward, explanation=counts),
            Score(name="tests_changed", value=float(bool(touched)), weight=0.0, explanation=", ".join(touched)),
        )
        return sanctioned(scores, Signs(touched=tuple(touched), disagrees=None), self._on_hack)

    async def close(self) -> None:
        """End everything in the box and remove it."""
        box, self._box, self._shell = self._box, None, None
        if box is not None:
            await box.close()

    async def _running(self) -> Shell:
        if self._shell is None:
            files = {path: text.encode() for path, text in self.task.files.items()}
            self._box = await self._backend.start(Spec(files=files, limits=self._limits.box))
            self._shell = Shell(self._box, self._limits)
        return self._shell

    async def _graded(self) -> tuple[Verdict, list[str]]:
        start = self.task.files
        if self._box is None or self._shell is None:  # no call was made
            files = {path: text.encode() for path, text in start.items() if may_count(path)}
            return await self._grader.grade(files, self._hidden), []
        await self._shell.close()
        found = await listed(self._box)
        touched = await touched_tests(self._box, start, found)
        return await self._grader.grade(await sources_of(self._box, start, found), self._hidden), touched

    def _told(self, ran: Ran) -> str:
        text = shown(ran.head, ran.tail, ran.cut, self._limits.output_chars).rstrip("\n")
        notes = [f"[{ran.why}]"] if ran.why else [status_note(ran.status)] if ran.status else []
        return "\n".join(([text] if text else []) + notes) or "[no output]"


def check_files(task: Task) -> None:
    """Raise TaskError when the files of a task cannot be a workspace with something to grade."""
    for path, text in task.files.items():
        try:
            check_path(path)
        except SandboxError as error:
            raise TaskError(f"{task.id}: {error}") from error
        if not _is_text(text):
            raise TaskError(f"{task.id}: the file {path!r} holds half a character; a file is text that UTF-8 can hold")
    if not any(may_count(path) for path in task.files):
        names = ", ".join(task.files) or "none"
        raise TaskError(f"{task.id}: no file can be a source to repair, beside tests and settings; they are {names}")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _error(text: str) -> Observation:
    return Observation(content=f"error: {text}", error=True)
