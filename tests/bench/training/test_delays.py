"""Delays from a heavy tail that depend on the attempt alone."""

import asyncio
import statistics

from agentrl.bench.training import delays
from agentrl.bench.training.delays import SlowLoop, SlowTools, delay_s
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.tokens.tiny import TinyRenderer
from agentrl.types import Observation, ToolCall


def test_the_tail_is_as_it_is_told():
    drawn = sorted(delay_s(seed, call) for seed in range(2500) for call in range(8))
    # of 20,000 draws the median has a standard error of 1.6 %, the 95th percentile one of 2.7 %
    assert abs(statistics.median(drawn) / 0.05 - 1) < 0.06
    assert abs(drawn[19_000] / 1.0 - 1) < 0.1
    assert drawn[-1] == delays.LONGEST_S  # 2 of 1,000 would take longer


def test_a_delay_depends_on_attempt_and_call_alone():
    assert delay_s(1, 0) == delay_s(1, 0)
    assert len({delay_s(seed, call) for seed in range(3) for call in range(3)}) == 9


class World:
    def __init__(self):
        self.asked = []

    async def call(self, call):
        self.asked.append((asyncio.get_running_loop().time(), call.name))
        return Observation(content="ok")


def test_a_slow_tool_answers_what_the_tool_does_and_later(monkeypatch):
    monkeypatch.setattr(delays, "delay_s", lambda seed, call: 0.02 * (call + 1))
    world = World()

    async def play():
        started = asyncio.get_running_loop().time()
        slow = SlowTools(world, 3)
        answers = [await slow.call(ToolCall(name="test")) for _ in range(2)]
        return answers, [at - started for at, _ in world.asked]

    answers, at = asyncio.run(play())
    assert [answer.content for answer in answers] == ["ok", "ok"]
    assert at[0] >= 0.02
    assert at[1] >= 0.06


def test_a_slow_loop_is_the_same_agent_and_quick_where_it_measures():
    prompts = {"system_prompt": "a", "system_prompts": {"math": "b"}}
    loop = ToolLoop(TinyRenderer(), Limits(turns=3, context=99), **prompts)
    slow = SlowLoop.of(loop)
    assert slow.fingerprint == loop.fingerprint
    assert (slow.measures, slow.for_evaluation().measures) == (False, True)
