"""A task set's own system prompt reaches all that a run does, and what a finished run is evaluated on."""

import json
import shutil

import pytest

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")
pytest.importorskip("math_verify")

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.cli import main
from agentrl.config import (
    EvalConfig,
    HarnessConfig,
    ModelConfig,
    RejectionConfig,
    RlConfig,
    SandboxConfig,
    TasksConfig,
    TrainConfig,
    WarmStartConfig,
    read_toml,
    to_toml,
)
from agentrl.errors import TrainerError
from agentrl.evals.folder import EvaluationFolder
from agentrl.loops.context import RunContext
from agentrl.loops.rejection import reject_and_imitate
from agentrl.loops.run import train
from agentrl.store import RunFolder
from tests.engine.chat_server import ChatServer, call, said
from tests.loops.test_run import Reporter
from tests.tokens.real import FOLDER, needs_assets

pytestmark = needs_assets
BUGS, SUMS = "Mend the program, and hand it in.", "Add, and put the sum in a \\boxed{}."
PROMPTS = HarnessConfig(
    system_prompt="For whatever else there is.",
    system_prompts={"bugfix": BUGS, "math": SUMS},
    malformed="penalise",
    malformed_penalty=0.25,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model with the vocabulary of Qwen3."""
    folder = tmp_path_factory.mktemp("models") / "small"
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=151_936,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=151_643,
        eos_token_id=151_645,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(FOLDER / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def config(model):
    """One step of each kind, of replies that have room for the first call of a demonstration."""
    return TrainConfig(
        recipe="prompts",
        tasks=TasksConfig(level="small", report="full", train_tasks=2, max_turns=1, max_reply=16, reward="random"),
        model=ModelConfig(name=str(model), context=1024),
        warm_start=WarmStartConfig(steps=1, demonstrations=1, batch_size=2, warmup_steps=0),
        rl=RlConfig(steps=1, groups_per_step=2, group_size=2, eval_every=0, traces_every=1),
        eval=EvalConfig(tasks=2, attempts=1, during_tasks=2),
        sandbox=SandboxConfig(workers=1),
        harness=PROMPTS,
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), config)
    train(config, folder, Reporter(), resume=False)
    return folder


def first_messages(traces):
    found = list(traces)
    assert found
    assert all(trace.error is None for trace in found)
    return {(trace.nodes[0].message.role, trace.nodes[0].message.content) for trace in found}


def test_demonstrations_training_and_evaluations_of_a_run_have_it(finished):
    for phase in ("warm_start", "rl", "eval_before", "eval"):
        assert first_messages(finished.iter_traces(phase)) == {("system", BUGS)}, phase
    assert read_toml(finished.path / "config.toml").harness == PROMPTS


def test_a_penalty_is_in_training_and_in_no_evaluation(finished):
    names = {
        phase: {score.name for trace in finished.iter_traces(phase) for score in trace.scores}
        for phase in ("rl", "eval")
    }
    assert "malformed_calls" in names["rl"] - names["eval"]


def test_rejection_sampling_has_it(config, tmp_path):
    rounds = RejectionConfig(rounds=1, tasks_per_round=2, attempts=2)
    config = config.model_copy(update={"rejection": rounds})
    context = RunContext(config, RunFolder.create(tmp_path, config), Reporter())
    try:
        with pytest.raises(TrainerError, match="nothing to imitate"):  # a random model has no success
            reject_and_imitate(context)
    finally:
        context.close()
    assert first_messages(context.folder.iter_traces("rejection")) == {("system", BUGS)}


def evaluate(words, out):
    with pytest.raises(SystemExit) as left:
        main(["eval", *words, "--tasks", "2", "--out", str(out), "--json"])
    assert left.value.code == 0
    return list(EvaluationFolder.open(out).traces())


@pytest.fixture
def sums(tmp_path):
    """A file of questions."""
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n}+1?", "answer": str(n + 1)}) + "\n" for n in range(2)))
    return f"math:{path}"


def test_a_run_is_evaluated_on_each_task_set_with_its_own(finished, sums, tmp_path):
    for word, expected in ((sums, SUMS), ("bugfix-v1/small", BUGS)):
        traces = evaluate([word, "--policy", str(finished.path)], tmp_path / word.partition(":")[0].replace("/", "-"))
        assert first_messages(traces) == {("system", expected)}
        assert "malformed_calls" not in {score.name for trace in traces for score in trace.scores}


def test_a_model_and_an_endpoint_have_the_agent_of_the_recipe_they_are_evaluated_on(config, model, tmp_path):
    recipe = tmp_path / "mine.toml"
    compacting = config.harness.model_copy(update={"compaction": "drop_results"})
    recipe.write_text(to_toml(config.model_copy(update={"harness": compacting})))
    traces = evaluate([str(recipe), "--policy", str(model), "--max-tokens", "4"], tmp_path / "model")
    assert first_messages(traces) == {("system", BUGS)}
    assert "kind='drop_results'" in traces[0].metadata["harness"]
    with ChatServer(lambda number, body: said(None, [call("submit", "{}")])) as server:
        words = [str(recipe), "--policy", "openai:small", "--base-url", server.url, "--max-tokens", "99"]
        traces = evaluate(words, tmp_path / "endpoint")
        assert {body["messages"][0]["content"] for body in server.requests} == {BUGS}
    assert first_messages(traces) == {("system", BUGS)}
    harness = traces[0].metadata["harness"]
    assert harness.startswith("chat-loop-v2/Limits(turns=1, reply=99, context=1024")
    assert "kind='drop_results'" in harness
