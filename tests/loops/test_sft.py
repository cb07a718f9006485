"""Supervised fine-tuning: on files, validated, stopped early, resumed."""

import json
import math
from dataclasses import replace

import pytest
import torch

from agentrl.config import EvalConfig, ModelConfig, RlConfig, TasksConfig, TrainConfig, WarmStartConfig
from agentrl.engine.random import derive_seed
from agentrl.errors import ConfigError
from agentrl.harness.loop import Limits, ToolLoop
from agentrl.loops.context import RunContext
from agentrl.loops.run import train
from agentrl.loops.sft import validation_loss, warm_start
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.store import RunFolder
from agentrl.tasks.bugfix.environment import BugFixEnvironment
from agentrl.tokens.dataset import load_dataset, split
from agentrl.tokens.tiny import WORDS, TinyRenderer
from agentrl.train.checkpoint import latest_checkpoint, read_checkpoint
from agentrl.train.losses import supervised
from agentrl.train.packing import count, pack
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Score
from tests.loops.test_run import SMALL, Reporter, measured, run, same, weights

SHAPE = TransformerShape(vocab_size=len(WORDS), layers=1, width=32, heads=2, mlp_width=64, context=320)
OPERATORS = ("+", "-", "*", "//", "%")


def conversation(number, operator):
    """A question that differs from any other number's, and a reply."""
    program = f"fix test_1\n1|def f(a, b):\n2|    return a - {number}"
    edit = {"name": "edit", "arguments": {"line": 2, "text": f"return a {operator} b"}}
    return {
        "messages": [
            {"role": "user", "content": program},
            {"role": "assistant", "tool_calls": [{"type": "function", "function": edit}]},
            *({"role": "tool", "content": "ok"},) * bool(number % 2),
            *({"role": "assistant", "tool_calls": [{"name": "submit", "arguments": {}}]},) * bool(number % 2),
        ]
    }


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """Conversations whose replies follow from nothing: what is learnt of one is wrong for the next."""
    rows = [conversation(number, OPERATORS[number * number % 5]) for number in range(16)]
    return write(tmp_path_factory.mktemp("data") / "chat.jsonl", rows)


def config(chat, *, rl=0, **warm_start):
    settings = {"steps": 12, "data": str(chat), "batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 2}
    return TrainConfig(
        recipe="sft-test",
        tasks=TasksConfig(train_tasks=24, max_turns=4),
        model=ModelConfig(layers=1, width=32, heads=2, mlp_width=64, context=320),
        warm_start=WarmStartConfig(**(settings | warm_start)),
        rl=RlConfig(steps=rl, groups_per_step=4, group_size=4, kl_coef=0.1 if rl else 0.0),
        eval=EvalConfig(tasks=0),
    )


EARLY = {
    "steps": 60,
    "validation": 0.25,
    "validate_every": 4,
    "patience": 2,
    "checkpoint_every": 7,
    "matrix_learning_rate": 5e-2,
}


def loss_rows(folder):
    return [(row["step"], row["validation_loss"]) for row in folder.metrics("warm_start") if "validation_loss" in row]


def samples_of(chat):
    found = load_dataset(chat, TinyRenderer(), context=320, tools=BugFixEnvironment.tool_specs)
    return [sample for unit in found.units for sample in unit.samples]


# Files.


def test_a_run_on_a_file_alone_makes_no_tasks_and_evaluates_nothing(tmp_path, chat):
    folder, summary = run(tmp_path, config(chat))
    assert (summary["eval"], summary["finished"]) == ({}, True)
    assert summary["trained"] == "supervised fine-tuning"
    assert "tasks" not in summary["seconds"]
    assert [path.name for path in folder.checkpoints.glob("*-end")] == ["warm_start-000012-end"]
    rows = folder.metrics("warm_start")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
    # pass after pass, each conversation once: 4 steps of 4 are all 16, and together have all trained tokens
    trained = sum(sum(map(bool, sample.weights["ce"])) for sample in samples_of(chat))
    assert [sum(row["tokens_trained"] for row in rows[first : first + 4]) for first in (0, 4, 8)] == [trained] * 3
    stored = list(folder.iter_traces("warm_start", 0))
    assert len(stored) == 16
    assert {trace.metadata["objective"] for trace in stored} == {"ce"}
    assert RunFolder.open(folder.path).config == config(chat)


def test_such_a_run_is_evaluated_once_at_its_end(tmp_path, chat):
    settings = config(chat).model_copy(update={"eval": EvalConfig(tasks=2)})
    folder, summary = run(tmp_path, settings)
    assert list(summary["eval"]) == ["after"]
    assert [row["step"] for row in folder.metrics("eval")] == [0]


def test_a_bad_line_ends_the_run_before_anything_is_trained(tmp_path, chat):
    rows = [json.loads(line) for line in chat.read_text().splitlines()]
    rows[2]["messages"][0]["role"] = "bot"
    with pytest.raises(ConfigError, match=r"bad.jsonl, line 3: message 0: the role is 'bot'"):
        run(tmp_path, config(write(tmp_path / "bad.jsonl", rows)))


def test_what_a_model_is_shown_again_and_again_it_says(tmp_path, chat):
    # the first token of a reply too, which a mask that is off by one never trains
    one = write(tmp_path / "one.jsonl", [conversation(1, "+")])
    folder, _ = run(tmp_path, config(one, steps=40, batch_size=1))
    model = TinyTransformer(SHAPE, seed=0)
    model.load_tensors(weights(folder))
    (sample,) = samples_of(one)
    batch = pack([[sample]], count([sample]))
    assert torch.equal(model(batch).logits_KV.argmax(-1), batch.target_K)


def test_the_attempts_of_a_run_train_the_next(tmp_path, chat):
    first = RunFolder.create(tmp_path / "first", SMALL)
    harness = ToolLoop(TinyRenderer(), Limits()).fingerprint
    told = load_dataset(chat, TinyRenderer(), context=320, tools=BugFixEnvironment.tool_specs).traces
    attempts = [
        replace(
            trace,
            task_id=f"bugfix-v1/tiny/train/{number}",
            scores=(Score(name="pass", value=float(number % 3 == 0)),),
            metadata={"harness": harness},
        )
        for number, trace in enumerate(told)
    ]
    first.write_traces("rl", 1, attempts)
    second, _ = run(tmp_path / "second", config(first.path, steps=2))
    stored = list(second.iter_traces("warm_start", 0))
    assert [trace.nodes for trace in stored] == [trace.nodes for trace in attempts[::3]]


# Validation.


def test_the_validation_loss_is_that_of_a_loop_over_tokens_however_it_is_packed(chat):
    held_out, model = samples_of(chat), TinyTransformer(SHAPE, seed=3)
    trainer = Trainer(model, OptimizerSettings(learning_rate=1e-2, matrix_learning_rate=1e-2, total_steps=4))
    for _ in range(4):  # so that tokens differ in their losses
        trainer.step(held_out, supervised)
    losses = []
    for sample in held_out:
        batch = pack([[sample]], count([sample]))
        logprobs_KV = torch.log_softmax(model(batch).logits_KV.detach().double(), -1)
        losses.append((-logprobs_KV.gather(1, batch.target_K[:, None])).flatten().tolist())
    tokens = sum(map(len, losses))
    expected = math.fsum(map(math.fsum, losses)) / tokens
    for max_tokens in (1, 60, 8192):
        assert validation_loss(model, held_out, max_tokens=max_tokens) == (pytest.approx(expected, rel=1e-6), tokens)
    loss, _ = validation_loss(model, held_out[::-1])
    assert loss == pytest.approx(expected, rel=1e-6)
    # the control: a mean over conversations of their means is another number here
    by_conversation = sum(sum(row) / len(row) for row in losses) / len(losses)
    assert abs(by_conversation - expected) > 1e-4 * expected


def test_validation_is_measured_before_between_and_at_the_end_and_changes_nothing(tmp_path, chat):
    plain, _ = run(tmp_path / "plain", config(chat, validation=0.25, validate_every=100))
    folder, _ = run(tmp_path / "often", config(chat, validation=0.25, validate_every=5))
    assert [step for step, _ in loss_rows(folder)] == [0, 5, 10, 12]
    assert [step for step, _ in loss_rows(plain)] == [0, 12]
    assert same(weights(plain), weights(folder))
    assert loss_rows(folder)[-1] == loss_rows(plain)[-1]
    # of 16 conversations 4 are held out and never trained: three steps of 4 are the other twelve
    tokens = {row["tokens_validated"] for row in folder.metrics("warm_start") if "tokens_validated" in row}
    trained = sum(row["tokens_trained"] for row in folder.metrics("warm_start")[1:4])
    assert {trained + held_out for held_out in tokens} == {
        sum(sum(sample.weights["ce"]) for sample in samples_of(chat))
    }


def test_scripted_demonstrations_are_held_out_by_task(tmp_path):
    settings = SMALL.warm_start.model_copy(update={"steps": 4, "demonstrations": 2, "validation": 0.25})
    update = {"warm_start": settings, "rl": RlConfig(steps=0), "eval": EvalConfig(tasks=0)}
    folder, _ = run(tmp_path, SMALL.model_copy(update=update))
    assert [step for step, _ in loss_rows(folder)] == [0, 4]


# Early stopping.


@pytest.fixture(scope="module")
def early(tmp_path_factory, chat):
    return run(tmp_path_factory.mktemp("early"), config(chat, **EARLY))


def test_training_stops_when_the_loss_has_not_fallen_and_keeps_the_best_weights(early, chat):
    folder, _ = early
    losses = loss_rows(folder)
    last, best = losses[-1][0], min(losses, key=lambda row: row[1])
    assert last < 60
    assert best[0] == last - 2 * 4  # two validations later
    (end,) = folder.checkpoints.glob("*-end")
    assert end.name == f"warm_start-{last:06d}-end"
    found = read_checkpoint(end)
    assert found.state["progress"]["best_step"] == best[0]
    assert not any(":" in name for name in found.weights)
    # the weights are those of the best step: a run that stops there has the same
    context = RunContext(folder.config, folder, Reporter())
    context.close()
    context.model.load_tensors(found.weights)
    units = load_dataset(chat, context.renderer, context=320, tools=BugFixEnvironment.tool_specs).units
    _, held_out = split(units, 0.25, derive_seed(0, "validation"))
    loss, _ = validation_loss(context.model, [sample for unit in held_out for sample in unit.samples])
    assert loss == best[1]


def test_it_says_which_weights_are_kept(tmp_path, chat):
    class Listener(Reporter):
        def __init__(self):
            super().__init__()
            self.notes = []

        def note(self, text):
            self.notes.append(text)

    settings = config(chat, **EARLY)
    listener = Listener()
    train(settings, RunFolder.create(tmp_path, settings), listener, resume=False)
    assert any(note.startswith("stopped early; the weights of step ") for note in listener.notes)
    assert any(note.startswith("conversations: 16 read, 16 to train; the longest has") for note in listener.notes)


# measured: the loss is lowest at step 40, so that one of the stops lies between the best weights and the end
@pytest.mark.parametrize("stop", [9, 45])
def test_a_run_that_was_stopped_goes_on_to_the_same_weights_early_stopping_included(early, tmp_path, chat, stop):
    folder, _ = early
    assert stop < loss_rows(folder)[-1][0]
    settings = config(chat, **EARLY)
    stopped, summary = run(tmp_path, settings, stop=("warm start", stop))
    assert not summary["finished"]
    assert not list(stopped.checkpoints.glob("*-end"))
    stopped.append_metrics("warm_start", stop + 1, {"loss": 0.5})  # a kill in the next step leaves this behind
    train(settings, stopped, Reporter(), resume=True)
    assert same(weights(folder), weights(stopped))
    assert measured(folder) == measured(stopped)


def test_who_stopped_early_is_not_trained_on_by_a_resume(early):
    folder, _ = early
    before = weights(folder)
    train(folder.config, folder, Reporter(), resume=True)
    assert same(before, weights(folder))
    assert latest_checkpoint(folder.checkpoints).name.endswith("-end")


def test_reinforcement_learning_goes_on_from_the_best_weights_and_is_pulled_to_them(tmp_path, chat):
    settings = config(chat, rl=1, **EARLY)
    context = RunContext(settings, RunFolder.create(tmp_path, settings), Reporter())
    try:
        warm_start(context)
        assert context.progress.stopped_early
        kept = {name: tensor.clone() for name, tensor in context.model.tensors().items()}
        assert same(kept, context.reference().tensors())
    finally:
        context.close()


@pytest.mark.parametrize(
    ("warm_start", "told"),
    [
        ({"patience": 2}, "patience 2 without a validation set, whose loss decides; set validation to 0.1"),
        ({"steps": 0}, "with steps 0: it would not be read; set steps, or leave data out"),
        ({"validation": 1.0}, "less than 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(chat, warm_start, told):
    with pytest.raises(ValueError, match=told):
        config(chat, **warm_start)
