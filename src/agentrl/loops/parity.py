"""The parts of ``agentrl check parity``: a policy, a sampler that shall have its weights, and what they talk about."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.config import HuggingFaceConfig, ModelConfig, TasksConfig, TrainConfig
from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError, RendererError
from agentrl.loops.agent import Agent, make_agent, model_context
from agentrl.loops.earlier import earlier_weights, weights_of
from agentrl.loops.evaluation import find_checkpoint
from agentrl.loops.served import Servers, vllm_sampler
from agentrl.protocols import Environment, Renderer, Sampler, TaskSet
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.train.parity.check import Parity, parity
from agentrl.train.parity.conversations import Conversation
from agentrl.types import Message, Sampling, Task, ToolCall

__all__ = ["ENGINES", "Asked", "Servers", "check", "find_checkpoint", "model_config"]

LONGEST_CONTEXT = 32768
"""Of a model that no run has given one."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is checked, and how much of it is sampled.

    Attributes:
        config: names the model and the level of the tasks.
        checkpoint: of the run that the configuration is of; None for the model's own weights. The sampler may have
            those of another by mistake.
        sampling: how tokens are drawn.
        engine: one of `ENGINES`.
        servers: where those of the engine are that has some.
        context: the longest conversation in tokens; that of the configuration when None.
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
    servers: Servers = field(default_factory=Servers)
    context: int | None = None
    tasks: int = 3
    attempts: int = 4
    turns: int = 3
    max_tokens: int = 48
    seed: int = 0
    worst: int = 10

    def longest(self, agent: Agent) -> int:
        """The longest conversation in tokens.

        Raises:
            ConfigError: more is asked for than the model takes.
        """
        most = min(self.config.model.context, agent.model.context)
        if self.context is not None and not 1 <= self.context <= most:
            raise ConfigError(f"a context of {self.context} tokens: {self.config.model.name} takes 1 to {most}")
        return most if self.context is None else self.context


@contextmanager
def local(asked: Asked, agent: Agent) -> Iterator[Sampler]:
    """The engine in this process, which samples from the trainer's own weights."""
    yield LocalEngine(agent.model, sampling=asked.sampling)


@contextmanager
def vllm(asked: Asked, agent: Agent) -> Iterator[Sampler]:
    """Servers that run already, which get the trainer's weights."""
    name, context = asked.config.model.name, asked.longest(agent)
    with vllm_sampler(asked.servers, agent, asked.sampling, name=name, context=context) as sampler:
        yield sampler


ENGINES: Mapping[str, Callable[[Asked, Agent], AbstractContextManager[Sampler]]] = {"local": local, "vllm": vllm}
"""What opens each sampler that can be checked: it takes the trainer's policy and publishes its weights."""


def model_config(
    name: str, *, dtype: str, thinking: bool, renderer: str = "auto", today: str | None = None
) -> TrainConfig:
    """The configuration of a Hugging Face model that talks about tasks of ``bugfix-v1/small``.

    Args:
        name: of the model, or its folder.
        dtype: of the weights.
        thinking: whether it may reason before it replies.
        renderer: what writes its conversations, as ``hf.renderer``.
        today: the date that some templates print, as ``hf.today``.

    Raises:
        ConfigError: its configuration cannot be had.
    """
    return TrainConfig(
        recipe="parity",
        tasks=TasksConfig(level="small", report="full"),
        model=ModelConfig(name=name, context=min(model_context(name), LONGEST_CONTEXT)),
        hf=HuggingFaceConfig.model_validate(
            {"dtype": dtype, "thinking": thinking, "renderer": renderer, "today": today}
        ),
    )


def check(asked: Asked) -> Parity:
    """Sample, score again, report.

    Raises:
        ConfigError: the model cannot be had, or its template cannot write the prompts.
        StoreError: a checkpoint is damaged.
        TaskError: there are not so many tasks.
        SamplerError: the sampler failed or is not the one that was asked for, or a prompt leaves no room for a reply.
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
    with ENGINES[asked.engine](asked, agent) as sampler, _prompts_of(asked):
        return parity(
            agent.model,
            sampler,
            agent.renderer,
            conversations,
            sampling=asked.sampling,
            attempts=asked.attempts,
            max_tokens=asked.max_tokens,
            context=asked.longest(agent),
            seed=asked.seed,
            worst=asked.worst,
            earlier=() if asked.checkpoint is None else earlier_weights(asked.checkpoint.parent, asked.checkpoint.name),
            reencode=_reencode(agent),
        )


@contextmanager
def _prompts_of(asked: Asked) -> Iterator[None]:
    """Whoever asks for a check has chosen what writes its prompts."""
    try:
        yield
    except RendererError as error:
        raise ConfigError(
            f"{asked.config.model.name} cannot be given tasks of {asked.config.tasks.level}: {error}; name a renderer "
            "that writes their prompts (--renderer)"
        ) from error


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
