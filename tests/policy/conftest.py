"""Tensors of these tests are so small that threads wait for each other longer than they compute."""

import sys
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """What transformers reports of models this small is of no use; it is not loaded for tests without it."""
    library = sys.modules.get("transformers")
    if library is None:
        yield
        return
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    yield
    library.logging.set_verbosity(verbosity)
    library.logging.enable_progress_bar()
