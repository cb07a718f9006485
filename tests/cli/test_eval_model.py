"""`agentrl eval --policy MODEL`: a Hugging Face model by its folder, with its own tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

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
from tests.tokens.real_models import save, save_base
from tests.tokens.templates import ALTERNATING, SMOLLM

pytestmark = needs_assets
FEW = ("--tasks", "2", "--max-tokens", "6")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the vocabulary of Qwen3."""
    return save(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a chat template."""
    return save_base(tmp_path_factory.mktemp("models") / "base")


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


def test_a_base_model_is_evaluated_with_a_renderer_that_is_named(base: Path, agentrl: Command) -> None:
    words = ("eval", "bugfix-v1/small", "--policy", str(base), *FEW, "--json")
    refused = agentrl(*words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "has no chat template" in refused.stderr
    assert "--renderer chatml of eval and check parity" in refused.stderr
    done = agentrl(*words, "--renderer", "chatml")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["played"] == 2
    assert "chatml-v1(thinking=False)" in result["spec"]["harness"]


def test_prompts_that_a_template_cannot_write_are_refused_before_anything_is_played(
    base: Path, agentrl: Command, tmp_path: Path
) -> None:
    # turns must alternate and there is no system's, which the tasks have
    strict = tmp_path / "strict"
    shutil.copytree(base, strict)
    (strict / "chat_template.jinja").write_text(ALTERNATING)
    done = agentrl("eval", "bugfix-v1/small", "--policy", "./strict", *FEW)
    assert done.returncode == 2
    assert "./strict cannot be given bugfix-v1/small/test/0: the chat template refuses" in done.stderr
    assert "name a renderer that writes its prompt (--renderer of a model" in done.stderr
    assert not Path("runs").exists()


def test_tools_are_asked_for_where_the_tasks_have_some(base: Path, agentrl: Command, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(base, plain)
    (plain / "chat_template.jinja").write_text(SMOLLM)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(2)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = agentrl("eval", "math:sums.jsonl", "--policy", "./plain", *FEW, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["played"] == 2
    refused = agentrl("eval", "bugfix-v1/small", "--policy", "./plain", *FEW)
    assert refused.returncode == 2
    assert "./plain cannot be given bugfix-v1/small/test/0: the template does not" in refused.stderr


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
        (
            ["--policy", "BASE", "--renderer", "chat-ml"],
            "--renderer chat-ml: write auto, chatml, template (the model's own), or library:FAMILY",
        ),
        (["--policy", "BASE", "--renderer", "template"], "the tokenizer has no chat template"),
        (["--policy", "submit", "--renderer", "chatml"], "--renderer chatml is for --policy with a Hugging Face model"),
        (["--policy", "openai:x", "--renderer", "chatml"], "is for --policy with a Hugging Face model alone"),
        (["--policy", "MODEL", "--today", "yesterday"], "--today yesterday: write a date such as 2026-01-31"),
    ],
)
def test_what_cannot_be_done_is_said(
    model: Path, base: Path, agentrl: Command, tmp_path: Path, words: list[str], message: str
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copyfile(model / "config.json", bare / "config.json")
    words = [{"MODEL": str(model), "BARE": str(bare), "BASE": str(base)}.get(word, word) for word in words]
    done = agentrl("eval", "bugfix-v1/small", "--tasks", "2", *words)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("of_recipe", "said", "thinking"),
    [(None, None, False), (True, None, True), (False, None, False), (None, True, True), (True, False, False)],
)
def test_a_model_thinks_where_training_does_unless_it_is_said(
    model: Path, of_recipe: bool | None, said: bool | None, thinking: bool
) -> None:
    of = {} if of_recipe is None else {"thinking": of_recipe}
    assert settings_of(model, of, thinking=said).thinking is thinking
    assert HuggingFaceConfig().thinking is False


@pytest.mark.parametrize(
    ("of_recipe", "said", "used"),
    [
        ({}, {}, ("auto", None)),
        ({"renderer": "chatml"}, {}, ("chatml", None)),
        ({}, {"renderer": "chatml", "today": "2026-01-31"}, ("chatml", "2026-01-31")),
        ({"renderer": "chatml", "today": "2026-01-31"}, {"renderer": "template"}, ("template", "2026-01-31")),
    ],
)
def test_a_model_converses_as_in_training_unless_it_is_said(
    model: Path, of_recipe: dict[str, str], said: dict[str, str], used: tuple[str, str | None]
) -> None:
    found = settings_of(model, of_recipe, **said)
    assert (found.renderer, found.today) == used


def settings_of(model: Path, of_recipe: dict[str, Any], **said: Any) -> HuggingFaceConfig:
    """With what a model is evaluated on a recipe that has such settings, where something is said on the command line;
    on a task set where the recipe would have none."""
    recipe = None
    if of_recipe:
        found = load_recipe("qwen3-0.6b-bugfix")
        recipe = found.model_copy(update={"hf": found.hf.model_copy(update=of_recipe)})
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
        **said,
    )
    return eval_parts._of_model(asked, eval_parts.library()).hf
