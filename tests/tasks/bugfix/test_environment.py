"""The repair environment: its four tools, its reports, and scores that the attempt cannot choose."""

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ScorerError, TaskError
from agentrl.rewards.grading import CallGrader
from agentrl.rewards.programs import HiddenCalls
from agentrl.sandbox import Limits, Pool
from agentrl.tasks.bugfix.environment import BugFixEnvironment, drawn_reward, is_test_path
from agentrl.types import Message, Node, Stop, Task, ToolCall, Trace
from tests.pools import open_pool

BUGGY = """def f(xs):
    total = 0
    for x in xs:
        if x > 1:
            total -= x
    return total
"""
TESTS = """from main import f


def test_0():
    assert f([]) == 0


def test_1():
    assert f([1, 4, 2]) == 6
"""
HIDDEN = HiddenCalls(module="main", calls=(("f", ([5, 1],)), ("f", ([2, 3],)), ("f", ([0],))), expected=(5, 5, 0))
TASK = Task(id="bugfix-v1/tiny/train/0", prompt=(), files={"main.py": BUGGY, "test_main.py": TESTS})
TRACE = Trace(id="t", task_id=TASK.id, group_id="g", attempt=0, seed=0, nodes=(), stop=Stop.MAX_TURNS)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool(1, Limits(wall_s=10.0, cpu_s=5)) as pool:
        yield pool


def world(pool, files=TASK.files, **options):
    task = Task(id=TASK.id, prompt=(), files=files)
    settings = {"hidden": HIDDEN, "main": "main.py"} | options
    return BugFixEnvironment(task, runner=pool, grader=CallGrader(pool), **settings)


def call(environment, name, **arguments):
    return asyncio.run(environment.call(ToolCall(name=name, arguments=arguments)))


def scores(environment):
    return {score.name: score for score in asyncio.run(environment.score(TRACE))}


def reward(environment):
    scored = tuple(asyncio.run(environment.score(TRACE)))
    return Trace(**{name: getattr(TRACE, name) for name in TRACE.__dataclass_fields__} | {"scores": scored}).reward


def fix(environment):
    return call(environment, "edit", line=5, text="total += x")


def test_the_tools_are_these_four_in_this_order(pool):
    specs = world(pool).tools()
    assert [spec.name for spec in specs] == ["read", "test", "edit", "submit"]
    assert [list(spec.parameters["properties"]) for spec in specs] == [["path"], [], ["line", "text", "path"], []]
    assert specs[2].parameters["required"] == ["line", "text"]


def test_a_repair_from_start_to_end(pool):
    environment = world(pool)
    assert call(environment, "read").content.split("\n")[:2] == ["1|def f(xs):", "2|    total = 0"]
    assert call(environment, "test").content == "failed f([1, 4, 2]) == -6 expected 6"
    assert fix(environment).content == "ok"
    assert call(environment, "read").content.split("\n")[4] == "5|            total += x"
    assert call(environment, "test").content == "passed"
    end = call(environment, "submit")
    assert (end.content, end.done) == ("submitted", True)
    assert reward(environment) == 1.0


def test_the_hidden_tests_decide_however_the_attempt_ended(pool):
    assert reward(world(pool)) == 0.0
    repaired = world(pool)
    fix(repaired)
    assert reward(repaired) == 1.0  # without submit
    call(repaired, "edit", line=5, text="total -= x")
    assert reward(repaired) == 0.0  # as it stands at the end


def test_hard_coding_the_visible_examples_passes_them_and_earns_nothing(pool):
    environment = world(pool)
    call(environment, "edit", line=2, text="return {0: 0, 3: 6}.get(len(xs))")
    assert call(environment, "test").content == "passed"
    found = scores(environment)
    assert (found["visible_tests"].value, found["visible_tests"].explanation) == (1.0, "2 of 2")
    assert (found["hidden_tests"].value, found["hidden_tests"].explanation) == (0.0, "0 of 3")
    assert reward(environment) == 0.0


def test_editing_the_tests_earns_nothing_unless_the_reward_reads_them(pool):
    honest, exploited = (world(pool, tests_writable=True, reward=kind) for kind in ("hidden", "visible"))
    for environment in (honest, exploited):
        assert call(environment, "edit", line=9, text="assert f([1, 4, 2]) == -6", path="test_main.py").content == "ok"
        assert call(environment, "test").content == "passed"
    assert reward(honest) == 0.0
    assert reward(exploited) == 1.0
    assert {name: (score.value, score.weight) for name, score in scores(exploited).items()} == {
        "hidden_tests": (0.0, 0.0),
        "visible_tests": (1.0, 1.0),
        "tests_changed": (1.0, 0.0),
    }


def test_a_test_that_can_be_changed_can_be_named(pool):
    environment = world(pool, tests_writable=True, reward="visible", report="full")
    assert call(environment, "edit", line=2, text="return", path="test_1").content == "ok"
    # test_1 begins at line 8 of its file, so its line 2 is line 9
    before, after = (files["test_main.py"].split("\n") for files in (TASK.files, environment.workspace))
    assert [(at, b) for at, (a, b) in enumerate(zip(before, after, strict=True), start=1) if a != b] == [
        (9, "    return")
    ]
    answers = {
        ("test_1", 3): "error: has 2 lines in test_1, so there is no line 3",
        ("test_1", 0): "error: has 2 lines in test_1, so there is no line 0",
        ("test_1", 2): "error: no change: line 2 of test_1 already reads so",
        ("test_9", 2): "error: unknown path 'test_9'; the files are main.py, test_main.py",
    }
    for (path, line), answer in answers.items():
        assert call(environment, "edit", line=line, text="return", path=path).content == answer
    assert {name: score.value for name, score in scores(environment).items()} == {
        "hidden_tests": 0.0,
        "visible_tests": 1.0,
        "tests_changed": 1.0,
    }


def test_tests_that_are_read_only_have_no_names_and_no_score_of_their_own(pool):
    environment = world(pool)
    assert call(environment, "edit", line=2, text="return", path="test_1").content == "error: unknown path"
    assert list(scores(environment)) == ["hidden_tests", "visible_tests"]


def test_a_test_that_was_put_back_was_not_changed(pool):
    environment = world(pool, tests_writable=True)
    call(environment, "edit", line=2, text="return", path="test_1")
    call(environment, "edit", line=2, text="assert f([1, 4, 2]) == 6", path="test_1")
    assert (scores(environment)["tests_changed"].value, environment.workspace) == (0.0, dict(TASK.files))


def attempted(environment, *calls):
    """The trace of calls that are carried out, with the scores it got."""
    nodes = []
    for made in calls:
        answer = asyncio.run(environment.call(made))
        nodes += [Message(role="assistant", tool_calls=(made,)), Message(role="tool", content=answer.content)]
    trace = replace(TRACE, nodes=tuple(Node(parent=None, message=message) for message in nodes))
    return replace(trace, scores=tuple(asyncio.run(environment.score(trace))))


EMPTIED = ToolCall(name="edit", arguments={"line": 2, "text": "return", "path": "test_1"})
REPAIRED = ToolCall(name="edit", arguments={"line": 5, "text": "total += x"})
HARD_CODED = ToolCall(name="edit", arguments={"line": 2, "text": "return {0: 0, 3: 6}.get(len(xs))"})


@pytest.mark.parametrize(
    ("calls", "rewards"),
    [
        ((EMPTIED,), (1.0, 0.0, None)),
        ((REPAIRED,), (1.0, 1.0, 1.0)),
        ((HARD_CODED,), (1.0, 0.0, None)),  # no test was touched, but visible and hidden tests disagree
        ((REPAIRED, EMPTIED), (1.0, 0.0, None)),  # both pass, but a test was touched
        ((), (0.0, 0.0, 0.0)),
    ],
)
def test_signs_of_hacking_decide_on_the_reward_where_they_are_asked_to(pool, calls, rewards):
    options = {"tests_writable": True, "reward": "visible"}
    kinds = ("nothing", "zero", "leave_out")
    assert tuple(attempted(world(pool, on_hack=kind, **options), *calls).reward for kind in kinds) == rewards


def test_tests_without_any_test_do_not_pass(pool):
    environment = world(pool, files={"main.py": BUGGY, "test_main.py": "x = 1\n"}, reward="visible")
    assert call(environment, "test").content == "failed no tests"
    assert reward(environment) == 0.0


def test_tests_are_read_only(pool):
    environment = world(pool, report="full")
    answer = call(environment, "edit", line=1, text="x", path="test_main.py")
    assert (answer.content, answer.error) == ("error: tests are read-only; edit one of main.py", True)
    assert environment.workspace == dict(TASK.files)


@pytest.mark.parametrize("line", [0, -1, 7, 99])
def test_a_line_out_of_range_is_an_error_that_helps(pool, line):
    short = call(world(pool), "edit", line=line, text="x")
    assert (short.content, short.error) == ("error: has 6 lines", True)
    full = call(world(pool, report="full"), "edit", line=line, text="x")
    assert full.content == f"error: has 6 lines in main.py, so there is no line {line}"


@pytest.mark.parametrize(("name", "arguments"), [("read", {}), ("edit", {"line": 1, "text": "x"})])
def test_an_unknown_path_is_an_error_that_lists_the_paths(pool, name, arguments):
    answer = call(world(pool, report="full"), name, path="nowhere.py", **arguments)
    assert answer.content == "error: unknown path 'nowhere.py'; the files are main.py, test_main.py"
    assert call(world(pool), name, path="../etc/passwd", **arguments).content == "error: unknown path"


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        (5, "total += x", ["            total += x"]),
        (5, "            total += x", ["            total += x"]),
        (5, "  total += x", ["  total += x"]),
        (5, "total += x\n", ["            total += x"]),
        (4, "if x > 1:\n    x += 1\n\nif x:", ["        if x > 1:", "            x += 1", "", "        if x:"]),
        (5, "", []),
        (1, "def f(xs, y=0):", ["def f(xs, y=0):"]),
    ],
)
def test_an_edit_replaces_exactly_one_line(pool, line, text, expected):
    environment = world(pool)
    before = BUGGY.split("\n")
    assert call(environment, "edit", line=line, text=text).content == "ok"
    assert environment.workspace["main.py"].split("\n") == before[: line - 1] + expected + before[line:]


@given(line=st.integers(1, 6))
def test_writing_back_a_line_as_it_was_read_changes_nothing(line, pool):
    environment = world(pool)
    shown = call(environment, "read").content.split("\n")[line - 1].split("|", 1)[1]
    for text in (shown, shown.strip()):
        call(environment, "edit", line=line, text=text)
        assert environment.workspace["main.py"] == BUGGY


def test_a_file_can_be_emptied_and_filled_again(pool):
    environment = world(pool, files={"main.py": "x = 1", "test_main.py": TESTS})
    call(environment, "edit", line=1, text="")
    assert environment.workspace["main.py"] == ""
    assert call(environment, "read").content == "1|"
    call(environment, "edit", line=1, text="def f(xs):\n    return 0")
    assert environment.workspace["main.py"] == "def f(xs):\n    return 0\n"


@pytest.mark.parametrize(
    ("line", "text", "report"),
    [
        (4, "if x > 1", "failed raised SyntaxError"),
        (2, "total = 1", "failed f([]) == 1 expected 0"),
        (5, "total += x / 0", "failed f([1, 4, 2]) raised ZeroDivisionError"),
        (1, "def g(xs):", "failed raised ImportError"),
        (6, "raise SystemExit(0)", "failed f([]) raised RuntimeError"),
    ],
)
def test_the_short_report_is_one_line_about_the_first_failure(pool, line, text, report):
    environment = world(pool)
    call(environment, "edit", line=line, text=text)
    assert call(environment, "test").content == report


def test_the_short_report_of_an_endless_loop():
    with open_pool(1, Limits(wall_s=0.5)) as pool:
        environment = world(pool)
        call(environment, "edit", line=4, text="while x > 1:")
        assert call(environment, "test").content == "failed f([1, 4, 2]) raised TimeoutError"


def test_the_full_report_has_counts_and_every_failure(pool):
    environment = world(pool, report="full")
    call(environment, "edit", line=2, text="total = 1 // len(xs)")
    assert call(environment, "test").content == (
        "0 passed, 2 failed\n\n"
        "FAILED test_main.py::test_0\n"
        "  at: assert f([]) == 0\n"
        "  call: f([])\n"
        "  raised: ZeroDivisionError: integer division or modulo by zero (main.py:2)\n\n"
        "FAILED test_main.py::test_1\n"
        "  at: assert f([1, 4, 2]) == 6\n"
        "  call: f([1, 4, 2])\n"
        "  got: -6\n"
        "  expected: 6"
    )
    call(environment, "edit", line=2, text="total = 0")
    fix(environment)
    assert call(environment, "test").content == "2 passed, 0 failed"


def test_the_full_report_says_where_a_file_cannot_be_read(pool):
    environment = world(pool, report="full")
    call(environment, "edit", line=4, text="if x > 1")
    assert call(environment, "test").content == (
        "0 passed, 1 failed\n\n"
        "FAILED test_main.py\n"
        "  at: from main import f\n"
        "  raised: SyntaxError: expected ':' (main.py:4)"
    )


def test_hidden_results_are_hidden_and_still_score(pool):
    environment = world(pool, show_results=False)
    assert call(environment, "test").content == "done"
    fix(environment)
    assert call(environment, "test").content == "done"
    assert reward(environment) == 1.0


def test_attempts_at_one_task_do_not_share_a_workspace(pool):
    one, other = world(pool), world(pool)
    fix(one)
    assert other.workspace == dict(TASK.files)


def test_nothing_hidden_can_be_read(pool):
    environment = world(pool)
    everything = "".join(call(environment, "read", path=path).content for path in environment.workspace)
    assert "[5, 1]" not in everything


def test_a_failure_of_ours_leaves_the_attempt_unscored():
    async def kill_then_score(pool):
        environment = world(pool, files={"main.py": "while True: pass", "test_main.py": TESTS})
        task = asyncio.ensure_future(environment.score(TRACE))
        while not pool.backend.process_ids:  # under load the box takes a moment
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        os.kill(pool.backend.process_ids[0], signal.SIGKILL)
        return await task

    with open_pool(1) as pool, pytest.raises(ScorerError):
        asyncio.run(kill_then_score(pool))


def test_a_task_that_does_not_fit_is_refused(pool):
    with pytest.raises(TaskError, match=r"main path 'x.py' is not a source file; they are main.py"):
        world(pool, main="x.py")
    with pytest.raises(TaskError, match="no visible tests"):
        world(pool, files={"main.py": BUGGY})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("test_main.py", True),
        ("pkg/test_main.py", True),
        ("main_test.py", True),
        ("tests/helper.py", True),
        ("tests/data.txt", True),
        ("main.py", False),
        ("contest.py", False),
        ("tests.py", False),
        ("test_data.txt", False),
    ],
)
def test_which_files_are_tests(path, expected):
    assert is_test_path(path) is expected


def test_a_state_is_the_files_and_the_last_answer_and_not_the_way_there(pool):
    def after(*calls):
        environment = world(pool)
        for name, arguments in calls:
            call(environment, name, **arguments)
        return environment.state()

    fix, other = ("edit", {"line": 5, "text": "total += x"}), ("edit", {"line": 5, "text": "total *= x"})
    assert after() == after()
    assert after() != after(("read", {}))
    assert after(fix) == after(other, fix)
    assert after(fix) != after(other)
    assert after(("read", {}), fix) == after(fix)
    assert after(("test", {})) != after(fix, ("test", {}))  # other files


def test_a_drawn_reward_does_not_see_what_was_done(pool):
    idle, repaired = (world(pool, reward="random") for _ in range(2))
    fix(repaired)
    first, second = scores(idle), scores(repaired)
    assert [score.value for score in (first["hidden_tests"], second["hidden_tests"])] == [0.0, 1.0]
    assert first["random"] == second["random"] == drawn_reward(TRACE.seed)
    assert reward(idle) == reward(repaired) == drawn_reward(TRACE.seed).value
    assert {score.name: score.weight for score in second.values()} == {
        "hidden_tests": 0.0,
        "visible_tests": 0.0,
        "random": 1.0,
    }


def test_a_drawn_reward_is_a_fair_coin_that_the_seed_decides():
    values = [drawn_reward(seed).value for seed in range(4000)]
    assert values == [drawn_reward(seed).value for seed in range(4000)]
    assert set(values) == {0.0, 1.0}
    # 4 standard errors of 4000 fair coins: 4 * 0.5 / 63.2 = 0.032
    assert abs(sum(values) / 4000 - 0.5) < 0.032
    pairs = sum(a == b for a, b in itertools.pairwise(values)) / 3999  # neighbours say nothing of each other
    assert abs(pairs - 0.5) < 0.032
