"""What a benchmark has found: tables, aims and what was measured on which machine, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentrl.errors import AgentRLError
from agentrl.policy.compiled import problems

Cell = str | int | float | None


class BenchError(AgentRLError):
    """What should be measured did not do what it should."""

    boundary = "bench"


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A number that was measured and what it should be.

    Attributes:
        name: what was measured.
        value: None when it could not be measured here; ``note`` says why then.
        wanted: the least, or the most when ``at_most``.
    """

    name: str
    value: float | None
    wanted: float
    at_most: bool = False
    unit: str = ""
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether it is as it should be; None when it was not measured."""
        if self.value is None:
            return None
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def as_record(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "reached": self.reached}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of numbers.

    Attributes:
        title: what was done, with its sizes.
        columns: what stands in each column, with its unit.
        rows: as long as ``columns`` each; None where nothing was measured.
        notes: what must be known to read them.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{row} does not fit {self.columns}"

    def as_record(self) -> dict[str, Any]:
        """For programs: each row by its columns."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "columns": self.columns, "rows": rows, "notes": self.notes}


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that one run of a benchmark has found.

    Attributes:
        bench: its name.
        settings: what can be chosen, as it was.
        machine: see `agentrl.bench.rounds.machine`.
        load: average of the machine before and after; above the number of cores it did other work too.
        notes: why the numbers may be worse than they need be; by default what this process could not compile.
    """

    bench: str
    settings: Mapping[str, Cell]
    machine: Mapping[str, object]
    load: tuple[float, float]
    tables: Sequence[Table]
    aims: Sequence[Aim] = ()
    notes: Sequence[str] = field(default_factory=problems)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "bench": self.bench,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "load_before": self.load[0],
            "load_after": self.load[1],
            "tables": [table.as_record() for table in self.tables],
            "aims": [aim.as_record() for aim in self.aims],
            "notes": list(self.notes),
        }


def shown(cell: Cell) -> str:
    """A cell for people: three digits that count, and thousands apart."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"


def markdown(table: Table) -> str:
    """A table in Markdown, its columns aligned, numbers to the right."""
    numeric = [not any(isinstance(row[n], str) for row in table.rows) for n in range(len(table.columns))]
    cells = [table.columns, *(tuple(map(shown, row)) for row in table.rows)]
    widths = [max(4, *(len(row[n]) for row in cells)) for n in range(len(table.columns))]
    ruler = tuple("-" * (width - 1) + (":" if right else "-") for width, right in zip(widths, numeric, strict=True))
    lines = [cells[0], ruler, *cells[1:]]
    return "\n".join("| " + " | ".join(_padded(line, widths, numeric)) + " |" for line in lines)


def _padded(line: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    for text, width, right in zip(line, widths, numeric, strict=True):
        yield text.rjust(width) if right else text.ljust(width)
