"""Traces as plain JSON and as compressed files, exactly: what is read equals what was written.

A file is gzip JSONL: a header line ``{"schema": 1, "phase": ..., "step": ..., "traces": n}``, then one trace a line.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.files import write_atomic
from agentrl.types import Fault, Message, Node, Score, Stop, ToolCall, Trace

SCHEMA = 1


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """A trace as JSON-plain data; `trace_from_json` gives an equal trace.

    Arguments of calls and metadata must be JSON-plain: None, bool, int, finite float, str, list, and dict with text
    keys. Tuples are written as lists.

    Raises:
        StoreError: anything else there, naming the trace, the place and the value.
    """
    bare = replace(trace, nodes=tuple(replace(node, support=()) for node in trace.nodes))
    plain: dict[str, Any] = _plain(asdict(bare), f"trace {trace.id!r}")
    for node, written in zip(trace.nodes, plain["nodes"], strict=True):  # apart: many numbers, and most nodes have none
        del written["support"]
        if node.support:
            written["support"] = [list(ids) for ids in node.support]
        if not node.copied:
            del written["copied"]
    return plain


def trace_from_json(data: Mapping[str, Any]) -> Trace:
    """The trace that `trace_to_json` wrote.

    Raises:
        StoreError: a field is missing or surplus, or a value is impossible.
    """
    try:
        fields = dict(data)
        fields["nodes"] = tuple(_node(node) for node in data["nodes"])
        fields["scores"] = tuple(Score(**score) for score in data["scores"])
        fields["stop"] = Stop(data["stop"])
        fields["error"] = None if data["error"] is None else Fault(**data["error"])
        return Trace(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"trace {data.get('id')!r} cannot be read: {error!r}") from error


def write_traces(path: Path, traces: Sequence[Trace], *, phase: str, step: int) -> None:
    """Write a file of traces at once: after a kill it is there whole or not at all. Same traces, same bytes.

    Raises:
        StoreError: a trace holds something that JSON cannot hold exactly.
    """
    header = {"schema": SCHEMA, "phase": phase, "step": step, "traces": len(traces)}
    lines = [json.dumps(line, separators=(",", ":")) for line in (header, *map(trace_to_json, traces))]
    write_atomic(path, gzip.compress("".join(f"{line}\n" for line in lines).encode("ascii"), 5, mtime=0))


def read_traces(path: Path) -> Iterator[Trace]:
    """The traces of one file, in the order of writing.

    Raises:
        StoreError: a file that is damaged, incomplete or of a newer schema.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            header = _header(path, lines.readline())
            count = 0
            for line in lines:
                count += 1
                yield trace_from_json(json.loads(line))
    except (OSError, EOFError, ValueError) as error:
        raise StoreError(f"{path}: damaged trace file ({error}); remove it or copy it again") from error
    if count != header["traces"]:
        raise StoreError(f"{path}: {count} traces where its header promises {header['traces']}; the file was cut")


def _header(path: Path, line: str) -> Mapping[str, Any]:
    header = json.loads(line)
    schema = header.get("schema") if isinstance(header, dict) else None
    if not isinstance(schema, int):
        raise StoreError(f"{path}: the first line is no header with a schema; this is no trace file of agentrl")
    if schema > SCHEMA:
        raise StoreError(f"{path}: schema {schema} is newer than {SCHEMA}, which this version reads; update agentrl")
    return {"traces": 0, **header}


def _node(data: Mapping[str, Any]) -> Node:
    tokens = {name: tuple(data[name]) for name in ("context_ids", "sampled_ids", "logprobs", "versions")}
    support = tuple(tuple(ids) for ids in data.get("support", ()))
    copied = data.get("copied", False)
    return Node(parent=data["parent"], message=_message(data["message"]), support=support, copied=copied, **tokens)


def _message(data: Mapping[str, Any]) -> Message:
    return Message(**{**data, "tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"])})


def _plain(value: Any, where: str) -> Any:
    """The same value made of lists and dicts; refuses what JSON would change or cannot hold."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise StoreError(f"{where}: {value!r} has no place in JSON; leave it out or write it as text")
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    raise StoreError(f"{where}: {value!r} ({type(value).__name__}) is not JSON-plain; convert it before it is stored")
