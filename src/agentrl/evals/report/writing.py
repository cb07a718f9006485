"""A run's report as files: `report.html`, whole in itself, `report.md` beside its figures, and `report.json`."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.evals.report.document import to_html, to_markdown
from agentrl.evals.report.figures import draw_curve, draw_drift, draw_passes, draw_solved, draw_weights
from agentrl.evals.report.findings import Findings, Missing, plain
from agentrl.evals.report.wording import sections, title
from agentrl.files import write_atomic


def write_report(found: Findings, folder: Path) -> dict[str, Path]:
    """Write the report into a folder, replacing an earlier one. Returns the files by name.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = draw(found, folder)
        parts = sections(found, pictures)
        texts = {
            "html": to_html(title(found), parts),
            "md": to_markdown(title(found), parts),
            "json": json.dumps(plain(found), indent=2, allow_nan=False) + "\n",
        }
        files = {kind: folder / f"report.{kind}" for kind in texts}
        for kind, text in texts.items():
            write_atomic(files[kind], text.encode("utf-8"))
    except OSError as error:
        raise StoreError(f"no report can be written to {folder} ({error}); choose a folder with --out") from error
    return {**files, **pictures}


def draw(found: Findings, folder: Path) -> dict[str, Path]:
    """The figures of the parts that were measured, by name."""
    drawn: dict[str, Path] = {}
    if found.curve.bins:
        drawn["curve"] = draw_curve(found.curve, found.forecast, folder / "learning_curve.png")
    if not isinstance(found.passes, Missing):
        drawn["passes"] = draw_passes(found.passes, folder / "pass_at_k.png")
    if not isinstance(found.solved, Missing):
        drawn["solved"] = draw_solved(found.solved, folder / "solved.png")
    if not isinstance(found.drift, Missing) and any(one.divergence for one in found.drift):
        drawn["drift"] = draw_drift(found.drift, folder / "forgetting.png")
    if not isinstance(found.changes, Missing):
        drawn["weights"] = draw_weights(found.changes, folder / "weights.png")
    return drawn
