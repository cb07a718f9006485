"""The parts of an evaluation: a policy, the tasks, and the agent's loop as it was in training."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentrl.config import HarnessConfig, TrainConfig
from agentrl.engine.openai import Endpoint, OpenAIPolicy
from agentrl.errors import ConfigError, RendererError, StoreError
from agentrl.evals.baselines import CONTEXT, Player, player, scripted_harness
from agentrl.evals.folder import Spec
from agentrl.evals.running import Opener
from agentrl.harness.chat_session import Conversations
from agentrl.harness.configured import configured_chat_loop
from agentrl.harness.loop import AgentLoop, Limits
from agentrl.loops.agent import Agent, model_context
from agentrl.loops.context import RunContext
from agentrl.loops.progress import PHASES
from agentrl.loops.sampling import in_process, local_engine
from agentrl.policy.base import Policy
from agentrl.protocols import TaskSet
from agentrl.store import RunFolder
from agentrl.train.checkpoint import latest_checkpoint, read_checkpoint
from agentrl.types import Message, Task
from agentrl.ui.live import Reporter

__all__ = [
    "Parts",
    "endpoint_parts",
    "find_checkpoint",
    "model_context",
    "open_context",
    "run_parts",
    "scripted_parts",
    "settings_of",
    "step_of",
]

_CHECKPOINT = re.compile(r"(?P<phase>[a-z_]+)-(?P<step>\d{6})(?P<end>-end)?")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an evaluation plays with. ``sandbox`` is the record of where untrusted programs run, if it is known, and
    ``agent`` who plays, where that is a policy with tokens."""

    spec: Spec
    task_set: TaskSet
    harness: AgentLoop
    open_session: Opener
    sandbox: Mapping[str, Any] | None = None
    agent: Agent | None = None

    @property
    def tasks(self) -> list[Task]:
        """All tasks of the set."""
        return [self.task_set[index] for index in range(len(self.task_set))]


@contextmanager
def open_context(config: TrainConfig, reporter: Reporter) -> Iterator[RunContext]:
    """A run's parts without its folder, which an evaluation leaves as it is. Ends its sandboxes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        # servers may be in the midst of a run, or gone
        measuring = config.model_copy(
            update={"tasks": config.tasks.for_evaluation(), "engine": in_process(config.engine)}
        )
        context = RunContext(measuring, RunFolder(path=Path(folder)), reporter)
        try:
            yield context
        finally:
            context.close()


def run_parts(
    context: RunContext,
    checkpoint: Path | None,
    *,
    task_set: TaskSet,
    settings: Mapping[str, Any],
    word: str,
    split: str,
    temperature: float,
    seed: int,
) -> Parts:
    """A checkpoint of a run as the policy, or a model that no run of ours has trained.

    Args:
        context: made from the run's configuration.
        checkpoint: the folder of one of its checkpoints; None for the weights that the configuration begins with.
        task_set: the tasks.
        settings: of the environment.
        word: how the user named the policy.
        split: of the tasks.
        temperature: of sampling; 0 takes the likeliest token each time.
        seed: of the attempts' draws.

    Raises:
        ConfigError: the policy's template cannot write the prompts of these tasks.
        StoreError: the checkpoint is damaged.
        SamplerError: a negative temperature.
    """
    _check_prompt(context, task_set, word)
    if checkpoint is None:
        version, weights = 0, f"{word.strip('/').replace('/', '-')} {_digest(context.model)}"
    else:
        found = read_checkpoint(checkpoint)
        context.model.load_tensors({name: tensor for name, tensor in found.weights.items() if ":" not in name})
        version, weights = step_of(checkpoint), f"{checkpoint.name} {found.state['sha256']['model.safetensors'][:16]}"
    greedy = temperature == 0.0
    sampling = context.config.rl.sampling
    if not greedy:
        sampling = replace(sampling, temperature=temperature)
    if sampling.truncates:
        settings = {
            **settings,
            "truncation": {"top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p},
        }
    engine = local_engine(context.config, context.model, sampling=sampling, version=version)
    spec = Spec(
        policy=word,
        weights=weights,
        version=version,
        task_set=f"{task_set.id}/{split}",
        settings=settings,
        harness=context.harness.fingerprint,
        temperature=temperature,
        seed=seed,
    )
    return Parts(
        spec=spec,
        task_set=task_set,
        harness=context.harness.for_evaluation(),
        open_session=lambda task, draws: engine.session(draws, greedy=greedy),  # noqa: ARG005
        sandbox=context.sandbox,
        agent=context.agent,
    )


def _check_prompt(context: RunContext, task_set: TaskSet, word: str) -> None:
    """Refuse tasks of which every attempt would fail at its beginning."""
    task = task_set[0]
    try:
        context.renderer.render(context.harness.prompt(task), task.tools)
        if task.tools:
            context.renderer.extend([Message(role="tool", content="done")], ())
    except RendererError as error:
        raise ConfigError(
            f"{word} cannot be given {task.id}: {error}; name a renderer that writes its prompt (--renderer "
            "of a model, hf.renderer of a run)"
        ) from error


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """What makes two evaluations on the tasks of a configuration the same."""
    return {
        "tasks": config.tasks.model_dump(exclude={"train_tasks"}),
        "sandbox": config.sandbox.model_dump(include={"wall_s", "cpu_s"}),
    }


def _digest(model: Policy) -> str:
    """Of all weights, by name and byte."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.tensors().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def scripted_parts(
    name: str, task_set: TaskSet, *, split: str, settings: Mapping[str, Any], turns: int | None, seed: int
) -> Parts:
    """A scripted policy: a floor or the ceiling.

    Args:
        name: see `agentrl.evals.baselines`.
        task_set: the tasks.
        split: of the tasks.
        settings: of the environment.
        turns: as many as the policies have that it is to be compared with; the loop's own number when None.
        seed: of the attempts' draws.

    Raises:
        ValueError: an unknown name, or a task set without a ceiling.
    """
    harness = scripted_harness(Limits().turns if turns is None else turns)
    opener: Player = player(name, task_set)
    spec = Spec(
        policy=name,
        weights=name,
        version=0,
        task_set=f"{task_set.id}/{split}",
        settings=settings,
        harness=harness.fingerprint,
        temperature=None,
        seed=seed,
    )
    return Parts(spec=spec, task_set=task_set, harness=harness, open_session=opener)


def endpoint_parts(
    endpoint: Endpoint,
    task_set: TaskSet,
    *,
    split: str,
    settings: Mapping[str, Any],
    turns: int | None,
    max_tokens: int,
    seed: int,
    agent: HarnessConfig = HarnessConfig(),  # noqa: B008 (frozen)
    context: int | None = None,
) -> Parts:
    """A model behind an endpoint as the policy, in the loop for messages.

    Args:
        endpoint: the model and where it is.
        task_set: the tasks.
        split: of the tasks.
        settings: of the environment.
        turns: as many as a recipe gives; the loop's own number when None.
        max_tokens: of one reply.
        seed: of the attempts' draws.
        agent: what a recipe says of prompts, malformed calls, compaction and times.
        context: tokens of the whole conversation; None leaves it to the endpoint.

    Raises:
        ConfigError: the package for requests is missing, or the context has no room for a summary.
    """
    harness = configured_chat_loop(
        agent,
        turns=Limits().turns if turns is None else turns,
        reply=max_tokens,
        context=CONTEXT if context is None else context,
    ).for_evaluation()
    policy = OpenAIPolicy(endpoint)
    spec = Spec(
        policy=f"openai:{endpoint.model}",
        weights=f"{endpoint.model.replace('/', '-')} {endpoint.base_url}",
        version=0,
        task_set=f"{task_set.id}/{split}",
        settings=settings,
        harness=harness.fingerprint,
        temperature=endpoint.temperature,
        seed=seed,
    )
    return Parts(
        spec=spec,
        task_set=task_set,
        harness=harness,
        open_session=lambda task, draws: Conversations(policy.session, draws),  # noqa: ARG005
    )


def find_checkpoint(run: RunFolder, step: str) -> Path:
    """A checkpoint of a run.

    Args:
        run: the run.
        step: ``before`` or 0 for the end of the warm start, a number of steps of RL (of rounds, in a run of rejection
            sampling alone), ``rejection-3`` for such a round in any run, or ``after`` or nothing for the latest.

    Raises:
        StoreError: there is none for that, with those that there are.
    """
    if step in ("", "after"):
        latest = latest_checkpoint(run.checkpoints)
        if latest is None:
            raise StoreError(f"{run.path} has no checkpoint yet; wait for the first, or train again")
        return latest
    names = sorted(path.name for path in run.checkpoints.glob("*") if _CHECKPOINT.fullmatch(path.name))
    wanted = _fitting(names, step)
    if not wanted:
        there = ", ".join(_as_step(name) for name in names) or "none"
        raise StoreError(f"{run.path} has no checkpoint {step!r}; it keeps {there}")
    return run.checkpoints / wanted[-1]


def step_of(checkpoint: Path) -> int:
    """Steps of RL, or rounds of rejection sampling, that made a checkpoint; 0 for one of the warm start."""
    match = _CHECKPOINT.fullmatch(checkpoint.name)
    assert match is not None, checkpoint
    return 0 if match["phase"] == PHASES[0] else int(match["step"])


def _fitting(names: Sequence[str], step: str) -> list[str]:
    if step == "before" or (step.isdecimal() and int(step) == 0):
        return [name for name in names if name.startswith(PHASES[0]) and name.endswith("-end")]
    last = PHASES[-1] if any(name.startswith(PHASES[-1]) for name in names) else PHASES[-2]
    phase, dash, number = step.partition("-") if "-" in step else (last, "-", step)
    if phase not in PHASES or not number.isdecimal():
        return []
    return [name for name in names if name.removesuffix("-end") == f"{phase}{dash}{int(number):06d}"]


def _as_step(name: str) -> str:
    match = _CHECKPOINT.fullmatch(name)
    assert match is not None, name
    if match["phase"] == PHASES[0]:
        return "before" if match["end"] else name
    return str(int(match["step"])) if match["phase"] == PHASES[-1] else f"{match['phase']}-{int(match['step'])}"
