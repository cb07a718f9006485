"""Pools for tests: in the strongest sandbox that this machine has."""

from __future__ import annotations

from typing import Any

from agentrl.sandbox import Limits, Pool
from agentrl.sandbox.choose import choose


def open_pool(size: int = 2, limits: Limits | None = None, **more: Any) -> Pool:
    """A pool that works here, whatever its walls; what the walls hold is tested elsewhere."""
    return Pool(choose(allow_unsafe=True).backend, size=size, limits=limits, **more)
