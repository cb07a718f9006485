"""Floors and ceilings of task sets: what they do, and that they bound what can be scored."""

import asyncio
import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.evals.baselines import PlainRenderer, edits, no_ceiling, player
from agentrl.tokens.toolcalls import checked
from agentrl.types import Stop, ToolCall
from tests.evals.world import SPEC, Lines, evaluator, go_on


def play(path, name, tasks=4, attempts=3):
    task_set = Lines(tasks)
    spec = dataclasses.replace(SPEC, weights=name)
    parts, listed = evaluator(path, task_set, player(name, task_set), spec=spec)
    asyncio.run(parts.run(listed, attempts, go_on))
    return parts.folder.traces()


def calls(traces):
    return [call for trace in traces for node in trace.nodes for call in node.message.tool_calls]


def test_the_ceiling_solves_everything_and_the_floor_nothing(tmp_path):
    assert [trace.reward for trace in play(tmp_path / "c", "reference")] == [1.0] * 12
    floor = play(tmp_path / "f", "submit")
    assert [trace.reward for trace in floor] == [0.0] * 12
    assert Counter(call.name for call in calls(floor)) == {"submit": 12}


def test_random_calls_are_legal_and_differ_by_seed(tmp_path):
    traces = play(tmp_path / "r", "random", attempts=6)
    made = calls(traces)
    specs = {spec.name: spec for spec in Lines(1)[0].tools}
    assert [checked(call, specs) for call in made] == made
    assert {trace.stop for trace in traces} == {Stop.DONE, Stop.MAX_TURNS}
    assert len({tuple(map(repr, calls([trace]))) for trace in traces}) > 6
    again = play(tmp_path / "s", "random", attempts=6)
    assert list(map(repr, calls(again))) == list(map(repr, made))


def test_a_task_set_without_a_solution_has_no_ceiling():
    class Unsolved:
        id = "unsolved"

    assert no_ceiling(Unsolved()) == (
        "unsolved has no ceiling: it has no method solution(task_id) with the right files"
    )
    with pytest.raises(ValueError, match="unsolved has no ceiling"):
        player("reference", Unsolved())
    with pytest.raises(ValueError, match="no scripted policy 'best'; there are submit, random, reference"):
        player("best", Lines(1))


def test_a_call_comes_back_as_it_was_written():
    renderer = PlainRenderer()
    call = ToolCall(name="edit", arguments={"line": 2, "text": 'é "\n', "path": "a"})
    assert renderer.parse(renderer.write(call), ()).tool_calls == (call,)
    assert renderer.parse(renderer.write(ToolCall(name="")), ()).tool_calls == ()


LINES = st.lists(st.sampled_from(["a", "b", "  c", "d"]), min_size=1, max_size=8)


@given(old=LINES, new=LINES)
def test_edits_turn_one_text_into_the_other(old, new):
    lines = list(old)
    for number, text in edits("\n".join(old) + "\n", "\n".join(new) + "\n"):
        lines[number - 1 : number] = text.split("\n") if text else []
    assert lines == new
