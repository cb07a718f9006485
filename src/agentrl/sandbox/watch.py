"""Limits of a running program that have to be looked at from outside: the clock, memory, processes, the disk."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.sandbox import tally
from agentrl.sandbox.base import Reason
from agentrl.sandbox.orders import Order, Streams, Walls
from agentrl.sandbox.walls import memory

_LOOK_S = 0.05
_MIB = 1 << 20


@dataclass(kw_only=True)
class Watch:
    """Looks at a running program, often.

    Args:
        order: its limits.
        walls: what is around it.
        folders: what to add up, where no file system bounds them.
        program: its process, a child of ours.
        streams: of these, the sockets whose end is the end of the program.
        wake: can be read when a child of ours has ended.
        begin: when it started, by `time.monotonic`.

    Attributes:
        ended: children of ours that have ended, and orphans of theirs -> wait status.
        orphaned: whether the keeper was lost.
    """

    order: Order
    walls: Walls
    folders: Sequence[str]
    program: int
    streams: Streams
    wake: int
    begin: float

    def __post_init__(self) -> None:
        self.ended: dict[int, int] = {}
        self.orphaned = False
        self._buffers = memory.Buffers()

    def until_it_ends(self) -> Reason | None:
        """Wait for the program, or for a reason to end it, which is returned."""
        poll = select.poll()
        stops = (self.streams.control, self.streams.life)
        for fd in (*stops, self.wake):
            poll.register(fd, select.POLLIN)
        deadline = self.begin + self.order.wall_s
        next_look = self.begin + _LOOK_S
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "time"
            if now >= next_look:  # by the clock: a program can keep us from ever having nothing to do
                if reason := self._over():
                    return reason
                next_look = time.monotonic() + _LOOK_S
            ready = dict(poll.poll(max(1.0, 1000 * (min(deadline, next_look) - now))))
            if self.wake in ready:
                os.read(self.wake, 4096)
                tally.reap(self.ended)
            if self.program in self.ended:
                return None
            if any(fd in ready for fd in stops):  # a word of the user's process, which keeps the reason; or an end
                self.orphaned = self.streams.life in ready
                return None

    def _over(self) -> Reason | None:
        """The limit that is exceeded now, if one is."""
        below = self._of_the_program()
        most = self.order.memory_mib * _MIB
        buffered = self._buffers.most_bytes(below)
        if buffered + memory.used_bytes(below, most - buffered) > most:
            return "memory"
        if tally.threads(below) > self.order.processes + 8:
            return "processes"
        if _disk_is_over(self.folders, self.order):
            return "disk"
        return None

    def _of_the_program(self) -> list[int]:
        """Its processes, without bubblewrap and the shell inside, which hide what they hold and are out of reach."""
        below = tally.below()
        if not self.walls.by_bubblewrap:
            return below
        own = memory.descendants(self.program)[:2]
        return [pid for pid in below if pid not in own]


def _disk_is_over(folders: Sequence[str], order: Order) -> bool:
    return any(used_disk(folder, most=order.files) > order.disk_mib * _MIB for folder in folders)


def used_disk(folder: str, *, most: int) -> float:
    """Bytes on the disk of all that is below a folder; infinite when there are more than ``most`` files and folders."""
    used, seen, waiting = 0.0, 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    state = entry.stat(follow_symlinks=False)
                    used += state.st_blocks * 512
                    seen += 1
                    if seen > most:
                        return float("inf")
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:  # removed while we looked
            continue
        except PermissionError:  # a folder that its owner closed to us, and to itself
            continue
        except OSError:  # deeper than a path can say
            return float("inf")
    return used
