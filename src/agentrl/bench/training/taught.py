"""A small model that calls tools: taught one plan by heart, so that attempts at it are as long on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agentrl.policy.hf import HuggingFacePolicy
from agentrl.protocols import TaskSet
from agentrl.tokens.rows import Writer, demonstration
from agentrl.tokens.samples import samples
from agentrl.train.losses import supervised
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Message, Task, ToolCall, Trace

PLAN = (ToolCall(name="read"), ToolCall(name="test"), ToolCall(name="test"))
"""What the model does, before it says that it is done."""
LAST = Message(role="assistant", content="Done.")
LEARNING_RATE = 3e-3


def demonstrations(tasks: TaskSet, renderer: Writer) -> list[Trace]:
    """The plan carried out in each task's environment."""
    return asyncio.run(_all(tasks, renderer))


async def _all(tasks: TaskSet, renderer: Writer) -> list[Trace]:
    return [await _one(tasks, tasks[index], renderer) for index in range(len(tasks))]


async def _one(tasks: TaskSet, task: Task, renderer: Writer) -> Trace:
    environment = tasks.environment(task)
    messages = list(task.prompt)
    for call in PLAN:
        messages.append(Message(role="assistant", tool_calls=(call,)))
        messages.append(Message(role="tool", content=(await environment.call(call)).content))
    messages.append(LAST)
    tools = environment.tools()
    await environment.close()
    return demonstration(renderer, messages, tools, trace_id=task.id)


def teach(policy: HuggingFacePolicy, traces: Sequence[Trace], steps: int) -> float:
    """Train a policy on demonstrations. Returns the loss of the last step, in nats a token."""
    settings = OptimizerSettings(
        learning_rate=LEARNING_RATE, matrix_learning_rate=LEARNING_RATE, total_steps=steps, warmup_steps=5
    )
    trainer = Trainer(policy.train(), settings)
    made = [
        replace(sample, group_id="plan")  # as one group, since what groups share is computed once
        for trace in traces
        for sample in samples(trace, None, objective="ce")
    ]
    loss = 0.0
    for _ in range(steps):
        loss = trainer.step(made, supervised)["loss"]
    policy.eval()
    return loss
