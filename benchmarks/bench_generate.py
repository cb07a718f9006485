"""Generated tokens per second of our in-process engine against `transformers` `generate`, in one run, as a ratio.

python benchmarks/bench_generate.py [rounds]

Two workloads of the recipe bugfix-tiny's size: one reply to each prompt, and conversations of three replies. Sixteen
real prompts, a group of eight for each, temperature 1. Who runs them:

- ours: LocalEngine, 128 conversations through their sessions.
- twin: the very same weights under `generate` (see hf_twin.py). That it is the same model is proved before anything
  is timed.
- llama: the library's own LlamaForCausalLM with random weights and as many numbers in its layers.

The last two run in two ways. As documented: `generate` on the batch, and for a later turn on the whole conversation
again. Best: each prompt computed once and its cache repeated for its group, and the cache continued across turns,
observations padded on the left.

Every reply has a fixed length. All use one thread, since the engine does. Ours returns the log-probability of each
token, and the library is not asked for it. Rounds alternate between contestants; the first is not counted. Seconds are
of processor time, which with one thread is the time that passes on a quiet machine; how much more passed is printed.
"""

from __future__ import annotations

import asyncio
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from hf_twin import SameDraws, Twin, compute, left_padded, llama
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, PreTrainedModel

from agentrl.config import load_recipe
from agentrl.engine.local import LocalEngine
from agentrl.engine.random import derive_seed
from agentrl.engine.session import LocalSession
from agentrl.policy.cache import next_logits
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.tasks.bugfix.taskset import BugFix
from agentrl.tokens.tiny import WORDS, TinyRenderer
from agentrl.types import Completion

Ids = tuple[int, ...]
TOLERANCE = 1e-4
"""Most that logits and log-probabilities of the twin may differ from ours."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Conversations in groups that share a prompt, one seed each; between replies come observations (turn, B)."""

    name: str
    prompts: tuple[Ids, ...]
    observations: tuple[tuple[Ids, ...], ...]
    seeds: tuple[int, ...]
    reply: int

    @property
    def group(self) -> int:
        """Conversations of each prompt."""
        return len(self.seeds) // len(self.prompts)

    @property
    def turns(self) -> int:
        """Replies of each conversation."""
        return len(self.observations) + 1

    @property
    def sampled(self) -> int:
        """Tokens that a play of the workload generates."""
        return len(self.seeds) * self.turns * self.reply


def make_workload(name: str, prompts: Sequence[Ids], *, group: int, turns: int, reply: int) -> Workload:
    """Observations are random words, 6 to 14 of them."""
    seeds = tuple(derive_seed(0, name, n) for n in range(len(prompts) * group))
    rng = np.random.default_rng(0)
    vocabulary = 1 + max(max(prompt) for prompt in prompts)
    observations = tuple(
        tuple(tuple(rng.integers(1, vocabulary, rng.integers(6, 15)).tolist()) for _ in seeds) for _ in range(turns - 1)
    )
    return Workload(name=name, prompts=tuple(prompts), observations=observations, seeds=seeds, reply=reply)


def engine_replies(model: TinyTransformer, work: Workload) -> list[list[Completion]]:
    """All conversations through the engine: the replies of each."""
    return asyncio.run(_play(LocalEngine(model), work))


async def _play(engine: LocalEngine, work: Workload) -> list[list[Completion]]:
    sessions = [engine.session(seed) for seed in work.seeds]
    return await asyncio.gather(*(_converse(session, b, work) for b, session in enumerate(sessions)))


async def _converse(session: LocalSession, b: int, work: Workload) -> list[Completion]:
    contexts = [work.prompts[b // work.group], *(turn[b] for turn in work.observations)]
    replies = [await session.sample(context, max_tokens=work.reply, stop_ids=frozenset()) for context in contexts]
    await session.close()
    return replies


def library_replies(
    model: PreTrainedModel, work: Workload, *, best: bool, processor: LogitsProcessor | None = None
) -> Tensor:
    """Token ids (conversations, turns, reply) of all conversations; see above for what ``best`` does."""
    ids, mask = left_padded(work.prompts)
    reused: dict[str, DynamicCache] = {}
    if best:
        reused["cache"] = DynamicCache(config=model.config)
        compute(model, ids[:, :-1], mask[:, :-1], reused["cache"])
        reused["cache"].batch_repeat_interleave(work.group)
    ids, mask = (x.repeat_interleave(work.group, 0) for x in (ids, mask))
    replies = []
    for turn in range(work.turns):
        if turn:
            new_ids, new_mask = left_padded(work.observations[turn - 1])
            ids, mask = torch.cat((ids, new_ids), 1), torch.cat((mask, new_mask), 1)
        ids = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=work.reply,
            logits_processor=[processor] if processor else [],
            **reused,
        )
        replies.append(ids[:, -work.reply :])
        mask = torch.nn.functional.pad(mask, (0, work.reply), value=1)
    return torch.stack(replies, 1)


# The proof that the twin is one.


def largest_difference(network: TinyTransformer, twin: Twin, prompts: Sequence[Ids]) -> float:
    """Between the logits that follow each prompt, the twin's and ours."""
    theirs = compute(twin, *left_padded(prompts), DynamicCache(config=twin.config))
    ours = next_logits(network, prompts)
    return float((theirs - ours).abs().max())


def largest_gap(network: TinyTransformer, twin: Twin, work: Workload, *, best: bool) -> float:
    """Between the log-probabilities of all sampled tokens, the twin's and ours, at the same draws; infinite when the
    tokens differ."""
    ours = engine_replies(network, work)
    draws = SameDraws(work.seeds)
    tokens = library_replies(twin, work, best=best, processor=draws)
    if tokens.tolist() != [[list(reply.token_ids) for reply in replies] for replies in ours]:
        return math.inf
    logprobs = torch.tensor([[reply.logprobs for reply in replies] for replies in ours]).flatten(1)
    return float((torch.stack(draws.logprobs, 1) - logprobs).abs().max())


def prove(network: TinyTransformer, twin: Twin, work: Workload) -> str:
    """Says what was compared. Ends the run when the twin is not the model that the engine samples from."""
    logits = largest_difference(network, twin, work.prompts)
    gap = max(largest_gap(network, twin, work, best=best) for best in (True, False))
    if max(logits, gap) > TOLERANCE:
        raise SystemExit(
            f"{work.name}: not the same model; logits differ by {logits:.1e}, log-probabilities by {gap:.1e}"
        )
    return (
        f"same model: after the prompts logits differ by at most {logits:.1e}; at equal draws all {work.sampled:,} "
        f"sampled tokens are equal in both ways, and their log-probabilities differ by at most {gap:.1e}"
    )


# Time.


def least_seconds(network: TinyTransformer, work: Workload, flops: float, bandwidth: float) -> float:
    """What the operations would take at ``flops`` a second, or the bytes of weights and cache at ``bandwidth``,
    whichever is more, when every token is computed once and every prompt once for its group."""
    shape, conversations = network.shape, len(work.seeds)
    layers = sum(weight.numel() for weight in network.blocks.parameters())
    head = network.embedding.weight.numel()
    prompts = [len(prompt) for prompt in work.prompts]
    observations = [len(ids) for turn in work.observations for ids in turn]
    observed = statistics.mean(observations or [0])
    per_key = 4 * shape.layers * shape.width
    operations = sum(2 * layers * length + per_key * length**2 / 2 for length in prompts)
    read = own = 0.0
    for reply in range(work.turns):
        for step in range(work.reply):
            new = 1.0 if step else (1.0 + observed if reply else 0.0)
            own += new
            attended = per_key * (statistics.mean(prompts) + own)
            operations += conversations * (new * (2 * layers + attended) + 2 * head)
            read += 4 * (layers + head) + 8 * shape.layers * shape.width * (sum(prompts) + conversations * own)
    return max(operations / flops, read / bandwidth)


def measure_machine() -> tuple[float, float]:
    """Float32 operations a second in a large matrix product, and bytes read a second in a product of a 16 MiB matrix,
    about the size of the caches, with a vector."""
    square, tall, vector = torch.randn(1024, 1024), torch.randn(4096, 1024), torch.randn(1024)
    product = min(timed(lambda: square @ square) for _ in range(7))
    reading = min(timed(lambda: tall @ vector) for _ in range(7))
    return 2 * 1024**3 / product, tall.nbytes / reading


def timed(play: Callable[[], object]) -> float:
    """Seconds of processor time of one call."""
    started = time.process_time()
    play()
    return time.process_time() - started


def compare(plays: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each contestant in each round, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    for number in range(rounds + 1):
        for name, play in plays.items():
            elapsed = timed(play)
            if number:
                seconds[name].append(elapsed)
    return seconds


def report(work: Workload, seconds: dict[str, list[float]], floor: float) -> None:
    """One line a contestant: tokens a second, and the median, least and greatest ratio to ours within a round."""
    ours = seconds["ours"]
    for name, theirs in seconds.items():
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        speed = work.sampled / statistics.median(theirs)
        ratio = f"ours is {statistics.median(ratios):.2f} x as fast ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {name:<22}{speed:>8,.0f} tokens/s  {'' if theirs is ours else ratio}".rstrip())
    share = floor / statistics.median(ours)
    print(f"  {'limit of this core':<22}{work.sampled / floor:>8,.0f} tokens/s  ours reaches {share:.0%}")


def processor_name() -> str:
    """As the kernel gives it, where it does."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x {len(names)}" if names else platform.machine()


def contestants(
    network: TinyTransformer, twin: Twin, standard: PreTrainedModel, work: Workload
) -> dict[str, Callable[[], object]]:
    """Who plays the workload."""
    return {
        "ours": partial(engine_replies, network, work),
        "twin, best": partial(library_replies, twin, work, best=True),
        "twin, as documented": partial(library_replies, twin, work, best=False),
        "llama, best": partial(library_replies, standard, work, best=True),
        "llama, as documented": partial(library_replies, standard, work, best=False),
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    torch.set_num_threads(1)
    config = load_recipe("bugfix-tiny")
    network = TinyTransformer(
        TransformerShape(vocab_size=len(WORDS), **config.model.model_dump(exclude={"name"})), seed=0
    )
    twin, standard = Twin(network).eval(), llama(network.shape)
    flops, bandwidth = measure_machine()
    print(f"{processor_name()}; {torch.get_num_threads()} thread, Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"large product {flops / 1e9:.0f} GFLOP/s, reading {bandwidth / 1e9:.1f} GB/s; ", end="")
    print(f"parameters: ours and twin {network.num_parameters:,}, llama {standard.num_parameters():,}")
    prompts = real_prompts(config.rl.groups_per_step)
    lengths = f"{min(map(len, prompts))} to {max(map(len, prompts))}"
    for name, turns in (("one reply", 1), ("three replies", 3)):
        work = make_workload(name, prompts, group=config.rl.group_size, turns=turns, reply=config.tasks.max_reply)
        print(f"{name}: {len(work.seeds)} conversations on {len(prompts)} prompts of {lengths} tokens, ", end="")
        print(f"{work.reply} new tokens a reply, {rounds} rounds")
        print(f"  {prove(network, twin, work)}")
        passed, used = time.perf_counter(), time.process_time()
        seconds = compare(contestants(network, twin, standard, work), rounds)
        passed, used = time.perf_counter() - passed, time.process_time() - used
        report(work, seconds, least_seconds(network, work, flops, bandwidth))
        print(f"  time that passed / processor time: {passed / used:.2f}")


def real_prompts(count: int) -> list[Ids]:
    """The opening ids of the first training tasks."""
    tasks, renderer = BugFix("tiny", "train", count), TinyRenderer()
    rendered = [renderer.render(tasks[index].prompt, ()) for index in range(count)]
    return [(*(token for ids in spans for token in ids), *renderer.generation_prompt()) for spans in rendered]


if __name__ == "__main__":
    main()
