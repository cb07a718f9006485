"""Tools that block: each call runs in a thread of its own, so that a deadline can end the wait for it.

Nothing can end the thread itself. It is left behind, does not keep the program from ending, and `abandoned` names it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_abandoned: set[threading.Thread] = set()


def blocking(method: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a tool that waits (for a database, a network, a sleep) one that others need not wait for.

    The method runs in a thread beside the others', and must not touch what belongs to them.

    Example:
        >>> from agentrl.tasks.environment import ToolEnvironment, tool
        >>> class Shop(ToolEnvironment):
        ...     @tool
        ...     @blocking
        ...     def stock(self, article: str) -> str:
        ...         \"\"\"Ask the shop's slow server.\"\"\"
        ...         return f"12 of {article}"
        >>> Shop.tool_specs()[0].parameters["required"]
        ['article']
    """

    @functools.wraps(method)
    async def in_thread(*arguments: P.args, **named: P.kwargs) -> T:
        return await _run(method.__name__, functools.partial(method, *arguments, **named))

    return in_thread


def abandoned() -> Counter[str]:
    """How many calls nobody waits for any more still run, by the tool's name."""
    _abandoned.intersection_update(threading.enumerate())
    return Counter(thread.name for thread in _abandoned)


async def _run(name: str, call: Callable[[], T]) -> T:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():  # given up
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def work() -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = call()
        except Exception as error:  # raised again where it is waited for
            failure = error
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, result, failure)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        _abandoned.add(thread)
        raise
