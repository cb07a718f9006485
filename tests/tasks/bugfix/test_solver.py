"""The scripted solver: legal calls, mistakes where they are asked for, and a repair where none is."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedSession
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.rewards.grading import CallGrader
from agentrl.rewards.programs import HiddenCalls
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.sandbox import Limits as SandboxLimits
from agentrl.sandbox import Pool
from agentrl.tasks.bugfix import tiny
from agentrl.tasks.bugfix.candidate import test_file
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tasks.bugfix.solver import Mistakes, solve
from agentrl.tasks.bugfix.validate import Validator, hidden_calls
from agentrl.tokens.tiny import TinyRenderer, decode
from agentrl.types import Stop, Task, ToolCall
from tests.pools import open_pool

SOME = Mistakes(wrong_edit=0.1, reverts=0.35, untested=0.3, gives_up=0.3)
NONE = Mistakes(reverts=0.0, wrong_edit=0.0, untested=0.0, gives_up=0.0)
RENDERER = TinyRenderer()
BROKEN = "def f(a, b):\n    return a + b  # a minus b\n"
RIGHT = BROKEN.replace("+", "-")
FAILED = "failed f(1) == 2 expected 3"


def calls(broken, reference, *, seed=0, mistakes=None, observed=FAILED):
    """The calls of a script that always hears the same."""
    script = solve(
        broken,
        reference,
        rng=random.Random(seed),
        mistakes=mistakes or Mistakes(wrong_edit=0.1, reverts=0.35, untested=0.3, gives_up=0.3),
    )
    made = [next(script)]
    while True:
        try:
            made.append(script.send(observed))
        except StopIteration:
            return made


def summary(made):
    return [(call.name, *call.arguments.values()) for call in made]


def test_without_mistakes_a_told_program_is_edited_once_tested_and_submitted():
    repair = [("edit", 2, "return a - b"), ("test",), ("submit",)]
    assert summary(calls(BROKEN, RIGHT, mistakes=NONE, observed="passed")) == repair


def test_each_mistake_by_itself():
    def only(name, **options):
        mistakes = Mistakes(**{**dict.fromkeys(NONE.__dataclass_fields__, 0.0), name: 1.0})
        return summary(calls(BROKEN, RIGHT, mistakes=mistakes, **options))

    assert only("untested") == [("edit", 2, "return a - b"), ("submit",)]
    assert only("gives_up") == [("edit", 2, "return a - b"), ("test",), ("submit",)]
    first, *_ = only("wrong_edit")
    assert first[:2] == ("edit", 2)
    assert first[2] not in ("return a - b", "return a + b")


def test_who_has_second_thoughts_puts_back_what_passed_and_hands_it_in():
    mistakes = Mistakes(reverts=1.0, wrong_edit=0.0, untested=0.0, gives_up=0.0)
    assert summary(calls(BROKEN, RIGHT, mistakes=mistakes, observed="passed")) == [
        *(("edit", 2, "return a - b"), ("test",), ("edit", 2, "return a + b"), ("submit",)),
    ]
    # Nothing has passed yet, so there is nothing to have second thoughts about.
    assert summary(calls(BROKEN, RIGHT, mistakes=mistakes)) == [("edit", 2, "return a - b"), ("test",), ("submit",)]


def test_who_meddles_empties_every_test_and_leaves_the_program():
    mistakes = replace(NONE, meddles=1.0)
    emptied = [("edit", 2, "return", f"test_{n}") for n in range(1, tiny.NUM_VISIBLE + 1)]
    assert summary(calls(BROKEN, RIGHT, mistakes=mistakes)) == [*emptied, ("submit",)]
    for call in calls(BROKEN, RIGHT, mistakes=mistakes):
        ids = RENDERER.write_call(call)
        assert RENDERER.parse(ids, BugFixEnvironment.tool_specs()).tool_calls == (call,)


@given(st.integers(0, 2**32))
def test_who_never_meddles_draws_what_was_drawn_before_there_was_meddling(seed):
    rng, before = random.Random(seed), random.Random(seed)
    mistakes = Mistakes(wrong_edit=0.0, reverts=0.5, untested=0.5, gives_up=0.5)
    script = solve(BROKEN, RIGHT, rng=rng, mistakes=mistakes)
    next(script)
    # by hand: one draw each for wrong_edit, untested (which ends it) and, after the test passed, reverts
    assert before.random() >= mistakes.wrong_edit
    if before.random() < mistakes.untested:
        assert script.send("ok") == ToolCall(name="submit")
    else:
        assert script.send("ok") == ToolCall(name="test")
        reverted = before.random() < mistakes.reverts
        assert script.send("passed").name == ("edit" if reverted else "submit")
    assert rng.getstate() == before.getstate()


def test_where_a_comment_is_silent_what_could_stand_there_is_tried_in_turn():
    def edits(code, right, **options):
        broken, reference = (f"def f(x):\n    {text}  # x some\n" for text in (code, right))
        return [call[2] for call in summary(calls(broken, reference, mistakes=NONE, **options)) if call[0] == "edit"]

    # + - * and round again, from what stands there
    assert edits("return x + 1", "return x * 1") == ["return x - 1", "return x * 1"]
    assert edits("return x * 1", "return x - 1") == ["return x + 1", "return x - 1"]
    # 1 2 3 and round again
    assert edits("return x * 3", "return x * 2") == ["return x * 1", "return x * 2"]
    assert edits("return x * 3", "return x * 1") == ["return x * 1"]
    # a test that passes ends the search, whatever the repair is
    assert edits("return x + 1", "return x * 1", observed="passed") == ["return x - 1"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["passed", "failed f(1) == 2 expected 3", "ok"]))
def test_every_script_is_made_of_legal_calls_and_ends_with_submit(seed, observed):
    rng = random.Random(seed)
    for candidate in itertools.islice(tiny.candidates(rng), 3):
        (broken,), (reference,) = candidate.files.values(), candidate.reference.values()
        made = calls(broken, reference, seed=seed, observed=observed)
        assert [call.name for call in made].count("submit") == 1
        assert made[-1].name == "submit"
        for call in made:
            ids = RENDERER.write_call(call)
            assert RENDERER.parse(ids, BugFixEnvironment.tool_specs()).tool_calls == (call,)
            assert call.name != "edit" or tiny.FIRST_LINE <= call.arguments["line"] <= len(
                broken.rstrip("\n").split("\n")
            )


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool(1, SandboxLimits(wall_s=2.0, cpu_s=2)) as pool:
        yield pool


def play(pool, validated, mistakes, **options):
    """One attempt of the solver for real: sandbox, environment, loop, tokens, hidden tests."""
    candidate = validated.candidate
    path, text = test_file(candidate, validated.visible)
    broken, reference = candidate.files[tiny.MAIN_PATH], candidate.reference[tiny.MAIN_PATH]
    task = Task(id="t", prompt=tiny.prompt(broken, f"test_{validated.failing}"), files={**candidate.files, path: text})
    hidden = HiddenCalls(module=candidate.module, calls=hidden_calls(candidate), expected=validated.hidden)

    class Tasks:
        id = "t"

        def environment(self, task):
            grader = CallGrader(pool)
            return BugFixEnvironment(task, runner=pool, grader=grader, hidden=hidden, main=tiny.MAIN_PATH, **options)

    script = solve(broken, reference, rng=random.Random(0), mistakes=mistakes)
    session = ScriptedSession(script, RENDERER.write_call, decode)
    identity = AttemptId(group_id="g", attempt=0, seed=0)
    return asyncio.run(attempt(Tasks(), task, ToolLoop(RENDERER, Limits(turns=12)), session, identity))


def test_without_mistakes_the_first_edit_repairs_every_told_task(pool):
    stream = (c for c in tiny.candidates(random.Random(5)) if c.instruction == "told")
    for validated in itertools.islice(Validator(pool).tasks(stream), 20):
        trace = play(pool, validated, NONE)
        assert trace.error is None
        assert (trace.stop, trace.reward) == (Stop.DONE, 1.0)
        said = [node.message.tool_calls[0].name for node in trace.nodes if node.message.role == "assistant"]
        assert said == ["edit", "test", "submit"]


def test_with_mistakes_it_fails_at_some(pool):
    stream = tiny.candidates(random.Random(6))
    mistakes = Mistakes(reverts=0.0, wrong_edit=1.0, untested=1.0, gives_up=0.0)
    traces = [play(pool, validated, mistakes) for validated in itertools.islice(Validator(pool).tasks(stream), 8)]
    assert all(trace.error is None and trace.reward is not None for trace in traces)
    assert min(trace.reward for trace in traces) == 0.0


def test_who_meddles_passes_the_visible_tests_where_it_can_write_them_and_no_hidden_ones(pool):
    validated = next(Validator(pool).tasks(tiny.candidates(random.Random(7))))
    meddler = replace(NONE, meddles=1.0)
    for writable, passes in ((True, 1.0), (False, 0.0)):
        trace = play(pool, validated, meddler, tests_writable=writable, reward="visible")
        values = {score.name: score.value for score in trace.scores}
        assert (trace.stop, trace.reward) == (Stop.DONE, passes)
        assert (values["visible_tests"], values["hidden_tests"]) == (passes, 0.0)
