"""C sources of this package, compiled by the machine's own compiler for its own processor when they are first wanted.

What was compiled is kept in the user's cache folder, under a name that tells the source, the compiler, the flags and
the processor. Where there is no compiler there are no such functions, and torch computes instead, which is slower: what
was done without, and why, is told by `telling`. What a compiler said that failed is kept beside the libraries.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FLAGS = (
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-freciprocal-math",
)
OWN_PROCESSOR = ("-march=native", "-mprefer-vector-width=512")
COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 60.0
_INSTEAD = "torch computes instead, which is slower"
_known: dict[str, None] = {}
"""What was done without in this process, in the order in which it was found."""
_listeners: list[Callable[[str], None]] = []


@contextmanager
def telling(tell: Callable[[str], None]) -> Iterator[None]:
    """Have somebody told, once each, what is computed by torch where it could be compiled: as it is found, and at the
    beginning what this process found before. Where all is well nothing is told.

    Args:
        tell: gets a line for people; called from the thread that finds it.
    """
    for line in problems():
        tell(line)
    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)


def problems() -> tuple[str, ...]:
    """Lines for people on what this process could not compile, or did not take, and what to do."""
    return tuple(_known)


def refuse(source: Path, beside: str, instead: str = _INSTEAD) -> None:
    """Note that what was compiled is not taken, since it gives other numbers.

    Args:
        source: that was compiled.
        beside: whose numbers they were compared with.
        instead: what is done without it.
    """
    _note(f"what {compiler()} made of {source.name} gives other numbers than {beside}: {instead}")


def _note(line: str) -> None:
    if line not in _known:
        _known[line] = None
        for tell in tuple(_listeners):
            tell(line)


def compiler() -> str | None:
    """Where the machine's C compiler is; None where it has none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def library(source: Path, defines: Sequence[str] = ()) -> ctypes.CDLL | None:
    """The functions of a C source, compiled if need be; None where they cannot be had.

    Args:
        source: one file.
        defines: further arguments of the compiler, as ``-DNAME=value``.
    """
    path = compiler()
    if path is None:
        _note(
            f"no C compiler was found ({', '.join(COMPILERS)}): {_INSTEAD}. Install one with the system's packages, "
            "such as gcc, and start again"
        )
        return None
    why = ""
    for flags in ((*FLAGS, *OWN_PROCESSOR), FLAGS):
        found = _loaded(path, (*flags, *defines), source)
        if found.library is not None:
            return found.library
        why = found.why
    _note(f"{source.name} could not be compiled by {path}: {_INSTEAD}; {why}")
    return None


class _Found(NamedTuple):
    """A library, or why there is none."""

    library: ctypes.CDLL | None
    why: str = ""


def _loaded(compiler: str, flags: Sequence[str], source: Path) -> _Found:
    texts = (path.read_text() for path in (source, *sorted(source.parent.glob("*.h"))))
    made_of = (*texts, str(Path(compiler).resolve()), *flags, platform.machine(), _processor())
    name = f"{source.stem}-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"
    why = "no folder for it can be written to that is this user's alone, such as ~/.cache/agentrl"
    for folder in _folders():
        try:
            path = folder / name
            said = "" if path.exists() else _compiled(compiler, flags, source, path)
            if said:
                return _Found(None, said)
            return _Found(ctypes.CDLL(str(path)))
        except OSError as error:  # not writable, or what lies there is no library
            why = str(error)
    return _Found(None, why)


def _folders() -> Iterator[Path]:
    """Where libraries are kept: the first that can be written. What others can write to would run their code as us."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl"
    for folder in (cache, Path(tempfile.gettempdir()) / f"agentrl-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
            if status.st_uid == os.getuid() and not status.st_mode & 0o022:
                yield folder
        except OSError:
            continue


def _compiled(compiler: str, flags: Sequence[str], source: Path, path: Path) -> str:
    """Compile; what went wrong, or nothing."""
    said = path.with_suffix(".txt")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *flags, "-o", str(made), str(source), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"it took more than {_SECONDS:g} s"
        if done.returncode == 0:
            made.replace(path)  # processes that compile at the same time put the same there
            said.unlink(missing_ok=True)
            return ""
    said.write_bytes(f"{' '.join(command)}\nstatus {done.returncode}\n\n".encode() + done.stdout + done.stderr)
    return f"what it said is in {said}"


def _processor() -> str:
    """What tells this processor from others that a home folder may be shared with."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
