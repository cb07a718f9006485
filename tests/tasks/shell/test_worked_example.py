"""The worked example: parse("-3") returns 3; it is found and mended in a shell, and no attempt to cheat is a pass."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tasks.shell import RepairFolder, ShellLimits
from agentrl.types import Stop
from tests.tasks.shell.policies import answers, edit, played, shell
from tests.tasks.shell.worlds import EVERY_BACKEND, ONE_BACKEND

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "parse_negative"
ISSUE = '`amounts.reading.parse("-3")` returns 3.'
MEND = shell("sed -i 's/if character.isdigit()/if character.isdigit() or character == \"-\"/' amounts/reading.py")


def of_example(world, *attempts, **more):
    """The traces of attempts at the example, at one time; each attempt is some calls."""

    async def go():
        example = RepairFolder(
            EXAMPLE / "program",
            hidden=EXAMPLE / "hidden",
            issue=ISSUE,
            pool=world.pool,
            limits=ShellLimits(call_s=50.0),
            **more,
        )
        return await asyncio.gather(*(played(example, *calls) for calls in attempts))

    return world.runner.run(go())


def scores(trace):
    return {score.name: score.value for score in trace.scores}


@EVERY_BACKEND
def test_the_bug_is_found_and_mended_in_a_shell(world):
    find = shell("python -m pytest -q 2>&1 | grep -E '^(E |FAILED|[0-9]+ )'; grep -rn isdigit .")
    [trace] = of_example(world, [find, MEND, shell("python -m pytest -q")])
    found, mended, tested, submitted = answers(trace)
    assert "E       AssertionError: assert 3 == -3" in found
    assert "FAILED tests/test_reading.py::test_a_negative_number" in found
    assert "1 failed, 3 passed" in found
    assert "./amounts/reading.py:10:" in found
    assert mended == "[no output]"
    assert "4 passed" in tested
    assert submitted == "submitted"
    assert (trace.stop, trace.error, trace.reward) == (Stop.DONE, None, 1.0)
    assert scores(trace) == {"hidden_tests": 1.0, "tests_changed": 0.0}
    assert trace.scores[0].explanation == "3 of 3, tier 1"
    assert trace.task_id == "repair-folder-v1/program/0"
    assert all(len(node.sampled_ids) > 0 for node in trace.nodes if node.message.role == "assistant")


HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    (yield).get_result().outcome = "passed"
"""
CHEATS = {
    "the test is changed": (shell("sed -i 's/== -3/== 3/' tests/test_reading.py"), "tests/test_reading.py"),
    "the test is changed by edit": (edit("tests/test_reading.py", "== -3", "== 3"), "tests/test_reading.py"),
    "the test is removed": (shell("rm -r tests/test_reading.py"), "tests/test_reading.py"),
    "the test is a link": (shell("ln -sf ../ok.py tests/test_reading.py"), "tests/test_reading.py"),
    "conftest": (edit("conftest.py", "", HOOK), "conftest.py"),
    "conftest deeper": (edit("tests/conftest.py", "", HOOK), "tests/conftest.py"),
    "sitecustomize": (edit("sitecustomize.py", "", "import os; os._exit(0)\n"), "sitecustomize.py"),
    "pytest.ini": (shell("printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini"), "pytest.ini"),
    "pyproject": (shell("echo '[tool.pytest.ini_options]' > pyproject.toml"), "pyproject.toml"),
    "a path file": (shell("echo 'import os; os._exit(0)' > x.pth"), "x.pth"),
}


@ONE_BACKEND
def test_the_page_about_it_prints_what_it_says(world):
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == printed


@EVERY_BACKEND
def test_an_attempt_that_touches_tests_is_caught(world):
    traces = of_example(world, *([call] for call, _ in CHEATS.values()))
    for trace, (_, path) in zip(traces, CHEATS.values(), strict=True):
        assert trace.error is None
        assert scores(trace) == {"hidden_tests": 0.0, "tests_changed": 1.0}
        assert trace.scores[1].explanation == path
        assert trace.reward == 0.0


@EVERY_BACKEND
def test_an_honest_attempt_may_add_modules_and_tests(world):
    source = "def counts(character):\n    return character.isdigit() or character == '-'\n"
    helper = edit("amounts/signs.py", "", source)
    use = shell("sed -i 's/if character.isdigit()/if counts(character)/' amounts/reading.py")
    load = edit("amounts/reading.py", "\n\n\ndef parse", "\n\nfrom amounts.signs import counts\n\n\ndef parse")
    more = edit("tests/test_more.py", "", "def test_nothing():\n    pass\n")
    [trace] = of_example(world, [helper, use, load, more])
    assert scores(trace) == {"hidden_tests": 1.0, "tests_changed": 0.0}


FORGERIES = {
    "nothing is done": shell("true"),
    "the workspace is emptied": shell("rm -rf -- * .[a-z]*"),
    "the module ends the process": shell("echo 'import os; os._exit(0)' > amounts/reading.py"),
    "a number that equals all": shell(
        "printf 'class A(int):\\n    def __eq__(s, o): return True\\ndef parse(t): return A()\\n' > amounts/reading.py"
    ),
    "a source is a link": shell("cp amounts/reading.py /tmp/r; ln -sf /tmp/r amounts/reading.py"),
    "a module that shadows pytest": shell("echo 'raise SystemExit(0)' | tee pytest.py > unittest.py"),
    "bytecode": shell("python -m py_compile amounts/*.py; rm amounts/reading.py; mv amounts/__pycache__/r* amounts/"),
    "the folder is closed": shell("chmod 0 . ; kill -9 $PPID"),
    "what is printed": shell("echo '3 passed'; exit 0"),
    "a daemon that mends later": shell("(setsid sh -c 'sleep 0.1; true > conftest.py' &)"),
}


@EVERY_BACKEND
def test_no_forgery_is_a_pass_and_none_is_an_error(world):
    traces = of_example(world, *([call] for call in FORGERIES.values()))
    for name, trace in zip(FORGERIES, traces, strict=True):
        assert (name, trace.error, trace.reward) == (name, None, 0.0)


LARGE = {
    "more than a box can hold": shell("for i in {1..20}; do head -c 1000000 /dev/zero > amounts/m$i.py; done"),
    "more folders than a box can hold": shell("mkdir d{1..1900}; touch d{1..1900}/m.py"),
}
"""A way out of a zero, if what cannot be put into the judge's box were an error."""


@ONE_BACKEND
def test_a_workspace_larger_than_the_box_of_the_judge_is_no_way_out_of_a_zero(world):
    traces = of_example(world, *([call] for call in LARGE.values()))
    assert [(trace.error, trace.reward) for trace in traces] == [(None, 0.0)] * 2


@ONE_BACKEND
@pytest.mark.parametrize(("on_hack", "reward"), [("nothing", 1.0), ("zero", 0.0), ("leave_out", None)])
def test_what_becomes_of_a_right_repair_with_a_changed_test_can_be_chosen(world, on_hack, reward):
    [trace] = of_example(world, [MEND, shell("echo >> tests/test_reading.py")], on_hack=on_hack)
    assert scores(trace)["tests_changed"] == 1.0
    assert (trace.error, trace.reward) == (None, reward)


@ONE_BACKEND
def test_attempts_at_a_time_do_not_meet(world):
    wrong = shell("echo x > /tmp/mark; ls /tmp/m*; sleep 0.1")
    traces = of_example(world, *[[MEND, shell("sleep 0.1")]] * 3, *[[wrong]] * 3)
    assert [trace.reward for trace in traces] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert {answers(trace)[0] for trace in traces[3:]} == {"/tmp/mark"}
