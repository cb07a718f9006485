"""Running a Python file in a process forked from the warm interpreter: ``warm-python FILE ...``.

As ``python -I -S FILE ...``, without the milliseconds that an interpreter takes to start. The walls are those of every
program. What differs: the standard modules that the fork server has loaded are loaded already, and frames of ours are
below the program's; they hold nothing that it could not have.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
import types
from typing import IO, Any, NoReturn

from agentrl.sandbox.guest import forget_ourselves
from agentrl.sandbox.walls import kernel

NAME = "warm-python"


def fork(argv: list[str], environment: dict[str, str], private: range) -> int:
    """Start the file ``argv[1]`` in a new process, with the descriptors ``private`` closed, and return its id.

    Raises:
        OSError: no process is to be had.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.closerange(private.start, private.stop)
            kernel.set_dumpable(True)
            look_new(argv[1:], environment)
            _run(os.path.abspath(argv[1]))
        finally:
            os._exit(1)
    return pid


def look_new(argv: list[str], environment: dict[str, str]) -> None:
    """Make the interpreter look as one that was just started."""
    forget_ourselves()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = argv
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = _stream(descriptor, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.modules["__main__"] = types.ModuleType("__main__")
    gc.enable()


def _stream(descriptor: int, mode: str) -> IO[Any]:
    errors = "backslashreplace" if descriptor == 2 else "surrogateescape"
    return open(descriptor, mode, 1 if descriptor == 2 else -1, "utf-8", errors, closefd=False)


def _run(path: str) -> NoReturn:
    """Run the program as the main module, and end as an interpreter ends."""
    main = sys.modules["__main__"]
    main.__dict__.update(__file__=path, __builtins__=__builtins__)
    status = 1
    try:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
        status = 0
    except SystemExit as error:
        status = _exit_status(error)
    except BaseException as error:
        traceback.print_exception(error.with_traceback(_from(error, path)))
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        status = status or 120  # what an interpreter says when its output could not be written
    os._exit(status & 255)


def _exit_status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _from(error: BaseException, path: str) -> types.TracebackType | None:
    """The traceback without our own frame."""
    trace = error.__traceback__
    return trace.tb_next if trace is not None and trace.tb_frame.f_code.co_filename != path else trace
