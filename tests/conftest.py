"""For all tests: which files begin, so that all workers end together; and no property test goes by the clock."""

from collections.abc import Sequence

import pytest
from hypothesis import settings

LONGEST = (
    "loops/test_run.py",
    "loops/test_dry_run.py",
    "loops/test_kill.py",
    "loops/footprint/test_estimate.py",
    "loops/test_rejection.py",
    "loops/test_rl_async.py",
    "train/parity/test_check.py",
    "cli/test_eval_endpoint.py",
    "loops/test_learning.py",
    "recipes/test_running.py",
    "rewards/judge/test_humanevalfix.py",
    "cli/test_eval_model.py",
)

settings.register_profile("agentrl", deadline=None)
settings.load_profile("agentrl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A long file that came last would keep one worker busy while the other has nothing left."""
    items.sort(key=lambda item: _place(item.path.as_posix(), LONGEST))


def _place(path: str, first: Sequence[str]) -> int:
    return next((place for place, name in enumerate(first) if path.endswith(f"tests/{name}")), len(first))
