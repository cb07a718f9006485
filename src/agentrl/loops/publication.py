"""Who samples for a run, in this process or on servers, and how the weights of its policy get there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from torch import Tensor

from agentrl.config import TrainConfig
from agentrl.engine.local import LocalEngine, Schedule
from agentrl.loops.agent import Agent
from agentrl.loops.sampling import RunSampler, local_engine
from agentrl.loops.served import Served


class Publishing:
    """The part of a run that samples, and gets the policy's weights under the number of steps that made them.

    Attributes:
        served: the servers that sample, where there are some.
        current: has the policy's weights of now when it is asked: for evaluations, and rounds of rejection sampling.
        engine: plays the attempts of reinforcement learning.

    Args:
        config: of the run.
        agent: whose policy is trained.
        folder: of the run.

    Raises:
        ConfigError: a server does not answer, or is not the one that the run needs.
    """

    def __init__(self, config: TrainConfig, agent: Agent, folder: Path) -> None:
        self.config, self.model = config, agent.model
        self.served = Served(config, agent, folder) if config.engine.kind == "vllm" else None
        self.current: RunSampler = self.served.sampler if self.served else local_engine(config, self.model)
        self.engine: RunSampler = self.current
        if self.served is None and (config.rl.publish_every > 1 or config.rl.overlaps):
            schedule: Schedule = "continuous" if config.rl.overlaps else "lockstep"
            self.engine = local_engine(config, self.model.frozen_copy(), schedule=schedule)
        self._lagging: dict[str, Tensor] | None = None
        """The policy's weights as servers have them that lag."""
        self._had: Mapping[str, Tensor] = {}
        """What a sampler that lags had at the checkpoint."""

    def connected(self) -> AbstractAsyncContextManager[object]:
        """Keeps connections to servers, where some sample, between conversations."""
        return nullcontext() if self.served is None else self.served.sampler

    async def publish(self, version: int, *, restored: bool = False) -> None:
        """Give the sampler the weights of the policy, when it is time to, under the number of steps that made them.

        Args:
            version: steps that have been taken.
            restored: whether the phase begins, or the run has just been resumed in it; a sampler that lags then gets
                back what it had.

        Raises:
            SamplerError: servers did not get them.
        """
        late = version % self.config.rl.publish_every
        if self.served is not None:
            await self._publish_to(self.served, version, late, restored)
            return
        local(self.current).publish(version)
        if self.engine is self.current or (late and not restored):
            return
        engine = local(self.engine)
        engine.model.load_tensors(self._had if late else self.model.tensors())
        engine.publish(version - late)

    async def _publish_to(self, served: Served, version: int, late: int, restored: bool) -> None:
        if late and not restored:
            return
        now = cloned(self.model.tensors()) if late else {}
        if late:
            self.model.load_tensors(self._had)
        try:
            await served.publish(version - late, anew=restored)
            if self.config.rl.publish_every > 1:
                self._lagging = cloned(self.model.tensors())
        finally:
            if late:
                self.model.load_tensors(now)

    async def publish_now(self, version: int) -> None:
        """Give `current` the weights that the policy has now; a sampler in this process has them, and gets their name.

        Raises:
            SamplerError: servers did not get them.
        """
        if self.served is None:
            local(self.current).publish(version)
        else:
            await self.served.publish(version)

    def lagging(self) -> Mapping[str, Tensor]:
        """The weights that the sampler has, where they may be older than the policy's; else none."""
        if self.engine is not self.current:
            return local(self.engine).model.tensors()
        return self._lagging or {}

    def restore_lagging(self, tensors: Mapping[str, Tensor]) -> None:
        """What `lagging` gave at the checkpoint, for `publish`."""
        self._had = tensors


def local(sampler: RunSampler) -> LocalEngine:
    """The engine that a sampler is where no servers sample."""
    assert isinstance(sampler, LocalEngine), type(sampler)
    return sampler


def cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are now."""
    return {name: tensor.clone() for name, tensor in tensors.items()}
