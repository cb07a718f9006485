"""Test files that the worker compiles ahead: nothing that they hold can end it, and nothing changes by it."""

import pytest

from agentrl.sandbox import Job, Suite, programs

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


@pytest.mark.parametrize("text", HARD)
def test_hard_text_gives_the_same_compiled_ahead_or_in_the_child(pool, text):
    def failure(tests):
        files = {"m.py": "def f(x):\n    return x\n", "test_m.py": tests}
        return pool.run_sync([Job(files=files, run=Suite(paths=("test_m.py",)))])[0].tests

    ahead = "from m import f\n" + text
    in_child = ahead + "\n#" + "#" * 9000  # too long for the worker
    assert failure(ahead) == failure(in_child)
    assert pool.stats.restarts == 0


def test_the_worker_compiles_tame_test_files_only_and_no_program():
    tame = "def test_a(): assert f(1) == 3"
    job = {"files": {"m.py": "x = 1", "test_m.py": tame, "test_x.py": "#" * 9000}, "paths": ["test_m.py", "test_x.py"]}
    codes = programs.prepare(job)
    assert set(codes) == {"test_m.py", "test_x.py"}
    assert codes["test_m.py"].co_filename == "test_m.py"
    assert codes["test_x.py"] is None
    assert programs.prepare(job)["test_m.py"] is codes["test_m.py"]  # remembered


def test_a_syntax_error_is_kept_for_the_child_to_raise():
    code = programs.prepare({"files": {"test_m.py": "def f(:"}, "paths": ["test_m.py"]})["test_m.py"]
    assert isinstance(code, SyntaxError)
    assert (code.filename, code.lineno, code.__traceback__) == ("test_m.py", 1, None)
