"""`agentrl check parity --engine vllm`, with a server that computes what was published to it, and with a real one."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("httpx")
pytest.importorskip("transformers")

from tests.cli.conftest import Command, Done
from tests.cli.test_parity import run  # noqa: F401 (a fixture)
from tests.engine.vllm_process import PYTHON, VLLMProcess
from tests.loops.serving import Computing
from tests.tokens.real import needs_assets, vocabulary
from tests.tokens.real_models import plain, save

pytestmark = needs_assets
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 64, "initializer_range": 0.3}
make = partial(plain, **SIZES)
FEW = ("--tasks", "1", "--attempts", "2", "--tokens", "6", "--context", "2048")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the real tokenizer."""
    return save(tmp_path_factory.mktemp("served") / "model", **SIZES)


def computing() -> Computing:
    """A server of such a model."""
    return Computing(make=make, vocabulary=vocabulary())


def words(model: Path, server: Any, *more: str) -> tuple[str, ...]:
    return ("--model", str(model), "--engine", "vllm", "--url", server.url, "--served-name", "policy", *FEW, *more)


def test_a_server_that_computes_what_was_published_agrees(check: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with computing() as server:
        done = check(*words(model, server, "--temperature", "0.8", "--folder", "shared", "--json"))
        sent = server.sent("/inference/v1/generate")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, found["engine"], found["within"]) == (0, "", "vllm", True)
    assert found["num_replies"] == 5  # three turns, and two
    assert 0 < found["figures"]["largest"] < 1e-4
    assert {one["sampling_params"]["temperature"] for one in sent if "request_id" in one} == {0.8}
    assert server.state.tensors == len(make(0).state_dict()) - 1  # the output projection is tied
    assert list((tmp_path / "shared").iterdir()) == []


def test_one_that_keeps_a_layer_of_its_own_does_not_agree(check: Command, model: Path) -> None:
    with computing() as server:
        server.spoil = lambda network, _: torch.nn.init.normal_(network.model.layers[1].mlp.up_proj.weight)
        done = check(*words(model, server))
    assert done.returncode == 1
    assert "they do not agree" in done.stdout


def test_one_at_another_temperature_is_named(check: Command, model: Path) -> None:
    with computing() as server:
        server.spoil = lambda network, _: network.model.norm.weight.data.div_(
            0.7
        )  # all logits, as a temperature of 0.7
        done = check(*words(model, server, "--tokens", "24"))
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "likely fault: temperature" in said
    assert "agrees at temperature 0.7 and scored at 1" in said


def test_a_server_that_is_not_there_is_bad_input(check: Command, model: Path) -> None:
    done = check("--model", str(model), "--engine", "vllm", "--url", "http://127.0.0.1:9", *FEW)
    assert (done.returncode, done.stdout) == (2, "")
    assert "http://127.0.0.1:9: /v1/models: ConnectError" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "vllm"), "--engine vllm needs running servers; add --url"),
        (("--url", "http://a:1"), "--url http://a:1 is for --engine vllm alone"),
        (("--served-name", "m"), "--served-name m is for --engine vllm alone"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_bad_input(check: Command, words: tuple[str, ...], said: str) -> None:
    done = check("--model", "never-loaded", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


def test_a_run_of_tiny_agent_has_no_server(check: Command, run: Any) -> None:  # noqa: F811
    done = check("--model", str(run.path), "--engine", "vllm", "--url", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "vLLM serves no TinyAgent" in done.stderr


@pytest.mark.vllm
@pytest.mark.skipif(shutil.which(PYTHON) is None, reason="no environment of vLLM here: make vllm-env")
def test_a_real_server_agrees_and_others_are_refused(check: Command, model: Path, tmp_path: Path) -> None:
    """It is started with other weights, so that only the published ones can agree."""
    other = Path(shutil.copytree(model, tmp_path / "other"))
    make(1).save_pretrained(other)
    options = ("--max-model-len", "2048", "--no-skip-tokenizer-init")

    def asked(folder: Path, *more: str) -> Done:
        few = ("--tasks", "1", "--attempts", "4", "--tokens", "24", "--json", *more)
        return check("--model", str(folder), "--engine", "vllm", "--url", server.url, "--served-name", "policy", *few)

    with VLLMProcess(other, tmp_path / "log", *options) as server:
        for drawn in (("--temperature", "0.8"), ("--top-k", "5")):
            done = asked(model, "--context", "2048", *drawn)
            assert done.returncode == 0, done.stdout + done.stderr
            figures = json.loads(done.stdout)["figures"]
            assert figures["num_tokens"] > 60
            assert figures["largest"] < 1e-4
        for folder, context, said in (
            (model, "4096", "start the server with --max-model-len 4096"),
            (shallow(model, tmp_path / "shallow"), "2048", "another model: it has {'num_hidden_layers': 2}"),
            (swapped(model, tmp_path / "swapped"), "2048", "it serves a model with another tokenizer"),
        ):
            done = asked(folder, "--context", context)
            assert (done.returncode, done.stdout) == (2, "")
            assert said in " ".join(done.stderr.split())


def shallow(model: Path, folder: Path) -> Path:
    """The model without its second layer."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "layer_types": config["layer_types"][:1]}
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if "layers.1." not in name}
    save_file(kept, file, {"format": "pt"})
    return folder


def swapped(model: Path, folder: Path) -> Path:
    """The model with a tokenizer in which two tokens have changed places."""
    shutil.copytree(model, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    words["def"], words["area"] = words["area"], words["def"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder
