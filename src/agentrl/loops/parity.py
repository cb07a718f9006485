"""The parts of ``agentrl check parity``: a policy, a sampler that shall have its weights, and what they talk about."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import HuggingFaceConfig, ModelConfig, TasksConfig, TrainConfig
from agentrl.engine.local import LocalEngine
from agentrl.errors import RendererError
from agentrl.loops.agent import Agent, make_agent, model_context
from agentrl.loops.earlier import earlier_weights, weights_of
from agentrl.loops.evaluation import find_checkpoint
from agentrl.policy.base import Policy
from agentrl.protocols import Environment, Renderer, Sampler, TaskSet
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.train.parity.check import Parity, parity
from agentrl.train.parity.conversations import Conversation
from agentrl.types import Message, Sampling, Task, ToolCall

__all__ = ["ENGINES", "Asked", "check", "find_checkpoint", "model_config"]

LONGEST_CONTEXT = 32768
"""Of a model that no run has given one."""


def local(policy: Policy, sampling: Sampling) -> Sampler:
    """The engine in this process, which samples from the trainer's own weights."""
    return LocalEngine(policy, sampling=sampling)


ENGINES: Mapping[str, Callable[[Policy, Sampling], Sampler]] = {"local": local}
"""What makes each sampler that can be checked: it takes the trainer's policy and publishes its weights."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is checked, and how much of it is sampled.

    Attributes:
        config: names the model and the level of the tasks.
        checkpoint: of the run that the configuration is of; None for the model's own weights. The sampler may have
            those of another by mistake.
        sampling: how tokens are drawn.
        engine: one of `ENGINES`.
        tasks: how many prompts.
        attempts: conversations that begin with each.
        turns: replies in the longest.
        max_tokens: of a reply.
        seed: of the draws.
        worst: tokens that are listed.
    """

    config: TrainConfig
    checkpoint: Path | None = None
    sampling: Sampling
    engine: str = "local"
    tasks: int = 3
    attempts: int = 4
    turns: int = 3
    max_tokens: int = 48
    seed: int = 0
    worst: int = 10


def model_config(name: str, *, dtype: str, thinking: bool) -> TrainConfig:
    """The configuration of a Hugging Face model that talks about tasks of ``bugfix-v1/small``.

    Raises:
        ConfigError: its configuration cannot be had.
    """
    return TrainConfig(
        recipe="parity",
        tasks=TasksConfig(level="small", report="full"),
        model=ModelConfig(name=name, context=min(model_context(name), LONGEST_CONTEXT)),
        hf=HuggingFaceConfig.model_validate({"dtype": dtype, "thinking": thinking}),
    )


def check(asked: Asked) -> Parity:
    """Sample, score again, report.

    Raises:
        ConfigError: the model cannot be had.
        StoreError: a checkpoint is damaged.
        TaskError: there are not so many tasks.
        SamplerError: the sampler failed, or a prompt leaves no room for a reply.
        TrainerError: the trainer's numbers are no numbers.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hf.dtype")  # of what its training would lack; nothing is trained
        agent = make_agent(asked.config)
    if asked.checkpoint is not None:
        agent.model.load_tensors(weights_of(asked.checkpoint))
    settings = asked.config.tasks
    gym = BugFix(settings.level, "train", asked.tasks, report=settings.report)
    try:
        conversations = asyncio.run(conversations_on(gym, agent.renderer, asked.turns))
    finally:
        gym.close()
    return parity(
        agent.model,
        ENGINES[asked.engine](agent.model, asked.sampling),
        agent.renderer,
        conversations,
        sampling=asked.sampling,
        attempts=asked.attempts,
        max_tokens=asked.max_tokens,
        context=min(asked.config.model.context, agent.model.context),
        seed=asked.seed,
        worst=asked.worst,
        earlier=() if asked.checkpoint is None else earlier_weights(asked.checkpoint.parent, asked.checkpoint.name),
        reencode=_reencode(agent),
    )


async def conversations_on(task_set: TaskSet, renderer: Renderer, turns: int) -> list[Conversation]:
    """One conversation for each task: its prompt, and as answers what its tools say when they are called bare.

    Args:
        task_set: the tasks.
        renderer: an answer that it cannot write is left out.
        turns: replies in a conversation.
    """
    found = []
    for index in range(len(task_set)):
        task = task_set[index]
        environment = task_set.environment(task)
        try:
            answers = await _answers(task, environment, renderer)
        finally:
            await environment.close()
        wanted = tuple((answers[turn % len(answers)],) for turn in range(turns - 1)) if answers else ()
        found.append(Conversation(name=task.id, prompt=task.prompt, tools=task.tools, answers=wanted))
    return found


async def _answers(task: Task, environment: Environment, renderer: Renderer) -> list[Message]:
    found = []
    for tool in task.tools:
        if tool.parameters.get("required"):
            continue
        observation = await environment.call(ToolCall(name=tool.name))
        message = Message(role="tool", content=observation.content)
        if not observation.done and _can_write(renderer, message):
            found.append(message)
    return found


def _can_write(renderer: Renderer, message: Message) -> bool:
    try:
        renderer.extend([message], ())
    except RendererError:
        return False
    return True


def _reencode(agent: Agent) -> Callable[[Sequence[int]], Sequence[int]] | None:
    vocabulary = agent.vocabulary
    if vocabulary is None:
        return None
    return lambda ids: vocabulary.encode(vocabulary.decode(ids))
