"""`agentrl check parity --engine vllm`, with a server that computes what was published to it, and with a real one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.loops.served import PROBES
from tests.cli.conftest import Done
from tests.cli.test_parity import Checked, run  # noqa: F401 (a fixture)
from tests.engine.vllm_process import PYTHON, VLLMProcess
from tests.engine.vllm_server import FakeVLLM
from tests.tokens.real import FOLDER, needs_assets, vocabulary

pytest.importorskip("httpx")
transformers = pytest.importorskip("transformers")

pytestmark = needs_assets
SIZES = {
    "vocab_size": 151_936,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
    "pad_token_id": 151_643,
}
FEW = ("--tasks", "1", "--attempts", "2", "--tokens", "6", "--context", "2048")


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Checked:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return Checked(capsys)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the real tokenizer."""
    folder = tmp_path_factory.mktemp("served") / "model"
    plain(0).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(FOLDER / name, folder / name)
    return folder


def plain(seed: int) -> Any:
    """A model as its library computes it."""
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(**SIZES)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


class Computing(FakeVLLM):
    """Samples from the weights that were published to it. ``spoil`` changes them when they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = {"model_type": "qwen3", **{name: SIZES[name] for name in self.shape if name != "model_type"}}
        self.context, self.network = 2048, plain(1)
        self.tokenizer = {text: list(vocabulary().encode(text)) for text in PROBES}
        self.spoil: Any = lambda network: None

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        (file,) = folder.glob("*.safetensors")
        self.network.load_state_dict(load_file(file), strict=False)
        self.spoil(self.network)

    @torch.no_grad()
    def on_generate(self, body: Any) -> tuple[int, Any]:
        params = body["sampling_params"]
        if "allowed_token_ids" in params:
            return super().on_generate(body)
        ids, rows = list(body["token_ids"]), []
        draws = torch.Generator().manual_seed(params["seed"] % 2**63)
        for _ in range(params["max_tokens"]):
            logits = self.network(torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
            logprobs = (logits / params["temperature"]).log_softmax(-1)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=draws))
            ids.append(token)
            rows.append({"token_id": token, "logprob": min(0.0, float(logprobs[token])), "top_logprobs": []})
            if token in params["stop_token_ids"]:
                break
        sampled = [row["token_id"] for row in rows]
        choice = {
            "token_ids": sampled,
            "finish_reason": "stop" if sampled[-1] in params["stop_token_ids"] else "length",
            "logprobs": {"content": rows},
            "weight_versions": [{"version": self.state.label, "start": 0, "end": len(sampled)}],
        }
        return 200, {"choices": [choice]}


def words(model: Path, server: Any, *more: str) -> tuple[str, ...]:
    return ("--model", str(model), "--engine", "vllm", "--url", server.url, "--served-name", "policy", *FEW, *more)


def test_a_server_that_computes_what_was_published_agrees(check: Checked, model: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with Computing() as server:
        done = check(*words(model, server, "--temperature", "0.8", "--folder", "shared", "--json"))
        sent = server.sent("/inference/v1/generate")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, found["engine"], found["within"]) == (0, "", "vllm", True)
    assert found["num_replies"] == 5  # three turns, and two
    assert 0 < found["figures"]["largest"] < 1e-4
    assert {one["sampling_params"]["temperature"] for one in sent if "request_id" in one} == {0.8}
    assert server.state.tensors == len(plain(0).state_dict()) - 1  # the output projection is tied
    assert list((tmp_path / "shared").iterdir()) == []


def test_one_that_keeps_a_layer_of_its_own_does_not_agree(check: Checked, model: Path) -> None:
    with Computing() as server:
        server.spoil = lambda network: torch.nn.init.normal_(network.model.layers[1].mlp.up_proj.weight)
        done = check(*words(model, server))
    assert done.returncode == 1
    assert "they do not agree" in done.stdout


def test_one_at_another_temperature_is_named(check: Checked, model: Path) -> None:
    with Computing() as server:
        server.spoil = lambda network: network.model.norm.weight.data.div_(0.7)  # all logits, as a temperature of 0.7
        done = check(*words(model, server, "--tokens", "24"))
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "likely fault: temperature" in said
    assert "agrees at temperature 0.7 and scored at 1" in said


def test_a_server_that_is_not_there_is_bad_input(check: Checked, model: Path) -> None:
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
def test_what_cannot_be_meant_is_bad_input(check: Checked, words: tuple[str, ...], said: str) -> None:
    done = check("--model", "never-loaded", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


def test_a_run_of_tiny_agent_has_no_server(check: Checked, run: Any) -> None:  # noqa: F811
    done = check("--model", str(run.path), "--engine", "vllm", "--url", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "vLLM serves no TinyAgent" in done.stderr


@pytest.mark.vllm
@pytest.mark.skipif(shutil.which(PYTHON) is None, reason="no environment of vLLM here: make vllm-env")
def test_a_real_server_agrees_and_others_are_refused(check: Checked, model: Path, tmp_path: Path) -> None:
    """It is started with other weights, so that only the published ones can agree."""
    other = Path(shutil.copytree(model, tmp_path / "other"))
    plain(1).save_pretrained(other)
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
