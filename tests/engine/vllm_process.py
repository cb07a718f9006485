"""A real vLLM server on this machine's CPU, from its own environment (make vllm-env)."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

PYTHON = os.environ.get("AGENTRL_VLLM_PYTHON", ".venv/vllm/bin/python")
ROOT = Path(__file__).parents[2]
START_S = 900
LONGEST_S = 3000
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT / "src"),
}
OPTIONS = (
    *("--host", "127.0.0.1", "--served-model-name", "policy", "--skip-tokenizer-init", "--enable-scale-out"),
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16"),
    *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
    *("--worker-extension-cls", "agentrl.engine.vllm_worker.FolderTransfer"),
    *("--weight-transfer-config", '{"backend": "agentrl"}'),
)


class VLLMProcess:
    """A server that serves a model's folder on one port, however often it is started, with ``more`` options. Use it as
    a context."""

    def __init__(self, model: Path, log: Path, *more: str) -> None:
        self.model, self.log, self.more = model, log, more
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "VLLMProcess":
        self.start()
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(signal.SIGTERM)

    def start(self) -> None:
        """Start it; `wait` until it answers. It ends by itself if nobody ends it."""
        command = ["timeout", "-k", "10", str(LONGEST_S), PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self.model), "--port", str(self.port), *OPTIONS, *self.more]
        environment = {**os.environ, **SETTINGS}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers that it is well."""
        assert self._process is not None
        limit = time.monotonic() + START_S
        while not self._well():
            if self._process.poll() is not None or time.monotonic() > limit:
                self.kill(signal.SIGKILL)
                raise AssertionError(f"the vLLM server did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.5)

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End all of its processes; the one that frees their shared memory ends when the others have."""
        if self._process is None:
            return
        process, self._process = self._process, None
        for pid in _members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        limit = time.monotonic() + 20
        while _members(process.pid, every=True) and time.monotonic() < limit:
            process.poll()
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)

    def _well(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _members(group: int, *, every: bool = False) -> list[int]:
    """The processes of a group, those that have ended left out, and the tracker of shared memory unless ``every``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, owner = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            tracker = b"resource_tracker" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(owner) == group and state != "Z" and (every or not tracker):
            found.append(int(folder.name))
    return found
