"""C sources of this package, compiled by the machine's own compiler for its own processor when they are first wanted.

What was compiled is kept in the user's cache folder, under a name that tells the source, the compiler, the flags and
the processor. Where there is no compiler there are no such functions, and torch computes instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

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
_SECONDS = 60.0


def library(source: Path, defines: Sequence[str] = ()) -> ctypes.CDLL | None:
    """The functions of a C source, compiled if need be; None where they cannot be had.

    Args:
        source: one file.
        defines: further arguments of the compiler, as ``-DNAME=value``.
    """
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    found = (_loaded(compiler, (*flags, *defines), source) for flags in ((*FLAGS, *OWN_PROCESSOR), FLAGS))
    return next(filter(None, found), None)


def _loaded(compiler: str, flags: Sequence[str], source: Path) -> ctypes.CDLL | None:
    texts = (path.read_text() for path in (source, *sorted(source.parent.glob("*.h"))))
    made_of = (*texts, str(Path(compiler).resolve()), *flags, platform.machine(), _processor())
    name = f"{source.stem}-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"
    for folder in _folders():
        try:
            path = folder / name
            if not path.exists() and not _compiled(compiler, flags, source, path):
                return None
            return ctypes.CDLL(str(path))
        except OSError:  # not writable, or what lies there is no library
            continue
    return None


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


def _compiled(compiler: str, flags: Sequence[str], source: Path, path: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *flags, "-o", str(made), str(source), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode == 0:
            made.replace(path)  # processes that compile at the same time put the same there
        return done.returncode == 0


def _processor() -> str:
    """What tells this processor from others that a home folder may be shared with."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
