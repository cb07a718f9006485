"""What ``agentrl eval`` shows, while it runs and at its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from agentrl.evals.baselines import CEILING, FLOORS
from agentrl.evals.folder import EvaluationFolder
from agentrl.evals.result import mean_interval, table_of
from agentrl.evals.running import Standing
from agentrl.evals.stats import Decision
from agentrl.evals.stopping import Question
from agentrl.ui.live import PlainReporter, duration


class Ended(NamedTuple):
    """One evaluated policy: where it is kept, and what came of it."""

    folder: EvaluationFolder
    result: dict[str, Any]


class Watcher:
    """Shows how an evaluation stands after each wave, and ends it when the question is decided or a stop is wanted."""

    LINES = 20

    def __init__(self, reporter: PlainReporter, console: Console, question: Question | None) -> None:
        self.last: Standing | None = None
        self.decision: Decision | None = None
        self._reporter, self._console, self._question = reporter, console, question
        self._status: Any = None
        self._started = time.monotonic()
        self._first, self._told = 0, -1

    @property
    def played(self) -> int:
        """Attempts that were played under this watch."""
        return 0 if self.last is None else self.last.done - self._first

    @property
    def seconds(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._started

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within the block a line in a terminal is redrawn in place; elsewhere lines are printed."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield
            return
        with self._console.status("starting") as self._status:
            yield

    def __call__(self, standing: Standing) -> bool:
        """Whether to stop."""
        if self.last is None:
            self._first, self._started = standing.done, time.monotonic()
        self.last = standing
        if self._question is not None:
            self.decision = self._question.answer(standing)
        decided = self.decision is not None and self.decision.verdict != "undecided"
        self._show(standing, last=decided or standing.done == standing.total)
        return decided or self._reporter.stop_requested

    def _show(self, standing: Standing, *, last: bool) -> None:
        line = self._line(standing)
        if self._status is not None and not last:
            self._status.update(Text(line))
        elif last or standing.done * self.LINES // standing.total > self._told:
            self._told = standing.done * self.LINES // standing.total
            self._reporter.note(line)

    def _line(self, standing: Standing) -> str:
        parts = [f"{standing.done}/{standing.total} attempts"]
        found = mean_interval(table_of("policy", standing.traces)) if standing.traces else None
        if found is not None:
            parts.append(f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]")
        if self.decision is not None:
            what = "difference" if self._question is not None and self._question.baseline is not None else "mean"
            parts.append(
                f"valid at every look: {what} in [{self.decision.low:.3f}, {self.decision.high:.3f}], "
                f"{self.decision.verdict}"
            )
        if self.played and standing.done < standing.total:
            parts.append(f"left {duration(self.seconds / self.played * (standing.total - standing.done))}")
        return " · ".join(parts)


def missing_share(result: Mapping[str, Any]) -> float:
    """Of the attempts that were made, the share that could not be scored."""
    counts = result.get("counts", {})
    made = result.get("attempts", 0)
    return counts.get("unscored", 0) / made if made else 0.0


def print_results(out: Console, ended: Sequence[Ended]) -> None:
    """A table of scores with intervals, the scale that baselines give, and what became of the attempts."""
    out.print(_grid(ended))
    for line in [*_scale(ended), *(line for one in ended for line in _details(one))]:
        out.print(Text(line), soft_wrap=True)


def _grid(ended: Sequence[Ended]) -> Grid:
    grid = Grid(box=None, header_style="bold cyan", padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("policy", overflow="fold")
    grid.add_column("metric", no_wrap=True)
    for heading in ("score", "95 % interval", "tasks", "attempts"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for one in ended:
        for name, found in one.result.get("scores", {}).items():
            interval = f"[{found['low']:.3f}, {found['high']:.3f}]"
            numbers = [str(found[key]) for key in ("num_tasks", "num_attempts")]
            cells = [one.folder.spec.policy, name, f"{found['mean']:.3f}", interval, *numbers]
            grid.add_row(*map(Text, cells))
    return grid


def _scale(ended: Sequence[Ended]) -> list[str]:
    """Where the policy stands between the best floor and the ceiling."""
    means = {one.folder.spec.policy: one.result["scores"]["mean"]["mean"] for one in ended if one.result.get("scores")}
    floors = [means[name] for name in FLOORS if name in means]
    name = ended[0].folder.spec.policy
    if name not in means or not floors or CEILING not in means or means[CEILING] <= max(floors):
        return []
    share = (means[name] - max(floors)) / (means[CEILING] - max(floors))
    return [f"{name}: {share:.0%} of the way from the floor ({max(floors):.3f}) to the ceiling ({means[CEILING]:.3f})"]


def _details(ended: Ended) -> list[str]:
    result = ended.result
    if not result.get("attempts"):
        return [f"{ended.folder.spec.policy}: nothing was played"]
    counts, name = result["counts"], ended.folder.spec.policy
    stops = ", ".join(f"{number} {stop}" for stop, number in sorted(result["stops"].items()))
    lines = [f"{name}: ended by {stops}; {result['calls_malformed']} of {result['calls']} calls malformed"]
    if result["unread"]:
        lines.append(
            f"{name}: {result['unread']} of {result['attempts']} replies mark no answer that can be read, which scores "
            "0; where it is nearly all of them, the form of the answer was missed and not the question"
        )
    if counts["unscored"]:
        faults = ", ".join(f"{number} {boundary}" for boundary, number in result["faults"].items())
        low, high = result["bounds"]["low"], result["bounds"]["high"]
        lines.append(
            f"{name}: {counts['unscored']} of {result['attempts']} attempts could not be scored ({faults}); the mean "
            f"is {low:.3f} to {high:.3f} if all of them failed or passed"
        )
    if result["decision"] is not None:
        found = result["decision"]
        lines.append(
            f"{name}: {found['verdict']}, after {found['num_units']} clusters of tasks; interval that holds though the "
            f"end was chosen: [{found['low']:.3f}, {found['high']:.3f}]"
        )
    if not result["complete"]:
        lines.append(f"{name}: not all attempts were made; the same command without a stop makes the rest")
    return [*lines, f"{name}: kept in {ended.folder.path}"]
