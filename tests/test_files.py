"""A file that is replaced holds the old content or the new, never a part."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.files import write_atomic

WRITER = """
import sys
from pathlib import Path
from agentrl.files import write_atomic
print("ready", flush=True)
while True:
    for letter in (b"a", b"b"):
        write_atomic(Path(sys.argv[1]), letter * 2_000_000)
"""


def test_a_kill_in_the_middle_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")
    for wait_s in (0.0, 0.003, 0.017):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(wait_s)
            os.kill(writer.pid, signal.SIGKILL)
        assert path.read_bytes() in (b"old", b"a" * 2_000_000, b"b" * 2_000_000)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomic(tmp_path / "taken", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
