"""An event loop in a thread of its own, for what must go on while the caller's loop is busy or has ended."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Carries coroutines out in another thread. Whatever is bound to an event loop can live there for long."""

    def __init__(self, name: str) -> None:
        ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(_stay(ready)), name=name, daemon=True)
        self._thread.start()
        self._loop, self._over = ready.result()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin a coroutine there. To cancel the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Have a plain function called there."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def close(self) -> None:
        """Cancel what is left there and end the thread. Safe to call twice, not from inside."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()


async def _stay(ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    over = asyncio.Event()
    ready.set_result((asyncio.get_running_loop(), over))
    await over.wait()
