"""A task set may have a system prompt of its own: which one a task gets, and what a configuration may name."""

import asyncio

import pytest

from agentrl.config import TrainConfig, apply_overrides, fingerprint, from_toml, to_toml
from agentrl.errors import ConfigError
from agentrl.harness.configured import configured_loop
from agentrl.harness.loop import Limits, ToolLoop, Transcript
from agentrl.harness.prompts import SystemPrompts, set_of
from agentrl.settings.agent import TASK_SETS
from agentrl.tasks import humanevalfix, math, reasoning_gym
from agentrl.tasks.bugfix import taskset
from agentrl.types import Message, Task
from tests.harness.parts import PROMPT, Recorder, World
from tests.harness.test_configured import SUBMIT, PlainRenderer

OWN = Message(role="system", content="The tasks' own.")
MODEL = TrainConfig(recipe="example", model={"name": "some/model", "context": 4096})


def task(name):
    return Task(id=name, prompt=(OWN, *PROMPT))


@pytest.mark.parametrize(
    ("task_id", "name"),
    [
        ("bugfix-v1/small/train/17", "bugfix"),
        ("bugfix-v12/tiny-8/test/0", "bugfix"),
        ("humanevalfix-v1/3", "humanevalfix"),
        ("math-v1/sums-v2-1a2b3c4d/0", "math"),
        ("reasoning-gym-v1/0.1.25/countdown/test/0", "reasoning-gym"),
        ("lines/4", "lines"),
        ("very-vague/4", "very-vague"),
    ],
)
def test_a_task_says_of_which_set_it_is(task_id, name):
    assert set_of(task(task_id)) == name


def test_the_names_are_those_of_the_task_sets_that_there_are():
    versions = (taskset.VERSION, humanevalfix.VERSION, math.VERSION, reasoning_gym.VERSION)
    assert sorted(set_of(task(f"{version}/0")) for version in versions) == sorted(TASK_SETS)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ({}, OWN.content),
        ({"every": "For all."}, "For all."),
        ({"by_set": {"math": "For sums."}}, "For sums."),
        ({"by_set": {"bugfix": "For bugs."}}, OWN.content),
        ({"every": "For all.", "by_set": {"bugfix": "For bugs."}}, "For all."),
        ({"every": "For all.", "by_set": {"math": "For sums."}}, "For sums."),
        ({"every": "For all.", "by_set": {"math": ""}}, OWN.content),  # empty text is the tasks' own
    ],
)
def test_the_prompt_of_its_set_comes_before_the_one_for_all(prompts, expected):
    opening = SystemPrompts(**prompts).opening(task("math-v1/sums-1a2b3c4d/0"))
    assert tuple(opening) == (Message(role="system", content=expected), *PROMPT)


def test_one_loop_plays_each_set_with_its_own():
    loop = ToolLoop(PlainRenderer(), Limits(context=200), system_prompts={"math": "Add.", "bugfix": "Mend."})
    seen = {}
    for name in ("math-v1/a/0", "bugfix-v1/small/train/0", "reasoning-gym-v1/1/x/test/0"):
        transcript = Transcript()
        asyncio.run(loop.run(task(name), World(), Recorder([SUBMIT]), transcript))
        seen[name.partition("-v1")[0]] = transcript.nodes[0].message.content
    assert seen == {"math": "Add.", "bugfix": "Mend.", "reasoning-gym": OWN.content}


def test_other_prompts_are_another_agent():
    def fingerprint_of(**prompts):
        return ToolLoop(PlainRenderer(), Limits(), **prompts).fingerprint

    # what stood under a fingerprint before sets could have prompts of their own: SHA-256 of "a" begins ca978112ca1b
    assert fingerprint_of(system_prompt="a", system_prompts={}).endswith("/system-ca978112ca1b")
    assert "system" not in fingerprint_of()
    several = [{"math": "a"}, {"math": "b"}, {"bugfix": "a"}, {"bugfix": "a", "math": "a"}, {"math": ""}]
    prints = {fingerprint_of(system_prompts=one) for one in several}
    prints |= {fingerprint_of(system_prompt=every) for every in ("", "a")}
    prints.add(fingerprint_of(system_prompt="a", system_prompts={"math": "a"}))
    assert len(prints) == 5 + 2 + 1
    in_order, turned = {"math": "a", "bugfix": "b"}, {"bugfix": "b", "math": "a"}
    assert fingerprint_of(system_prompts=in_order) == fingerprint_of(system_prompts=turned)


# Configurations.


def test_a_configuration_names_them_and_keeps_them():
    words = {"harness.system_prompt": "All.", "harness.system_prompts.math": "Sums,\nslowly = 1, [2].\n"}
    config = apply_overrides(MODEL, {**words, "harness.system_prompts.bugfix": ""})
    assert config.harness.system_prompts == {"math": "Sums,\nslowly = 1, [2].\n", "bugfix": ""}
    assert from_toml(to_toml(config)) == config
    assert fingerprint(config) != fingerprint(apply_overrides(MODEL, {"harness.system_prompt": "All."}))
    loop = configured_loop(PlainRenderer(), config)
    assert loop.prompt(task("math-v1/a/0"))[0].content == "Sums,\nslowly = 1, [2].\n"
    assert loop.prompt(task("bugfix-v1/small/train/0"))[0] == OWN
    assert loop.prompt(task("humanevalfix-v1/0"))[0].content == "All."


def test_what_was_stored_before_there_were_any_is_read():
    stored = to_toml(MODEL)
    assert "[harness.system_prompts]\n" in stored
    assert from_toml(stored.replace("[harness.system_prompts]\n", "")) == MODEL


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("system_prompts.mth", "x", r"there is no task set 'mth'; did you mean math\? the task sets are bugfix, hum"),
        ("system_prompts.bugfix-v1", "x", r"no task set 'bugfix-v1'; did you mean bugfix\?"),
        ("system_prompts.chess", "x", r"no task set 'chess'; the task sets are bugfix, humanevalfix, math, reasoning"),
        ("system_prompts", "x", r"a table and cannot be set to 'x'; set its values .*: harness\.system_prompts\.NAME"),
    ],
)
def test_an_unknown_set_is_refused_with_those_that_there_are(key, value, message):
    with pytest.raises(ConfigError, match=message):
        apply_overrides(MODEL, {f"harness.{key}": value})


def test_a_prompt_in_a_file_is_text():
    with pytest.raises(ConfigError, match=r"harness\.system_prompts\.math = 3 is not allowed; it must be text"):
        from_toml('recipe = "x"\n[harness.system_prompts]\nmath = 3\n')


def test_tiny_agent_has_no_words_for_them():
    with pytest.raises(ConfigError, match=r"harness\.system_prompts \{'bugfix': 'x'\}: TinyAgent has no words for it"):
        apply_overrides(TrainConfig(recipe="example"), {"harness.system_prompts.bugfix": "x"})
