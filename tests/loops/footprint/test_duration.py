"""Times of a run, told from small models: which ones, and what their times say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import TrainConfig, apply_overrides, load_recipe
from agentrl.loops.footprint.duration import _Costs, _median, _Round, durations
from agentrl.loops.footprint.estimate import conversations_of, trace
from agentrl.loops.footprint.small import Family, Sizes, family, made
from agentrl.loops.footprint.speed import Clock, Sampled, Steps, head, trained_part
from agentrl.loops.footprint.trace import Conversations
from agentrl.policy.base import Policy

CPU = torch.device("cpu")
SMALL = {
    "rl.groups_per_step": "2",
    "rl.group_size": "4",
    "rl.eval_every": "0",
    "eval.tasks": "0",
    "model.context": "128",
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def config(**overrides: str) -> TrainConfig:
    return apply_overrides(load_recipe("bugfix-tiny"), SMALL | {k.replace("__", "."): v for k, v in overrides.items()})


def qwen(folder: Path, *, layers: int, words: int, **more: Any) -> str:
    shape = {
        "model_type": "qwen3",
        "vocab_size": words,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(shape | more))
    return str(folder)


def test_what_layers_and_words_cost_is_added() -> None:
    kin = Family(
        whole=Sizes(layers=28, words=1000),
        base=Sizes(layers=2, words=100),
        deeper=Sizes(layers=4, words=100),
        wider=Sizes(layers=2, words=300),
    )
    # seconds = 5 + 3 per layer + 0.1 per word: 21 for the base, 27 and 41; 5 + 84 + 100 for the whole
    assert kin.told(21.0, 27.0, 41.0) == pytest.approx(189.0)
    assert kin.told(21.0, 20.0, 19.0) == 21.0  # noise is not extended below what was measured


def test_a_small_model_is_timed_itself(tmp_path: Path) -> None:
    tiny = family(config())
    assert tiny.members == [tiny.whole]
    assert tiny.told(7.0, 7.0, 7.0) == 7.0
    few = family(config(model__name=qwen(tmp_path, layers=4, words=500)))
    assert few.members == [few.whole] == [Sizes(layers=4, words=500)]


def test_a_deep_and_wide_one_is_told_from_three(tmp_path: Path) -> None:
    kin = family(config(model__name=qwen(tmp_path, layers=28, words=150_000)))
    assert kin.whole == Sizes(layers=28, words=150_000)
    # 2^25 numbers of width 32 are more words than there are
    assert kin.members == [Sizes(layers=2, words=256), Sizes(layers=4, words=256), Sizes(layers=2, words=150_000)]
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 8
    name = qwen(tmp_path, layers=24, words=150_000, layer_types=kinds, sliding_window=16, use_sliding_window=True)
    assert [sizes.layers for sizes in family(config(model__name=name)).members] == [3, 6, 3]


def test_models_are_made_as_the_run_makes_its_own(tmp_path: Path) -> None:
    name = qwen(tmp_path, layers=8, words=2000, pad_token_id=1999)
    wanted = config(model__name=name, hf__lora_rank="2", hf__device="cpu")
    policy = made(wanted, Sizes(layers=2, words=256), CPU)
    # rank 2 times the sum of both sides of each of the seven projections, in two layers
    assert policy.num_parameters == 2 * 2 * ((32 + 32) + 2 * (32 + 16) + (32 + 32) + 3 * (32 + 64))
    assert made(config(), Sizes(layers=1, words=64), CPU).num_parameters > 0


@pytest.mark.parametrize(
    ("weights", "length", "expected"),
    [
        (10**5, 100, (4, 3, 40, 100)),  # all of them: 4 * (40 + 3 * 60) = 880
        (10**9, 100, (1, 3, 40, 100)),  # at least 384 tokens: one group of 220
        (10**5, 400, (1, 3, 160, 400)),  # 1,024 tokens: one group of 160 + 3 * 240 = 880
        (10**9, 4000, (1, 1, 154, 384)),  # one alone, cut; its prompt is still four tenths
    ],
)
def test_what_is_trained_for_a_second(weights: int, length: int, expected: tuple[int, ...]) -> None:
    whole = Conversations(groups=4, members=3, prompt=2 * length // 5, length=length, observation=5)
    part = trained_part(whole, weights)
    assert (part.groups, part.members, part.prompt, part.length) == expected


class Passes:
    """Has passes counted in the place of seconds."""

    def __init__(self, policy: Policy) -> None:
        self.count = 0
        policy.register_forward_hook(self._more)

    def _more(self, *_: Any) -> None:
        self.count += 1

    def seconds(self, compute: Callable[[], object]) -> float:
        before = self.count
        compute()
        return float(self.count - before)


def test_a_further_micro_batch_is_one_of_almost_nothing_and_leaves_the_next_step_as_it_is() -> None:
    policy = made(config(), Sizes(layers=1, words=64), CPU)
    work = Conversations(groups=2, members=2, prompt=4, length=8, observation=1)
    steps, passes = Steps(policy, work, max_tokens=100), Passes(policy)
    assert [steps.update(passes), steps.two(passes), steps.whole(passes)] == [1, 2, 1]  # type: ignore[arg-type]


def test_each_number_is_the_median_of_its_own_rounds() -> None:
    """The least of what is told would be that of the round with most noise in the shallow model."""
    base, deeper = Sizes(layers=2, words=100), Sizes(layers=4, words=100)
    kin = Family(whole=Sizes(layers=28, words=100), base=base, deeper=deeper, wider=None)

    def costs(seconds: float) -> _Costs:
        return _Costs(seconds, seconds, seconds, Sampled(context=seconds, token=seconds, answer=seconds))

    times = [(1.0, 2.0), (1.1, 2.1), (1.5, 2.2)]  # the last would say 1.5 + 13 * 0.7 = 10.6, the first 14
    rounds = [_Round({base: costs(one), deeper: costs(two)}, word=two, kept=one) for one, two in times]
    found = _median(rounds)
    assert (found.models[base], found.models[deeper], found.word, found.kept) == (costs(1.1), costs(2.1), 2.1, 1.1)
    assert kin.told(found.models[base].passes, found.models[deeper].passes, 0.0) == pytest.approx(14.1)


def test_times_have_parts_and_grow_with_the_work() -> None:
    found = []
    for groups in ("2", "8"):
        wanted = config(rl__groups_per_step=groups)
        found.append(durations(wanted, trace(wanted, conversations_of(wanted))))
    few, many = found
    assert set(few["sampling"].seconds) == {"prompts", "replies", "answers"}
    assert set(few["training"].seconds) == {"passes", "vocabulary", "accumulation", "update"}
    for phase, one in few.items():
        assert one.total == sum(one.seconds.values()) > 0
        assert many[phase].flops == pytest.approx(4 * one.flops, rel=0.01)
    # four times the passes; what else runs here does not make that less than one
    assert many["training"].seconds["passes"] > few["training"].seconds["passes"]


def test_the_vocabulary_of_a_large_model_is_in_the_time(tmp_path: Path) -> None:
    wanted = config(model__name=qwen(tmp_path, layers=2, words=20_000), hf__device="cpu")
    found = durations(wanted, trace(wanted, conversations_of(wanted)))
    assert found["training"].seconds["vocabulary"] > 0
    assert found["sampling"].seconds["replies"] > 0


def test_the_head_costs_more_where_it_is_trained() -> None:
    """A third of the products is for the gradient of the projection."""
    least = {}
    for trained in (False, True):
        weight_VD = torch.zeros(4096, 256, device="meta").requires_grad_(trained)
        least[trained] = min(head(weight_VD, 4096, 512, Clock(CPU)) for _ in range(3))
    assert least[True] > least[False] > 0
