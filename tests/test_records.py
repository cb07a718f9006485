"""A trace that is written is read back equal, whatever the policy wrote."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import StoreError
from agentrl.records import read_traces, trace_from_json, trace_to_json, write_traces
from agentrl.types import Fault, Message, Node, Score, Stop, ToolCall, Trace

# every code point, the lone surrogates too: a model's JSON escapes can produce them
TEXT = st.text(alphabet=st.characters(codec=None), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.builds(
    ToolCall,
    name=TEXT,
    arguments=st.dictionaries(TEXT, PLAIN, max_size=2),
    id=st.none() | TEXT,
    problem=st.none() | TEXT,
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXT,
    reasoning=st.none() | TEXT,
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    tool_call_id=st.none() | TEXT,
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    sampled = draw(st.lists(st.tuples(st.integers(0, 99), st.floats(-1e300, 0.0), st.integers(0, 9)), max_size=3))
    ids, logprobs, versions = (tuple(column) for column in zip(*sampled, strict=True)) if sampled else ((), (), ())
    context = tuple(draw(st.lists(st.integers(0, 99), max_size=3)))
    parent = draw(st.none() | st.integers(0, 3))
    message = draw(MESSAGES)
    supports = st.sets(st.integers(0, 99), max_size=3)
    support = tuple(tuple(sorted(draw(supports) | {token})) for token in ids) if draw(st.booleans()) else ()
    return Node(
        parent=parent,
        message=message,
        context_ids=context,
        sampled_ids=ids,
        logprobs=logprobs,
        versions=versions,
        support=support,
    )


TRACES = st.builds(
    Trace,
    id=TEXT,
    task_id=TEXT,
    group_id=TEXT,
    attempt=st.integers(0, 9),
    seed=st.integers(0, 2**64),
    nodes=st.lists(nodes(), max_size=3).map(tuple),
    stop=st.sampled_from(Stop),
    scores=st.lists(st.builds(Score, name=TEXT, value=st.none() | NUMBERS, weight=NUMBERS), max_size=2).map(tuple),
    error=st.none() | st.builds(Fault, boundary=TEXT, message=TEXT),
    seconds=st.dictionaries(TEXT, NUMBERS, max_size=2),
    metadata=st.dictionaries(TEXT, PLAIN, max_size=2),
)

ONE = Trace(id="t", task_id="k", group_id="g", attempt=0, seed=1, nodes=(), stop=Stop.DONE)


@given(trace=TRACES)
def test_a_trace_survives_json_exactly(trace: Trace) -> None:
    text = json.dumps(trace_to_json(trace), allow_nan=False)
    again = trace_from_json(json.loads(text))
    assert again == trace
    # equality does not tell 1 from 1.0 or True, nor 0.0 from -0.0; the text does
    assert repr(again) == repr(trace)


def test_tuples_in_metadata_come_back_as_lists() -> None:
    trace = Trace(**{**vars(ONE), "metadata": {"shape": (1, 2)}})
    assert trace_from_json(trace_to_json(trace)).metadata == {"shape": [1, 2]}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"gap": float("nan")}, "trace 't'.metadata.gap: nan has no place in JSON"),
        ({"gap": [0.0, float("inf")]}, "trace 't'.metadata.gap[1]: inf has no place"),
        ({"set": {1}}, "trace 't'.metadata.set: {1} (set) is not JSON-plain"),
        ({"by_step": {1: "a"}}, "trace 't'.metadata.by_step: {1: 'a'} (dict) is not JSON-plain"),
    ],
)
def test_what_json_would_change_is_refused_by_place(metadata: dict[str, object], message: str) -> None:
    with pytest.raises(StoreError) as caught:
        trace_to_json(Trace(**{**vars(ONE), "metadata": metadata}))
    assert message in str(caught.value)


@pytest.mark.parametrize("damage", [{"stop": "bored"}, {"surplus": 1}, {"scores": [{"value": 1.0}]}, {"nodes": [{}]}])
def test_a_record_with_an_impossible_part_is_refused_by_trace(damage: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="trace 't' cannot be read"):
        trace_from_json({**trace_to_json(ONE), **damage})


def test_a_file_holds_a_header_and_one_trace_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rl-000003.jsonl.gz"
    write_traces(path, [ONE, ONE], phase="rl", step=3)
    lines = gzip.decompress(path.read_bytes()).decode("ascii").splitlines()
    assert json.loads(lines[0]) == {"schema": 1, "phase": "rl", "step": 3, "traces": 2}
    assert len(lines) == 3
    assert list(read_traces(path)) == [ONE, ONE]


def test_same_traces_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_traces(tmp_path / name, [ONE], phase="rl", step=1)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def write_lines(path: Path, *lines: str) -> Path:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


def test_a_newer_schema_is_refused_by_number(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "new.gz", '{"schema": 2}')
    with pytest.raises(StoreError, match="schema 2 is newer than 1, which this version reads; update agentrl"):
        list(read_traces(path))


@pytest.mark.parametrize("first", ["[]", "{}", '{"schema": "1"}'])
def test_a_file_without_a_header_is_refused(tmp_path: Path, first: str) -> None:
    with pytest.raises(StoreError, match="no header with a schema"):
        list(read_traces(write_lines(tmp_path / "odd.gz", first)))


def test_a_damaged_file_is_an_error_and_not_a_shorter_run(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    write_traces(path, [ONE] * 50, phase="rl", step=1)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="damaged trace file"):
        list(read_traces(path))
    write_lines(path, '{"schema": 1, "traces": 2}', json.dumps(trace_to_json(ONE)))
    with pytest.raises(StoreError, match="1 traces where its header promises 2"):
        list(read_traces(path))


def test_a_support_is_written_only_where_there_is_one():
    message = Message(role="assistant")
    sampled = {"sampled_ids": (4, 7), "logprobs": (-0.5, -0.1), "versions": (0, 0)}
    drawn = Node(parent=None, message=message, **sampled)
    cut = Node(parent=0, message=message, **sampled, support=((4, 9), (7,)))
    written = trace_to_json(replace(ONE, nodes=(drawn, cut)))
    assert "support" not in written["nodes"][0]
    assert written["nodes"][1]["support"] == [[4, 9], [7]]
    assert trace_from_json(json.loads(json.dumps(written))).nodes == (drawn, cut)
