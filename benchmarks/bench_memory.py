"""What a run takes of memory and time, over what was estimated before it: real steps of Qwen3-architecture models.

python benchmarks/bench_memory.py [small|all|large]

``small`` is the first case alone; ``large`` is a model of the shape of Qwen3-0.6B, which takes 13 GiB and minutes.

A process of its own samples and trains with random weights, a step of each in turns with an estimate of its time, so
that what else the machine does meets both alike. Memory is the largest peak from the second step on (VmHWM, set back
before each); seconds are those of the processor, each the median of the rounds.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.algorithms.presets import preset
from agentrl.config import EvalConfig, HuggingFaceConfig, ModelConfig, RlConfig, SandboxConfig, TrainConfig
from agentrl.engine.local import LocalEngine
from agentrl.loops.footprint.duration import durations
from agentrl.loops.footprint.estimate import estimate, trace
from agentrl.loops.footprint.machine import warm_up
from agentrl.loops.footprint.trace import Conversations
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.train.losses import PolicyGradient
from agentrl.train.trainer import OptimizerSettings, Trainer

MIB = 2**20
ROUNDS = 3
PHASES = ("sampling", "training")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and the work of a step."""

    width: int
    layers: int
    micro_batch: int
    groups: int
    members: int
    prompt: int = 64
    length: int = 192
    vocab: int = 151_936
    head_width: int = 32
    heads: int | None = None
    checkpointing: bool = False

    @property
    def shape(self) -> Qwen3Config:
        heads = self.heads or self.width // 16
        return Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.width,
            intermediate_size=3 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=self.head_width,
            tie_word_embeddings=True,
            max_position_embeddings=1024,
        )

    @property
    def conversations(self) -> Conversations:
        return Conversations(
            groups=self.groups, members=self.members, prompt=self.prompt, length=self.length, observation=16
        )

    def config(self, folder: str) -> TrainConfig:
        return TrainConfig(
            recipe="bench",
            model=ModelConfig(name=folder, context=self.length),
            hf=HuggingFaceConfig(
                gradient_checkpointing=self.checkpointing, micro_batch_tokens=self.micro_batch, device="cpu"
            ),
            rl=RlConfig(groups_per_step=self.groups, group_size=self.members, eval_every=0),
            eval=EvalConfig(tasks=0),
            sandbox=SandboxConfig(workers=1),
        )


CASES = {
    "14 M, 2 x 4, 1,024 tokens": Case(width=64, layers=4, micro_batch=1024, groups=2, members=4),
    "14 M, 4 x 8, 4,096 tokens": Case(width=64, layers=4, micro_batch=4096, groups=4, members=8),
    "14 M, 8 x 8, 2,048 tokens": Case(width=64, layers=4, micro_batch=2048, groups=8, members=8),
    "45 M, 2 x 8, 512 tokens": Case(width=256, layers=8, micro_batch=512, groups=2, members=8),
    "45 M, 2 x 8, 4,096 tokens": Case(width=256, layers=8, micro_batch=4096, groups=2, members=8),
    "45 M, 2 x 8, checkpointing": Case(width=256, layers=8, micro_batch=4096, groups=2, members=8, checkpointing=True),
    "60 M, 4 x 4, 1,024 tokens": Case(width=320, layers=10, micro_batch=1024, groups=4, members=4),
}
LARGE = {
    "0.6 B, 2 x 4, 1,024 tokens": Case(
        width=1024, layers=28, heads=16, head_width=128, micro_batch=1024, groups=2, members=4
    )
}


def main() -> None:
    if len(sys.argv) > 2:
        measure(Case(**json.loads(sys.argv[2])))
        return
    asked = sys.argv[1] if len(sys.argv) == 2 else "all"
    known = {"small": dict(list(CASES.items())[:1]), "all": CASES, "large": LARGE}
    if asked not in known:
        sys.exit(f"{asked} is no set of cases; write one of {', '.join(known)}")
    columns = f"{'estimated':>12}{'measured':>12}{'ratio':>7}"
    print(f"{'':<28}{'phase':<10}{columns}{columns}")
    libraries = warm_up(transformers=True)
    for name, case in known[asked].items():
        compare(name, case, libraries)


def compare(name: str, case: Case, libraries: int) -> None:
    """Estimate and measure in turns, and print both."""
    words = [sys.executable, __file__, "measure", json.dumps(asdict(case))]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as steps,
    ):
        case.shape.save_pretrained(folder)
        config = case.config(folder)
        traces = trace(config, case.conversations)
        found = estimate(config, traces, libraries=libraries)
        taken = [next_step(steps)]
        times = []
        for _ in range(ROUNDS):
            times.append(durations(config, traces))
            taken.append(next_step(steps))
        steps.communicate()
    boxes = next(part for part in found.parts if part.name == "sandboxes")
    for phase in PHASES:
        memory, peak = found.phase(phase) - boxes.bytes[phase], max(step[phase][0] for step in taken[1:])
        seconds = statistics.median(one[phase].total for one in times)
        took = statistics.median(step[phase][1] for step in taken[1:])
        print(
            f"{name:<28}{phase:<10}{memory / MIB:>8,.0f} MiB{peak / MIB:>8,.0f} MiB{memory / peak:>7.2f}"
            f"{seconds:>10.2f} s{took:>10.2f} s{seconds / took:>7.2f}",
            flush=True,
        )


def next_step(steps: "subprocess.Popen[str]") -> dict[str, tuple[float, float]]:
    """Let the other process do a step of each phase; its peak bytes and seconds."""
    assert steps.stdin is not None
    assert steps.stdout is not None
    steps.stdin.write("step\n")
    steps.stdin.flush()
    return json.loads(steps.stdout.readline())


def measure(case: Case) -> None:
    """For each line that comes, a step of each phase; print peak bytes and processor seconds."""
    torch.manual_seed(0)
    policy = HuggingFacePolicy(AutoModelForCausalLM.from_config(case.shape))
    if case.checkpointing:
        policy.model.activation_checkpointing_enable()
        policy.train()
    settings = OptimizerSettings(
        learning_rate=1e-4, matrix_learning_rate=0.0, total_steps=9, max_tokens=case.micro_batch
    )
    trainer, engine = Trainer(policy, settings), LocalEngine(policy)
    samples, loss = case.conversations.samples(), PolicyGradient(preset("dr_grpo"))
    work = {
        "sampling": lambda: asyncio.run(play(engine, case.conversations)),
        "training": lambda: trainer.step(samples, loss),
    }
    for _ in sys.stdin:
        print(json.dumps({phase: measured(work[phase]) for phase in PHASES}), flush=True)


def measured(do: Callable[[], object]) -> tuple[float, float]:
    """Peak bytes and processor seconds of something."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    started = time.process_time()
    do()
    return peak_bytes(), time.process_time() - started


async def play(engine: LocalEngine, conversations: Conversations) -> None:
    """All conversations of a step, replies and answers in turn, to their full length."""

    async def one(group: int, member: int) -> None:
        session = engine.session(seed=1000 * group + member)
        context, room = [group] * conversations.prompt, conversations.own
        while room > 0:
            reply = min(conversations.observation, room)
            await session.sample(context, max_tokens=reply, stop_ids=frozenset())
            context, room = [1] * conversations.observation, room - reply - conversations.observation
        await session.close()

    pairs = [(group, member) for group in range(conversations.groups) for member in range(conversations.members)]
    await asyncio.gather(*(one(group, member) for group, member in pairs))


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
