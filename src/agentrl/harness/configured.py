"""The agent loop that a run's configuration describes, for training and evaluation alike."""

from __future__ import annotations

from agentrl.config import HarnessConfig, TrainConfig
from agentrl.harness.compaction import Compaction
from agentrl.harness.limits import Limits
from agentrl.harness.loop import ToolLoop
from agentrl.protocols import Renderer
from agentrl.tokens.toolcalls import MalformedPolicy


def configured_loop(renderer: Renderer, config: TrainConfig) -> ToolLoop:
    """The loop of a run.

    Args:
        renderer: of the model.
        config: of the run.

    Raises:
        ConfigError: the context has no room for a summary.
        RendererError: the renderer cannot write what compaction puts into a conversation.
    """
    settings = config.harness
    return ToolLoop(
        renderer,
        Limits(
            turns=config.tasks.max_turns,
            reply=config.tasks.max_reply,
            context=config.model.context,
            reserve=settings.reserve,
            call_s=settings.call_s,
            tool_s=settings.tool_s,
            total_s=settings.total_s,
        ),
        malformed_policy(settings),
        compaction=Compaction(kind=settings.compaction, fill=settings.fill, summary=settings.summary),
        system_prompt=settings.system_prompt,
    )


def malformed_policy(settings: HarnessConfig) -> MalformedPolicy:
    """What a run does about malformed calls."""
    return MalformedPolicy(end=settings.malformed == "end", penalty=settings.malformed_penalty)
