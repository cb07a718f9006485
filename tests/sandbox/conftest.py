"""One pool for all tests that do not break it."""

from collections.abc import Iterator

import pytest

from agentrl.sandbox import Limits, Pool
from tests.pools import open_pool
from tests.sandbox.zygotes import Census, eventually


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with open_pool(1, Limits(wall_s=10.0, cpu_s=5)) as pool:
        yield pool


@pytest.fixture(scope="session")
def hasty_pool() -> Iterator[Pool]:
    """For programs that never end: interrupted at 0.45 s, killed at 0.5 s."""
    with open_pool(1, Limits(wall_s=0.5)) as pool:
        yield pool


@pytest.fixture
def census() -> Iterator[Census]:
    """Fails a test that leaves processes, descriptors, mounts or files of a box."""
    before = Census()
    yield before
    assert eventually(lambda: Census().within(before)), (vars(before), vars(Census()))
