"""What is shown while a run goes on."""

import io
import itertools
import re
from contextlib import suppress

import pytest
from rich.console import Console

from agentrl.metrics import METRICS
from agentrl.ui.live import COLUMNS, PlainReporter, Reporter, RichReporter, duration, formatted

STEP = {
    "reward": 0.5,
    "entropy": 1.25,
    "grad_norm": 0.75,
    "no_signal_share": 0.25,
    "tokens_per_s": 1234.5,
    "episodes_per_s": 96.04,
}


class Seconds:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[PlainReporter, io.StringIO, Seconds]:
    stream, clock = io.StringIO(), Seconds()
    return PlainReporter(stream, clock=clock), stream, clock


def test_a_plain_step_is_one_line_with_every_number() -> None:
    reporter, stream, clock = plain()
    reporter.phase("RL", 10)
    reporter.evaluation("during", 0, 0.4, 0.25, 0.55)
    clock.now = 3.0
    reporter.step(1, STEP)
    # 1 step in 3 s, 9 to go: 27 s
    assert stream.getvalue().splitlines() == [
        "RL: 10 steps",
        "evaluation during (step 0): held-out pass@1 40.0% [25.0%, 55.0%]",
        "RL 1/10 · reward 0.500 · held-out 40.0% · entropy 1.250 · grad norm 0.75 · no signal 25% · tokens/s 1,234"
        " · episodes/s 96.0 · left 27s",
    ]


def test_time_left_counts_from_the_first_step_after_a_resume() -> None:
    reporter, stream, clock = plain()
    reporter.phase("RL", 20)
    clock.now = 2.0
    reporter.step(18, STEP)
    # one step in 2 s and two to go: 4 s; counted from step 0 it would be 2 s / 18 * 2 = 0 s
    assert stream.getvalue().endswith("left 4s\n")
    clock.now = 3.0
    reporter.step(19, STEP)
    # two steps in 3 s and one to go: 1.5 s, which rounds to 2 s
    assert stream.getvalue().endswith("left 2s\n")


def test_a_long_phase_takes_about_twenty_lines() -> None:
    reporter, stream, _ = plain()
    reporter.phase("RL", 997)
    for step in range(1, 998):
        reporter.step(step, STEP)
    lines = stream.getvalue().splitlines()
    assert 20 <= len(lines) <= 25
    assert lines[1].startswith("RL 1/997")
    assert lines[-1].startswith("RL 997/997")


def test_the_warm_start_shows_what_it_has_and_no_pass_rate() -> None:
    reporter, stream, _ = plain()
    reporter.evaluation("before", 0, 0.4, 0.25, 0.55)
    reporter.phase("warm start", 1)
    reporter.step(1, {"loss": 0.5, "accuracy": 0.875, "unheard_of": 1.0})
    assert stream.getvalue().splitlines()[-1] == "warm start 1/1 · loss 0.5000 · accuracy 87.5% · left 0s"


def terminal() -> tuple[RichReporter, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    return RichReporter(console, clock=itertools.count().__next__), stream


def test_a_terminal_shows_a_table_of_the_last_steps() -> None:
    reporter, stream = terminal()
    with reporter:
        reporter.phase("RL", 20)
        reporter.evaluation("before", 0, 0.4, 0.25, 0.55)
        for step in range(1, 13):
            reporter.step(step, {**STEP, "reward": step / 100})
        shown = stream.getvalue().split("12/20")[-1]
    assert "left" in shown
    assert "0.120" in shown
    assert "0.050" in shown  # the eighth last step
    assert "0.040" not in shown
    assert "evaluation before (step 0): held-out pass@1 40.0% [25.0%, 55.0%]" in stream.getvalue()


# as wide as they come: a shift of reward below zero, a norm before clipping, a machine with a GPU
WIDEST = {
    "loss": -12.3456,
    "reward": -0.125,
    "entropy": 12.345,
    "grad_norm": 1234.56,
    "no_signal_share": 1.0,
    "tokens_per_s": 123456.0,
    "episodes_per_s": 12345.6,
}


def test_no_field_is_cut_on_80_columns() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    with RichReporter(console, clock=lambda: 0.0) as reporter:
        reporter.evaluation("before", 0, 1.0, 0.999, 1.0)
        reporter.phase("rl", 10_000)
        stream.truncate(0)
        reporter.step(9_999, WIDEST)
        shown = plain_lines(stream)
    bar, *headings, row = shown
    assert bar.split("  ")[-1] == "9999/10000 · 0s · left 0s"
    assert row.split() == ["9999", "-12.3456", "-0.125", "100.0%", "12.345", "1234.56", "100%", "123,456", "12345.6"]
    above = [" ".join(line[start:end].strip() for line in headings).strip() for start, end in columns(row)]
    assert above == [
        "step",
        "loss",
        "reward",
        "held-out",
        "entropy",
        "grad norm",
        "no signal",
        "tokens /s",
        "episodes /s",
    ]
    assert max(map(len, shown)) <= 80
    assert "…" not in stream.getvalue()


AHEAD = WIDEST | {"age_mean": 10.25, "groups_stale": 100.0, "overlap": 1.0}
"""Of a run whose attempts are played ahead."""


def test_staleness_drops_and_overlap_are_shown_on_80_columns() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    with RichReporter(console, clock=lambda: 0.0) as reporter:
        reporter.evaluation("before", 0, 1.0, 0.999, 1.0)
        reporter.phase("rl", 10_000)
        stream.truncate(0)
        reporter.step(9_999, AHEAD)
        shown = plain_lines(stream)
    # loss, norm of the gradient and episodes/s make room
    assert shown[-1].split() == ["9999", "-0.125", "100.0%", "12.345", "100%", "123,456", "10.25", "100", "100%"]
    assert [heading for heading, _ in formatted(AHEAD)][-3:] == ["staleness", "dropped", "overlap"]
    assert max(map(len, shown)) <= 80
    assert "…" not in stream.getvalue()


def test_a_plain_line_says_how_far_a_run_is_ahead() -> None:
    reporter, stream, _ = plain()
    reporter.phase("rl", 10)
    reporter.step(1, STEP | {"age_mean": 0.5, "groups_stale": 2.0, "overlap": 0.375})
    assert " · staleness 0.50 · dropped 2 · overlap 38% · left" in stream.getvalue()


def test_the_line_that_stays_of_a_phase_wraps_and_loses_nothing() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    with RichReporter(console, clock=lambda: 0.0) as reporter:
        reporter.phase("rl", 1)
        reporter.step(1, WIDEST)
        reporter.evaluation("after", 1, 0.5, 0.25, 0.75)
    lines = plain_lines(stream)
    start = next(number for number, line in enumerate(lines) if line.startswith("rl 1/1"))
    kept = " ".join(line.strip() for line in lines[start : start + 3])
    for heading, text in formatted(WIDEST):
        assert f"{heading} {text}" in kept
    assert start < next(number for number, line in enumerate(lines) if line.startswith("evaluation after"))


def test_the_cursor_is_given_back_and_the_table_is_gone_at_the_end() -> None:
    reporter, stream = terminal()
    with suppress(KeyboardInterrupt), reporter:
        reporter.phase("rl", 10)
        reporter.step(1, STEP)
        raise KeyboardInterrupt
    written = stream.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    after = written[written.rindex("\x1b[?25h") :]
    assert after.count("\x1b[2K") >= 1  # lines are erased
    assert "step" not in after


def plain_lines(stream: io.StringIO) -> list[str]:
    """What was written on each line of a terminal since the line was last erased."""
    kept = [line.split("\x1b[2K")[-1] for line in stream.getvalue().split("\n")]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\0]", "", "\n".join(kept))
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def columns(row: str) -> list[tuple[int, int]]:
    """Where the columns of a right-aligned row are: from the end of the one before to the end of its value."""
    ends = [0, *(match.end() for match in re.finditer(r"\S+", row))]
    return list(itertools.pairwise(ends))


def test_a_note_is_shown_as_it_is() -> None:
    for reporter, stream in (terminal(), plain()[:2]):
        with reporter:
            reporter.note("see [runs/a] :smile:")
        assert "see [runs/a] :smile:" in stream.getvalue()


@pytest.mark.parametrize("make", [terminal, lambda: plain()[:2]])
def test_a_stop_is_asked_for_once_and_stays(make: "type[object]") -> None:
    reporter: Reporter = make()[0]  # type: ignore[index]
    assert not reporter.stop_requested
    reporter.request_stop()  # type: ignore[attr-defined]
    assert reporter.stop_requested


def test_every_column_is_a_known_metric() -> None:
    assert {column.metric for column in COLUMNS} <= set(METRICS)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (59.6, "1m 00s"), (185, "3m 05s")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
