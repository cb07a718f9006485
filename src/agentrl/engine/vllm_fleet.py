"""Several vLLM servers as one: which takes a reply, which is lost and comes back, and which weights each holds.

A server gives replies only while it answers, has shown to be the server that was asked for, and holds exactly the
weights that were published last. A watch on each server sees to that: one that was started again is checked and gets
the weights again before anybody samples from it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

from agentrl.engine.vllm_server import ServerError, VLLMServer
from agentrl.engine.vllm_settings import InFlight, Route, Timing
from agentrl.engine.vllm_weights import Weights, publish_to
from agentrl.errors import ConfigError, SamplerError

_PATIENCE = 3
"""Times in a row that a server that is there may not answer in time before it counts as lost."""


class Fleet:
    """The servers of one sampler.

    Args:
        urls: of the servers.
        api_key: sent as a bearer token; empty for none.
        timing: how long is waited.
        concurrency: replies that one server works on at the same time.
        route: how weights reach a server.
        in_flight: what becomes of replies under way when weights are published.
        check: raises a SamplerError unless a server is the one that was asked for. It may be paused.
        check_sampling: raises a SamplerError unless a server samples as it was asked to.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        api_key: str,
        *,
        timing: Timing,
        concurrency: int,
        route: Route,
        in_flight: InFlight,
        check: Callable[[VLLMServer], Awaitable[None]],
        check_sampling: Callable[[VLLMServer], Awaitable[None]],
    ) -> None:
        try:
            self._httpx: Any = importlib.import_module("httpx")  # optional: only samplers behind a server need it
        except ImportError as error:
            raise ConfigError("vLLM servers need the package httpx: pip install 'agentrl[tasks]'") from error
        self.servers = tuple(VLLMServer(url, api_key) for url in urls)
        self.timing = timing
        self.weights: Weights | None = None
        self.versions: dict[str, int] = {}
        self.recovered = 0
        self._concurrency = concurrency
        self._route, self._in_flight, self._check = route, in_flight, check
        self._check_sampling = check_sampling
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._watches: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()

    # Connections, while anybody uses them.

    def acquire(self) -> None:
        """Use the servers in the running event loop, until `release`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the one before has ended, and all that belonged to it
            self._loop, self._users = loop, 0
        self._users += 1
        if self._users > 1:
            return
        self._news = asyncio.Event()
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=None)
        secure = any(server.url.startswith("https:") for server in self.servers)  # certificates take time to read
        self._client = self._httpx.AsyncClient(timeout=None, limits=limits, trust_env=False, verify=secure)
        for server in self.servers:
            server.open(self._httpx, self._client)
        self._watches = [loop.create_task(self._watch(server)) for server in self.servers]

    async def release(self) -> None:
        """One user less; the last ends the watches and closes the connections."""
        if asyncio.get_running_loop() is not self._loop:
            return
        self._users -= 1
        if self._users == 0:
            watches, client = self._watches, self._client
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await client.aclose()

    # Who takes a reply.

    def ready(self, server: VLLMServer) -> bool:
        """Whether replies of it are replies of the weights published last."""
        current = self.weights is not None and server.label == self.weights.label
        return server.up and server.checked and current and not server.busy

    async def place(self, own: VLLMServer | None) -> VLLMServer:
        """Wait for a server with room: the conversation's own, whose cache knows it, or else the least loaded."""
        while (server := self._choose(own)) is None:
            await self._news.wait()
        server.in_flight += 1
        return server

    async def any_ready(self) -> None:
        """Wait until a server is ready, however busy."""
        while not any(map(self.ready, self.servers)):
            await self._news.wait()

    def leave(self, server: VLLMServer) -> None:
        """Give the room back."""
        server.in_flight -= 1
        self.tell()

    def tell(self) -> None:
        """Wake whoever waits for something to change."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _choose(self, own: VLLMServer | None) -> VLLMServer | None:
        ready = [server for server in self.servers if self.ready(server)]
        if own in ready:
            ready = [own]
        free = [server for server in ready if server.in_flight < self._concurrency]
        return min(free, key=lambda server: (server.conversations, server.in_flight), default=None)

    def describe(self) -> str:
        """The state of every server, for an error."""
        return "; ".join(f"{server.url}: {self._state(server)}" for server in self.servers)

    def _state(self, server: VLLMServer) -> str:
        if self.ready(server):
            return f"well, {server.in_flight} replies under way"
        return server.problem or "not yet ready"

    # What becomes of them.

    async def publish(self, weights: Weights, *, anew: bool = False) -> None:
        """Bring weights to all servers. Those that are away get them when they come back; one must within the time.

        Replies of all weights before are no replies any more where they are published ``anew``.

        Raises:
            SamplerError: a server refused them, or they reached none.
        """
        self.weights = weights
        if anew:
            self.versions.clear()
        self.versions[weights.label] = weights.version
        problems = await asyncio.gather(*(self._bring(server) for server in self.servers))
        refusals = [str(error) for error in problems if error is not None and not _unreached(error)]
        if refusals:
            raise SamplerError(f"version {weights.version} was not published: {'; '.join(refusals)}")
        try:
            async with asyncio.timeout(self.timing.publish_s):
                await self.any_ready()
        except TimeoutError:
            raise SamplerError(
                f"version {weights.version} reached no server within {self.timing.publish_s:g} s: {self.describe()}"
            ) from None

    async def _bring(self, server: VLLMServer) -> SamplerError | None:
        """One server's part of a publication: what went wrong, or None."""
        try:
            async with server.publication:
                await self._examine(server)
        except SamplerError as error:
            self.blame(server, error)
            return error
        return None

    def blame(self, server: VLLMServer, error: SamplerError) -> None:
        """Note what is wrong with a server; one that is gone, or does not answer for long, is lost."""
        server.problem = str(error)
        server.failures += 1
        if isinstance(error, ServerError) and (error.gone or error.status is not None):
            server.failures = _PATIENCE
        if server.failures >= _PATIENCE:
            server.lose(str(error))
        server.doubt.set()
        self.tell()

    async def _watch(self, server: VLLMServer) -> None:
        while True:
            if not server.publication.locked():
                await self._bring(server)
            server.doubt.clear()
            try:
                async with asyncio.timeout(self.timing.health_s):
                    await server.doubt.wait()
                await asyncio.sleep(min(self.timing.backoff_s, self.timing.health_s))
            except TimeoutError:
                continue

    async def _examine(self, server: VLLMServer) -> None:
        """See to it that a server may give replies: it answers, is the right one and holds the right weights."""
        await server.call("GET", "/health", timeout_s=self.timing.answer_s)
        if server.checked and await self._held(server) not in self.versions:
            server.checked = False  # it was started again
        if not server.checked:
            await self._check(server)
        if self.weights is not None and not await self._holds(server, self.weights):
            again = server.label == self.weights.label
            await self._lay(server, self.weights)
            self.recovered += again
        if self.weights is not None and not server.checked:
            await self._check_sampling(server)
            server.checked = True
        server.up, server.failures, server.problem = True, 0, ""
        self.tell()

    async def _held(self, server: VLLMServer) -> str:
        held = await server.call("GET", "/weight_info", timeout_s=self.timing.answer_s)
        return str(held.get("weight_version"))

    async def _holds(self, server: VLLMServer, weights: Weights) -> bool:
        """Whether a server holds these weights, and its publication has come to its end."""
        if await self._held(server) != weights.label:
            return False
        if server.label != weights.label:
            if await server.paused(self.timing.answer_s):
                return False
            server.label = weights.label
        return True

    async def _lay(self, server: VLLMServer, weights: Weights) -> None:
        server.busy, server.label = True, None
        try:
            async with asyncio.timeout(self.timing.publish_s):
                while server.in_flight and self._in_flight == "wait":
                    await self._news.wait()
            await publish_to(
                server,
                weights,
                route=self._route,
                in_flight=self._in_flight,
                timeout_s=self.timing.publish_s,
            )
            server.label = weights.label
        except TimeoutError:
            raise SamplerError(
                f"{server.url}: {server.in_flight} replies did not end within {self.timing.publish_s:g} s"
            ) from None
        finally:
            server.busy = False


def _unreached(error: SamplerError) -> bool:
    return isinstance(error, ServerError) and error.passing and error.status != 500  # in which vLLM wraps all errors
