"""Compiled pieces of a forward pass give the numbers of the model's own layers, whatever changes between two steps.

Most are compiled by a backend that computes what `torch.compile` has found as it is, which takes a second;
``inductor``, which writes and compiles code, is left to one long test.
"""

import asyncio
from copy import deepcopy

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.policy.agreement import agrees
from agentrl.policy.cache import next_logits
from agentrl.policy.choice import Guarded
from agentrl.policy.hf import HuggingFacePolicy, _own_layers
from agentrl.policy.pieces import SIZES, Compilation, PieceError, Pieces
from agentrl.policy.plain import _Plain, probe
from tests.policy.test_plain import CONFIGS, IDS, make

CLOSE = {"rtol": 0.0, "atol": 1e-5}


class Watched:
    """A backend that computes a graph as it is, keeps the number of tokens that each call was given, fails when it is
    told to, and does with results what CUDA graphs do: those of a step are gone once the next one has begun.

    The first graph that is compiled is that of the first piece, with which a step begins; the second lies between
    attentions.
    """

    def __init__(self):
        self.graphs, self.sizes, self.given, self.failing = 0, [], [], False

    def __call__(self, graph, inputs):
        number, self.graphs = self.graphs, self.graphs + 1

        def computed(*given):
            if number == 0:
                self._begin()
            if number == 1 and self.failing:
                raise RuntimeError("out of memory")
            self.sizes += [x.shape[0] for x in given if torch.is_tensor(x) and not isinstance(x, torch.nn.Parameter)][
                :1
            ]
            results = tuple(result.clone() for result in graph(*given))
            self.given += results
            return results

        return computed

    def _begin(self):
        for tensor in self.given:
            tensor.fill_(float("nan"))
        self.given = []


def compiled(policy, backend="eager", **how):
    """Have a policy sampled by pieces, and by what must not be called where they do not take a step."""
    policy._sampling = Guarded(Pieces(policy.model.model, Compilation(backend=backend, **how)), refuse)
    return policy


def refuse(*_):
    raise AssertionError("the pieces did not take this step")


def by_own_layers(policy):
    policy._sampling = policy._through_own_layers
    return next_logits(policy, IDS)


@pytest.fixture(scope="module")
def watched():
    """A backend, and pieces that it has compiled."""
    backend = Watched()
    policy = compiled(make(CONFIGS["qwen3"]), backend)
    next_logits(policy, IDS)
    return backend, policy._sampling.pieces


@pytest.fixture
def policy(watched):
    """With those pieces; a copy of them has the weights of the model that it is for."""
    _, pieces = watched
    policy = make(CONFIGS["qwen3"])
    own = deepcopy(pieces, {id(pieces.base): policy.model.model})
    policy._sampling = Guarded(own, refuse)
    return policy


@torch._dynamo.config.patch(recompile_limit=1)
def test_the_numbers_of_the_models_own_layers_however_many_models_there_are():
    """The limit is on how often one piece of code is compiled. Nor do numbers that differ between models, here what
    queries are scaled by, become inputs without an axis, which `Watched` would stumble over."""
    for name in ("llama", "qwen3"):
        policy = compiled(make(CONFIGS[name]), Watched())
        quick = next_logits(policy, IDS)
        torch.testing.assert_close(quick, by_own_layers(policy), **CLOSE)


def test_tokens_are_filled_up_to_few_numbers_for_which_nothing_is_compiled_anew(watched, policy):
    """3 pieces, whatever the layers (3 here) and the tokens; a step has 4 calls: first, 2 between, last."""
    backend, _ = watched
    with torch.inference_mode():
        for count, filled in ((1, 8), (8, 8), (9, 16), (24, 32), (33, 64), (512, 512)):
            backend.sizes.clear()
            assert probe(policy.model.model, policy._sampling.pieces, count=count).hidden_MD.shape == (count, 32)
            assert backend.sizes == [filled] * 4
    assert backend.graphs == 3


def test_it_agrees_at_every_size(policy):
    with torch.inference_mode():
        for size in SIZES:
            for count in (size // 2 + 1, size):
                assert agrees(policy.model.model, policy._sampling.pieces, _own_layers, count)


def test_weights_that_change_in_place_are_seen_at_the_next_step(policy):
    """And by nobody else: a copy keeps its own."""
    before, copy = next_logits(policy, IDS), deepcopy(policy)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    after = next_logits(policy, IDS)
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(next_logits(copy, IDS), before, rtol=0.0, atol=0.0)
    torch.testing.assert_close(after, by_own_layers(policy), **CLOSE)


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_adapters_take_part():
    """They begin at zero, so that they are moved here as training moves them: in place."""
    lora = pytest.importorskip("agentrl.policy.lora")
    model = make(CONFIGS["qwen3"]).model
    lora.add_adapter(model, rank=2, alpha=6.0, targets=("all-linear",), seed=1)
    policy = compiled(HuggingFacePolicy(model))
    before = next_logits(policy, IDS)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if lora.is_adapter(name):
                weight.add_(0.2 * torch.randn_like(weight))
    after = next_logits(policy, IDS)
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(after, by_own_layers(policy), **CLOSE)


def test_what_is_given_outlasts_the_next_step(policy):
    """What CUDA graphs give is overwritten when they are replayed."""
    way, base = policy._sampling.pieces, policy.model.model
    with torch.inference_mode():
        first = probe(base, way).hidden_MD
        kept = first.clone()
        assert (probe(base, way, first=5).hidden_MD - kept).abs().max() > 1e-2
    torch.testing.assert_close(first, kept, rtol=0.0, atol=0.0)


def test_the_engine_samples_the_same_tokens(policy):
    told = sampled(policy)
    policy._sampling = _Plain(policy.model.model)
    assert told == sampled(policy)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(2.0)
    assert told != sampled(policy)


def test_steps_that_would_be_compiled_anew_are_not_taken(policy):
    way, ids = policy._sampling.pieces, torch.zeros(512, dtype=torch.long)
    assert not way.takes(ids)  # not in inference mode: what is compiled then could be differentiated
    with torch.inference_mode():
        assert way.takes(ids)
        assert not way.takes(torch.zeros(513, dtype=torch.long))
        with torch.autocast("cpu", torch.bfloat16):
            assert not way.takes(ids)
        policy.double()
        assert not way.takes(ids)


def test_what_fails_is_told_in_a_line_and_computed_otherwise():
    def broken(graph, inputs):
        raise OSError("no compiler here\nand more of it")

    policy = compiled(make(CONFIGS["qwen3"]), broken)
    base = policy.model.model
    with torch.inference_mode(), pytest.raises(PieceError, match=r"no compiler here$"):
        probe(base, policy._sampling.pieces)
    policy._sampling.other = _Plain(base)
    quick = next_logits(policy, IDS)
    assert "no compiler here" in policy._sampling.failure
    torch.testing.assert_close(quick, by_own_layers(policy), **CLOSE)


def test_pieces_that_fail_while_they_run_are_given_up(watched, policy):
    """In the middle of a step, whose tokens are attended to again."""
    backend, _ = watched
    policy._sampling.other = policy._through_own_layers
    told, backend.failing = sampled(policy), True
    try:
        assert policy._sampling.failure is None
        assert sampled(policy) == told
    finally:
        backend.failing = False
    assert policy._sampling.failure == "RuntimeError: out of memory"


def sampled(policy):
    """The tokens of three replies to one prompt and of one to another, with several turns."""

    async def converse(session, contexts):
        replies = [await session.sample(ids, max_tokens=6, stop_ids=frozenset()) for ids in contexts]
        await session.close()
        return [token for reply in replies for token in reply.token_ids]

    async def all_of_them():
        engine = LocalEngine(policy)
        plans = {1: [(1, 2, 3), (4,)], 2: [(1, 2, 3)], 3: [(1, 2, 3), (7, 8)], 4: [tuple(range(5, 40)), ()]}
        talks = [converse(engine.session(seed), contexts) for seed, contexts in plans.items()]
        return await asyncio.gather(*talks)

    return asyncio.run(asyncio.wait_for(all_of_them(), 60.0))


@pytest.mark.long
def test_compiled_code_gives_the_same_numbers_and_replies():
    """By the compiler that a GPU is sampled with, asked for CUDA graphs, which there are none of on a CPU."""
    policy = compiled(make(CONFIGS["qwen3"]), "inductor", graphs=True)
    with torch.inference_mode():
        for size in SIZES:
            assert agrees(policy.model.model, policy._sampling.pieces, _own_layers, size - 1)
    told = sampled(policy)
    policy._sampling = policy._through_own_layers
    assert told == sampled(policy)
