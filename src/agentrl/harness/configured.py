"""The agent loop that a run's configuration describes, for training and evaluation alike, in tokens or in messages."""

from __future__ import annotations

from agentrl.config import HarnessConfig, TrainConfig
from agentrl.errors import ConfigError, RendererError
from agentrl.harness.chat import ChatLoop
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
        ConfigError: the context has no room for a summary, or the renderer cannot write what compaction puts into a
            conversation.
    """
    settings = config.harness
    limits = _limits(settings, config.tasks.max_turns, config.tasks.max_reply, config.model.context)
    try:
        return ToolLoop(
            renderer,
            limits,
            malformed_policy(settings),
            compaction=_compaction(settings),
            system_prompt=settings.system_prompt,
            system_prompts=settings.system_prompts,
        )
    except RendererError as error:
        raise ConfigError(f"harness.compaction {settings.compaction}: {error}") from error


def configured_chat_loop(settings: HarnessConfig, *, turns: int, reply: int, context: int) -> ChatLoop:
    """The same agent, for a policy that speaks in messages.

    Args:
        settings: of the run.
        turns: replies of an attempt.
        reply: tokens of one reply.
        context: tokens of the whole conversation.

    Raises:
        ConfigError: the context has no room for a summary.
    """
    return ChatLoop(
        _limits(settings, turns, reply, context),
        malformed_policy(settings),
        compaction=_compaction(settings),
        system_prompt=settings.system_prompt,
        system_prompts=settings.system_prompts,
    )


def _limits(settings: HarnessConfig, turns: int, reply: int, context: int) -> Limits:
    return Limits(
        turns=turns,
        reply=reply,
        context=context,
        reserve=settings.reserve,
        call_s=settings.call_s,
        tool_s=settings.tool_s,
        total_s=settings.total_s,
    )


def _compaction(settings: HarnessConfig) -> Compaction:
    return Compaction(kind=settings.compaction, fill=settings.fill, summary=settings.summary)


def malformed_policy(settings: HarnessConfig) -> MalformedPolicy:
    """What a run does about malformed calls."""
    return MalformedPolicy(end=settings.malformed == "end", penalty=settings.malformed_penalty)
