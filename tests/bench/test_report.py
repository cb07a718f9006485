"""Tables for people and for programs."""

import json
from pathlib import Path

import pytest

from agentrl.bench.report import Aim, Report, Table, markdown, shown
from agentrl.policy import compiled

TABLE = Table(title="t", columns=("who", "rate", "n"), rows=(("a", 0.5, 3), ("b", None, 4000)), notes=("what",))


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "-"),
        ("x", "x"),
        (4000, "4,000"),
        (1234.6, "1,235"),
        (123.4, "123"),
        (12.345, "12.3"),
        (0.01234, "0.0123"),
    ],
)
def test_a_cell_has_three_digits_that_count(cell, text):
    assert shown(cell) == text


def test_markdown_is_aligned_with_numbers_to_the_right():
    lines = ["| who  | rate |     n |", "| ---- | ---: | ----: |", "| a    |  0.5 |     3 |", "| b    |    - | 4,000 |"]
    assert markdown(TABLE) == "\n".join(lines)


def test_a_row_must_fit_its_columns():
    with pytest.raises(AssertionError, match="does not fit"):
        Table(title="t", columns=("a", "b"), rows=((1,),))


def test_json_has_rows_by_column_and_says_what_was_reached():
    report = Report(
        bench="x",
        settings={"rounds": 2},
        machine={"cores": 2},
        load=(0.25, 0.5),
        tables=[TABLE],
        aims=[Aim(name="a / b", value=2.0, wanted=3.0)],
    )
    said = json.loads(json.dumps(report.as_json()))
    assert said.keys() == {"bench", "settings", "machine", "load_before", "load_after", "tables", "aims", "notes"}
    assert said["tables"][0]["rows"] == [{"who": "a", "rate": 0.5, "n": 3}, {"who": "b", "rate": None, "n": 4000}]
    assert said["aims"][0]["reached"] is False


def test_a_report_says_what_could_not_be_compiled(monkeypatch):
    def notes():
        return Report(bench="x", settings={}, machine={}, load=(0.0, 0.0), tables=[]).as_json()["notes"]

    monkeypatch.setattr(compiled, "_known", {})
    assert notes() == []
    compiled.refuse(Path("made.c"), "torch")
    (note,) = notes()
    assert "made.c gives other numbers than torch" in note
