"""Everything but the tensor code imports without torch, and the layers are kept."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "agentrl"

WITH_TORCH = (
    "bench/generation/",
    "bench/training/",
    "engine/batch.py",
    "engine/draw.py",
    "engine/local.py",
    "engine/plan.py",
    "engine/session.py",
    "engine/store.py",
    "engine/vllm_worker.py",  # runs within the server, which has torch
    "loops/",
    "policy/",
    "train/",
)
"""Files and folders that may import torch when they are imported."""
CREDIT = {"advantages", "batch_advantages", "filters", "moments", "returns", "roles", "steps", "__init__"}
"""The modules of ``algorithms`` that are plain numbers; the others are made of tensors."""

CHECK = """
import importlib, sys
sys.modules["torch"] = None
failed = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed.append(f"{name}: {error}")
print("\\n".join(failed))
"""


def light_modules() -> list[str]:
    paths = (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))
    light = [
        path
        for path in paths
        if not path.as_posix().startswith(WITH_TORCH)
        and path.name != "worker_main.py"
        and (path.parts[0] != "algorithms" or path.stem in CREDIT)
    ]
    return [".".join(("agentrl", *path.with_suffix("").parts)).removesuffix(".__init__") for path in light]


def imports_without_torch(names: list[str]) -> str:
    done = subprocess.run([sys.executable, "-c", CHECK, *names], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_the_light_half_imports_without_torch() -> None:
    names = light_modules()
    assert {f"agentrl.algorithms.{name}" for name in CREDIT - {"__init__"}} <= set(names)
    assert {
        "agentrl.types",
        "agentrl.config",
        "agentrl.store",
        "agentrl.cli.train",
        "agentrl.ui.plots",
        "agentrl.catalogue",
    } <= set(names)
    assert imports_without_torch(names) == ""


def test_the_check_notices_a_module_that_needs_torch() -> None:
    if not (PACKAGE / "algorithms" / "objectives.py").exists():
        pytest.skip("no tensor code in this checkout")
    assert "torch" in imports_without_torch(["agentrl.algorithms.objectives"])


def test_help_loads_none_of_the_heavy_libraries() -> None:
    program = (
        "import sys, agentrl.cli\n"
        "try: agentrl.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'scipy', 'numpy', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_layers_are_kept() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
