"""What this machine has: memory, and how fast it computes."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl.engine.draw import draw
from agentrl.loops.footprint.live import Product
from agentrl.loops.footprint.trace import Conversations, Work
from agentrl.policy.base import Policy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.losses import LossShare
from agentrl.train.packing import Batch
from agentrl.train.scoring import Scored
from agentrl.train.trainer import OptimizerSettings, Trainer

_LARGEST = 2**31
"""Operations of a product that is timed; larger ones are timed in part."""
_TIMED_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a device: those that are free for this run, and all."""

    free: int
    total: int


def host_memory() -> Memory | None:
    """Of the computer, as far as /proc tells; what this process holds already counts as free for the run."""
    found = _kib(Path("/proc/meminfo"), "MemAvailable", "MemTotal")
    if len(found) < 2:
        return None
    return Memory(free=found["MemAvailable"] + resident(), total=found["MemTotal"])


def device_memory() -> Memory | None:
    """Of the first CUDA device, None without one."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return Memory(free=free, total=total)


def resident() -> int:
    """Bytes that this process holds now, as far as /proc tells: Python, the libraries and what they have loaded."""
    return _kib(Path("/proc/self/status"), "VmRSS").get("VmRSS", 0)


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


def _kib(path: Path, *names: str) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    parts = (line.split() for line in lines)
    return {part[0].rstrip(":"): int(part[1]) * 1024 for part in parts if part and part[0].rstrip(":") in names}


def rates(device: str, policy: Policy) -> Rates:
    """Those of a device for a policy, in the type that most of its weights have."""
    counts: Counter[torch.dtype] = Counter()
    for weight in policy.parameters():
        counts[weight.dtype] += weight.numel()
    there = device if device == "cpu" or torch.cuda.is_available() else "cpu"
    return Rates(torch.device(there), counts.most_common(1)[0][0])


class Rates:
    """How long this machine takes for what a trace has counted; each kind of work is timed once, for a moment.

    Args:
        device: that computes.
        dtype: of the weights.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._products: dict[Product, float] = {}
        self._per_byte = 0.0
        self._per_call = 0.0

    def seconds(self, work: Work) -> dict[str, float]:
        """By kind: matrix products, attention, and everything else."""
        if not self._per_byte:
            self._per_byte, self._per_call = self._elementwise()
        products = sum(times * self._product(product) for product, times in work.products.items())
        attention = work.attention_flops / self.attention_rate if work.attention_flops else 0.0
        rest = work.moved * self._per_byte + work.calls * self._per_call
        return {"products": products, "attention": attention, "rest": rest}

    @property
    def attention_rate(self) -> float:
        """Operations a second of a product of the sizes of attention."""
        product = Product(8, 256, 64, 256)
        return 2.0 * product.batch * product.rows * product.inner * product.columns / self._product(product)

    def _product(self, product: Product) -> float:
        """Seconds of one product; one that is large is timed with fewer rows or words."""
        if product not in self._products:
            batch, rows, inner, columns = product
            whole = cost = 2.0 * batch * rows * inner * columns
            while cost > _LARGEST and max(batch, rows, columns) > 512:
                if batch > 1:
                    batch //= 2
                elif columns >= rows:
                    columns //= 2
                else:
                    rows //= 2
                cost = 2.0 * batch * rows * inner * columns
            left, right = self._filled(batch, rows, inner), self._filled(batch, columns, inner).transpose(1, 2)
            self._products[product] = self._timed(lambda: torch.bmm(left, right)) * whole / cost
        return self._products[product]

    def draw(self, rows: int, words: int) -> float:
        """Seconds of drawing a token in each of some rows of logits; eight at most are timed."""
        some = min(rows, 8)
        logits = torch.zeros(some, words, device=self.device)
        uniform, greedy = logits.new_zeros(some, dtype=torch.float64), logits.new_zeros(some, dtype=torch.bool)
        return self._timed(lambda: draw(logits, uniform, greedy)) * rows / some

    def _elementwise(self) -> tuple[float, float]:
        """Seconds per byte that is read or written, and per call of an operation from a module."""
        large, tiny = self._filled(1, 2**20, 1), self._filled(1, 1, 8)
        layer = torch.nn.Linear(8, 8, dtype=self.dtype, device=self.device).requires_grad_(False)
        return self._timed(lambda: large * large) / (3 * large.nbytes), self._timed(lambda: layer(tiny))

    def _filled(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, 0.5, dtype=self.dtype, device=self.device)

    def _timed(self, compute: Callable[[], object]) -> float:
        """Median seconds of one call, after a first that warms up."""
        self._once(compute)
        found: list[float] = []
        ends = time.perf_counter() + _TIMED_S
        while len(found) < 3 or (time.perf_counter() < ends and len(found) < 99):
            found.append(self._once(compute))
        return sorted(found)[len(found) // 2]

    def _once(self, compute: Callable[[], object]) -> float:
        started = time.perf_counter()
        compute()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started
