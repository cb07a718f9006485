"""A run that samples from servers of this machine, which compute what was published to them."""

import copy
import functools
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.config import TrainConfig
from agentrl.loops.served import PROBES
from agentrl.tokens.chatml import MARKS
from agentrl.tokens.vocabulary import Vocabulary
from tests.engine.vllm_server import FakeVLLM
from tests.loops.test_run import SMALL

SOURCE = Path(__file__).parents[2] / "src" / "agentrl" / "tasks" / "bugfix"
NAMES = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
SIZES = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
CONTEXT = 2048


@functools.cache
def tokenizer():
    """Byte pairs of what the tasks are made of, and the marks of ChatML."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    controls = [*NAMES.values(), *(mark for mark in MARKS if mark not in NAMES.values())]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"] - len(controls),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train([str(file) for file in sorted(SOURCE.glob("*.py"))], trainer)
    made.add_special_tokens([AddedToken(control, special=True, normalized=False) for control in controls])
    return made


def plain(seed):
    """A random model, as its library computes it."""
    torch.manual_seed(seed)
    pad, end = (tokenizer().token_to_id(text) for text in NAMES.values())
    config = Qwen3Config(**SIZES, bos_token_id=None, pad_token_id=pad, eos_token_id=end)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def save(folder, seed=0):
    """A model's folder, with its tokenizer."""
    plain(seed).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMES))
    return folder


def save_ending(folder, seed=0):
    """A model's folder like that of `save`; it ends a reply at about every fifth token, and knows nothing else."""
    network, end = plain(seed), tokenizer().token_to_id(NAMES["eos_token"])
    embedding = network.get_input_embeddings().weight
    with torch.no_grad():
        # the first coordinate is the same for all tokens, so it passes through the layers and lifts no logit but one
        embedding[:, 0] = 8.0
        embedding[end] = 0.0
        embedding[end, 0] = 16.0
    save(folder, seed)
    network.save_pretrained(folder)
    return folder


class Computing(FakeVLLM):
    """Samples from the weights that were published to it, and keeps them by their labels.

    ``make(seed)`` gives a model of its kind, whose tokenizer is ``vocabulary``. ``spoil(network, number)`` changes the
    weights when the publication of that number arrives.
    """

    def __init__(self, twist=lambda n, path, body: None, *, make=plain, vocabulary=None) -> None:
        super().__init__(twist)
        self.make, self.context, self.network = make, CONTEXT, make(1)
        self.shape = {name: getattr(self.network.config, name) for name in self.shape}
        vocabulary = vocabulary or Vocabulary(tokenizer(), NAMES)
        self.tokenizer = {text: list(vocabulary.encode(text)) for text in PROBES}
        self.spoil = lambda network, number: None
        self.published = []

    def versions(self):
        """Of the weights that were published, in order, each with its tensors."""
        return [(int(label.rpartition("-")[2]), tensors) for label, tensors in self.published]

    def start(self):
        """A new process has weights of its own."""
        super().start()
        self.network = self.make(1)

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        (file,) = folder.glob("*.safetensors")
        tensors = load_file(file)
        self.published.append((folder.name, {name: tensor.clone() for name, tensor in tensors.items()}))
        network = copy.deepcopy(self.network)
        network.load_state_dict(tensors, strict=False)
        self.spoil(network, len(self.published) - 1)
        self.network = network

    @torch.no_grad()
    def on_generate(self, body):
        params = body["sampling_params"]
        if "request_id" not in body and "prompt_logprobs" not in params:  # a check
            return super().on_generate(body)
        ids, network, label, rows = list(body["token_ids"]), self.network, self.state.label, []
        if "prompt_logprobs" in params:
            logprobs = network(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
            said = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
            listed = [{str(token): {"logprob": number}} for token, number in zip(ids[1:], said, strict=True)]
            return 200, {"choices": [], "prompt_logprobs": [None, *listed]}
        draws = torch.Generator().manual_seed(params["seed"] % 2**63)
        found = network(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        for _ in range(params["max_tokens"]):
            logprobs = (found.logits[0, -1] / params["temperature"]).log_softmax(-1)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=draws))
            rows.append({"token_id": token, "logprob": min(0.0, float(logprobs[token])), "top_logprobs": []})
            if token in params["stop_token_ids"]:
                break
            found = network(torch.tensor([[token]]), cache=found.past_key_values, use_cache=True)
        sampled = [row["token_id"] for row in rows]
        choice = {
            "token_ids": sampled,
            "finish_reason": "stop" if sampled[-1] in params["stop_token_ids"] else "length",
            "logprobs": {"content": rows},
            "weight_versions": [{"version": label, "start": 0, "end": len(sampled)}],
        }
        return 200, {"choices": [choice]}


def served_config(model, *servers, engine=None, **rl):
    """A run of few short attempts on tasks of the small level, with drawn rewards."""
    data = SMALL.model_dump()
    data["tasks"] |= {"level": "small", "report": "full", "train_tasks": 4, "max_turns": 2, "max_reply": 6}
    data["tasks"] |= {"reward": "random"}
    data["model"] = {"name": str(model), "context": CONTEXT}
    data["hf"] |= {"renderer": "chatml"}
    data["warm_start"] |= {"steps": 0}
    data["eval"] |= {"tasks": 0, "during_tasks": 2}
    data["rl"] |= {"algorithm": "reinforce", "groups_per_step": 1, "group_size": 2, "steps": 3, "eval_every": 0}
    data["rl"] |= {"traces_every": 1, "checkpoint_every": 10} | rl
    data["engine"] = {"kind": "vllm", "servers": [server.url for server in servers], "served_name": "policy"}
    data["engine"] |= engine or {}
    return TrainConfig.model_validate(data)


def rejecting_config(model, *servers, **rejection):
    """A run of rejection sampling alone, on the same tasks."""
    data = served_config(model, *servers, steps=0).model_dump()
    data["rejection"] |= {"rounds": 2, "tasks_per_round": 2, "tasks_at_once": 1, "attempts": 8, "batch_size": 4}
    data["rejection"] |= {"keep": 2, "epochs": 1, "learning_rate": 1e-4, "warmup_steps": 0} | rejection
    data["eval"] |= {"tasks": 2}
    return TrainConfig.model_validate(data)
