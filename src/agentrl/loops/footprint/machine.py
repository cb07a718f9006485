"""What this machine has of memory, and what of it is taken before a run begins."""

from __future__ import annotations

import importlib

import torch

from agentrl.engine.memory import Memory, resident
from agentrl.loops.footprint.trace import Conversations
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.losses import LossShare
from agentrl.train.packing import Batch
from agentrl.train.scoring import Scored
from agentrl.train.trainer import OptimizerSettings, Trainer


def device_memory() -> Memory | None:
    """Of the first CUDA device, None without one."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return Memory(free=free, total=total)


def warm_up(*, transformers: bool) -> int:
    """Bytes that Python and the libraries hold in a run: `resident`, after one step of a network of a few weights.

    Args:
        transformers: whether the run needs that library.
    """
    if transformers:
        importlib.import_module("agentrl.policy.load")
        importlib.import_module("transformers.models.qwen3.modeling_qwen3")
    model = TinyTransformer(TransformerShape(vocab_size=8, layers=1, width=8, heads=1, mlp_width=8), seed=0)
    sample = Conversations(groups=1, members=1, prompt=4, length=8, observation=1).samples()
    Trainer(model, OptimizerSettings(learning_rate=0.0, matrix_learning_rate=0.0, total_steps=1)).step(sample, _total)
    return resident()


def _total(scored: Scored, _: Batch) -> LossShare:
    return LossShare(scored.logprobs_K.sum(), {}, {})
