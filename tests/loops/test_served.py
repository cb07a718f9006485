"""Running vLLM servers get a policy's weights, and one that is not the right one is named before."""

import pytest
import torch

from agentrl.errors import ConfigError, SamplerError
from agentrl.loops.agent import Agent
from agentrl.loops.served import PROBES, Servers, published, vllm_sampler
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tokens.tiny import TinyRenderer
from agentrl.types import Sampling
from tests.engine.vllm_server import FakeVLLM
from tests.tokens.real import needs_assets, vocabulary

pytest.importorskip("httpx")
pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.policy import lora
from agentrl.policy.hf import HuggingFacePolicy

pytestmark = needs_assets
SIZES = {
    "vocab_size": 50,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""As the server says of its own."""


def model():
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen3Config(**SIZES), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def agent():
    return Agent(model=HuggingFacePolicy(model()), renderer=TinyRenderer(), vocabulary=vocabulary())


@pytest.fixture
def server():
    with FakeVLLM() as running:
        running.tokenizer = {text: list(vocabulary().encode(text)) for text in PROBES}
        yield running


def opened(server, agent, folder=None, **options):
    servers = Servers(**{"urls": (server.url,), "model": "policy", "folder": folder, **options})
    return vllm_sampler(servers, agent, Sampling(), name="some/model", context=64)


def test_the_weights_are_published_and_their_files_removed(server, agent, tmp_path):
    with opened(server, agent, tmp_path) as sampler:
        assert sampler.version == 0
        (folder,) = tmp_path.iterdir()
        assert server.state.tensors == len(agent.model.tensors())
    assert not folder.exists()
    assert server.state.label.endswith(":0")


def test_the_model_of_the_run_is_what_servers_serve_by_default(server, agent):
    with pytest.raises(SamplerError, match="serves policy, not 'some/model'"), opened(server, agent, model=""):
        pass
    server.model = "some/model"
    with opened(server, agent, model=""):
        pass


def shifted(server):
    server.tokenizer = {text: [index + 1 for index in ids] for text, ids in server.tokenizer.items()}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: setattr(s, "model", "other"), "serves other, not 'policy'; set the model's name"),
        (lambda s: s.shape.update(num_hidden_layers=3), r"serves another model: it has \{'num_hidden_layers': 3\}"),
        (lambda s: s.shape.update(model_type="llama"), r"serves another model: it has \{'model_type': 'llama'\}"),
        (shifted, "it serves a model with another tokenizer"),
        (lambda s: setattr(s, "context", 32), "start the server with --max-model-len 64"),
        (lambda s: s.missing.add("/weight_info"), "start vLLM 0.32 with VLLM_SERVER_DEV_MODE=1"),
        (lambda s: setattr(s, "processed", False), "--logprobs-mode processed_logprobs"),
        (lambda s: setattr(s, "extension", False), "--worker-extension-cls agentrl"),
        (lambda s: s.stop(), "/v1/models: ConnectError"),
    ],
    ids=["name", "depth", "kind", "tokenizer", "context", "routes", "logprobs", "transfer", "unreachable"],
)
def test_a_server_that_is_not_the_right_one_gets_no_weights(server, agent, tmp_path, change, problem):
    change(server)
    with pytest.raises(SamplerError, match=problem) as found, opened(server, agent, tmp_path):
        pass
    assert server.url in str(found.value)
    assert server.state.tensors == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"urls": ("a:1",)}, "'a:1': write an address such as"),
        ({"urls": ()}, "name at least one"),
    ],
)
def test_addresses_that_are_none_are_named(server, agent, options, problem):
    with pytest.raises(ConfigError, match=problem), opened(server, agent, **options):
        pass


def test_a_folder_that_is_not_there_is_named(server, agent, tmp_path):
    where = tmp_path / "nowhere"
    with pytest.raises(ConfigError, match=f"weights cannot be written to {where}"), opened(server, agent, where):
        pass


def test_tiny_agent_has_no_server(server):
    tiny = TinyTransformer(TransformerShape(vocab_size=8, layers=1, width=8, heads=2, mlp_width=8, context=8), seed=0)
    agent = Agent(model=tiny, renderer=TinyRenderer())
    with pytest.raises(ConfigError, match="vLLM serves no TinyAgent"), opened(server, agent):
        pass


def test_adapters_are_published_within_their_layers():
    """(W + B A alpha / r) by the name of W: with rank 1 and alpha 2, A = 1 and B = 1 add 2 to every entry of W."""
    adapted = model()
    before = dict(model().state_dict())
    lora.add_adapter(adapted, rank=1, alpha=2.0, targets=("q_proj",), seed=0)
    for name, weight in adapted.named_parameters():
        if lora.is_adapter(name):
            torch.nn.init.ones_(weight)
    found = published(HuggingFacePolicy(adapted))
    assert found.keys() == before.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, before[name] + 2.0 if "q_proj" in name else before[name])
