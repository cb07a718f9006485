"""What the loops of a run share."""

import sys

import pytest
import torch

from agentrl.errors import ConfigError, TaskError
from agentrl.loops.agent import Agent, check_tools
from agentrl.loops.context import RunContext
from agentrl.loops.footprint.resident import resident_mib
from agentrl.sandbox import Calls, Job
from agentrl.store import RunFolder
from agentrl.tokens.choose import choose_renderer
from agentrl.tokens.vocabulary import Vocabulary
from agentrl.train.trainer import OptimizerSettings
from tests.loops.test_learning import CONFIG, Silent
from tests.pools import open_pool
from tests.tokens.templates import CHATML, QWEN25, SMOLLM, small_tokenizer

JOB = Job(files={"m.py": "def f():\n    return 1\n"}, run=Calls(module="m", calls=(("f", ()),)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_boxes_are_in_the_resident_memory_while_they_run():
    before = resident_mib()
    with open_pool(2) as pool:
        pool.run_sync([JOB])
        # a warm interpreter has several MiB and, with nothing but the standard library, not hundreds
        assert 4 < resident_mib() - before < 200
    assert resident_mib() < before + 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_that_has_ended_remembers_its_boxes(tmp_path):
    context = RunContext(CONFIG, RunFolder.create(tmp_path, CONFIG), Silent())
    context.pool.run_sync([JOB])
    context.close()
    assert context.resident_mib() > resident_mib() + 4


def test_a_critic_of_its_own_begins_as_a_copy_of_the_policy(tmp_path):
    context = RunContext(CONFIG, RunFolder.create(tmp_path, CONFIG), Silent())
    try:
        settings = OptimizerSettings(learning_rate=1e-3, matrix_learning_rate=1e-3, total_steps=2)
        context.start_phase("rl", settings)
        critic = context.start_critic(settings).model
    finally:
        context.close()
    policy, own = dict(context.model.named_parameters()), dict(critic.named_parameters())
    assert set(own) == {*policy, "value.weight", "value.bias"}
    assert all(torch.equal(own[name], weight) for name, weight in policy.items())
    assert all(own[name] is not weight for name, weight in policy.items())


@pytest.mark.parametrize(("template", "taken"), [(QWEN25, True), (SMOLLM, False)])
def test_a_template_without_tools_is_refused_before_there_are_tasks(template, taken):
    settings = {"chat_template": template, "eos_token": CHATML[2]}
    vocabulary = Vocabulary(small_tokenizer(CHATML), settings)
    agent = Agent(model=None, renderer=choose_renderer(vocabulary, thinking=False))
    if taken:
        check_tools(agent, "some-model")
        return
    with pytest.raises(ConfigError, match=r"model.name some-model: the tasks need tools, and the template does"):
        check_tools(agent, "some-model")


def test_an_evaluation_that_nobody_could_score_says_so(tmp_path):
    context = RunContext(CONFIG, RunFolder.create(tmp_path, CONFIG), Silent())
    try:
        context.tasks("test", CONFIG.eval.tasks)
        context.pool.close()  # what would run the hidden tests is gone
        with pytest.raises(TaskError, match=r"evaluation test-before of \d+ tasks: 0 scored task"):
            context.measure("before", 0)
    finally:
        context.close()
