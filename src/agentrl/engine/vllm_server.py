"""One vLLM server: a call with a deadline, and what is known of its state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentrl.errors import SamplerError

GENERATE = "/inference/v1/generate"
RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504))
"""Statuses of a reply that another try may mend."""


class ServerError(SamplerError):
    """A server did not do what was asked.

    Attributes:
        status: of its answer; None where none came whole.
        gone: nobody listens at its address.
    """

    def __init__(self, url: str, problem: str, *, status: int | None = None, gone: bool = False) -> None:
        super().__init__(f"{url}: {problem}")
        self.problem, self.status, self.gone = problem, status, gone

    @property
    def passing(self) -> bool:
        """Whether another try may succeed."""
        return self.status is None or self.status in RETRIED


class VLLMServer:
    """One server as the client sees it.

    Attributes:
        url: without a path.
        label: of the weights that it holds whole, as far as is known; None where a publication must come first.
        up: whether it answers.
        busy: a publication to it runs.
        checked: it has shown to be the server that was asked for.
        problem: what was wrong with it last; empty for nothing.
        in_flight: replies that it works on.
        conversations: how many stay with it.
    """

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.label: str | None = None
        self.up = self.busy = self.checked = False
        self.problem = ""
        self.in_flight = self.conversations = self.failures = 0
        self.httpx: Any = None
        self.http: Any = None

    def open(self, httpx: Any, client: Any) -> None:
        """Begin to use it in the running event loop, by a client of the package httpx; nothing is known of it."""
        self.httpx, self.http = httpx, client
        self.up = False
        self.in_flight = self.failures = 0
        self.publication = asyncio.Lock()
        self.doubt = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def lose(self, problem: str) -> None:
        """It does not answer: whoever waits for a reply of it waits no longer, and it must show anew what it is."""
        self.up = self.checked = False
        self.problem = problem
        if not self.lost.done():
            self.lost.set_result(problem)
        self.lost = asyncio.get_running_loop().create_future()

    async def call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """The answer to one request, an empty one where it has no body.

        Raises:
            ServerError: no whole answer within the time, or one with an error status.
        """
        try:
            async with asyncio.timeout(timeout_s):
                response = await self.http.request(
                    method, self.url + path, json=body, params=params, headers=self.headers
                )
        except TimeoutError:
            raise ServerError(self.url, f"no answer to {path} within {timeout_s:g} s") from None
        except self.httpx.HTTPError as error:
            gone = isinstance(error, self.httpx.ConnectError)
            raise ServerError(self.url, f"{path}: {type(error).__name__} {error}".strip(), gone=gone) from error
        if response.status_code != 200:
            problem = f"{path}: status {response.status_code}: {_message(response)}"
            raise ServerError(self.url, problem, status=response.status_code)
        if not response.content:
            return {}
        try:
            data = response.json()
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ServerError(self.url, f"{path}: no JSON object: {response.text[:200]!r}")
        return data

    async def paused(self, timeout_s: float) -> bool:
        """Whether it starts no replies at present.

        Raises:
            ServerError: as `call`.
        """
        answer = await self.call("GET", "/is_paused", timeout_s=timeout_s)
        return answer.get("is_paused") is not False

    async def reply(self, body: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        """The answer to a request for tokens. Given up as soon as the server is lost.

        Raises:
            ServerError: as `call`, or it was lost.
        """
        lost = self.lost
        request = asyncio.ensure_future(self.call("POST", GENERATE, body=body, timeout_s=timeout_s))
        try:
            both: set[asyncio.Future[Any]] = {request, lost}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
            raise ServerError(self.url, f"lost while a reply was under way: {lost.result()}")
        finally:
            if not request.done():
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)


def _message(response: Any) -> str:
    """What the server says is wrong, without its wrapping where that is known."""
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:500]
    except (ValueError, LookupError, TypeError):
        return str(response.text)[:300]
