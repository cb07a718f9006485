"""A sampler over vLLM servers: token ids in, token ids with log-probabilities and versions out.

Sampling has no effect but its reply: a request that failed is sent again, to the same server or another, and the first
whole reply is the one that the conversation goes on with, so a retry can make no second attempt. A reply is taken only
from the weights that were published last before it was sent; the server itself says which weights sampled each token.

Start each server (vLLM 0.32) with ``VLLM_SERVER_DEV_MODE=1`` in its environment, on a network that nobody else reaches,
and with

    --enable-scale-out --logprobs-mode processed_logprobs --generation-config vllm
    --worker-extension-cls agentrl.engine.vllm_worker.FolderTransfer --weight-transfer-config '{"backend": "agentrl"}'

of which the last line is for the route ``transfer``. Add ``--return-sampling-mask`` to sample with a top-p or min-p.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from agentrl.engine import vllm_check
from agentrl.engine.random import derive_seed
from agentrl.engine.vllm_check import ModelShape
from agentrl.engine.vllm_fleet import Fleet
from agentrl.engine.vllm_reply import AbortedReply, Request, StaleReply, body, read
from agentrl.engine.vllm_server import ServerError, VLLMServer
from agentrl.engine.vllm_settings import Timing, VLLMSettings, VLLMStats
from agentrl.engine.vllm_weights import remove_others, write
from agentrl.errors import SamplerError
from agentrl.types import Completion

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelShape", "Timing", "VLLMSampler", "VLLMSession", "VLLMSettings", "VLLMStats"]


class VLLMSampler:
    """Samples from vLLM servers that serve the model in training.

    Nothing is sampled before the first `publish`. Use it as an asynchronous context to keep connections and watches
    between conversations; without, they last while conversations are open.

    Args:
        settings: where the servers are and what is asked of them.
        shape: of the model in training, which theirs must have.
        probes: texts with their ids in our tokenizer, which a server's tokenizer must write too where it has one.

    Raises:
        ConfigError: the package ``httpx`` is missing.
    """

    def __init__(
        self, settings: VLLMSettings, shape: ModelShape, *, probes: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self.settings = settings
        self.shape = shape
        self.probes = dict(probes or {})
        self.stats = VLLMStats()
        self._run = uuid.uuid4().hex[:12]  # by chance: a server may hold weights of a run with the same seed
        self._numbers = count()  # of all publications, those that fail too
        self.fleet = Fleet(
            settings.urls,
            settings.api_key,
            timing=settings.timing,
            concurrency=settings.concurrency,
            route=settings.route,
            in_flight=settings.in_flight,
            check=self._check,
            check_sampling=self._check_sampling,
        )

    async def __aenter__(self) -> VLLMSampler:
        self.fleet.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fleet.release()

    @property
    def version(self) -> int:
        """Version of the weights that are sampled from now.

        Raises:
            SamplerError: none have been published.
        """
        if self.fleet.weights is None:
            raise SamplerError("no weights have been published to the vLLM servers; publish before sampling")
        return self.fleet.weights.version

    def session(self, seed: int, *, greedy: bool = False) -> VLLMSession:
        """Open a conversation whose draws depend on ``seed`` alone.

        The log-probabilities of a ``greedy`` one are those at temperature 1 of the whole vocabulary: the server gives
        no others.
        """
        return VLLMSession(self, seed, greedy=greedy)

    async def check(self) -> None:
        """Make sure that every server is there and serves the right model, before a run begins.

        Raises:
            SamplerError: one does not answer, has not the routes that are needed, reports other log-probabilities,
                does not say what tokens were drawn from where that is truncated, or serves another model or tokenizer.
        """
        async with self:
            for server in self.fleet.servers:
                await self._check(server)
                if not await server.paused(self.settings.timing.answer_s):
                    await self._check_sampling(server)
                    await self._check_support(server)

    async def publish(self, version: int, tensors: Mapping[str, Tensor], *, anew: bool = False) -> None:
        """Make new weights those that are sampled from.

        A server that is away gets them when it comes back. Conversations go on under the new weights, with keys that
        are computed anew.

        Args:
            version: of the trainer, at least 0 and never lower than before.
            tensors: all weights, by the names that the model's checkpoint has; adapters merged into their layers.
            anew: versions are counted from here, as in a new phase of a run; no reply may be under way.

        Raises:
            SamplerError: the weights cannot be written, a server refuses them, or they reach none in time; or the
                version is lower than one before.
        """
        begun = self.fleet.weights is not None and not anew
        if version < 0 or (begun and version < self.version):
            raise SamplerError(f"version {version} cannot be published after {self.version}: versions go upwards")
        label = f"{self._run}:{next(self._numbers)}:{version}"
        weights = await asyncio.to_thread(write, self.settings.folder, version, label, tensors)
        async with self:
            await self.fleet.publish(weights, anew=anew)
        self.stats.published += 1
        await asyncio.to_thread(remove_others, weights)

    def discard(self) -> None:
        """Remove the weights that were written, at the end of a run: a server that comes back gets none after it."""
        if self.fleet.weights is not None:
            remove_others(self.fleet.weights)
            shutil.rmtree(self.fleet.weights.folder, ignore_errors=True)

    async def score(self, token_ids: Sequence[int]) -> dict[str, tuple[float, ...]]:
        """What each server that is ready says of given tokens: the log-probability, at temperature 1 over the whole
        vocabulary, of each but the first. For a comparison with the trainer's after a publication. One that is lost
        meanwhile is left out: it gets the weights again when it comes back.

        Raises:
            SamplerError: a server gave no such numbers.
        """
        async with self:
            await self.fleet.any_ready()
            ready = [server for server in self.fleet.servers if self.fleet.ready(server)]
            request_s = self.settings.timing.request_s
            scores = [vllm_check.score(server, self.settings.model, token_ids, timeout_s=request_s) for server in ready]
            found = await asyncio.gather(*scores, return_exceptions=True)
        said: dict[str, tuple[float, ...]] = {}
        for server, numbers in zip(ready, found, strict=True):
            if not isinstance(numbers, BaseException):
                said[server.url] = numbers
            elif not (isinstance(numbers, ServerError) and numbers.passing):
                raise numbers
        return said

    async def complete(self, request: Request, own: VLLMServer | None) -> tuple[Completion, VLLMServer]:
        """A reply, and the server that gave it. It is asked for until one comes whole.

        Raises:
            SamplerError: a server refused it or answered nonsense, or no reply came in time.
        """
        timing = self.settings.timing
        problem = "it waits for a server"
        try:
            async with asyncio.timeout(timing.reply_s):
                for trial in range(timing.retries + 1):
                    if trial:
                        self.stats.retries += 1
                        await asyncio.sleep(timing.backoff_s * 2 ** (trial - 1))
                    try:
                        return await self._try(request, own, trial)
                    except (StaleReply, AbortedReply, ServerError) as error:
                        if isinstance(error, ServerError) and not error.passing:
                            raise
                        problem = str(error)
        except TimeoutError:
            raise SamplerError(
                f"no reply within {timing.reply_s:g} s: {problem}; servers: {self.fleet.describe()}"
            ) from None
        raise SamplerError(f"{problem} ({timing.retries + 1} tries)")

    async def _try(self, request: Request, own: VLLMServer | None, trial: int) -> tuple[Completion, VLLMServer]:
        fleet, settings = self.fleet, self.settings
        server = await fleet.place(own)
        weights = fleet.weights
        assert weights is not None, "a server is ready only with weights"
        versions = {weights.label: weights.version} if settings.in_flight == "wait" else fleet.versions
        sent = body(request, settings.model, settings.sampling, weights.label)
        sent["request_id"] = f"{request.name}-{trial}"
        try:
            with self.stats.sampling():
                answer = await server.reply(sent, timeout_s=settings.timing.request_s)
            completion = read(answer, request, settings.sampling, versions)
        except StaleReply as error:
            self.stats.stale += 1
            server.label = None
            fleet.blame(server, error)
            raise StaleReply(f"{server.url}: {error}") from error
        except ServerError as error:
            if error.status is None:
                fleet.blame(server, error)
            raise
        except SamplerError as error:
            raise type(error)(f"{server.url}: {error}") from error
        finally:
            fleet.leave(server)
        self.stats.replies += 1
        self.stats.sampled += len(completion.token_ids)
        return completion, server

    async def _check(self, server: VLLMServer) -> None:
        settings = self.settings
        await vllm_check.check(
            server,
            settings.model,
            self.shape,
            self.probes,
            transfer=settings.route == "transfer",
            timeout_s=settings.timing.request_s,
        )

    async def _check_sampling(self, server: VLLMServer) -> None:
        request_s = self.settings.timing.request_s
        await vllm_check.check_sampling(server, self.settings.model, self.shape.vocab_size, timeout_s=request_s)

    async def _check_support(self, server: VLLMServer) -> None:
        settings = self.settings
        if settings.sampling.truncates:
            request_s = settings.timing.request_s
            await vllm_check.check_support(server, settings.model, settings.sampling, timeout_s=request_s)


class VLLMSession:
    """One conversation. Its ids are kept here; the server that it stays with keeps their keys."""

    def __init__(self, sampler: VLLMSampler, seed: int, *, greedy: bool) -> None:
        self._sampler, self._seed, self._greedy = sampler, seed, greedy
        self._key = uuid.uuid4().hex  # by chance: names of requests must differ between runs
        self.token_ids: tuple[int, ...] = ()
        self._num_replies = 0
        self._server: VLLMServer | None = None
        self._busy = self._opened = self._closed = False

    async def sample(self, context_ids: Sequence[int], *, max_tokens: int, stop_ids: frozenset[int]) -> Completion:
        """Append ``context_ids`` and sample a reply of at most ``max_tokens``, the stop id included.

        Raises:
            SamplerError: nothing to continue from, an id outside the vocabulary, no room for a reply, a closed
                conversation or one that waits for a reply, or no server gave one. The conversation is then as it was.
        """
        self._check(context_ids, max_tokens)
        fleet = self._sampler.fleet
        if not self._opened:
            self._opened = True
            fleet.acquire()
        self._busy = True
        try:
            token_ids = (*self.token_ids, *context_ids)
            request = Request(
                name=f"{self._key}-{self._num_replies}",
                token_ids=token_ids,
                seed=derive_seed(self._seed, self._num_replies),
                greedy=self._greedy,
                max_tokens=self._room(len(token_ids), max_tokens),
                stop_ids=stop_ids,
            )
            completion, server = await self._sampler.complete(request, self._server)
        finally:
            self._busy = False
        self._stay_with(server)
        self.token_ids = (*token_ids, *completion.token_ids)
        self._num_replies += 1
        return completion

    async def rewind(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` ids of the conversation and forget what came behind them. The draws go on
        where they were.

        Raises:
            SamplerError: there are not so many ids, or a reply is under way.
        """
        if self._busy:
            raise SamplerError("the conversation waits for a reply; rewind it before or after")
        if not 0 <= num_tokens <= len(self.token_ids):
            raise SamplerError(f"the conversation has {len(self.token_ids)} tokens; it cannot keep {num_tokens}")
        self.token_ids = self.token_ids[:num_tokens]

    async def close(self) -> None:
        """End the conversation. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            self._server.conversations -= 1
        if self._opened:
            await self._sampler.fleet.release()

    def _check(self, context_ids: Sequence[int], max_tokens: int) -> None:
        if self._closed:
            raise SamplerError("the conversation is closed; open a new session")
        if self._busy:
            raise SamplerError("the conversation waits for a reply already")
        if max_tokens < 1:
            raise SamplerError(f"max_tokens is {max_tokens}; a reply needs room for at least 1 token")
        if not self.token_ids and not context_ids:
            raise SamplerError("a conversation starts with at least one context id; none was given")
        vocab_size = self._sampler.shape.vocab_size
        for token in context_ids:  # a server without a tokenizer would compute something for any number
            if not 0 <= token < vocab_size:
                raise SamplerError(f"context id {token} is outside the vocabulary of {vocab_size}")

    def _room(self, length: int, max_tokens: int) -> int:
        context = self._sampler.shape.context
        if length >= context:
            raise SamplerError(f"a conversation of {length} tokens leaves no room in the context of {context}")
        return min(max_tokens, context - length)

    def _stay_with(self, server: VLLMServer) -> None:
        if server is not self._server:
            if self._server is not None:
                self._server.conversations -= 1
            self._server = server
            server.conversations += 1
