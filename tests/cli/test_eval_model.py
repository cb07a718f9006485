"""`agentrl eval --policy MODEL`: a Hugging Face model by its folder, with its own tokenizer."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

import torch
from transformers import Qwen3ForCausalLM

from agentrl.cli import eval_parts
from agentrl.config import HuggingFaceConfig, load_recipe
from agentrl.evals.folder import EvaluationFolder
from agentrl.evals.names import Policy, Tasks
from tests.cli.conftest import Command
from tests.tokens.real import needs_assets
from tests.tokens.real_models import save

pytestmark = needs_assets
FEW = ("--tasks", "2", "--max-tokens", "6")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the vocabulary of Qwen3."""
    return save(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def agentrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_torch: Command) -> Command:
    """Run the command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return with_torch


def test_a_model_is_played_token_by_token_and_the_same_command_goes_on(model: Path, agentrl: Command) -> None:
    words = ("eval", "bugfix-v1/small", "--policy", str(model), *FEW, "--out", "kept", "--json")
    done = agentrl(*words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["played"] == 2
    assert result["spec"]["harness"].startswith("tool-loop")
    assert "chatml-v1(thinking=False)" in result["spec"]["harness"]
    traces = EvaluationFolder.open(Path("kept")).traces()
    replies = [node for trace in traces for node in trace.nodes if node.sampled_ids]
    assert [len(node.sampled_ids) for node in replies] == [6, 6]
    assert all(logprob < -5.0 for node in replies for logprob in node.logprobs)  # of 151,936 words, nearly alike
    again = json.loads(agentrl(*words).stdout)
    assert again["played"] == 2  # nothing was missing
    # what `show` needs to spell the tokens lies beside them
    shown = agentrl("show", "kept", "--trace", traces[0].id, "--tokens").stdout
    assert "'<|im_start|>'" in shown
    assert repr("\n\n") in shown


def test_other_weights_get_another_folder(model: Path, agentrl: Command, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    changed = Qwen3ForCausalLM.from_pretrained(model)
    with torch.no_grad():
        changed.model.norm.weight.mul_(2.0)
    changed.save_pretrained(other)
    digests = [
        json.loads(agentrl("eval", "bugfix-v1/small", "--policy", str(path), *FEW, "--json").stdout)["spec"]["weights"]
        for path in (model, other)
    ]
    assert digests[0].split()[-1] != digests[1].split()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "MODEL", "--max-tokens", "0"], "--max-tokens 0: write 1 or more"),
        (["--policy", "MODEL", "--dtype", "float8"], "--dtype float8: write float32 or bfloat16"),
        (["--policy", "submit", "--thinking"], "--thinking True is for --policy with a Hugging Face model alone"),
        (["--policy", "MODEL", "--concurrency", "2"], "--concurrency 2 is for --policy openai:NAME alone"),
        (["--policy", "BARE"], "has no tokenizer.json"),
    ],
)
def test_what_cannot_be_done_is_said(
    model: Path, agentrl: Command, tmp_path: Path, words: list[str], message: str
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copyfile(model / "config.json", bare / "config.json")
    words = [{"MODEL": str(model), "BARE": str(bare)}.get(word, word) for word in words]
    done = agentrl("eval", "bugfix-v1/small", "--tasks", "2", *words)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("of_recipe", "said", "thinking"),
    [(None, None, False), (True, None, True), (False, None, False), (None, True, True), (True, False, False)],
)
def test_a_model_thinks_where_training_does_unless_it_is_said(
    model: Path, of_recipe: bool | None, said: bool | None, thinking: bool
) -> None:
    recipe = None
    if of_recipe is not None:
        found = load_recipe("qwen3-0.6b-bugfix")
        recipe = found.model_copy(update={"hf": found.hf.model_copy(update={"thinking": of_recipe})})
    asked = eval_parts.Asked(
        tasks=Tasks(level="small", recipe=recipe),
        policy=Policy(hugging_face=str(model)),
        word=str(model),
        split="test",
        num_tasks=2,
        attempts=1,
        temperature=None,
        seed=0,
        out=None,
        runs=Path("runs"),
        question=None,
        thinking=said,
    )
    assert eval_parts._of_model(asked, eval_parts.library()).hf.thinking is thinking
    assert HuggingFaceConfig().thinking is False
