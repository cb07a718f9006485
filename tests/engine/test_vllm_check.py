"""A vLLM server that is not the one that was asked for is named before a run."""

import asyncio
from pathlib import Path

import pytest

from agentrl.engine.vllm import ModelShape, Timing, VLLMSettings
from agentrl.errors import ConfigError, SamplerError
from tests.engine.vllm_runs import (
    check,
    play,
    replies,
    run,
)
from tests.engine.vllm_server import GENERATE, SHAPE, FakeVLLM

pytest.importorskip("httpx")


def test_the_right_server_passes():
    with FakeVLLM() as server:
        check(server)
        server.tokenizer = {"hi there": [3, 4]}
        check(server, probes={"hi there": (3, 4)})
        server.extension = False
        check(server, route="reload")


def test_nobody_there_is_an_error_that_names_the_address():
    server = FakeVLLM()
    server._port = 9
    with pytest.raises(SamplerError, match=r"127\.0\.0\.1:9: /v1/models: ConnectError"):
        check(server)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: setattr(s, "model", "other"), "serves other, not 'policy'"),
        (lambda s: setattr(s, "context", 32), "conversations of 32 tokens .* --max-model-len 64"),
        (lambda s: s.missing.add("/weight_info"), "VLLM_SERVER_DEV_MODE=1"),
        (lambda s: s.missing.add(GENERATE), "takes no token ids; start vLLM 0.32 with --enable-scale-out"),
        (lambda s: s.shape.update(vocab_size=49), r"another model: it has \{'vocab_size': 49\}"),
        (lambda s: setattr(s, "processed", False), "--logprobs-mode processed_logprobs"),
        (lambda s: setattr(s, "tokenizer", {"hi": [3, 4]}), r"writes 'hi' as \[3, 4\] and this run as \[3, 5\]"),
        (
            lambda s: s.shape.update(hidden_size=8),
            r"another model: it has \{'hidden_size': 8\} .* \{'hidden_size': 4\}",
        ),
        (lambda s: setattr(s, "extension", False), "--worker-extension-cls agentrl"),
    ],
)
def test_a_server_of_another_kind_is_named_before_the_run(change, problem):
    with FakeVLLM() as server:
        change(server)
        with pytest.raises(SamplerError, match=problem):
            check(server, probes={"hi": (3, 5)})


@pytest.mark.parametrize(
    ("known", "problem"), [(49, "knows fewer than the 50 ids"), (51, "knows more than the 50 ids")]
)
def test_a_server_that_cannot_describe_its_model_shows_its_vocabulary(known, problem):
    with FakeVLLM() as server:
        server.extension, server.shape["vocab_size"] = False, known
        with pytest.raises(SamplerError, match=problem):
            check(server, route="reload")


def test_a_server_that_comes_back_as_another_is_not_sampled(tmp_path):
    async def work(s):
        await play(s, (5,))
        await asyncio.to_thread(server.stop)
        server.shape["num_hidden_layers"] = 3
        await asyncio.to_thread(server.start)
        await play(s, (5,))

    with FakeVLLM() as server:
        timing = Timing(reply_s=1.0, health_s=0.1, backoff_s=0.01)
        with pytest.raises(SamplerError, match=r"another model: it has \{'num_hidden_layers': 3\}"):
            run(tmp_path, [server], work, timing=timing)
        assert len(replies(server)) <= 2


@pytest.mark.parametrize(
    ("urls", "problem"),
    [
        (("127.0.0.1:8000",), "write an address such as"),
        (("http://a:1/v1",), "write an address such as"),
        (("http://0.0.0.0:8000",), "the address of its machine"),  # case O03
        ((), "name at least one"),
        (("http://a:1", "http://a:1"), "each once"),
    ],
)
def test_bad_addresses_are_named(urls, problem):
    with pytest.raises(ConfigError, match=problem):
        VLLMSettings(urls=urls, model="m", folder=Path("x"))


def test_bad_settings_are_named():
    with pytest.raises(ConfigError, match="concurrency is 0"):
        VLLMSettings(urls=("http://a:1",), model="m", folder=Path("x"), concurrency=0)
    with pytest.raises(ConfigError, match="times are above 0"):
        Timing(request_s=0)
    with pytest.raises(ConfigError, match="every number is at least 1"):
        ModelShape(context=0, **SHAPE)
    assert "secret" not in repr(VLLMSettings(urls=("http://a:1",), model="m", folder=Path("x"), api_key="secret"))
