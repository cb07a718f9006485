"""A model's folder that names no end of a reply, or no pad: what is taken, and what is refused before anything runs."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM

from agentrl.errors import ConfigError
from agentrl.loops.agent import make_agent
from agentrl.loops.parity import Asked, check, model_config
from agentrl.policy.load import check_stops
from agentrl.types import Sampling
from tests.tokens.real import needs_assets, vocabulary
from tests.tokens.real_models import END, END_OF_TEXT, save

pytestmark = needs_assets
OTHER = 151_646


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A random model of Qwen3's kind with the real tokenizer, which names its pad and its ends."""
    return save(tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def change(folder, file, **values):
    """Set values of a JSON file; None removes one."""
    path = folder / file
    data = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: value for name, value in data.items() if value is not None}))


def without_token(folder, text):
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] != text]
    path.write_text(json.dumps(data), encoding="utf-8")


def without_end_in_template(folder):
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert "<|im_end|>" in template
    change(folder, "tokenizer_config.json", chat_template=template.replace("<|im_end|>", ""))


def of_configuration_alone(folder):
    (folder / "generation_config.json").unlink()
    change(folder, "config.json", eos_token_id=OTHER)


def made(folder):
    return make_agent(model_config(str(folder), dtype="float32", thinking=False))


@pytest.mark.parametrize(
    ("doctor", "said"),
    [
        (
            lambda f: change(f, "generation_config.json", eos_token_id=[OTHER]),
            r"replies would never end: the model ends them with <\|object_ref_start\|> \(151646\) \(eos_token_id of "
            r"its generation_config\.json\), and its conversations at <\|endoftext\|> \(151643\), <\|im_end\|> "
            r"\(151645\); set eos_token_id to one of these",
        ),
        (of_configuration_alone, r"never end: .*\(eos_token_id of its (generation_)?config\.json\)"),
        (lambda f: without_token(f, "<|im_end|>"), "no control token ends a reply .* so sampling would never stop"),
        (without_end_in_template, "no control token ends a reply .* so sampling would never stop"),
        (lambda f: change(f, "config.json", pad_token_id=-1), r"pad_token_id -1 .* is no token; remove it there"),
        (lambda f: change(f, "config.json", pad_token_id=999_999), "cannot be loaded: Padding_idx must be within"),
    ],
    ids=["another end", "another end in config", "no end token", "no end in template", "pad below", "pad beyond"],
)
def test_a_model_whose_replies_would_never_end_is_refused(folder, doctor, said):
    doctor(folder)
    with pytest.raises(ConfigError, match=said):
        made(folder)


def test_a_model_that_names_no_pad_and_no_end_is_sampled_and_scored(folder):
    """Neither is needed: the renderer knows where a reply ends, and batches are packed."""
    for file in ("config.json", "generation_config.json"):
        change(folder, file, eos_token_id=None, pad_token_id=None)
    change(folder, "tokenizer_config.json", eos_token=None, pad_token=None)
    config = model_config(str(folder), dtype="float32", thinking=False)
    found = check(Asked(config=config, sampling=Sampling(), tasks=1, attempts=2, turns=2, max_tokens=4))
    assert found.within
    assert made(folder).renderer.stop_ids == {END, END_OF_TEXT}


def test_one_common_end_is_enough_and_none_at_all_is_not(whole):
    model = AutoModelForCausalLM.from_pretrained(whole)
    check_stops(model, {END}, vocabulary())
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    check_stops(model, {END}, vocabulary())
    with pytest.raises(ConfigError, match="with a token that it does not name, and its conversations at none"):
        check_stops(model, (), vocabulary())


ASK = """
import json
from agentrl.errors import ConfigError
from agentrl.loops.agent import model_context, tokenizer_folder
from agentrl.policy.load import load_model
from agentrl.settings import HuggingFaceConfig

said = []
for ask in (model_context, tokenizer_folder, lambda name: load_model(name, HuggingFaceConfig())):
    try:
        ask("nobody/nothing")
    except ConfigError as error:
        said.append(str(error))
print(json.dumps(said))
"""


def hub_that_hangs_up(listener, asked):
    """Take connections and end them without an answer, until the listener is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            asked.append(connection.recv(65536))  # closed with the request unread, it would be a reset instead


def test_a_model_of_an_unreachable_hub_is_given_up_at_the_first_failure(tmp_path):
    """The libraries that load models would ask six times for each file, and wait in between."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hub_that_hangs_up, args=(listener, asked))
        thread.start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        environment = {**os.environ, **settings, "NO_PROXY": "127.0.0.1"}
        done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=300)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert 3 <= len(asked) < 6  # where six attempts at one file alone would be six
    assert [one.split(":")[0] for one in said] == [f"no {what} 'nobody/nothing'" for what in NAMED]
    for one in said:
        assert "the model hub does not give it (Server disconnected without sending a response.)" in one
        assert "With HF_HUB_OFFLINE=1 in the environment the hub is not asked" in one


NAMED = ("model", "tokenizer of", "model")
