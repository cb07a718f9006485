"""vLLM as a peer: a process in its own environment, asked over a pipe for the same work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from transformers import Qwen3ForCausalLM

from agentrl.bench.generation.players import Replies
from agentrl.bench.generation.work import Ids, Work
from agentrl.bench.report import BenchError

VARIABLE = "AGENTRL_VLLM_PYTHON"
MISSING = (
    f"vLLM was left out: {VARIABLE} names no interpreter that has it; write `make vllm-env`, and set {VARIABLE} to the "
    "python of that environment (.venv/vllm/bin/python)"
)
MAIN = Path(__file__).with_name("vllm_main.py")
ENDS_WITHIN_S = 20


def interpreter() -> str | None:
    """The interpreter that has vLLM, where the variable of the environment names one that exists."""
    return shutil.which(os.environ.get(VARIABLE, ""))


class VLLM:
    """A running vLLM with its prefix cache on; each play begins with nothing cached."""

    def __init__(self, pipe_in: IO[str], pipe_out: IO[str], log: Path) -> None:
        self._in, self._out, self._log = pipe_in, pipe_out, log
        self._used = 0.0
        self.versions = self._answer()

    def used(self) -> float:
        """Processor seconds of its process, as of its last answer."""
        return self._used

    def play(self, work: Work, *, logprobs: bool = False) -> Replies:
        """All conversations as one batch a turn. With ``logprobs`` those of the sampled tokens are computed, too."""
        first = self.generate(work.prompts, n=work.shape.group, reply=work.shape.reply, logprobs=logprobs, fresh=True)
        turns = [[ids] for ids in first]
        said = [(*prompt, *ids) for prompt, ids in zip(work.opening, first, strict=True)]
        for turn in range(1, work.shape.turns):
            said = [(*ids, *observed[turn - 1]) for ids, observed in zip(said, work.observations, strict=True)]
            found = self.generate(said, n=1, reply=work.shape.reply, logprobs=logprobs, fresh=False)
            for replies, ids in zip(turns, found, strict=True):
                replies.append(ids)
            said = [(*ids, *new) for ids, new in zip(said, found, strict=True)]
        return turns

    def generate(self, prompts: Sequence[Ids], *, n: int, reply: int, logprobs: bool, fresh: bool) -> tuple[Ids, ...]:
        """``n`` replies of ``reply`` tokens to each prompt, those of one prompt side by side.

        Raises:
            BenchError: the process has ended, or answers otherwise.
        """
        request = {"prompts": prompts, "n": n, "reply": reply, "logprobs": logprobs, "fresh": fresh}
        self._in.write(json.dumps(request) + "\n")
        self._in.flush()
        answer = self._answer()
        self._used = answer["used"]
        return tuple(map(tuple, answer["replies"]))

    def _answer(self) -> dict[str, Any]:
        line = self._out.readline()
        if not line:
            raise BenchError(f"vLLM ended before it answered:\n{self._log.read_text(errors='replace')[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(model: Qwen3ForCausalLM, *, context: int, sequences: int, threads: int) -> Iterator[VLLM]:
    """vLLM with a model's weights, until the block ends.

    Args:
        model: whose weights it gets.
        context: the longest sequence in tokens.
        sequences: at a time.
        threads: for its arithmetic.

    Raises:
        BenchError: there is no interpreter for it, or it does not start.
    """
    python = interpreter()
    if python is None:
        raise BenchError(MISSING)
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        model.save_pretrained(folder)
        log = Path(folder) / "log"
        command = [python, "-I", str(MAIN), folder, str(context), str(sequences)]
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(threads),
                cwd=folder,
            )
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        try:
            yield VLLM(process.stdin, process.stdout, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """It ends when its input does; one that does not is ended."""
    try:
        process.communicate(timeout=ENDS_WITHIN_S)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()
        process.wait()


def _environment(threads: int) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
