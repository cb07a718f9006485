"""What a run takes of memory and time, over what was estimated before it: real steps of Qwen3-architecture models.

python benchmarks/bench_memory.py [small|all]

Each row is a process of its own that samples and trains with random weights, two steps of each. Memory is the peak of
the second step of each phase (VmHWM, set back before it); seconds are those of the faster of two steps.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.algorithms.presets import preset
from agentrl.config import EvalConfig, HuggingFaceConfig, ModelConfig, RlConfig, SandboxConfig, TrainConfig
from agentrl.engine.local import LocalEngine
from agentrl.loops.footprint.estimate import Traces, durations, estimate, trace
from agentrl.loops.footprint.machine import rates, warm_up
from agentrl.loops.footprint.outline import outline_model
from agentrl.loops.footprint.trace import Conversations
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.train.losses import PolicyGradient
from agentrl.train.trainer import OptimizerSettings, Trainer

MIB = 2**20


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
    checkpointing: bool = False

    @property
    def shape(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.width,
            intermediate_size=3 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.width // 16,
            num_key_value_heads=self.width // 32,
            head_dim=32,
            tie_word_embeddings=True,
            max_position_embeddings=1024,
        )

    @property
    def conversations(self) -> Conversations:
        return Conversations(
            groups=self.groups, members=self.members, prompt=self.prompt, length=self.length, observation=16
        )

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(
            recipe="bench",
            model=ModelConfig(name="random", context=self.length),
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


def main() -> None:
    if len(sys.argv) > 2:
        print(json.dumps(measured(Case(**json.loads(sys.argv[2])))))
        return
    few = sys.argv[1:] == ["small"]
    print(f"{'':<28}{'phase':<10}{'estimated':>12}{'measured':>12}{'ratio':>7}{'estimated':>12}{'measured':>10}")
    libraries = warm_up(transformers=True)
    for name, case in list(CASES.items())[: 1 if few else None]:
        compare(name, case, libraries)


def compare(name: str, case: Case, libraries: int) -> None:
    """Estimate first, then measure, and print both."""
    estimated = foretold(case, libraries)
    words = [sys.executable, __file__, "measure", json.dumps(asdict(case))]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    for phase in ("sampling", "training"):
        (memory, seconds), (peak, took) = estimated[phase], found[phase]
        print(
            f"{name:<28}{phase:<10}{memory / MIB:>8,.0f} MiB{peak / MIB:>8,.0f} MiB{memory / peak:>7.2f}"
            f"{seconds:>10.1f} s{took:>8.1f} s",
            flush=True,
        )


def foretold(case: Case, libraries: int) -> dict[str, tuple[float, float]]:
    """Bytes and seconds of each phase; sandboxes are not in the measurement."""
    policy = outline_model(case.shape, case.config.hf, value_head=False)
    traces: Traces = trace(case.config, case.conversations, policy)
    found = estimate(case.config, traces, libraries=libraries)
    boxes = next(part for part in found.parts if part.name == "sandboxes")
    times = durations(traces, rates("cpu", policy))
    return {phase: (found.phase(phase) - boxes.bytes[phase], times[phase].total) for phase in times}


def measured(case: Case) -> dict[str, tuple[float, float]]:
    """Peak bytes of the second step of each phase, and seconds of the faster."""
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
    taken: dict[str, list[float]] = {phase: [] for phase in work}
    peaks: dict[str, float] = {}
    for _ in range(2):
        for phase, do in work.items():
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
            started = time.perf_counter()
            do()
            taken[phase].append(time.perf_counter() - started)
            peaks[phase] = peak_bytes()
    return {phase: (peaks[phase], min(taken[phase])) for phase in work}


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
