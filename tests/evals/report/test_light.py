"""What is measured needs neither torch nor the library of figures; the examples in the docstrings run."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from agentrl.evals import report

MODULES = sorted(module.name for module in pkgutil.iter_modules(report.__path__, "agentrl.evals.report."))


def test_measuring_loads_no_heavy_library():
    program = (
        "import sys, agentrl.cli.report, agentrl.evals.report.findings\n"
        "print(sorted({'torch', 'scipy.stats', 'scipy.optimize', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
