"""The judge's process as its owner sees it: started on demand, replaced when it has died."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from pathlib import Path

import agentrl
from agentrl.errors import ScorerError

_CLOSE_S = 2.0
_ROOT = Path(agentrl.__file__).parent
_BOOT = f"""
import sys, types
for name in ("agentrl", "agentrl.rewards", "agentrl.rewards.judge", "agentrl.sandbox"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(_ROOT)!r} + name.removeprefix("agentrl").replace(".", "/")]
from agentrl.rewards.judge.server import main
main()
"""
"""Without what our packages import for their users: each grading is a fork, which costs what the process holds."""


class JudgeProcess:
    """Starts `server` and hands it new gradings."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def open(self) -> socket.socket:
        """A non-blocking socket to a fresh child of the judge's process.

        Raises:
            ScorerError: the judge's process cannot be started.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                self._hand_over(theirs)
        except OSError as error:
            ours.close()
            raise ScorerError(f"the judge's process cannot be started: {error}") from error
        return ours

    def _hand_over(self, end: socket.socket) -> None:
        for last in (False, True):
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._control is not None
            try:
                rights = array.array("i", [end.fileno()])
                self._control.sendmsg([b"j"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except BrokenPipeError:
                self.close()
                if last:
                    raise
            else:
                return

    def _start(self) -> None:
        self.close()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-B", "-c", _BOOT],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )

    def close(self) -> None:
        """End the process. Safe to call twice."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _environment() -> dict[str, str]:
    """The judge's whole environment: where Python and we are, and nothing that is secret."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "VIRTUAL_ENV") if name in os.environ}
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", **kept}
