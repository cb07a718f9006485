"""From a run folder to a whole report; what is not there is said and does not stop the rest."""

import base64
import json
import re

import numpy as np
import pytest

from agentrl.config import TrainConfig
from agentrl.errors import StoreError
from agentrl.evals.folder import EvaluationFolder, Spec
from agentrl.evals.report.drift import Reading
from agentrl.evals.report.findings import Missing, measure, plain
from agentrl.evals.report.sources import checkpoints, evidence
from agentrl.evals.report.wording import sections
from agentrl.evals.report.writing import write_report
from agentrl.store import RunFolder
from tests.evals.report.world import BEFORE, attempts, checkpoint, run


def readings(_folder):
    """Two checkpoints, four tasks, all three kinds."""
    return [
        Reading(step=step, kind=kind, unit=f"t{t}", tokens=10, divergence=0.1 * step + t, loss=5.0 + t, loss_base=4.0)
        for step in (40, 60)
        for kind in ("own", "retained", "other")
        for t in range(4)
    ]


def no_torch(_folder):
    raise StoreError("torch cannot be imported")


def test_everything_is_measured(tmp_path):
    found = measure(run(tmp_path), readings)
    assert found.steps == 60
    # base 7 of 16, trained 13 of 16
    assert (found.outcome.before.mean, found.outcome.after.mean) == (7 / 16, 13 / 16)
    assert (found.outcome.difference.num_tasks, found.outcome.difference.num_clusters) == (8, 4)
    assert [one.k for one in found.passes.at] == [1, 2]
    # t3 and t0, t6 by the trained only, t5 by the base only
    assert [one.task for one in found.solved.tasks if one.who == "trained only"] == ["t0", "t3", "t6"]
    assert [one.task for one in found.solved.tasks if one.who == "base only"] == ["t5"]
    assert [(one.changed, one.weights) for one in found.changes] == [(1, 4)]
    assert [one.step for one in found.drift] == [40, 60]
    assert found.forecast.refused == ""
    assert "--tasks.reward random" in found.control.why


def test_the_report_is_written_whole(tmp_path):
    found = measure(
        run(tmp_path / "runs"), readings, control=run(tmp_path / "others", trained=(0, 1, 2, 0, 1, 1, 0, 2))
    )
    files = write_report(found, tmp_path / "out")
    page, text = files["html"].read_text(), files["md"].read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    drawn = [files[name] for name in ("curve", "passes", "solved", "drift", "weights")]
    assert [base64.b64decode(one) for one in pictures] == [path.read_bytes() for path in drawn]
    assert re.findall(r"!\[[^]]*\]\((\S+)\)", text) == [path.name for path in drawn]
    assert all((files["md"].parent / path.name).is_file() for path in drawn)
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert found.control.gain_control.mean == 0.0
    assert found.control.same_base is True
    assert json.loads(files["json"].read_text()) == json.loads(json.dumps(plain(found)))
    assert plain(found)["pass_at_k"]["at"][0]["comparison"]["difference"]["mean"] == 6 / 16


def test_no_number_stands_alone(tmp_path):
    """Each cell that estimates something is ``mean [low, high]``; the others are counts, names, p-values or exact."""
    found = measure(run(tmp_path), readings)
    grids = [block for part in sections(found, {}) for block in part.blocks if hasattr(block, "rows")]
    estimated = [cell for grid in grids for row in grid.rows for cell in row if re.match(r"[+-]?\d\.\d{3,4} \[", cell)]
    assert len(estimated) > 15
    alone = [
        (grid.head[0], cell)
        for grid in grids
        for row in grid.rows
        for cell in row
        if re.fullmatch(r"[+-]?\d\.\d{3,}", cell)
    ]
    assert {head for head, _ in alone} <= {"k", "task", "tensor"}  # p-values, and what is counted in files


def test_what_is_missing_says_why_and_the_rest_stands(tmp_path):
    folder = run(tmp_path, steps=10)
    for path in (folder.path / "traces").glob("eval-*"):
        path.unlink()
    found = measure(folder, no_torch)
    for part in (found.outcome, found.passes, found.solved):
        assert isinstance(part, Missing)
        assert "agentrl eval" in part.why
    assert found.drift == Missing(why="torch cannot be imported")
    assert "10 steps are too few" in found.forecast.refused
    assert found.changes[0].changed == 1
    files = write_report(found, tmp_path / "out")
    assert set(files) == {"html", "md", "json", "curve", "weights"}
    assert "Not measured: torch cannot be imported." in files["md"].read_text()


def test_scores_in_between_need_a_threshold_for_pass_at_k_alone(tmp_path):
    folder = run(tmp_path)
    for phase, step in (("eval_before", 0), ("eval", 60)):
        text = [*folder.iter_traces(phase, step)]
        halves = [one.__class__(**{**vars(one), "scores": (half(one),)}) for one in text]
        folder.write_traces(phase, step, halves)
    found = measure(folder, no_torch)
    assert "--threshold" in found.passes.why
    assert found.outcome.before.mean == 7 / 32
    passing = measure(folder, no_torch, threshold=0.5)
    assert passing.passes.at[0].comparison.before.mean == 7 / 16


def half(trace):
    """Its score, halved."""
    score = trace.scores[0]
    return type(score)(name=score.name, value=score.value / 2)


def test_evaluations_below_the_run_with_more_attempts_are_taken(tmp_path):
    folder = run(tmp_path)
    add_evaluation(folder, "warm_start-000090-end", 0, [1] * 8, 4)
    assert "of the run itself" in evidence(folder, 60).source  # one side alone is no pair
    add_evaluation(folder, "rl-000060-end", 60, [4] * 8, 4, temperature=0.5)
    assert "of the run itself" in evidence(folder, 60).source  # sampled otherwise
    add_evaluation(folder, "rl-000060-end", 60, [3] * 8, 4)
    found = evidence(folder, 60)
    assert found.source == "the evaluations warm_start-000090-end-1.0 and rl-000060-end-1.0, kept below the run"
    assert found.table.scores.shape == (8, 4, 2)
    with pytest.raises(StoreError, match="no evaluations of the same tasks before RL and after 40 steps"):
        evidence(folder, 40)


def add_evaluation(folder, weights, version, passed, made, temperature=1.0):
    spec = Spec(
        policy="p",
        weights=f"{weights} 0123",
        version=version,
        task_set="x/test",
        settings={},
        harness="h",
        temperature=temperature,
        seed=0,
    )
    below = EvaluationFolder.begin(folder.path / "evals" / f"{weights}-{temperature}", spec, [])
    for trace in attempts("e", passed, made):
        below.append(trace)


def test_the_checkpoints_of_a_run_are_found_by_step(tmp_path):
    folder = run(tmp_path)
    assert [(one.step, one.path.name) for one in checkpoints(folder)] == [
        (0, "warm_start-000090-end"),
        (40, "rl-000040"),
        (60, "rl-000060-end"),
    ]
    empty = RunFolder.create(tmp_path / "empty", TrainConfig(recipe="empty"))
    with pytest.raises(StoreError, match="no checkpoint of the policy before RL"):
        checkpoints(empty)
    checkpoint(empty, "warm_start-000000-end", BEFORE)
    with pytest.raises(StoreError, match="no checkpoint of RL"):
        checkpoints(empty)


def test_a_run_that_changed_nothing_says_so(tmp_path):
    folder = run(tmp_path, trained=(0, 1, 2, 0, 1, 1, 0, 2))
    checkpoint(folder, "rl-000061-end", BEFORE)
    folder.write_traces("eval", 61, attempts("after", (0, 1, 2, 0, 1, 1, 0, 2), 2))
    found = measure(folder, readings)
    assert (found.steps, found.changes[0].share, found.changes[0].stable_rank) == (61, 0.0, None)
    assert found.outcome.difference.mean == 0.0
    assert found.passes.crossing is None
    assert np.isfinite(found.outcome.difference.low)
    write_report(found, tmp_path / "out")
