"""Runs a candidate's program in a box as ``python FILE ...`` or ``python -m MODULE ...`` would.

Standard library only, run as a file of its own: ``launcher.py SECONDS FILE-OR-MODULE ARGUMENT ...``. It bounds the
processor time, which a busy machine does not shorten, and gives back what is missing when the interpreter starts
without its site module. Without a program it says that it runs.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import os
import resource
import sys

READY = "ready\n"


def limit_processor_time(seconds: int) -> None:
    """Have the kernel end this process, and each that it starts, after so many seconds of processor time."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft, hard = (n if most == resource.RLIM_INFINITY else min(n, most) for n in (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def prepare(folder: str, arguments: list[str]) -> None:
    """Make the interpreter as one that was started for the program."""
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D")
    sys.argv[:] = arguments
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    own = {name.partition(".")[0] for name in os.listdir(folder)} - set(sys.builtin_module_names)
    for loaded in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[loaded]  # a module of the program's comes before one that a warm interpreter has


def run_file(path: str) -> None:
    """The text of a file as the main module."""
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins)
    exec(code, main.__dict__)


def main() -> None:
    """Run the program that the command line names."""
    if len(sys.argv) == 1:
        sys.stdout.write(READY)
        return
    _, seconds, name, *arguments = sys.argv
    limit_processor_time(int(seconds))
    is_file = name.endswith(".py")
    folder = os.path.join(os.getcwd(), os.path.dirname(name)) if is_file else os.getcwd()
    prepare(folder, [name, *arguments])
    if is_file:
        run_file(name)
    else:
        __import__("runpy").run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
