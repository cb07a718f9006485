"""Scripted demonstrations: they repair, they err as often as they are told to, and any renderer can write them."""

import asyncio
import random
from collections import Counter

import pytest

from agentrl.engine.scripted import ScriptedSession
from agentrl.errors import ConfigError
from agentrl.evals.baselines import PlainRenderer, edits, scripted_harness
from agentrl.harness.configured import configured_loop
from agentrl.loops.demonstrations import demonstrations, repair
from agentrl.recipes import qwen3_06b_bugfix
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.store import RunFolder
from agentrl.tasks.bugfix.solver import Mistakes
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tokens.chatml import ChatMLRenderer
from agentrl.types import Stop
from tests.loops.test_run import Reporter
from tests.pools import open_pool
from tests.tokens.real import needs_assets, vocabulary

NONE = Mistakes(wrong_edit=0.0, reverts=0.0, untested=0.0, gives_up=0.0)
NUM_TASKS = 12


def real(test):
    """Marks a test that needs the real tokenizer."""
    for mark in needs_assets:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def small():
    with open_pool(2) as pool:
        yield BugFix("small", "train", NUM_TASKS, pool=pool)


def play(task_set, mistakes):
    """Each task demonstrated once, and scored."""
    renderer, harness = PlainRenderer(), scripted_harness(12)

    async def one(task, number):
        path = task.metadata["main_path"]
        script = repair(
            task.files[path], task_set.solution(task.id)[path], {}, rng=random.Random(number), mistakes=mistakes
        )
        session = ScriptedSession(script, renderer.write, renderer.decode)
        return await attempt(task_set, task, harness, session, AttemptId(group_id="g", attempt=number, seed=0))

    async def all_of_them():
        return await asyncio.gather(*(one(task_set[number], number) for number in range(len(task_set))))

    return asyncio.run(all_of_them())


def names(trace):
    return [call.name for node in trace.nodes for call in node.message.tool_calls]


def test_without_mistakes_every_task_is_read_mended_tested_and_handed_in(small):
    traces = play(small, NONE)
    assert [trace.reward for trace in traces] == [1.0] * NUM_TASKS
    assert {trace.stop for trace in traces} == {Stop.DONE}
    for trace in traces:
        first, *middle, test, last = names(trace)
        assert (first, set(middle), test, last) == ("read", {"edit"}, "test", "submit")


def test_a_wrong_edit_comes_before_the_right_one_and_fails_its_test(small):
    traces = play(small, Mistakes(wrong_edit=1.0, reverts=0.0, untested=0.0, gives_up=0.0))
    tests = [names(trace).count("test") for trace in traces]
    assert set(tests) <= {1, 2}
    assert tests.count(2) >= NUM_TASKS / 2  # not every line has another bug, and not every test notices it
    assert sum(trace.reward for trace in traces) >= NUM_TASKS - tests.count(1)


def test_what_passed_is_taken_back_and_what_failed_is_handed_in_when_asked_for(small):
    reverted = play(small, Mistakes(wrong_edit=0.0, reverts=1.0, untested=0.0, gives_up=0.0))
    assert [trace.reward for trace in reverted] == [0.0] * NUM_TASKS
    given_up = play(small, Mistakes(wrong_edit=1.0, reverts=0.0, untested=0.0, gives_up=1.0))
    assert sum(trace.reward for trace in given_up) <= NUM_TASKS / 2
    untested = play(small, Mistakes(wrong_edit=0.0, reverts=0.0, untested=1.0, gives_up=0.0))
    assert Counter(name for trace in untested for name in names(trace))["test"] == 0
    assert [trace.reward for trace in untested] == [1.0] * NUM_TASKS


def test_a_repair_of_several_lines_ends_at_the_right_text():
    broken, right = "a\nb\nc\n", "a\nB\nX\nc\nd\n"
    script = repair(broken, right, {"path": "m.py"}, rng=random.Random(0), mistakes=NONE)
    calls = [next(script)]
    try:
        while True:
            calls.append(script.send("2 passed, 0 failed"))
    except StopIteration:
        pass
    assert [call.name for call in calls] == ["read", *["edit"] * len(list(edits(broken, right))), "test", "submit"]
    assert {call.arguments.get("path") for call in calls[:-2]} == {"m.py"}


class WithoutAModel:
    """The parts of a run of the recipe that demonstrations need, on the first tasks."""

    def __init__(self, folder, config, task_set):
        self.folder, self.config, self.task_set = folder, config, task_set
        self.reporter = Reporter()
        self.renderer = ChatMLRenderer(vocabulary(), thinking=config.hf.thinking)
        self.harness = configured_loop(self.renderer, config)

    def train_tasks(self):
        return self.task_set


@real
def test_in_the_tokens_of_a_real_model_each_task_is_demonstrated_by_calls_as_it_writes_them(tmp_path, small):
    recipe = qwen3_06b_bugfix.config()
    erring = recipe.warm_start.model_copy(update={"wrong_edit": 0.5, "demonstrations": 2})
    config = recipe.model_copy(update={"warm_start": erring})
    run = WithoutAModel(RunFolder.create(tmp_path, config), config, small)
    units = demonstrations(run)
    assert [len(unit.samples) for unit in units] == [2] * NUM_TASKS
    assert [unit.about for unit in units] == [task.id for task in small]
    for trace in run.folder.iter_traces("warm_start", 0):
        assert trace.stop is Stop.DONE
        assert (names(trace)[0], names(trace)[-1]) == ("read", "submit")
    for sample in (sample for unit in units for sample in unit.samples):
        ids = [token for token, weight in zip(sample.token_ids, sample.weights["ce"], strict=True) if weight]
        replies = vocabulary().decode(ids).split("<|im_end|>")[:-1]
        assert replies[-1] == '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'
        assert all(reply.startswith("<tool_call>\n{") and reply.endswith("}\n</tool_call>") for reply in replies)
        assert ids.count(vocabulary().control("<tool_call>")) == len(replies)
        assert len(sample.token_ids) <= config.model.context


@real
def test_the_solver_meddles_with_tests_at_the_tiny_level_alone(tmp_path, small):
    recipe = qwen3_06b_bugfix.config()
    config = recipe.model_copy(update={"warm_start": recipe.warm_start.model_copy(update={"meddles": 0.5})})
    with pytest.raises(ConfigError, match=r"warm_start.meddles 0.5: the solver meddles at the level tiny alone"):
        demonstrations(WithoutAModel(RunFolder.create(tmp_path, config), config, small))
