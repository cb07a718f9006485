"""Progress while a run goes on: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Clock = Callable[[], float]


class Column(NamedTuple):
    """One metric as it is shown: its name, its heading and its number format."""

    metric: str
    heading: str
    form: str
    makes_room: bool = False
    """Whether it is not shown where `AHEAD` is."""


AHEAD = "age_mean"
"""A metric of runs whose attempts are played ahead, which have more to tell than a line of 80 columns has room for."""

COLUMNS = (
    Column("loss", "loss", ".4f", True),
    Column("accuracy", "accuracy", ".1%"),
    Column("reward", "reward", ".3f"),
    Column("pass_rate", "held-out", ".1%"),
    Column("entropy", "entropy", ".3f"),
    Column("grad_norm", "grad norm", ".2f", True),
    Column("no_signal_share", "no signal", ".0%"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("episodes_per_s", "episodes/s", ".1f", True),
    Column(AHEAD, "staleness", ".2f"),
    Column("groups_stale", "dropped", ".0f"),
    Column("overlap", "overlap", ".0%"),
)


class Reporter(Protocol):
    """Who is told how a run goes on, and who says when it shall stop."""

    @property
    def stop_requested(self) -> bool:
        """Whether the run shall stop after the present step, with a checkpoint."""
        ...

    def phase(self, name: str, total: int) -> None:
        """A phase of ``total`` steps begins."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step ``step`` (from 1) of the phase has ended; names as in `agentrl.metrics`."""
        ...

    def evaluation(self, name: str, step: int, mean: float, low: float, high: float) -> None:
        """Held-out pass@1 with its 95 % interval was measured after ``step``."""
        ...

    def note(self, text: str) -> None:
        """One line for people."""
        ...


class _Progress:
    """What both reporters keep: where the phase stands, the last evaluation, the wish to stop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop = False
        self._pass_rate: float | None = None
        self._name, self._total, self._step = "", 0, 0
        self._first: tuple[int, float] | None = None
        self._began = clock()

    @property
    def stop_requested(self) -> bool:
        """Whether someone asked for a stop."""
        return self._stop

    def request_stop(self) -> None:
        """Ask for a stop after the present step."""
        self._stop = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to release here."""

    def _begin(self, name: str, total: int) -> None:
        self._name, self._total, self._step = name, total, 0
        self._first, self._began = None, self._clock()

    def _advance(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Remember the step; its metrics with the last held-out pass rate among them."""
        if self._first is None:
            self._first = (step - 1, self._began)
        self._step = step
        held_out = {} if self._pass_rate is None or "reward" not in metrics else {"pass_rate": self._pass_rate}
        return {**held_out, **metrics}

    def _left(self) -> str:
        """Time until the phase ends, from the mean speed of its steps so far."""
        if self._first is None or self._step <= self._first[0]:
            return "?"
        since, began = self._first
        seconds = (self._clock() - began) / (self._step - since) * max(self._total - self._step, 0)
        return duration(seconds)


class PlainReporter(_Progress):
    """Plain lines, about ``lines`` a phase."""

    def __init__(self, stream: TextIO, *, lines: int = 20, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._stream, self._lines = stream, lines

    def phase(self, name: str, total: int) -> None:
        """Say that a phase begins."""
        self._begin(name, total)
        self.note(f"{name}: {total} steps")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line for the first, the last and every so-many-th step."""
        shown = self._advance(step, metrics)
        every = max(1, self._total // self._lines)
        if step % every == 0 or step in (1, self._total):
            numbers = " · ".join(f"{heading} {text}" for heading, text in formatted(shown))
            self.note(f"{self._name} {step}/{self._total} · {numbers} · left {self._left()}")

    def evaluation(self, name: str, step: int, mean: float, low: float, high: float) -> None:
        """A line with the interval."""
        self._pass_rate = mean
        self.note(_evaluated(name, step, mean, low, high))

    def note(self, text: str) -> None:
        """The line as it is."""
        self._stream.write(f"{text}\n")
        self._stream.flush()


class RichReporter(_Progress):
    """A table of the last steps under a progress bar, redrawn in place; notes stay above it.

    Of each phase its last step stays as a line. Nothing is cut on a terminal of 80 columns.
    """

    def __init__(self, console: Console, *, rows: int = 8, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._console = console
        self._rows: deque[tuple[int, dict[str, float]]] = deque(maxlen=rows)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep_last()
        self._live.stop()

    def phase(self, name: str, total: int) -> None:
        """Start a new table."""
        self._keep_last()
        self._begin(name, total)
        self._redraw()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a row. The last of a phase ends its table, so that what follows is told after it."""
        self._rows.append((step, self._advance(step, metrics)))
        if step == self._total:
            self._keep_last()
        self._redraw()

    def evaluation(self, name: str, step: int, mean: float, low: float, high: float) -> None:
        """A line above the table, and the number in the rows that follow."""
        self._pass_rate = mean
        self.note(_evaluated(name, step, mean, low, high))

    def note(self, text: str) -> None:
        """A line above the table."""
        self._console.print(Text(text))

    def _keep_last(self) -> None:
        if self._rows:
            step, metrics = self._rows[-1]
            self._rows.clear()
            self.note(f"{self._name} {step}/{self._total} · " + " · ".join(f"{h} {t}" for h, t in formatted(metrics)))

    def _redraw(self) -> None:
        self._live.update(self._view(), refresh=True)

    def _view(self) -> RenderableType:
        bar = Table.grid(padding=(0, 2, 0, 0))
        elapsed = duration(self._clock() - self._began)
        spent = f"{self._step}/{self._total} · {elapsed} · left {self._left()}"
        bar.add_row(Text(self._name, style="bold"), ProgressBar(self._total or 1, self._step, width=30), spent)
        return Group(bar, step_table(self._rows)) if self._rows else bar


def step_table(rows: deque[tuple[int, dict[str, float]]]) -> Table:
    """The given steps as a table, with the columns that any of them has and headings of up to two lines."""
    columns = columns_of(*(metrics for _, metrics in rows))
    table = Table(box=None, header_style="bold cyan", padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("step", *(column.heading for column in columns)):
        narrow = heading.replace(" ", "\n").replace("/", "\n/")
        table.add_column(narrow, justify="right", vertical="bottom", no_wrap=True)
    for step, metrics in rows:
        texts = [format(metrics[c.metric], c.form) if c.metric in metrics else "" for c in columns]
        table.add_row(str(step), *texts)
    return table


def formatted(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Heading and text of each metric that is shown, in the order of COLUMNS."""
    return [(c.heading, format(metrics[c.metric], c.form)) for c in columns_of(metrics)]


def columns_of(*rows: Mapping[str, float]) -> list[Column]:
    """The columns that any of some steps has."""
    ahead = any(AHEAD in row for row in rows)
    return [c for c in COLUMNS if any(c.metric in row for row in rows) and not (c.makes_room and ahead)]


def duration(seconds: float) -> str:
    """Whole seconds as ``42s`` or ``3m 05s``."""
    whole = round(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m {whole % 60:02d}s"


def _evaluated(name: str, step: int, mean: float, low: float, high: float) -> str:
    return f"evaluation {name} (step {step}): held-out pass@1 {mean:.1%} [{low:.1%}, {high:.1%}]"
