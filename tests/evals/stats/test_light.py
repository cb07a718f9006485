"""The statistics start in a blink: no torch and no scipy.stats; and the examples in their docstrings run."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from agentrl.evals import stats

MODULES = sorted(module.name for module in pkgutil.iter_modules(stats.__path__, "agentrl.evals.stats."))


def test_importing_them_loads_no_heavy_library():
    program = (
        "import sys, agentrl.evals.stats\n"
        "print(sorted({'torch', 'scipy.stats', 'scipy.optimize', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_is_there():
    assert len(MODULES) > 10
    assert all(hasattr(stats, name) for name in stats.__all__)


@pytest.mark.parametrize("name", ["agentrl.evals.stats", *MODULES])
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    examples = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) > 15
