"""A box that is kept by a process of its own: what the backends without a warm server give their users."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence

from agentrl.errors import SandboxError
from agentrl.sandbox.admission import Admission
from agentrl.sandbox.base import BoxFull, Finished, Level, Spec, check_path
from agentrl.sandbox.keeper import Keeper, Outfit, Spare, inside
from agentrl.sandbox.orders import Order
from agentrl.sandbox.runner import Ends, Program, ProgramChannel
from agentrl.sandbox.watch import used_disk
from agentrl.sandbox.workspace import Workspace


class KeptBackend:
    """What the backends with keepers share: how many boxes and programs there may be, and the end of all boxes.

    Args:
        max_boxes: boxes at a time; a start beyond waits for one to close.
        max_running: programs that run at a time, those with a channel not counted; four for each processor by default.
        wait_s: how long one waits for either, at most.

    Raises:
        SandboxError: a limit below 1, or no time to wait.
    """

    name = ""

    def __init__(self, *, max_boxes: int = 256, max_running: int | None = None, wait_s: float = 600.0) -> None:
        self._boxes = Admission(max_boxes, wait_s, f"{self.name} boxes")
        self._programs = Admission(max_running or 4 * (os.cpu_count() or 1), wait_s, "programs that run")
        self._open: set[KeptBox] = set()
        self._closed = False
        self._spare = Spare()
        self._end_spare = weakref.finalize(self, self._spare.close)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The process that waits for the next box, if there is one."""
        return self._spare.process_ids

    async def close(self) -> None:
        """End every box that is open. Safe to call twice."""
        self._closed = True
        await asyncio.gather(*(box.close() for box in tuple(self._open)))
        await asyncio.to_thread(self._end_spare)

    async def _start(self, spec: Spec, outfit: Outfit) -> KeptBox:
        """A box with the files of ``spec``, or nothing left of it.

        Raises:
            SandboxError: it cannot be had.
        """
        try:
            if self._closed:
                raise SandboxError(f"the {self.name} backend is closed; make a new one")
            await self._boxes.enter()
        except BaseException:
            outfit.release()
            raise
        try:
            keeper = await Keeper.start(outfit, self._spare)
            if not self._closed:
                self._spare.refill()
        except BaseException:
            outfit.release()
            self._boxes.leave()
            raise
        box = KeptBox(spec, outfit, keeper, self._programs, self._forget)
        self._open.add(box)
        try:
            await box.write(spec.files)
        except BaseException:
            await box.close()
            raise
        return box

    def _forget(self, box: KeptBox) -> None:
        if box in self._open:
            self._open.remove(box)
            box.outfit.release()
            self._boxes.leave()


class KeptBox:
    """A box with a keeper; see `Box`. Several programs may run in it at a time."""

    def __init__(
        self, spec: Spec, outfit: Outfit, keeper: Keeper, programs: Admission, forget: Callable[[KeptBox], None]
    ) -> None:
        self.outfit = outfit
        self._spec = spec
        self._keeper = keeper
        self._programs = programs
        self._forget = forget
        self._running: set[Program] = set()
        self._closed = False

    @property
    def level(self) -> Level:
        """The walls that this box has."""
        return self.outfit.level

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        wall_s: float | None = None,
    ) -> Finished:
        """Run a program to its end; see `Box`."""
        self._workspace()
        order = self._order(argv, env or {}, cwd, wall_s)
        async with self._programs:
            return await self._end_of(self._start(order, stdin, None))

    async def channel(self, argv: Sequence[str], *, wall_s: float | None = None) -> ProgramChannel:
        """Start a program that talks with us; see `Box`."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                program = self._start(self._order(argv, {}, "", wall_s), b"", (ours, theirs))
            except BaseException:
                ours.close()
                raise
        return ProgramChannel(ours, program, lambda: self._end_of(program))

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Put files into the workspace; see `Box`."""
        workspace = self._workspace()
        if not self._keeper.ready.bounded:
            self._check_room(files)
        workspace.write(files)

    async def read(self, paths: Sequence[str], *, max_bytes: int = 1 << 20) -> Mapping[str, bytes]:
        """The contents of regular files; see `Box`."""
        return self._workspace().read(paths, max_bytes=max_bytes)

    async def reset(self) -> None:
        """Back to the files that the box started with; programs that run are ended."""
        self._workspace()
        running = tuple(self._running)
        for program in running:
            program.kill()
        await asyncio.gather(*(program.told() for program in running), return_exceptions=True)
        for folder in self._keeper.folders:
            folder.clear()
        await self.write(self._spec.files)

    async def close(self) -> None:
        """End every process of the box and remove what it wrote. Safe to call twice."""
        self._closed = True
        for program in tuple(self._running):
            self._let_go(program)
        try:
            await self._keeper.close()
        finally:
            self._forget(self)

    def _workspace(self) -> Workspace:
        if self._closed:
            raise SandboxError("this box is closed; start another one")
        if self._keeper.process.poll() is not None:
            raise SandboxError(f"the keeper of this box ({self._keeper.process.pid}) was lost; start another box")
        return self._keeper.folders[0]

    def _check_room(self, files: Mapping[str, bytes]) -> None:
        """As a file system would, where none bounds the workspace."""
        limits = self._spec.limits
        used = used_disk(inside(self._keeper.home)[0], most=limits.files - len(files))
        if used + sum(map(len, files.values())) > limits.disk_mib << 20:
            bounds = f"{limits.disk_mib} MiB in {limits.files} files"
            raise BoxFull(f"cannot write {', '.join(files)[:200]}: the workspace is full ({bounds})")

    def _start(self, order: Order, stdin: bytes, channel: tuple[socket.socket, socket.socket] | None) -> Program:
        self._workspace()
        try:
            ends = Ends.open(channel and channel[1])
        except OSError as error:
            raise SandboxError(f"no descriptors for another program: {error.strerror}") from error
        program = Program(
            ends,
            stdin=stdin,
            output_bytes=self._spec.limits.output_bytes,
            wall_s=order.wall_s,
            channel=channel and channel[0],
        )
        try:
            self._keeper.tell(dataclasses.asdict(order), ends.theirs)
        except OSError as error:
            program.close()
            raise SandboxError(f"the keeper of this box takes no more programs: {error.strerror}") from error
        finally:
            ends.close_theirs()
        self._running.add(program)
        return program

    def _order(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, wall_s: float | None) -> Order:
        limits = self._spec.limits
        words = (*argv, *env, *env.values())
        if not argv or any("\0" in word for word in words) or any("=" in name or not name for name in env):
            raise SandboxError(f"cannot run {list(argv)!r} with {dict(env)!r}: give a program, and words without NUL")
        command, variables = self.outfit.command(inside(self._keeper.home), tuple(argv), env, cwd and check_path(cwd))
        return Order(
            argv=command,
            env=variables,
            cwd=cwd,
            wall_s=min(limits.wall_s, wall_s or limits.wall_s),
            cpu_s=limits.cpu_s,
            memory_mib=limits.memory_mib,
            processes=limits.processes,
            disk_mib=limits.disk_mib,
            files=limits.files,
        )

    async def _end_of(self, program: Program) -> Finished:
        """Wait for the end of a program, also of us, and let go of it."""
        try:
            report = await program.told()
            finished = program.finished(report)
        except SandboxError:
            await self._keeper.close()  # ends what the guard left
            raise
        finally:
            self._let_go(program)
        ended_by_us = program.was_killed or report.killed_for is not None
        if report.fault or not (report.started or ended_by_us):  # the end may come before the start
            said = report.fault or finished.stderr.decode(errors="replace").strip()
            raise SandboxError(f"a program could not be run in the box: {said}")
        return finished

    def _let_go(self, program: Program) -> None:
        program.close()
        self._running.discard(program)
