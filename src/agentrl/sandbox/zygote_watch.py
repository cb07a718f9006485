"""A program that runs in a box, seen by the keeper: its pipes, its clock, its memory, its end."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from agentrl.sandbox import zygote_program
from agentrl.sandbox.walls import memory, namespaces
from agentrl.sandbox.walls.apart import KeptApart

if TYPE_CHECKING:
    from agentrl.sandbox.zygote_box import Keeper

_LOOK_EVERY_S = 0.05
_OUTPUT_FACTOR = 256
_CHUNK = 1 << 16
_OWN_PROCESSES = 2  # the keeper and the process that starts the program have the same user


class Running:
    """One program from its start to the death of all that it left.

    Raises:
        OSError: no process or pipe is to be had.
    """

    def __init__(self, keeper: Keeper, head: dict[str, Any], stdin: memoryview, descriptors: list[int]) -> None:
        limits = keeper.limits
        self.begin = time.monotonic()
        self.deadline = self.begin + min(head["wall_s"] or limits["wall_s"], limits["wall_s"])
        self.memory_limit = limits["memory_mib"] << 20
        self.output_limit = limits["output_bytes"] * _OUTPUT_FACTOR
        self.next_look = self.begin + _LOOK_EVERY_S
        self.processor_limit_s, self.processor_s = limits["cpu_s"], 0.0
        self.buffers = memory.Buffers()
        self.killed = False
        self.killed_for: str | None = None
        self.report = b""
        self.stdin = stdin
        self.pipes = zygote_program.Pipes()
        self.over = False
        program = zygote_program.Program(
            argv=head["argv"],
            environment={**keeper.environment, **head["env"]},
            folder=head["cwd"],
            python=keeper.python,
            limits={**limits, "processes": limits["processes"] + _OWN_PROCESSES},
            rules=keeper.rules,
            system_calls=keeper.system_calls,
            workspace=keeper.folder,
            trees=keeper.trees,
        )
        self.pid = namespaces.fork_into(namespaces.PROCESSES, namespaces.MOUNTS, namespaces.SHARED_MEMORY)
        if self.pid == 0:
            zygote_program.start(program, self.pipes, descriptors[0] if descriptors else None)
        self.output = {pipe[0]: KeptApart(limits["output_bytes"]) for pipe in (self.pipes.stdout, self.pipes.stderr)}
        self.pipes.close_far_ends()

    def register(self, poll: select.poll) -> None:
        """Have its pipes looked at."""
        for descriptor in (*self.output, self.pipes.status[0]):
            poll.register(descriptor, select.POLLIN)
        if self.stdin:
            os.set_blocking(self.pipes.stdin[1], False)
            poll.register(self.pipes.stdin[1], select.POLLOUT)
        else:
            self.pipes.close(self.pipes.stdin[1])

    def serve(self, descriptor: int, poll: select.poll) -> None:
        """One pipe has something, or room."""
        if descriptor == self.pipes.stdin[1]:
            self._feed(poll)
            return
        if descriptor == self.pipes.status[0]:
            data = os.read(descriptor, _CHUNK)
            self.report += data
            self.over = not data
        elif not self.output[descriptor].take(descriptor):
            poll.unregister(descriptor)
        elif sum(kept.total for kept in self.output.values()) > self.output_limit:
            self.kill("output")

    def _feed(self, poll: select.poll) -> None:
        try:
            self.stdin = self.stdin[os.write(self.pipes.stdin[1], self.stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.stdin = self.stdin[:0]
        if not self.stdin:
            poll.unregister(self.pipes.stdin[1])
            self.pipes.close(self.pipes.stdin[1])

    def patience_ms(self) -> int:
        """How long to wait for its pipes before the next look."""
        until = min(self.deadline, self.next_look)
        return max(0, int((until - time.monotonic()) * 1000) + 1)

    def look(self, now: float) -> None:
        """Kill it when its time or its memory is used up."""
        if self.over:
            return
        if now >= self.deadline:
            self.kill("time")
        elif now >= self.next_look:
            self.next_look = now + _LOOK_EVERY_S
            tree = memory.descendants(self.pid)[1:]
            buffered = self.buffers.most_bytes(tree)
            if buffered + memory.used_bytes(tree, self.memory_limit - buffered) > self.memory_limit:
                self.kill("memory")

    def kill(self, reason: str | None) -> None:
        """End it with everything that it started."""
        if not self.killed:
            self.killed_for = reason
        self.killed = self.over = True

    def end(self) -> None:
        """Kill the pid namespace, wait until it is empty, and take in what output is left. Closes the pipes."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for descriptor, kept in self.output.items():
            os.set_blocking(descriptor, False)
            while kept.take(descriptor):  # nothing more may come, while its other end lies in a socket's queue
                pass
        self.wall_s = time.monotonic() - self.begin
        self.pipes.close_all()

    def forget(self) -> None:
        """Let go of its output, before the next program starts."""
        for kept in self.output.values():
            kept.close()

    def finished(self) -> tuple[dict[str, Any], memoryview, memoryview]:
        """How it ended, and its output.

        Raises:
            OSError: it could not be started, or the process that did was lost.
        """
        status, number = self._end()
        used_up = number == signal.SIGKILL and self.processor_s >= self.processor_limit_s
        by_processor_time = not self.killed and (number == signal.SIGXCPU or used_up)
        out, err = self.output.values()
        head = {
            "status": status,
            "signal": number,
            "killed_for": "time" if by_processor_time else self.killed_for,
            "cut": out.cut + err.cut,
            "wall_s": self.wall_s,
            "stdout": out.used,
        }
        return head, out.view, err.view

    def _end(self) -> tuple[int | None, int | None]:
        """Exit status and signal."""
        if self.report.startswith(zygote_program.ENDED):
            status, seconds = self.report[1:].split()
            self.processor_s = float(seconds)
            code = os.waitstatus_to_exitcode(int(status))
            return (code, None) if code >= 0 else (None, -code)
        if self.killed:
            return None, int(signal.SIGKILL)
        reason = self.report[1:].decode() if self.report else "the process that starts it was lost"
        raise OSError(f"no program could be run in this box: {reason}")
