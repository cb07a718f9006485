"""Where vLLM servers are, and what is asked of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from agentrl.errors import ConfigError
from agentrl.types import Sampling

Route = Literal["transfer", "reload"]
InFlight = Literal["wait", "continue"]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long is waited.

    Attributes:
        request_s: for one request for a reply, in seconds.
        reply_s: for one reply with all its tries and the wait for a server, in seconds.
        publish_s: for each step of a publication, the end of replies under way among them, in seconds.
        health_s: between two looks at a server, in seconds.
        answer_s: for its answer to a look, in seconds. One that is late three times in a row is lost.
        retries: of a request that failed, at least 0.
        backoff_s: before the first retry; doubled at each, in seconds.

    Raises:
        ConfigError: a time that is not above 0, or fewer than no retries.
    """

    request_s: float = 600.0
    reply_s: float = 1800.0
    publish_s: float = 600.0
    health_s: float = 5.0
    answer_s: float = 10.0
    retries: int = 5
    backoff_s: float = 0.5

    def __post_init__(self) -> None:
        times = (self.request_s, self.reply_s, self.publish_s, self.health_s, self.answer_s, self.backoff_s)
        if min(times) <= 0 or self.retries < 0:
            raise ConfigError(f"{self}: times are above 0 and retries 0 or more")


@dataclass(frozen=True, kw_only=True)
class VLLMSettings:
    """Where the servers are and what is asked of them.

    Attributes:
        urls: of the servers, without a path; several share the conversations.
        model: the name that they serve it under.
        folder: of this run alone, where weights are written for them to read: in memory (``/dev/shm/...``) or on a
            disk that they share.
        sampling: how tokens are drawn. The log-probabilities are those of that distribution.
        route: ``transfer``, or ``reload`` for servers without the extension. The latter leaves the output projection
            of a model with tied embeddings as it was where vLLM runs on a CPU.
        in_flight: what becomes of replies under way when weights are published: ``wait`` for their end, or
            ``continue`` under the new ones.
        concurrency: replies that one server works on at the same time, at least 1.
        timing: how long is waited.
        api_key: sent as a bearer token; empty for none.

    Raises:
        ConfigError: a value that is out of range, or no HTTP address.
    """

    urls: tuple[str, ...]
    model: str
    folder: Path
    sampling: Sampling = field(default_factory=Sampling)
    route: Route = "transfer"
    in_flight: InFlight = "wait"
    concurrency: int = 256
    timing: Timing = field(default_factory=Timing)
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
                raise ConfigError(f"vLLM server {url!r}: write an address such as http://127.0.0.1:8000")
            if parts.hostname in ("0.0.0.0", "::"):
                raise ConfigError(f"vLLM server {url!r} is what a server listens on; write the address of its machine")
        if not self.urls or len(set(self.urls)) != len(self.urls):
            raise ConfigError(f"vLLM servers {self.urls}: name at least one, and each once")
        if self.concurrency < 1:
            raise ConfigError(f"concurrency is {self.concurrency}; it must be at least 1")


@dataclass
class VLLMStats:
    """Work done so far.

    Attributes:
        replies: that came whole.
        sampled: tokens in them.
        retries: requests sent again.
        stale: replies of wrong weights, which were thrown away.
        published: publications.
        prefilled: tokens computed as context; None, since servers do not say.
    """

    replies: int = 0
    sampled: int = 0
    retries: int = 0
    stale: int = 0
    published: int = 0
    prefilled: int | None = None
    _under_way: int = 0
    _busy_s: float = 0.0
    _since: float = 0.0

    @property
    def seconds(self) -> float:
        """How long a reply has been under way, one or several."""
        return self._busy_s + (time.perf_counter() - self._since if self._under_way else 0.0)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """A reply is under way."""
        if not self._under_way:
            self._since = time.perf_counter()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._busy_s += time.perf_counter() - self._since
