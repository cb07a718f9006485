"""Test files that are compiled ahead: nothing that they hold can end the server, and nothing changes by it."""

import pytest

from agentrl.sandbox import Job, Suite, ahead
from agentrl.sandbox.pool import Pool
from tests.sandbox.backends import open_backend

HARD = [
    "def test_a(): assert f(1) == 3",
    "def test_a(: pass",
    "x = " + "(" * 150,
    "x = " + "-" * 400 + "1",
    "x = " + "not " * 120 + "1",
    "\n".join(["x = (1"] + ["+ 1"] * 1500 + [")"]),
    "x = f" + ".a" * 240,
    "\n".join(" " * depth + "if f:" for depth in range(90)) + "\n" + " " * 90 + "pass",
    "if f: pass\n" + "elif f: pass\n" * 500,
    "x = '\\d'; assert (1, 2); 1()",
    "x = '\ud800'",
    "x = '\0'",
    "x = " + "lambda: " * 60 + "1",
    "x = {" * 11,
    "\tif 1:\n  x",
    "return 1",
    "\n" * 8000,
]


@pytest.fixture(scope="module")
def pool():
    with Pool(open_backend("zygote"), size=1) as opened:
        yield opened


@pytest.mark.parametrize("text", HARD)
def test_hard_text_gives_the_same_compiled_ahead_or_in_the_job(pool, text):
    def failure(tests):
        files = {"m.py": "def f(x):\n    return x\n", "test_m.py": tests}
        return pool.run_sync([Job(files=files, run=Suite(paths=("test_m.py",)))])[0].tests

    ahead = "from m import f\n" + text
    in_job = ahead + "\n#" + "#" * 9000  # too long to be compiled ahead
    assert failure(ahead) == failure(in_job)
    assert (pool.stats.restarts, pool.stats.lost) == (0, 0)


def test_tame_test_files_are_compiled_once_and_nothing_else():
    tame = "def test_a(): assert f(1) == 3"
    tests = {"test_m.py": tame, "test_x.py": "#" * 9000}
    compiled = ahead.compiled_tests(tests)
    assert set(compiled) == {"test_m.py"}
    assert compiled["test_m.py"].co_filename == "test_m.py"
    assert ahead.compiled_tests(tests)["test_m.py"] is compiled["test_m.py"]


def test_a_syntax_error_is_left_to_the_job_to_raise():
    assert ahead.compiled_tests({"test_m.py": "def f(:"}) == {}
