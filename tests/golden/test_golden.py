"""What was written down once is read, shown and played again the same. How to write it anew: see attempts.py.

The attempts were checked by hand: `CHECKED` says what each must come to, from its calls and the hidden tests.
"""

import dataclasses
import gzip
import json

import pytest

from agentrl.records import SCHEMA, read_traces
from agentrl.tokens.samples import samples
from agentrl.tokens.tiny import decode
from tests.golden import attempts

DIGESTS = {
    "masks.json": "42b75422e18cf7fd1c241a263876fe6a3a6f04b76a3edee19f1527b4e33c0cac",
    "model.safetensors": "d2a057957ccf1e8767bb9a7be7530e1115d326e184b2e722ffec388f367d9264",
    "show-meddles.txt": "2d0d002e150449cf02b84183040377e0cf2613fdb71b39b1681e8f38ebfa194c",
    "show-sampled.txt": "09656e2ae6f6a6bc1f12a847fc5cb1ced316091eab0876d1566e6313739ea9ff",
    "traces-schema-1.jsonl": "611a50ba14b62d2db306c1080c2cf78ddabee002f8ac8c7faa74754e0e6d00ad",
}
"""SHA-256 of the files: they change only together with this table."""

CHECKED = {
    "scripted-repairs-0": ("done", "3 of 3", "2 of 2", 1.0),
    "scripted-meddles-1": ("done", "0 of 3", "0 of 2", 0.0),
    "scripted-hard_codes-2": ("done", "1 of 3", "2 of 2", 0.0),
    "scripted-runs_out-3": ("max_turns", "3 of 3", "2 of 2", 1.0),
    "sampled-0-0": ("max_turns", "0 of 3", "0 of 1", 0.0),
    "sampled-0-1": ("done", "0 of 3", "0 of 2", 0.0),
    "sampled-0-2": ("done", "0 of 3", "0 of 2", 0.0),
    "sampled-0-3": ("max_tokens", "3 of 3", "2 of 2", 1.0),
}
"""Why each ended, its hidden and visible tests, its reward. A sum that starts at 1 fails all of them; f(xs) that takes
1 off a sum above 2 passes the visible ones and only [4, 5] of the hidden ones. A program that cannot be read has one
failing test, its file."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Today's reading of the file of each schema that this version reads, by schema."""
    found = {}
    for schema in range(1, SCHEMA + 1):
        packed = tmp_path_factory.mktemp("golden") / "traces.jsonl.gz"
        packed.write_bytes(gzip.compress(attempts.traces_file(schema).read_bytes()))
        found[schema] = list(read_traces(packed))
    return found


@pytest.fixture(scope="module")
def played():
    return attempts.play()


def test_no_golden_file_was_written_anew_in_passing():
    assert attempts.digests() == DIGESTS


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_every_schema_is_read_and_says_what_was_checked_by_hand(stored, schema):
    header = json.loads(attempts.traces_file(schema).read_text().splitlines()[0])
    assert header == {"schema": schema, "phase": attempts.PHASE, "step": attempts.STEP, "traces": len(CHECKED)}
    found = {
        trace.id: (trace.stop, *(score.explanation for score in trace.scores), trace.reward) for trace in stored[schema]
    }
    assert found == CHECKED


def test_what_is_written_today_equals_the_file(stored):
    assert attempts.text_of(stored[SCHEMA]) == attempts.traces_file().read_text()


def test_the_attempts_are_played_again_token_for_token(stored, played):
    assert [without_logprobs(trace) for trace in played] == [without_logprobs(trace) for trace in stored[SCHEMA]]
    for again, before in zip(played, stored[SCHEMA], strict=True):
        assert logprobs(again) == pytest.approx(logprobs(before), abs=1e-5), again.id


def without_logprobs(trace):
    """Everything of a trace that must come back exactly. The names of states and the notes of what was cut came after
    the file was written."""
    metadata = {key: value for key, value in trace.metadata.items() if key not in ("states", "cuts")}
    nodes = tuple(dataclasses.replace(node, logprobs=()) for node in trace.nodes)
    return dataclasses.replace(trace, nodes=nodes, metadata=metadata)


def logprobs(trace):
    """The log-probabilities of a trace, one a sampled token."""
    return [logprob for node in trace.nodes for logprob in node.logprobs]


def test_the_masks_are_those_that_were_written_down(stored, played):
    written = json.loads(attempts.MASKS.read_text())
    assert attempts.masks(stored[SCHEMA]) == attempts.masks(played) == written
    meddles = next(trace for trace in stored[SCHEMA] if trace.id == "scripted-meddles-1")
    (sample,) = samples(meddles, None, objective="ce")
    trained = [token for token, digit in zip(sample.token_ids, written[meddles.id], strict=True) if digit == "1"]
    assert decode(trained) == "edit\n9|t = 0 <end> edit\n3|t = 2 <end> test <end> submit <end>"


def test_rewards_0_0_0_1_give_the_advantages_of_their_group(stored):
    # mean 1/4: 0 - 1/4 = -0.25 and 1 - 1/4 = 0.75
    found = [trace.metadata["advantage"] for trace in stored[SCHEMA] if trace.group_id == "sampled-0"]
    assert found == [-0.25, -0.25, -0.25, 0.75]


@pytest.mark.parametrize("name", attempts.SHOWN)
def test_an_attempt_is_shown_as_it_was(tmp_path, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "100")
    folder = attempts.run_folder(tmp_path, attempts.traces_file().read_text())
    assert attempts.show(folder, attempts.SHOWN[name]) == (attempts.HERE / name).read_text()


def test_one_changed_token_is_noticed(stored, played):
    trace = stored[SCHEMA][0]
    node = dataclasses.replace(trace.nodes[1], sampled_ids=(*trace.nodes[1].sampled_ids[:-1], 0))
    changed = dataclasses.replace(trace, nodes=(trace.nodes[0], node, *trace.nodes[2:]))
    assert without_logprobs(changed) != without_logprobs(played[0])
