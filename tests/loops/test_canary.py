"""A publication that did not arrive, or in part, is noticed at once; one that did is let pass."""

import asyncio
from dataclasses import replace

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.errors import SamplerError
from agentrl.loops.canary import Canary
from agentrl.loops.context import RunContext
from agentrl.loops.rl_async import reinforce_async
from agentrl.store import RunFolder
from agentrl.tokens.tiny import WORDS, TinyRenderer
from tests.loops.test_run import Reporter, changed
from tests.train.parity.lab import CONVERSATIONS, Faulty, model, nudged

VERSION = 3
EMBEDDING = "embedding.weight"


class Published:
    """A trainer that has learnt, a sampler with weights of its own, and what stands between them."""

    def __init__(self, trainer, before):
        self.trainer, self.before = trainer, before
        self.held = before.frozen_copy()
        self.engine = LocalEngine(self.held, schedule="continuous")

    def publish(self, names=None):
        """Give the sampler the tensors of these names; all when None."""
        mine, theirs = self.trainer.tensors(), self.held.tensors()
        self.held.load_tensors({name: mine[name] if names is None or name in names else theirs[name] for name in mine})
        self.engine.publish(VERSION)

    def check(self, sampler=None):
        canary = Canary(
            trainer=self.trainer,
            held=self.held,
            sampler=sampler or self.engine,
            renderer=TinyRenderer(),
            prompts=CONVERSATIONS[:2],
        )
        canary.compare_weights(VERSION)

        async def speak():
            canary.begin(VERSION)
            await canary.check(asyncio.to_thread)

        asyncio.run(speak())


@pytest.fixture
def published():
    before = model()
    return Published(nudged(before), before)


def test_an_honest_publication_passes(published):
    published.publish()
    published.check()


def test_a_step_that_changed_nothing_passes():
    same = model()
    unmoved = Published(same, same)
    unmoved.publish([])
    unmoved.check()


def test_one_that_reached_nobody_is_refused(published):
    published.publish([])
    with pytest.raises(SamplerError, match=r"version 3 reached nobody: of 21 tensors 21 are others"):
        published.check()


def test_one_of_which_the_sampler_never_heard_is_refused(published):
    with pytest.raises(SamplerError, match="version 3 was published and the sampler still has 0"):
        published.check()


def test_half_of_one_is_refused_with_the_names(published):
    names = list(published.trainer.tensors())
    published.publish(names[:10])
    with pytest.raises(
        SamplerError, match=rf"arrived in part: of 21 tensors 11 are others .*\({names[10]}, .* and 7 m"
    ):
        published.check()


def test_a_single_tensor_that_is_missing_is_named_however_little_it_moved():
    """The last normalisation moved by 1e-6 of itself: less than trainer and sampler differ by rounding."""
    before = model()
    after = model()
    with torch.no_grad():
        after.norm.mul_(1 + 1e-6)
    nearly = Published(after, before)
    nearly.publish([EMBEDDING])
    with pytest.raises(SamplerError, match=r"of 21 tensors 1 are others in the sampler than in the trainer \(norm\)"):
        nearly.check()


def test_an_older_version_in_the_place_of_the_new_one_is_refused(published):
    published.held.load_tensors(nudged(published.before, 0.01).tensors())
    published.engine.publish(VERSION)
    with pytest.raises(SamplerError, match="reached nobody"):
        published.check()


def test_another_label_is_refused(published):
    published.publish()
    late = Faulty(published.engine, told=lambda reply, turn: replace(reply, versions=(2,) * len(reply.token_ids)))
    with pytest.raises(SamplerError, match=r"version 3 was published and .* labelled with \[2\]"):
        published.check(late)


def test_a_sampler_that_computes_with_what_it_kept_is_refused(published):
    """Its weights are right; what it samples from is not, as with a cache that outlives a publication."""
    published.publish()
    kept = LocalEngine(published.before, version=VERSION)
    with pytest.raises(SamplerError, match=r"differ from the trainer's by .* although its weights are the same"):
        published.check(kept)


def drawn(size, dtype):
    """A Qwen3 model with the words of the tiny level."""
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra `hf`")
    hf = pytest.importorskip("agentrl.policy.hf")
    torch.manual_seed(0)
    shape = transformers.Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=size,
    )
    return hf.HuggingFacePolicy(transformers.AutoModelForCausalLM.from_config(shape).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_type_of_the_weights_decides_what_is_rounding(dtype):
    """bfloat16 rounds by 0.4 % at each step, so the paths of trainer and sampler differ by more than float32 may."""
    before = drawn(0.3, dtype)
    honest = Published(drawn(0.3, dtype), before)
    honest.publish()
    honest.check()
    kept = LocalEngine(drawn(0.2, dtype), version=VERSION)
    with pytest.raises(SamplerError, match=f"with weights in {str(dtype).removeprefix('torch.')}"):
        honest.check(kept)


@pytest.mark.parametrize(
    ("arrives", "told"),
    [([], "version 1 reached nobody"), ([EMBEDDING], "version 1 arrived in part"), (None, "")],
)
def test_a_run_stops_within_the_step(tmp_path, arrives, told):
    class Doctored(RunContext):
        """Of each publication after the first only these tensors arrive."""

        async def publish(self, version, *, restored=False):
            theirs = {name: tensor.clone() for name, tensor in self.engine.model.tensors().items()}
            await super().publish(version, restored=restored)
            if version and arrives is not None:
                mine = self.model.tensors()
                self.engine.model.load_tensors({n: mine[n] if n in arrives else theirs[n] for n in mine})

    config = changed(mode="async", algorithm="reinforce", steps=2, eval_every=0, group_size=2)
    config = config.model_copy(update={"tasks": config.tasks.model_copy(update={"reward": "random"})})
    context = Doctored(config, RunFolder.create(tmp_path, config), Reporter())
    try:
        if not told:
            reinforce_async(context)
            return
        with pytest.raises(SamplerError, match=told):
            reinforce_async(context)
        assert context.folder.metrics("rl") == []
    finally:
        context.close()
