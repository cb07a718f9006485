"""A finished run in the terminal: the result, the curve, one attempt turn by turn or token by token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentrl.types import Message, Node, ToolCall, Trace

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"
_STAGES = ("tasks", "demonstrations", "warm_start", "evaluation")
_WITHIN_RL = ("sampling", "tools", "training", "waiting", "overlap")
_TITLES = {"warm_start": "warm start", "rl": "RL"}
_TRAINED = ("warm_start", "rejection", "rl")
_NOTES = {"cuts": "cut", "branches": "branch", "withheld": "withheld", "ignored": "ignored", "counts": "counts"}
"""What the agent loop notes in a trace's metadata, and how it is called here."""
_ROLE_STYLE = {"system": "dim", "user": "green", "assistant": "bold cyan", "tool": "yellow"}


def result_table(summary: Mapping[str, Any]) -> Table:
    """Held-out pass@1 before and after with 95 % intervals, and the paired difference.

    Args:
        summary: the run's summary; ``summary["eval"]`` has ``before``, ``after`` and ``difference`` as far as they
            were measured, each ``{"pass@1": {"mean", "low", "high"}, "tasks", "attempts"}``; ``summary["trained"]``
            says what was trained in between.
    """
    table = Table("held-out pass@1", "mean", "95 % interval", "tasks", "attempts", header_style="bold cyan")
    for column in table.columns[1:]:
        column.justify = "right"
    trained = summary.get("trained", "RL")
    titles = {"before": f"before {trained}", "after": f"after {trained}", "difference": "paired difference"}
    for name, title in titles.items():
        if name in summary.get("eval", {}):
            table.add_row(title, *_interval_cells(summary["eval"][name], signed=name == "difference"))
    return table


def result(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Table:
    """What a run came to: the table of its evaluations or, where it has none, what was measured while it trained.

    Args:
        summary: of the run, as `result_table` takes it.
        rows: the rows of ``metrics.jsonl``.
    """
    if summary.get("eval"):
        return result_table(summary)
    table = Table("not evaluated", "first", "last", "least", "most", "times", header_style="bold cyan")
    for column in table.columns[1:]:
        column.justify = "right"
    for phase, name in itertools.product(_TRAINED, ("loss", "validation_loss", "reward")):
        values = [row[name] for row in rows if row["phase"] == phase and row.get(name) is not None]
        if values:
            numbers = (values[0], values[-1], min(values), max(values))
            title = f"{_TITLES.get(phase, phase)}, {name.replace('_', ' ')}"
            table.add_row(title, *(f"{value:.4f}" for value in numbers), str(len(values)))
    return table


def _interval_cells(found: Mapping[str, Any], *, signed: bool) -> tuple[str, ...]:
    score = found["pass@1"]
    sign = "+" if signed else ""
    mean, low, high = (format(score[key], f"{sign}.3f") for key in ("mean", "low", "high"))
    return mean, f"[{low}, {high}]", str(found.get("tasks", "")), str(found.get("attempts", ""))


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary's plain values, one a line, ``episodes      9600``, its notes, and where the time went."""
    plain = {key: value for key, value in summary.items() if isinstance(value, str | int | float)}
    width = max(map(len, plain), default=0)
    lines = [
        f"{key:<{width}}  {value:,.1f}" if isinstance(value, float) else f"{key:<{width}}  {value}"
        for key, value in plain.items()
    ]
    return [*lines, *(f"note: {line}" for line in summary.get("notes", ())), *time_lines(summary)]


def time_lines(summary: Mapping[str, Any]) -> list[str]:
    """Where the seconds of a run went: ``seconds: tasks 9.1, RL 80.0 (sampling 50.0, tools 30.0); 89.1 in all``.

    Parts add up to their whole as they are shown. What an asynchronous run did at the same time is no part, and has a
    line of its own.

    Args:
        summary: the run's summary; ``summary["seconds"]`` has the seconds of each stage. Nothing without it.
    """
    seconds: Mapping[str, float] = summary.get("seconds", {})
    outside = [name for name in seconds if name not in (*_STAGES, "rl", *_WITHIN_RL, "wall")]
    stages = {name: seconds[name] for name in (*_STAGES, "rl", *outside) if name in seconds}
    if not stages:
        return []
    told = "wall" in seconds and sum(stages.values()) <= seconds["wall"]  # not of a run that was killed and resumed
    if told:
        stages = _with_other(stages, seconds["wall"])
    parts, at = [], 0.0
    for name, value in stages.items():
        within = _named(_rl_parts(seconds), at) if name == "rl" else ""
        parts.append(_named({name: value}, at) + (f" ({within})" if within else ""))
        at += value
    whole = f"; {round(10 * at) / 10:,.1f} in all" if told else ""
    return [f"seconds: {', '.join(filter(None, parts))}{whole}", *_at_the_same_time(seconds)]


def _rl_parts(seconds: Mapping[str, float]) -> dict[str, float]:
    """What the loop did one after another: the trainer waits and then learns, or all take turns."""
    if "waiting" in seconds:
        waiting = seconds["waiting"]
        return {"waiting for attempts": waiting, "learning and publishing": seconds["rl"] - waiting}
    turns = {name: seconds[name] for name in _WITHIN_RL if name in seconds}
    return _with_other(turns, seconds["rl"]) if turns else {}


def _with_other(parts: Mapping[str, float], whole: float) -> dict[str, float]:
    return {**parts, "other": max(0.0, whole - sum(parts.values()))}


def _at_the_same_time(seconds: Mapping[str, float]) -> list[str]:
    if "waiting" not in seconds:
        return []
    sampling, overlap = (seconds.get(name, 0.0) for name in ("sampling", "overlap"))
    return [
        "at the same time: the sampler was at work in "
        f"{sampling:,.1f} of RL's seconds, and attempts were in flight in {overlap:,.1f} of those of learning"
    ]


def _named(values: Mapping[str, float], at: float) -> str:
    """Values that follow one another from ``at`` on, to a tenth of a second: those of a stretch give its length.

    What is left over is not named where it is nothing.
    """
    tenths = [round(10 * edge) for edge in itertools.accumulate(values.values(), initial=at)]
    lengths = {name: end - begin for name, (begin, end) in zip(values, itertools.pairwise(tenths), strict=True)}
    shown = {name: n for name, n in lengths.items() if n or name != "other"}
    return ", ".join(f"{_TITLES.get(name, name)} {n / 10:,.1f}" for name, n in shown.items())


def curves(rows: Sequence[Mapping[str, Any]], width: int = 68) -> list[RenderableType]:
    """Reward over the steps of RL, and the held-out pass rate wherever it was measured.

    Args:
        rows: the rows of ``metrics.jsonl``.
        width: columns of the plot.
    """
    rewards = [row["reward"] for row in rows if row["phase"] == "rl" and row.get("reward") is not None]
    shown: list[RenderableType] = []
    if rewards:
        title = f"reward over {len(rewards)} steps of RL, last {rewards[-1]:.3f}"
        shown += [Text(title, style="bold"), Text("\n".join(block_plot(binned(rewards, width))))]
    measured = [row for row in rows if row.get("pass_rate") is not None and row["phase"] == "eval"]
    if measured:
        shown += [Text("held-out pass rate", style="bold"), Text("\n".join(map(_pass_line, measured)))]
    return shown


def binned(values: Sequence[float], bins: int) -> list[float]:
    """Means of consecutive stretches, at most ``bins`` of them, that together cover every value once."""
    count = min(bins, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def block_plot(values: Sequence[float], height: int = 8) -> list[str]:
    """Columns of block characters with a scale at the left; the scale holds 0 and, for shares, 1.

    Args:
        values: finite numbers, one a column.
        height: lines.
    """
    low, high = min(0.0, *values), max(1.0 if max(values) <= 1.0 else max(values), 0.0)
    eighths = [round((value - low) / (high - low) * height * 8) for value in values]
    lines = []
    for row in range(height - 1, -1, -1):
        label = f"{high:.2f}" if row == height - 1 else f"{low:.2f}" if row == 0 else ""
        columns = "".join(_BLOCKS[min(max(count - row * 8, 0), 8)] for count in eighths)
        lines.append(f"{label:>7} ┤{columns}".rstrip())
    return lines


def _pass_line(row: Mapping[str, Any]) -> str:
    rate, low, high = row["pass_rate"], row.get("pass_rate_low"), row.get("pass_rate_high")
    interval = f" [{low:.1%}, {high:.1%}]" if low is not None and high is not None else ""
    return f"step {row['step']:>5} {_bar(rate):<30} {rate:6.1%}{interval}"


def _bar(share: float, width: int = 30) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + _PARTS[eighths % 8].strip()


def trace_list(traces: Iterable[Trace]) -> Table:
    """Ids of attempts with how each ended and what it earned."""
    table = Table(header_style="bold cyan", box=None)
    for heading in ("trace", "task", "stop", "turns", "reward", "advantage"):
        table.add_column(heading, no_wrap=heading == "trace", overflow="fold")
    for trace in traces:
        cells = (trace.id, trace.task_id, str(trace.stop), str(trace.num_turns))
        table.add_row(*cells, _number(trace.reward), _number(trace.metadata.get("advantage")))
    return table


def attempt(trace: Trace, vocabulary: Sequence[str] | None = None, *, tokens: bool = False) -> Group:
    """One attempt turn by turn, then why it stopped, its scores, and whether and how it was trained.

    Args:
        trace: the attempt.
        vocabulary: text of each token id, for ``tokens``; without it ids stand alone.
        tokens: show each turn's tokens too, with their logprobs and how each was trained.
    """
    parts: list[RenderableType] = [Text(f"{trace.id}  task {trace.task_id}  seed {trace.seed}", style="bold")]
    of_turn = iter(trace.metadata.get("advantages", ()))
    for index, node in enumerate(trace.nodes):
        own = {"advantage": next(of_turn, None)} if node.sampled_ids and "advantages" in trace.metadata else {}
        parts += [_heading(index, node), Padding(Text(_said(node.message)), (0, 0, 0, 4))]
        if tokens and (node.context_ids or node.sampled_ids):
            parts.append(Padding(token_table(node, {**trace.metadata, **own}, vocabulary), (0, 0, 0, 4)))
    return Group(*parts, *(Text(line) for line in _ending(trace)))


def token_table(node: Node, metadata: Mapping[str, Any], vocabulary: Sequence[str] | None) -> Table:
    """Every token of a turn: given or sampled, its logprob, whether it was trained, its advantage, its loss weight.

    A token that was given is never trained. In an attempt that was trained every sampled token has the loss weight 1,
    as `tokens.samples` makes it.

    Args:
        node: the turn.
        metadata: that of its trace. ``objective`` stands there when it was trained, with its ``advantage``.
        vocabulary: text of each token id; without it ids stand alone.
    """
    table = Table(header_style="dim", box=None)
    for heading in ("id", "text", "logprob", "version", "trained", "advantage", "weight"):
        table.add_column(heading, justify="left" if heading in ("text", "trained") else "right")
    for token_id in node.context_ids:
        table.add_row(str(token_id), _token_text(token_id, vocabulary), "", "", "no", "", "0", style="dim")
    trained = _is_trained(metadata)
    advantage = _number(metadata["advantage"]) if trained and metadata["advantage"] is not None else ""
    for token_id, logprob, version in zip(node.sampled_ids, node.logprobs, node.versions, strict=True):
        cells = (str(token_id), _token_text(token_id, vocabulary), f"{logprob:.4f}", str(version))
        table.add_row(*cells, "yes" if trained else "no", advantage, "1" if trained else "0")
    return table


def _is_trained(metadata: Mapping[str, Any]) -> bool:
    return "objective" in metadata


def _training(metadata: Mapping[str, Any]) -> str:
    """Whether and how an attempt was trained: ``yes, by cross entropy``, ``no, left out as no_signal``."""
    if not _is_trained(metadata):
        return f"no, left out as {metadata['left_out']}" if "left_out" in metadata else "no"
    if metadata["objective"] == "ce":
        return "yes, by cross entropy"
    if "advantages" in metadata:
        return f"yes, by policy gradient, turn by turn {', '.join(map(_number, metadata['advantages']))}"
    by_token = ", each token with an advantage of its own by the critic" if metadata["advantage"] is None else ""
    return f"yes, by policy gradient{by_token}"


def _heading(index: int, node: Node) -> Text:
    before = index - 1 if index else None
    fork = "" if node.parent == before else ", begins anew" if node.parent is None else f", continues {node.parent}"
    again = ", told before" if node.copied else ""
    count = f"{len(node.context_ids)} tokens given, {len(node.sampled_ids)} sampled"
    role = node.message.role
    return Text.assemble((f"[{index}] {role}", _ROLE_STYLE[role]), (f"  ({count}{fork}{again})", "dim"))


def _said(message: Message) -> str:
    reasoning = [f"(reasoning) {message.reasoning}"] if message.reasoning else []
    content = [message.content] if message.content else []
    return "\n".join([*reasoning, *content, *map(call_text, message.tool_calls)]) or "(nothing)"


def call_text(call: ToolCall) -> str:
    """A call as code, ``→ edit(line=3, text="return a")``, with what is malformed about it."""
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    problem = f"  ✗ malformed: {call.problem}" if call.problem else ""
    return f"→ {call.name}({arguments}){problem}"


def _ending(trace: Trace) -> list[str]:
    lines = [f"stopped: {trace.stop}", *_left_out(trace)]
    if trace.error is not None:
        lines.append(f"error in {trace.error.boundary}: {trace.error.message}")
    for score in trace.scores:
        value = "not scored" if score.value is None else f"{score.value:.3f}"
        lines.append(f"score {score.name}: {value} (weight {score.weight:g}) {score.explanation}".rstrip())
    lines.append(f"reward: {_number(trace.reward)}   advantage: {_number(trace.metadata.get('advantage'))}")
    lines.append(f"trained: {_training(trace.metadata)}")
    if trace.seconds:
        lines.append("seconds: " + ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in trace.seconds.items()))
    return lines


def _left_out(trace: Trace) -> list[str]:
    """What the policy was not given or could not say, and why, as the loop noted it."""
    return [
        f"{title}: " + ", ".join(f"{name} {value}" for name, value in note.items())
        for kind, title in _NOTES.items()
        for note in trace.metadata.get(kind, ())
    ]


def _token_text(token_id: int, vocabulary: Sequence[str] | None) -> str:
    return repr(vocabulary[token_id]) if vocabulary is not None and 0 <= token_id < len(vocabulary) else ""


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"
