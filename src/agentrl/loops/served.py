"""A sampler over vLLM servers that run already, with the weights of a policy published to them."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from agentrl.config import TrainConfig
from agentrl.engine.vllm import ModelShape, Timing, VLLMSampler, VLLMSettings
from agentrl.engine.vllm_settings import InFlight, Route
from agentrl.errors import ConfigError, SamplerError
from agentrl.loops.agent import Agent
from agentrl.policy.base import Policy
from agentrl.types import Sampling

IN_MEMORY = Path("/dev/shm")
PROBES = ("def area(w, h):\n\treturn w * h  # 12.5 m²\n", "<|im_start|>user\nПривет, 世界 🙂<|im_end|>\n")
"""Texts that tokenizers of different models write differently: code, numbers, other scripts, marks of ChatML."""
CONCURRENCY = 256
"""Replies that a server works on at a time, if nothing else is asked for; those beyond what it has room for wait."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Where running vLLM servers are.

    Attributes:
        urls: without a path.
        model: the name that they serve it under; that of the run's model when empty.
        folder: that they read too, where the weights are put below; None for one of this machine, in memory where it
            has one.
        api_key: sent as a bearer token; empty for none.
        route: how weights reach them.
        in_flight: what becomes of replies under way when weights are published.
        concurrency: replies that one of them works on at a time.
        timing: how long is waited.
    """

    urls: tuple[str, ...] = ()
    model: str = ""
    folder: Path | None = None
    api_key: str = ""
    route: Route = "transfer"
    in_flight: InFlight = "wait"
    concurrency: int = CONCURRENCY
    timing: Timing = field(default_factory=Timing)

    @property
    def shared(self) -> Path | None:
        """The folder that weights are put below; None for that of temporary files."""
        return self.folder or (IN_MEMORY if IN_MEMORY.is_dir() else None)


@contextmanager
def vllm_sampler(
    servers: Servers, agent: Agent, sampling: Sampling, *, name: str, context: int
) -> Iterator[VLLMSampler]:
    """Check the servers, publish the weights to them, and remove the files at the end. The servers keep the weights.

    Args:
        servers: where they are.
        agent: the trainer's policy, with its tokenizer.
        sampling: how tokens are drawn.
        name: of the model.
        context: the longest conversation in tokens.

    Raises:
        ConfigError: TinyAgent, no or an impossible address, or the package httpx is missing.
        SamplerError: a server does not answer, serves another model, tokenizer or context, or takes no weights.
    """
    _shape(agent, context)
    where = servers.shared
    try:
        made = tempfile.TemporaryDirectory(prefix="agentrl-weights-of-", dir=where)
    except OSError as error:
        raise ConfigError(f"weights cannot be written to {where}: {error}; name a folder that is there") from error
    with made as folder:
        sampler = make_sampler(servers, agent, sampling, name=name, context=context, folder=Path(folder))
        asyncio.run(_begin(sampler, published(agent.model)))
        yield sampler


def make_sampler(
    servers: Servers, agent: Agent, sampling: Sampling, *, name: str, context: int, folder: Path
) -> VLLMSampler:
    """A sampler to which nothing has been published; see `vllm_sampler`.

    Args:
        folder: where the weights are put, of this sampler alone.

    Raises:
        ConfigError: as `vllm_sampler`.
    """
    settings = VLLMSettings(
        urls=servers.urls,
        model=servers.model or name,
        folder=folder,
        sampling=sampling,
        route=servers.route,
        in_flight=servers.in_flight,
        concurrency=servers.concurrency,
        timing=servers.timing,
        api_key=servers.api_key,
    )
    return VLLMSampler(settings, _shape(agent, context), probes=_probes(agent))


async def _begin(sampler: VLLMSampler, tensors: Mapping[str, Tensor]) -> None:
    await sampler.check()
    await sampler.publish(0, tensors)


class Served:
    """The servers of a run, which get its policy's weights.

    Args:
        config: of the run, with servers.
        agent: its policy, with its tokenizer.
        run: the folder of the run, whose name distinguishes its weights from those of others.

    Raises:
        ConfigError: a server does not answer, or is not the one that the run needs; or an impossible address.
    """

    def __init__(self, config: TrainConfig, agent: Agent, run: Path) -> None:
        servers = servers_of(config)
        where = servers.shared or Path(tempfile.gettempdir())
        # the same when the run is resumed, so that what a process left that was killed is removed
        self.folder = where / f"agentrl-weights-of-{run.name}-{sha256(os.fsencode(run.absolute())).hexdigest()[:8]}"
        self.policy = agent.model
        self.sampler = make_sampler(
            servers, agent, config.rl.sampling, name=config.model.name, context=config.model.context, folder=self.folder
        )
        try:
            asyncio.run(self.sampler.check())
            self.folder.mkdir(parents=True, exist_ok=True)
        except SamplerError as error:
            raise ConfigError(f"engine.servers: {error}") from error
        except OSError as error:
            raise ConfigError(f"engine.folder {where}: weights cannot be written there: {error}") from error

    async def publish(self, version: int, *, anew: bool = False) -> None:
        """Give the servers the weights that the policy has now.

        Args:
            version: their name.
            anew: whether a phase begins, whose versions are counted from here.

        Raises:
            SamplerError: they reached no server, or one refused them.
        """
        await self.sampler.publish(version, published(self.policy), anew=anew)

    def close(self) -> None:
        """Remove the files; the servers keep the weights."""
        shutil.rmtree(self.folder, ignore_errors=True)


def servers_of(config: TrainConfig) -> Servers:
    """The servers that a configuration names."""
    engine = config.engine
    goes_on = config.rl.overlaps and config.rl.at_publication == "continue"
    return Servers(
        urls=engine.servers,
        model=engine.served_name,
        folder=Path(engine.folder) if engine.folder else None,
        api_key=os.environ.get(engine.api_key_env, ""),
        route=engine.route,
        in_flight="continue" if goes_on else "wait",
        concurrency=engine.max_running or CONCURRENCY,
        timing=Timing(
            request_s=min(Timing.request_s, engine.reply_s), reply_s=engine.reply_s, publish_s=engine.publish_s
        ),
    )


def published(policy: Policy) -> dict[str, Tensor]:
    """The weights of a Hugging Face policy by the names of its checkpoint, adapters added to their layers."""
    from agentrl.policy.lora import merged_weights  # of optional packages, which TinyAgent does without

    return merged_weights(policy.get_submodule("model"))


def _shape(agent: Agent, context: int) -> ModelShape:
    model = getattr(agent.model, "model", None)
    if agent.vocabulary is None or model is None:
        raise ConfigError("vLLM serves no TinyAgent; name a Hugging Face model, or a run that trains one")
    config = model.config.get_text_config()
    return ModelShape(
        vocab_size=config.vocab_size,
        context=context,
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
    )


def _probes(agent: Agent) -> dict[str, tuple[int, ...]]:
    assert agent.vocabulary is not None, "a shape has been made of it"
    return {text: agent.vocabulary.encode(text) for text in PROBES}
