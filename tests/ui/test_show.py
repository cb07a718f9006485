"""Plots and tables of the terminal, on small numbers."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from agentrl.tokens.samples import samples
from agentrl.types import Fault, Message, Node, Score, Stop, ToolCall, Trace
from agentrl.ui.show import (
    attempt,
    binned,
    block_plot,
    call_text,
    curves,
    result,
    result_table,
    summary_lines,
    time_lines,
    token_table,
)


def text(*parts: object) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


def cells(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*(column.cells for column in table.columns), strict=True))  # type: ignore[arg-type]


def test_a_block_plot_of_eighths() -> None:
    # height 2 is 16 eighths for the range 0 to 1: 0.5 fills the lower line, 0.5625 has one eighth of the upper
    assert block_plot([0.0, 0.5, 0.5625, 1.0], height=2) == ["   1.00 ┤  ▁█", "   0.00 ┤ ███"]


def test_the_scale_holds_what_is_above_one_and_below_zero() -> None:
    # from -1 to 3: 0.0 is a quarter of 2 lines, half of the lower one
    assert block_plot([-1.0, 0.0, 3.0], height=2) == ["   3.00 ┤  █", "  -1.00 ┤ ▄█"]


@given(values=st.lists(st.floats(-100, 100), min_size=1, max_size=60), bins=st.integers(1, 20))
def test_bins_cover_every_value_once(values: list[float], bins: int) -> None:
    found = binned(values, bins)
    assert len(found) == min(bins, len(values))
    assert min(values) - 1e-9 <= min(found)
    assert max(found) <= max(values) + 1e-9
    if bins >= len(values):
        assert found == values


def test_bins_are_means_of_neighbours() -> None:
    assert binned([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert binned([], 5) == []


def test_curves_leave_out_what_was_not_measured() -> None:
    assert curves([]) == []
    assert curves([{"phase": "warm_start", "step": 1, "loss": 1.0}, {"phase": "rl", "step": 1, "reward": None}]) == []
    shown = text(*curves([{"phase": "eval", "step": 4, "pass_rate": 0.5, "pass_rate_low": 0.4, "pass_rate_high": 0.6}]))
    # half of 30 columns
    assert f"step     4 {'█' * 15}{' ' * 15}  50.0% [40.0%, 60.0%]" in shown


def test_the_result_table_gives_the_difference_a_sign() -> None:
    measured = {"pass@1": {"mean": 0.25, "low": 0.125, "high": 0.375}, "tasks": 200, "attempts": 400}
    table = result_table({"eval": {"before": measured, "difference": measured}})
    assert cells(table) == [
        ("before RL", "0.250", "[0.125, 0.375]", "200", "400"),
        ("paired difference", "+0.250", "[+0.125, +0.375]", "200", "400"),
    ]
    assert cells(result_table({})) == []


def test_where_nothing_was_held_out_the_losses_are_shown() -> None:
    """The first step has no validation, and a step of RL without a scored attempt no reward."""
    rows = [
        {"phase": "warm_start", "step": 1, "loss": 3.0},
        {"phase": "warm_start", "step": 2, "loss": 1.0, "validation_loss": 1.5},
        {"phase": "warm_start", "step": 3, "loss": 2.0, "validation_loss": 1.25},
        {"phase": "rl", "step": 1, "loss": -0.5, "reward": None},
    ]
    assert cells(result({"eval": {}}, rows)) == [
        ("warm start, loss", "3.0000", "2.0000", "1.0000", "3.0000", "3"),
        ("warm start, validation loss", "1.5000", "1.2500", "1.2500", "1.5000", "2"),
        ("RL, loss", "-0.5000", "-0.5000", "-0.5000", "-0.5000", "1"),
    ]
    measured = {"pass@1": {"mean": 0.25, "low": 0.1, "high": 0.4}, "tasks": 8, "attempts": 16}
    after = {"eval": {"after": measured}, "trained": "supervised fine-tuning"}
    assert cells(result(after, rows)) == [("after supervised fine-tuning", "0.250", "[0.100, 0.400]", "8", "16")]


def test_summary_lines_are_aligned_and_leave_nested_values_out() -> None:
    assert summary_lines({"seed": 3, "wall_s": 1234.56, "eval": {}}) == ["seed    3", "wall_s  1,234.6"]


def test_what_a_run_was_told_stands_in_its_summary() -> None:
    assert summary_lines({"seed": 3, "notes": ["a", "b"]}) == ["seed  3", "note: a", "note: b"]


def test_the_summary_ends_with_where_the_time_went() -> None:
    seconds = {"tasks": 9.0, "warm_start": 2.0, "checkpoints": 0.25, "wall": 11.25}
    assert summary_lines({"seed": 3, "seconds": seconds}) == [
        "seed  3",
        "seconds: tasks 9.0, warm start 2.0, checkpoints 0.2; 11.2 in all",
    ]
    assert time_lines({"seconds": {"wall": 3.0}}) == time_lines({}) == []


def test_what_no_stage_has_is_told_as_other() -> None:
    seconds = {"sampling": 3.0, "tools": 1.0, "rl": 4.5, "tasks": 9.0, "wall": 15.0}
    # 4.5 - (3 + 1) = 0.5, and 15 - (9 + 4.5) = 1.5
    line = "seconds: tasks 9.0, RL 4.5 (sampling 3.0, tools 1.0, other 0.5), other 1.5; 15.0 in all"
    assert time_lines({"seconds": seconds}) == [line]


def test_what_goes_on_while_the_trainer_works_is_no_part_of_its_time() -> None:
    seconds = {"sampling": 9.0, "training": 7.5, "waiting": 4.0, "overlap": 6.0, "rl": 10.0, "wall": 12.0}
    assert time_lines({"seconds": seconds}) == [
        "seconds: RL 10.0 (waiting for attempts 4.0, learning and publishing 6.0), other 2.0; 12.0 in all",
        "at the same time: the sampler was at work in 9.0 of RL's seconds, and attempts were in flight in 6.0 of those "
        "of learning",
    ]


def test_a_run_whose_stages_were_longer_than_its_clock_is_not_said_to_be_whole() -> None:
    """The clock of a run that was killed begins again with the checkpoint."""
    assert time_lines({"seconds": {"tasks": 9.0, "wall": 5.0}}) == ["seconds: tasks 9.0"]


STAGES = ("tasks", "warm_start", "rl", "checkpoints", "evaluation")
LENGTHS = st.floats(0, 1e4)


@given(
    st.dictionaries(st.sampled_from(STAGES), LENGTHS, min_size=1),
    st.lists(LENGTHS, min_size=3, max_size=3),
    st.booleans(),
    st.floats(0.001, 1e4),
)
def test_parts_add_up_to_their_whole_as_they_are_shown(
    stages: dict[str, float], turns: list[float], ahead: bool, rest: float
) -> None:
    if "rl" in stages:
        stages["rl"] = sum(turns)
    of_rl = {"waiting": turns[0], "training": turns[2]} if ahead else {}
    within = {"sampling": turns[0], "tools": turns[1], "training": turns[2], **of_rl}
    line = time_lines({"seconds": {**stages, **within, "wall": sum(stages.values()) + rest}})[0].replace(",", "")
    inner = re.search(r"RL ([\d.]+) \((.*?)\)", line)
    assert (inner is None) == ("rl" not in stages)
    if inner:
        assert tenths(inner[2]) == tenths(inner[1])
    parts, whole = re.sub(r" \(.*?\)", "", line).split(";")
    assert tenths(parts) == tenths(whole)


def tenths(text: str) -> int:
    return sum(round(10 * float(number)) for number in re.findall(r"\d+\.\d", text))


def test_a_call_shows_what_is_malformed() -> None:
    call = ToolCall(name="edit", arguments={"line": 1, "text": 'a "é"\n'}, problem="line 9 of 3")
    assert call_text(call) == '→ edit(line=1, text="a \\"é\\"\\n")  ✗ malformed: line 9 of 3'


NODE = Node(
    parent=0,
    message=Message(role="assistant", content="hm"),
    context_ids=(5,),
    sampled_ids=(1, 0),
    logprobs=(-0.5, -2.0),
    versions=(3, 4),
)
FORKED = Trace(
    id="t",
    task_id="k",
    group_id="g",
    attempt=0,
    seed=1,
    nodes=(Node(parent=None, message=Message(role="user", content="[bold]x"), context_ids=(5,)), NODE, NODE),
    stop=Stop.ERROR,
    scores=(Score(name="hidden_tests", value=None),),
    error=Fault(boundary="sandbox", message="worker died"),
)


def test_exactly_the_sampled_tokens_are_trained() -> None:
    assert cells(token_table(NODE, {"objective": "pg", "advantage": -0.25}, ["a", "\n"])) == [
        ("5", "", "", "", "no", "", "0"),  # given, and not in the vocabulary
        ("1", "'\\n'", "-0.5000", "3", "yes", "-0.250", "1"),
        ("0", "'a'", "-2.0000", "4", "yes", "-0.250", "1"),
    ]


# an evaluation, a group that was left out, a demonstration, an attempt of an algorithm with a critic, one with credit 0
@pytest.mark.parametrize(
    ("metadata", "row", "said"),
    [
        ({}, ("no", "", "0"), "trained: no"),
        ({"left_out": "no_signal", "advantage": None}, ("no", "", "0"), "trained: no, left out as no_signal"),
        ({"objective": "ce", "advantage": None}, ("yes", "", "1"), "trained: yes, by cross entropy"),
        ({"objective": "pg", "advantage": None}, ("yes", "", "1"), "trained: yes, by policy gradient, each token with"),
        ({"objective": "pg", "advantage": 0.0}, ("yes", "+0.000", "1"), "trained: yes, by policy gradient"),
    ],
)
def test_an_attempt_says_whether_and_how_it_was_trained(
    metadata: dict[str, object], row: tuple[str, ...], said: str
) -> None:
    given, *sampled = cells(token_table(NODE, metadata, None))
    assert given[4:] == ("no", "", "0")
    assert [cell[4:] for cell in sampled] == [row, row]
    assert said in text(attempt(replace(FORKED, metadata=metadata))).splitlines()[-1]


def test_turns_with_a_credit_of_their_own_show_it() -> None:
    metadata = {"objective": "pg", "advantage": None, "advantages": [0.5, -1.0]}
    shown = text(attempt(replace(FORKED, metadata=metadata), tokens=True))
    assert shown.count("+0.500") == shown.count("-1.000") == 3  # two tokens of each reply, and the last line
    assert shown.splitlines()[-1] == "trained: yes, by policy gradient, turn by turn +0.500, -1.000"


def test_the_weights_that_are_shown_are_those_of_the_samples() -> None:
    # the root is in both branches and is trained in neither; each of the two replies has 2 tokens of its own
    made = samples(FORKED, None, objective="ce")
    shown = [
        row for node in FORKED.nodes for row in cells(token_table(node, {"objective": "ce", "advantage": None}, None))
    ]
    assert sum(float(row[-1]) for row in shown) == sum(sum(sample.weights["ce"]) for sample in made) == 4.0


def test_an_unscored_attempt_says_so_and_shows_its_fork() -> None:
    shown = text(attempt(FORKED))
    assert "[2] assistant  (1 tokens given, 2 sampled, continues 0)" in shown
    assert "error in sandbox: worker died" in shown
    assert "score hidden_tests: not scored (weight 1)" in shown
    assert "reward: none   advantage: none" in shown
    assert "[bold]x" in shown


def test_what_was_cut_is_said_and_a_branch_shows_what_it_tells_again() -> None:
    cut = {"stop": "context_full", "what": "reply", "tokens": 7}
    again = Node(parent=None, message=Message(role="user", content="x"), context_ids=(5,), copied=True)
    shown = text(attempt(replace(FORKED, nodes=(*FORKED.nodes, again), metadata={"cuts": [cut]})))
    assert "cut: stop context_full, what reply, tokens 7" in shown
    assert "[3] user  (1 tokens given, 0 sampled, begins anew, told before)" in shown
    assert "cut:" not in text(attempt(FORKED))
