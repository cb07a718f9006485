"""One GRPO step on given completions, by our trainer and by TRL's, on the same weights and data."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import utils as trl_utils

from agentrl.algorithms.presets import preset
from agentrl.bench.floor import Sizes
from agentrl.bench.generation.models import model
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.train.losses import PolicyGradient
from agentrl.train.packing import micro_batches
from agentrl.train.scoring import score_tokens
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Sample

LEARNING_RATE = 1e-5
BETAS = (0.9, 0.95)
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Workload(Sizes):
    """A model's sizes, and a group of completions of one prompt. Ids and numbers are random, from seed 0."""

    group: int = 8
    prompt: int = 256
    completion: int = 64

    @property
    def trained(self) -> int:
        """Tokens that a step trains."""
        return self.group * self.completion

    def model(self) -> Qwen3ForCausalLM:
        """Fresh weights, drawn from seed 0, output tied to the embedding."""
        return model(self)

    def data(self) -> Data:
        """Old log-probabilities are near those of fresh weights, so that some ratios are clipped."""
        draw = torch.Generator().manual_seed(0)
        words = partial(torch.randint, 2, self.vocabulary, generator=draw)
        prompt, completions = words((self.prompt,)), words((self.group, self.completion))
        noise = torch.randn(self.group, self.completion, generator=draw)
        old = 0.15 * noise - torch.log(torch.tensor(float(self.vocabulary)))
        return Data(prompt, completions, old, torch.randn(self.group, generator=draw))


@dataclass(frozen=True)
class Data:
    """Prompt (P,), completions (G, T), their log-probabilities when they were sampled (G, T), advantages (G,)."""

    prompt_P: Tensor
    completions_GT: Tensor
    old_logprobs_GT: Tensor
    advantages_G: Tensor


class Ours:
    """Our trainer, with the preset ``grpo``.

    With ``checkpointing`` a layer's activations are computed again in the backward pass.
    """

    def __init__(self, work: Workload, *, checkpointing: bool = False) -> None:
        self.policy = HuggingFacePolicy(work.model())
        if checkpointing:
            self.policy.model.activation_checkpointing_enable()
        self.policy.train()
        settings = OptimizerSettings(
            learning_rate=LEARNING_RATE,
            matrix_learning_rate=LEARNING_RATE,
            total_steps=10**9,
            warmup_steps=1,
            betas=BETAS,
            max_grad_norm=MAX_GRAD_NORM,
        )
        self.trainer = Trainer(self.policy, settings)
        self.loss = PolicyGradient(preset("grpo"))
        self.samples = as_samples(work.data())

    def loss_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        """Of the step, without the step."""
        self.policy.zero_grad()
        total = 0.0
        for batch in micro_batches(self.samples, max_tokens=self.trainer.settings.max_tokens):
            share = self.loss(score_tokens(self.policy, batch), batch).loss
            share.backward()
            total += share.item()
        return total, gradients(self.policy.model)

    def step(self) -> None:
        """One optimizer step."""
        self.trainer.step(self.samples, self.loss)

    def drop_gradients(self) -> None:
        """Leaves weights and the optimizer's state."""
        self.policy.zero_grad()


class Theirs:
    """TRL's trainer, fed with completions: its own loss, backward pass, clipping and optimizer.

    On a CPU its output projection scores every position, prompts too; on a GPU only those that are trained. With
    ``trained_only`` it does so here.
    """

    def __init__(self, work: Workload, *, checkpointing: bool = False, trained_only: bool = False) -> None:
        self.trained_only = trained_only
        transformers.logging.set_verbosity_error()
        warnings.filterwarnings("ignore")
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to="none",
            loss_type="grpo",
            learning_rate=LEARNING_RATE,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            max_grad_norm=MAX_GRAD_NORM,
            per_device_train_batch_size=work.group,
            num_generations=work.group,
            max_completion_length=work.completion,
            gradient_checkpointing=checkpointing,
        )
        self.trainer = GRPOTrainer(
            model=work.model(),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["word"] * work.group}),
            processing_class=any_tokenizer(),
        )
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.model.train()
        if checkpointing:
            self.trainer.model.activation_checkpointing_enable()
        self.inputs = as_inputs(work.data())

    def loss_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        """Of the step, without the step."""
        self.drop_gradients()
        return self._backward(), gradients(self.trainer.model)

    def step(self) -> None:
        """One optimizer step."""
        self._backward()
        self.trainer.accelerator.clip_grad_norm_(self.trainer.model.parameters(), MAX_GRAD_NORM)
        self.trainer.optimizer.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Leaves weights and the optimizer's state."""
        self.trainer.model.zero_grad()

    def _backward(self) -> float:
        with scores_trained_only(self.trained_only):
            loss = self.trainer.compute_loss(self.trainer.model, self.inputs)
        self.trainer.accelerator.backward(loss)
        return float(loss)


@contextmanager
def scores_trained_only(wanted: bool) -> Iterator[None]:
    """TRL asks whether it may select the trained positions; while this is open the answer is yes, if wanted."""
    asked = trl_utils._use_triton
    if wanted:
        trl_utils._use_triton = lambda _: True
    try:
        yield
    finally:
        trl_utils._use_triton = asked


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """Copies, by parameter."""
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def as_samples(data: Data) -> list[Sample]:
    """One group of samples, completions trained."""
    prompt = data.prompt_P.tolist()
    rows = zip(data.completions_GT.tolist(), data.old_logprobs_GT.tolist(), data.advantages_G.tolist(), strict=True)
    return [
        Sample(
            token_ids=(*prompt, *ids),
            weights={"pg": (0.0,) * len(prompt) + (1.0,) * len(ids)},
            logprobs=(*(None,) * len(prompt), *old),
            advantages=(0.0,) * len(prompt) + (advantage,) * len(ids),
            trace_id=f"{number}",
            group_id="group",
        )
        for number, (ids, old, advantage) in enumerate(rows)
    ]


def as_inputs(data: Data) -> dict[str, Tensor]:
    """The prompt once per completion, no padding."""
    prompt_ids = data.prompt_P.repeat(len(data.completions_GT), 1)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": torch.ones_like(prompt_ids),
        "completion_ids": data.completions_GT,
        "completion_mask": torch.ones_like(data.completions_GT),
        "old_per_token_logps": data.old_logprobs_GT,
        "advantages": data.advantages_G,
        "num_items_in_batch": torch.tensor(data.completions_GT.numel()),
    }


def any_tokenizer() -> PreTrainedTokenizerFast:
    """Never used, and asked for all the same."""
    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "word": 2}, unk_token="word"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
