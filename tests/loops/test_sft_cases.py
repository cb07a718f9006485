"""Faults that other trainers had with demonstrations, packing and the order of data, boiled down."""

import json

import pytest
import torch

from agentrl.cli import main
from agentrl.config import to_toml
from agentrl.loops.context import RunContext
from agentrl.loops.demonstrations import demonstrations
from agentrl.policy.transformer import TinyTransformer
from agentrl.store import RunFolder
from agentrl.train.packing import count, pack
from agentrl.train.scoring import score_samples
from agentrl.types import Sample
from tests.loops.test_run import SMALL, Reporter
from tests.loops.test_sft import SHAPE, config, conversation, write


def row(name, ids, trained):
    """A row whose ids at these places are trained."""
    weights = tuple(float(place in trained) for place in range(len(ids)))
    return Sample(
        token_ids=tuple(ids),
        weights={"ce": weights},
        logprobs=(None,) * len(ids),
        advantages=(0.0,) * len(ids),
        trace_id=name,
        group_id=name,
    )


def packed(*rows):
    return pack([[sample] for sample in rows], count(rows))


def test_the_answers_of_packed_rows_are_where_they_were():
    # P08: rows of 10 and 8 ids with answers 6-9 and 5-7; the second was shifted by the first answer's range
    first, second = row("a", range(10, 20), range(6, 10)), row("b", range(30, 38), range(5, 8))
    batch = packed(first, second)
    assert batch.target_K.tolist() == [16, 17, 18, 19, 35, 36, 37]
    assert batch.token_ids_M[batch.predictor_K].tolist() == [15, 16, 17, 18, 34, 35, 36]


def test_positions_begin_anew_with_each_row_and_the_shift_stays_within_it():
    # P09 and L08: positions ran on, and the last id of a row was trained to predict the first of the next
    batch = packed(row("a", [10, 11, 12], [1, 2]), row("b", [20, 21], [1]))
    assert batch.positions_M.tolist() == [0, 1, 2, 0, 1]
    pairs = zip(batch.token_ids_M[batch.predictor_K].tolist(), batch.target_K.tolist(), strict=True)
    assert list(pairs) == [(10, 11), (11, 12), (20, 21)]


def test_a_mask_and_its_target_are_not_off_by_one():
    # L09: ids 10..13 with the mask 0010 trains the score of 12, from the output at 11
    batch = packed(row("a", [10, 11, 12, 13], [2]))
    assert batch.target_K.tolist() == [12]
    assert batch.token_ids_M[batch.predictor_K].tolist() == [11]


@pytest.mark.parametrize("ends", [(9, 9), (9, 8)])
def test_a_row_scores_the_same_alone_and_beside_others_in_any_order(ends):
    # P09, P10: attention crossed the seam, whose end id was looked for where there was none
    rows = [row("a", [1, 2, ends[0]], [1, 2]), row("b", [3, 4, ends[1], 5], [2, 3]), row("c", [3, 4, 6], [1])]
    model = TinyTransformer(SHAPE, seed=1)

    def scores(samples):
        found = score_samples(model, samples, lambda s: s.logprobs_K, temperature=1.0, max_tokens=100)
        return {
            sample.trace_id: torch.tensor(values).nan_to_num(7.0) for sample, values in zip(samples, found, strict=True)
        }

    together, turned = scores(rows), scores(rows[::-1])
    for sample in rows:
        alone = scores([sample])[sample.trace_id]
        for other in (together, turned):
            torch.testing.assert_close(other[sample.trace_id], alone, atol=1e-5, rtol=0)


def test_the_order_of_the_second_pass_is_its_own_and_a_resume_does_not_change_it(tmp_path):
    # R01: 10 rows, 2 a step; a resume within the second pass took the order of the first
    context = RunContext(SMALL, RunFolder.create(tmp_path / "one", SMALL), Reporter())
    again = RunContext(SMALL, RunFolder.create(tmp_path / "two", SMALL), Reporter())
    for one in (context, again):
        one.close()
    drawn = [context.draw(10, 2, step, "demonstrations") for step in range(10)]
    passes = [[index for step in steps for index in step] for steps in (drawn[:5], drawn[5:])]
    assert [sorted(one) for one in passes] == [list(range(10))] * 2
    assert passes[0] != passes[1]
    assert [again.draw(10, 2, step, "demonstrations") for step in (7, 8, 9)] == drawn[7:]


@pytest.mark.parametrize(
    ("overlong", "told"),
    [
        ("refuse", "line 1: the conversation has 97 tokens, and the context 90; set model.context to 97 or more"),
        (
            "leave_out",
            "nothing is left to train; conversations: 3 read, 0 to train, 3 left out as longer than the context, "
            "297 tokens cut off; the longest has 103 tokens",
        ),
    ],
)
def test_where_every_row_is_too_long_the_command_says_how_long_the_longest_is(tmp_path, capsys, overlong, told):
    # T36: a batch without a trained id gave 0/0 = NaN at step 4
    rows = [conversation(number, "+") for number in range(3)]
    for one in rows:
        one["messages"][0]["content"] += "".join(f"\n{line}|    a = a - {line}" for line in range(3, 13))
    settings = config(write(tmp_path / "chat.jsonl", rows), overlong=overlong)
    (tmp_path / "tiny.toml").write_text(to_toml(settings).replace("context = 320", "context = 90"))
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(tmp_path / "tiny.toml"), "--runs", str(tmp_path / "runs")])
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_no_line_of_a_file_is_lost(tmp_path):
    # T11 and others: loaders dropped lines that a template could not write
    rows = [conversation(number, "+") for number in range(9)]
    rows[4] = {
        "conversations": [
            {"from": "human", "value": "fix test_1"},
            {"from": "function_call", "value": json.dumps({"name": "test", "arguments": None})},
        ]
    }
    context = RunContext(
        settings := config(write(tmp_path / "chat.jsonl", rows)), RunFolder.create(tmp_path, settings), Reporter()
    )
    context.close()
    assert len(demonstrations(context)) == 9
