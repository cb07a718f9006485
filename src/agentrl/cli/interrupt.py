"""Ctrl-C once asks for a clean stop; a second time it interrupts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def stop_on_interrupt(request_stop: Callable[[], None], say: Callable[[str], None], hint: str) -> Iterator[None]:
    """Within the block, the first SIGINT calls ``request_stop`` and says so; the second raises KeyboardInterrupt.

    Args:
        request_stop: sets the flag that the loop looks at after each step.
        say: shows one line.
        hint: how to go on later.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGINT, signal.default_int_handler)
        request_stop()
        with suppress(RuntimeError):  # a stream refuses to be written to while it is being written to; the flag is set
            say(f"stopping after this step with a checkpoint (Ctrl-C again stops at once); {hint}")

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
