"""How much memory a run will need, part by part.

On the CPU the C library keeps blocks under 32 MiB when they are freed, so what the small tensors of one phase took is
still resident in the next, in more room than they need (`SLACK`); larger blocks go back to the system at once. Both
were measured (benchmarks/bench_memory.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from agentrl.config import LONGEST_PROMPT, TrainConfig
from agentrl.engine.memory import Memory, host_memory
from agentrl.loops.footprint.layers import extended, shallow
from agentrl.loops.footprint.machine import device_memory
from agentrl.loops.footprint.outline import outline
from agentrl.loops.footprint.trace import (
    Conversations,
    SamplingTrace,
    TrainingTrace,
    trace_sampling,
    trace_training,
)
from agentrl.policy.base import Policy

SLACK = 1.25
"""Room that the C library needs for small tensors, over their bytes: 1.23 to 1.45 in the first measurements."""
WORKER_BYTES = 40 * 2**20
"""Resident memory of one sandbox's processes between jobs."""
PHASES = ("sampling", "training", "evaluation", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the memory: its bytes in each phase in which it is there.

    Attributes:
        name: what it is.
        on_device: whether it lies where the model does; else in the memory of the computer.
        bytes: by phase.
        note: what it is made of, and how much of it there is.
    """

    name: str
    on_device: bool
    bytes: Mapping[str, int]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run will need.

    Attributes:
        device: where the model is: cpu or cuda.
        parameters: of the model, and how many of them are trained.
        parts: of the memory.
        conversations: what was assumed of a step's.
        tokens, micro_batches: tokens of the largest micro-batch of a step, and how many there are.
        host, accelerator: what the machine has, where that is known.
    """

    device: str
    parameters: int
    trained: int
    parts: tuple[Part, ...]
    conversations: Conversations
    tokens: int
    micro_batches: int
    host: Memory | None
    accelerator: Memory | None

    def phase(self, name: str, *, on_device: bool | None = None) -> int:
        """Bytes of a phase at its peak, of both memories or of one."""
        return sum(part.bytes.get(name, 0) for part in self.parts if on_device is None or part.on_device == on_device)

    @property
    def needed_on_host(self) -> int:
        """Bytes of the computer's memory at the peak of all phases."""
        if self.device == "cpu":
            return max(map(self.phase, PHASES))
        return max(self.phase(name, on_device=False) for name in PHASES)

    @property
    def needed_on_device(self) -> int:
        """Bytes of the accelerator's memory at the peak of all phases; 0 without one."""
        return 0 if self.device == "cpu" else max(self.phase(name, on_device=True) for name in PHASES)

    @property
    def fits(self) -> bool | None:
        """Whether every phase fits into what is free; None where that is not known."""
        wanted = ((self.needed_on_host, self.host), (self.needed_on_device, self.accelerator))
        if any(memory is not None and needed > memory.free for needed, memory in wanted):
            return False
        return None if any(needed and memory is None for needed, memory in wanted) else True


def conversations_of(config: TrainConfig, *, prompt: int | None = None, length: int | None = None) -> Conversations:
    """The conversations of a step, all as long as they may become.

    Args:
        config: of the run.
        prompt: tokens of a prompt; unset: the longest of the tiny level, or a quarter of the context.
        length: tokens of a conversation; unset: all of the context.
    """
    length = min(length or config.model.context, config.model.context)
    known = LONGEST_PROMPT if config.model.is_tiny else length // 4
    prompt = min(prompt or known, length - 1)
    return Conversations(
        groups=config.rl.groups_per_step,
        members=config.rl.group_size,
        prompt=prompt,
        length=length,
        observation=max(1, (length - prompt) // (2 * config.tasks.max_turns)),
    )


@dataclass(frozen=True, kw_only=True)
class Traces:
    """The passes of a run on shapes; there is no evaluation where the configuration has none."""

    policy: Policy
    conversations: Conversations
    evaluated: Conversations | None
    training: TrainingTrace
    sampling: SamplingTrace
    evaluation: SamplingTrace | None


def trace(
    config: TrainConfig, conversations: Conversations, policy: Policy | None = None, known: Traces | None = None
) -> Traces:
    """Run the passes of a run on shapes.

    Args:
        config: of the run.
        conversations: of a step.
        policy: the outline of the model, where there is one already; it is made of the configuration else.
        known: traces of the same model, of which those are taken that would be the same.

    Raises:
        ConfigError: the model's shape cannot be had.
    """
    whole = policy or (known.policy if known else outline(config))
    depths = None if config.model.is_tiny or policy else shallow(*_layers(whole))
    if depths is None:
        return _traced(config, conversations, whole, known)
    few, more = (_traced(config, conversations, outline(config, layers=depth), None) for depth in depths)
    times = (_layers(whole)[0] - depths[0]) / (depths[1] - depths[0])
    passes = {
        name: extended(getattr(few, name), getattr(more, name), times)
        for name in ("training", "sampling", "evaluation")
        if getattr(few, name) is not None
    }
    return replace(few, policy=whole, **passes)


def _layers(policy: Any) -> tuple[int, list[str] | None]:
    shape = policy.model.config
    return shape.num_hidden_layers, getattr(shape, "layer_types", None)


def _traced(config: TrainConfig, conversations: Conversations, policy: Policy, known: Traces | None) -> Traces:
    evaluated = _evaluated(config, conversations)
    sampling = known.sampling if known and known.conversations == conversations else None
    evaluation = known.evaluation if known and known.evaluated == evaluated else None
    return Traces(
        policy=policy,
        conversations=conversations,
        evaluated=evaluated,
        training=trace_training(policy, conversations.samples(), max_tokens=config.hf.micro_batch_tokens),
        sampling=sampling or trace_sampling(policy, conversations),
        evaluation=evaluation or (trace_sampling(policy, evaluated) if evaluated else None),
    )


def estimate(config: TrainConfig, traces: Traces, *, libraries: int) -> Estimate:
    """The memory that a run will need.

    Args:
        config: of the run.
        traces: of its passes.
        libraries: bytes that Python and the libraries hold; see `machine.warm_up`.
    """
    policy, device = traces.policy, _device(config)
    return Estimate(
        device=device,
        parameters=sum(weight.numel() for weight in policy.parameters()),
        trained=policy.num_parameters,
        parts=(*_static(config, policy), _passes(traces, device), *_others(config, libraries)),
        conversations=traces.conversations,
        tokens=traces.training.tokens,
        micro_batches=traces.training.micro_batches,
        host=host_memory(),
        accelerator=device_memory(),
    )


def _evaluated(config: TrainConfig, conversations: Conversations) -> Conversations | None:
    """All attempts of an evaluation are open at the same time; that of the whole, or the larger ones in between."""
    settings = config.eval
    sizes = [(settings.tasks, settings.attempts)] if settings.tasks else []
    if config.rl.eval_every:
        sizes.append((settings.during_tasks, 1))
    if not sizes:
        return None
    groups, members = max(sizes, key=math.prod)
    if settings.at_once is not None:
        groups = min(groups, max(1, settings.at_once // members))
    return replace(conversations, groups=groups, members=members)


def _device(config: TrainConfig) -> str:
    if config.model.is_tiny or config.hf.device == "cpu":
        return "cpu"
    return "cuda" if config.hf.device == "cuda" or torch.cuda.is_available() else "cpu"


def _static(config: TrainConfig, policy: Policy) -> list[Part]:
    weights = sum(weight.nbytes for weight in policy.parameters())
    trained = [weight for weight in policy.parameters() if weight.requires_grad]
    saved = sum(tensor.nbytes for tensor in policy.tensors().values())
    state = _optimizer_bytes(policy, trained)
    how = f"{len(trained)} tensors, AdamW" + (" and Muon" if policy.matrices() else "")
    everywhere = dict.fromkeys(PHASES, 1)
    parts = [
        Part(name="weights", on_device=True, bytes=_each(weights, everywhere), note=_types(policy)),
        Part(name="optimizer", on_device=True, bytes=_each(state, everywhere), note=how),
    ]
    if config.rl.kl_coef:
        note = "adapters of the reference policy" if saved < weights else "a whole copy of the policy"
        parts.append(Part(name="reference", on_device=True, bytes=_each(saved, everywhere), note=note))
    if config.rl.publish_every > 1 or config.rl.overlaps:
        note = "a copy of what is trained, since the sampler lags behind it or works beside the trainer"
        parts.append(Part(name="sampler", on_device=True, bytes=_each(saved, everywhere), note=note))
    if config.rl.separate_critic:
        critic = weights + state
        parts.append(Part(name="critic", on_device=True, bytes=_each(critic, everywhere), note="a network of its own"))
    copies = saved + 2 * state
    note = "the bytes of the files, and of the optimizer's also before they are joined"
    return [*parts, Part(name="copies", on_device=False, bytes={"checkpoint": copies}, note=note)]


def _each(size: int, phases: Mapping[str, int]) -> dict[str, int]:
    return {name: size * times for name, times in phases.items()}


def _types(policy: Policy) -> str:
    found: dict[str, int] = {}
    for weight in policy.parameters():
        name = str(weight.dtype).removeprefix("torch.") + ("" if weight.requires_grad else ", frozen")
        found[name] = found.get(name, 0) + weight.numel()
    return "; ".join(f"{count:,} of {name}" for name, count in found.items())


def _optimizer_bytes(policy: Policy, trained: list[nn.Parameter]) -> int:
    """Two moments of AdamW, one of Muon."""
    of_muon = {id(weight) for weight in policy.matrices()}
    return sum(weight.nbytes * (1 if id(weight) in of_muon else 2) for weight in trained)


def _passes(traces: Traces, device: str) -> Part:
    """The peak of each pass; on the CPU, with what the C library has kept of the others."""
    held = {"sampling": traces.sampling.held, "training": traces.training.held}
    before = "activations" if traces.training.micro_batches == 1 else "activations and of gradients so far"
    note = (
        f"training: {_mib(traces.training.kept)} of {before} for {traces.training.tokens:,} tokens; sampling: "
        f"{_mib(traces.sampling.cache)} of keys and values"
    )
    if traces.evaluation is not None:
        held["evaluation"] = traces.evaluation.held
        note += f", {_mib(traces.evaluation.cache)} in an evaluation"
    if device != "cpu":
        return Part(name="passes", on_device=True, bytes={name: one.peak for name, one in held.items()}, note=note)
    kept = round(SLACK * max(one.small for one in held.values()))
    bytes_ = {name: kept + one.large for name, one in held.items()} | {"checkpoint": kept}
    return Part(name="passes", on_device=True, bytes=bytes_, note=note)


def _others(config: TrainConfig, libraries: int) -> list[Part]:
    everywhere = dict.fromkeys(PHASES, 1)
    workers = config.sandbox.workers
    return [
        Part(
            name="sandboxes",
            on_device=False,
            bytes=_each(workers * WORKER_BYTES, everywhere),
            note=f"{workers} workers between jobs; a job may take more",
        ),
        Part(
            name="Python",
            on_device=False,
            bytes=_each(libraries, everywhere),
            note="with the libraries, as measured in this process",
        ),
    ]


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"
