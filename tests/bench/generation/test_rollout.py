"""``agentrl bench rollout`` at the smallest size, without any claim about time."""

import pytest

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

from agentrl.bench.floor import FLOAT_BYTES, Shape
from agentrl.bench.generation import point, rollout
from agentrl.bench.generation.models import SMALL
from agentrl.bench.report import BenchError


def test_a_point_is_measured_in_a_child_and_drawn(tmp_path):
    told = []
    report = rollout.measure(rounds=1, threads=1, quick=True, out=tmp_path / "deep" / "growth.png", tell=told.append)
    (table,) = report.tables
    assert told == ["concurrency 4"]
    assert table.columns == rollout.COLUMNS
    # conversations, group size and context: a prompt of 8 and a reply of 2
    assert [row[:3] for row in table.rows] == [(4, 2, 10)]
    assert all(row[3] > 0 and row[5] == pytest.approx(row[3] / row[4]) and row[7] >= 0 for row in table.rows)
    assert (tmp_path / "deep" / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_memory_floor_is_that_of_keys_and_values():
    shape = Shape(groups=2, group=2, prompt=8, reply=3)
    found = point.measure(shape, 1)
    tokens = 2 * 8 + 4 * 2  # prompts once for their group, and of three tokens the two that are computed
    assert found.floor_mib == pytest.approx(tokens * FLOAT_BYTES * SMALL.kept_numbers / 2**20)
    assert found.tokens_per_s > 0


def test_a_figure_of_no_known_kind_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(BenchError, match=r"growth\.docx is of no known kind; end it with \.png"):
        rollout.measure(out=tmp_path / "growth.docx")


def test_a_child_that_fails_is_an_error_with_its_reason():
    with pytest.raises(BenchError, match=r"(?s)ended with status 1.*starts with at least one context id"):
        rollout.in_child(Shape(groups=1, group=1, prompt=0, reply=2), 1, 1)


def test_only_one_thing_grows_along_an_axis():
    def sizes(shape):
        return {"concurrency": shape.conversations, "context": shape.longest, "group size": shape.group}

    for axis, sweep in rollout.sweeps().items():
        assert [sizes(shape)[axis] for shape in sweep.values()] == list(sweep)
        others = [{name: size for name, size in sizes(shape).items() if name != axis} for shape in sweep.values()]
        assert all(one == others[0] for one in others)
    assert list(rollout.sweeps()["concurrency"])[-1] == 512
    assert list(rollout.sweeps()["context"])[-1] == 8192
