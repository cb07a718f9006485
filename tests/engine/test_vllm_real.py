"""A real vLLM server and the trainer agree, on every token, before and after publications, a crash and a restart.

The server computes on the CPU in float32, as the trainer here does; they differ by rounding, 1e-5 and less. Equal
tokens of other weights differ by whole nats, which each test shows beside.
"""

import asyncio
import functools
import json
import shutil
import urllib.request

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.vllm_process import PYTHON, VLLMProcess

pytest.importorskip("httpx")
pytest.importorskip("transformers", reason="transformers is in the extra `hf`: pip install -e '.[hf]'")

from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.engine.vllm import ModelShape, Timing, VLLMSampler, VLLMSettings
from agentrl.errors import SamplerError
from agentrl.policy.hf import HuggingFacePolicy
from agentrl.train.scoring import score_samples
from agentrl.types import Sample, Sampling

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(shutil.which(PYTHON) is None, reason="no environment of vLLM here: make vllm-env"),
]

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
}
SHAPE = ModelShape(vocab_size=96, context=512, model_type="qwen3", hidden_size=64, num_hidden_layers=2)
SHAPE_FIELDS = {name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__}
STOP = frozenset((2,))
CLOSE, FAR = 1e-4, 1e-1
TIMING = Timing(request_s=300, reply_s=1200, publish_s=300, health_s=0.5, answer_s=60, backoff_s=0.2)
LONG = tuple(3 + (7 * place) % 90 for place in range(200))
"""More than a block of the server's cache, which has 128 tokens on a CPU."""


@functools.cache
def drawn(seed, **sizes):
    """A policy of the trainer with weights of its own."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**{**SIZES, **sizes}), dtype=torch.float32)
    return HuggingFacePolicy(model.eval())


def old():
    return drawn(0)


def new():
    return drawn(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    old().model.save_pretrained(folder / "model")
    with VLLMProcess(folder / "model", folder / "log") as process:
        yield process


@pytest.fixture
def made(server, tmp_path):
    """Makes samplers over the server."""

    def make(**options):
        options = {"sampling": Sampling(temperature=0.7), "timing": TIMING, **options}
        return VLLMSampler(VLLMSettings(urls=(server.url,), model="policy", folder=tmp_path, **options), SHAPE)

    return make


def weights(policy):
    return policy.model.state_dict()


async def play(sampler, *turns, seed=3, max_tokens=12, greedy=False):
    """One conversation: its ids and, of each reply, where it begins."""
    session = sampler.session(seed, greedy=greedy)
    ids, replies = [], []
    for turn in turns:
        reply = await session.sample(turn, max_tokens=max_tokens, stop_ids=STOP)
        replies.append((len(ids) + len(turn), reply))
        ids += [*turn, *reply.token_ids]
    await session.close()
    return tuple(ids), replies


def gap(policy, played, temperature, versions=None):
    """The largest difference between the trainer's log-probabilities and the server's, of tokens of these versions."""
    ids, replies = played
    logprobs, support, weight = [None] * len(ids), [None] * len(ids), [0.0] * len(ids)
    for begin, reply in replies:
        for t, logprob in enumerate(reply.logprobs):
            if versions is None or reply.versions[t] in versions:
                logprobs[begin + t], weight[begin + t] = logprob, 1.0
                support[begin + t] = reply.support[t] if reply.support else None
    sample = Sample(
        token_ids=ids,
        weights={"pg": tuple(weight)},
        logprobs=tuple(logprobs),
        advantages=(0.0,) * len(ids),
        trace_id="t",
        group_id="g",
        support=tuple(support),
    )
    (scored,) = score_samples(policy, [sample], lambda s: s.logprobs_K, temperature=temperature, max_tokens=4096)
    return max(abs(ours - theirs) for ours, theirs in zip(scored, logprobs, strict=True) if theirs is not None)


def run(sampler, work):
    async def main():
        async with sampler:
            return await work(sampler)

    return asyncio.run(main())


def post(server, path, body=None):
    """A request past the sampler."""
    data = json.dumps(body or {}).encode()
    request = urllib.request.Request(server.url + path, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read() or b"{}")


def test_the_server_is_what_was_asked_for_and_another_model_is_not(server, made, tmp_path):
    run(made(), lambda s: s.check())
    for wrong, problem in (
        ({"vocab_size": 97}, "'vocab_size': 96"),
        ({"num_hidden_layers": 3}, "'num_hidden_layers': 2"),
    ):
        shape = ModelShape(**{**SHAPE_FIELDS, **wrong})
        other = VLLMSampler(made().settings, shape)
        with pytest.raises(SamplerError, match=problem):
            run(other, lambda s: s.check())
    for size, problem in ((95, "knows more than the 95"), (97, "knows fewer than the 97")):
        plain = VLLMSettings(urls=(server.url,), model="policy", folder=tmp_path, route="reload")
        with pytest.raises(SamplerError, match=problem):
            run(VLLMSampler(plain, ModelShape(**{**SHAPE_FIELDS, "vocab_size": size})), lambda s: s.check())


def test_sampled_logprobs_are_the_trainers_before_and_after_a_publication(made):
    async def work(s):
        await s.publish(0, weights(old()))
        before = await play(s, (5, 6, 7), (9,), LONG, (8, 8))
        await s.publish(1, weights(new()))
        return before, await play(s, (5, 6, 7), (9,), LONG, (8, 8))

    before, after = run(made(), work)
    assert gap(old(), before, 0.7) < CLOSE
    assert gap(new(), after, 0.7) < CLOSE
    assert {reply.versions[0] for _, reply in before[1]} == {0}
    assert {reply.versions[0] for _, reply in after[1]} == {1}
    # Negative controls: without the publication, and with another temperature, they differ.
    assert gap(new(), before, 0.7) > FAR
    assert gap(old(), after, 0.7) > FAR
    assert gap(old(), before, 1.0) > FAR


def test_given_tokens_score_as_the_trainers_in_any_order(made):  # case R12: prompts that share cached keys
    other = (*LONG[:150], *(5 + place % 7 for place in range(40)))

    async def work(s):
        await s.publish(0, weights(new()))
        return [next(iter((await s.score(ids)).values())) for ids in (LONG, other, LONG, other)]

    first, second, *again = run(made(), work)
    assert _far(first, _scores(new(), LONG)) < CLOSE
    assert _far(second, _scores(new(), other)) < CLOSE
    assert max(_far(first, again[0]), _far(second, again[1])) < CLOSE
    assert _far(first, _scores(old(), LONG)) > FAR


def _far(some, others):
    return max(abs(a - b) for a, b in zip(some, others, strict=True))


def _plain(policy):
    """The model as its library computes it: the policy's attention takes packed batches alone."""
    model = AutoModelForCausalLM.from_config(Qwen3Config(**SIZES), dtype=torch.float32).eval()
    model.load_state_dict(weights(policy))
    return model


@torch.no_grad()
def _scores(policy, ids):
    logprobs = _plain(policy)(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def test_a_draw_depends_on_its_seed_and_not_on_its_neighbours(made):  # case P07
    async def work(s):
        await s.publish(0, weights(old()))
        alone = await play(s, (5, 6, 7), (9, 9))
        crowd = await asyncio.gather(*(play(s, (5, 6, 7), (9, 9), seed=seed) for seed in (1, 2, 3, 3, 4, 5)))
        return alone, crowd

    alone, crowd = run(made(), work)
    assert crowd[2][0] == crowd[3][0] == alone[0]
    assert len({ids for ids, _ in crowd}) == 5


def test_a_truncated_distribution_comes_with_its_support(made):
    async def work(s):
        await s.publish(0, weights(old()))
        return await play(s, (5, 6, 7), (9,))

    played = run(made(sampling=Sampling(temperature=0.7, top_k=4)), work)
    assert all(len(ids) == 4 for _, reply in played[1] for ids in reply.support)
    assert gap(old(), played, 0.7) < CLOSE
    whole = [(begin, _without_support(reply)) for begin, reply in played[1]]
    assert gap(old(), (played[0], whole), 0.7) > FAR


def _without_support(reply):
    return type(reply)(**{**{name: getattr(reply, name) for name in reply.__dataclass_fields__}, "support": ()})


def test_a_greedy_conversation_takes_the_likeliest(made):
    async def work(s):
        await s.publish(0, weights(old()))
        return await play(s, (5, 6, 7), greedy=True)

    ids, replies = run(made(), work)
    assert gap(old(), (ids, replies), 1.0) < CLOSE
    with torch.no_grad():
        likeliest = _plain(old())(torch.tensor([ids])).logits[0].argmax(-1).tolist()
    assert likeliest[2:-1] == list(ids[3:])


def test_a_reply_goes_on_over_a_publication_and_each_token_is_of_its_own_version(made):
    async def work(s):
        await s.publish(0, weights(old()))
        for number in range(1, 6):  # until one falls into a reply
            slow = asyncio.ensure_future(play(s, (5, 6, 7), max_tokens=400, seed=number))
            await asyncio.sleep(0.2)
            await s.publish(number, weights(new() if number % 2 else old()))
            played = await slow
            found = sorted(set(played[1][0][1].versions))
            if len(found) == 2:
                return played, number
        raise AssertionError("no publication fell into a reply of 400 tokens")

    played, number = run(made(in_flight="continue"), work)
    before, after = (old(), new()) if number % 2 else (new(), old())
    assert gap(before, played, 0.7, {number - 1}) < CLOSE
    assert gap(after, played, 0.7, {number}) < CLOSE
    assert gap(before, played, 0.7, {number}) > FAR


def test_old_keys_would_be_read_without_the_reset_and_the_salt(server, made, tmp_path):
    """The control of both: new weights by the routes alone, the cache left as it is, and a request keyed as before."""

    async def work(s):
        await s.publish(0, weights(old()))
        await play(s, LONG, max_tokens=1)
        await s.publish(1, weights(new()))
        right = await play(s, LONG, max_tokens=1)
        return right, s.fleet.weights.folder, s.fleet.weights.num_tensors

    played, folder, count = run(made(), work)
    assert gap(new(), played, 0.7) < CLOSE
    (tmp_path / "old").mkdir()
    before = {name: tensor for name, tensor in weights(old()).items() if name != "lm_head.weight"}
    save_file(before, tmp_path / "old" / "model.safetensors")
    body = {
        "token_ids": list(LONG),
        "cache_salt": "one-for-all",
        "sampling_params": {"max_tokens": 1, "temperature": 0.0, "logprobs": 0, "detokenize": False},
    }

    def lay(where):
        post(server, "/start_weight_update")
        post(server, "/update_weights", {"update_info": {"folder": str(where), "num_tensors": count}})
        post(server, "/finish_weight_update")

    def likeliest():
        (choice,) = post(server, "/inference/v1/generate", body)["choices"]
        return choice["logprobs"]["content"][0]["logprob"]

    right = likeliest()
    lay(tmp_path / "old")
    stale = likeliest()
    post(server, "/reset_prefix_cache")
    true = likeliest()
    lay(folder)
    post(server, "/reset_prefix_cache")
    assert abs(likeliest() - right) < CLOSE
    assert abs(stale - true) > 1e-2


def test_a_plain_reload_on_a_cpu_leaves_the_output_projection_of_tied_weights(made):
    """Why the transfer packs it again, and why the route `reload` says so. A comparison of scores notices it."""

    async def work(s):
        await s.publish(0, weights(new() if s.settings.route == "transfer" else old()))
        return await play(s, (5, 6, 7))

    run(made(), work)
    reloaded = run(made(route="reload"), work)
    assert gap(old(), reloaded, 0.7) > FAR
    run(made(), work)


def test_weights_that_do_not_fit_are_refused_and_the_server_serves_again(made):
    async def work(s):
        await s.publish(0, weights(old()))
        with pytest.raises(SamplerError, match="97 rows and the vocabulary of this model 96"):
            await s.publish(1, weights(drawn(0, vocab_size=97)))
        short = {name: tensor for name, tensor in weights(new()).items() if "layers.1.mlp" not in name}
        with pytest.raises(SamplerError, match=r"the weights lack model\.layers\.1\.mlp"):
            await s.publish(2, short)
        await s.publish(3, weights(new()))
        return await play(s, (5, 6, 7))

    played = run(made(), work)
    assert gap(new(), played, 0.7) < CLOSE


def test_a_trainer_that_died_within_a_publication_is_followed_by_the_next(server, made):  # case O02
    post(server, "/pause?mode=wait")
    post(server, "/update_weight_version", {"new_version": "half gone:7:7"})
    post(server, "/start_weight_update")

    async def work(s):
        await s.publish(0, weights(new()))
        return await play(s, (5, 6, 7))

    assert gap(new(), run(made(), work), 0.7) < CLOSE


def test_a_run_goes_on_when_its_server_was_killed_and_comes_back(server, made):
    """Eight conversations of three turns; the server dies while they sample and is started again with its old weights.
    Each has the turns and the ids that it would have had, all of the weights that were published."""
    plans = {seed: ((5, 6, seed), (9,), (8, 8)) for seed in range(10, 18)}

    async def every(s):
        return await asyncio.gather(*(play(s, *turns, seed=seed, max_tokens=40) for seed, turns in plans.items()))

    async def undisturbed(s):
        await s.publish(0, weights(new()))
        return await every(s)

    async def work(s):
        await s.publish(0, weights(new()))
        running = asyncio.ensure_future(every(s))
        while s.stats.replies < 9:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        assert not running.done()
        await asyncio.to_thread(server.start)
        found = await running
        return found, s.stats, s.fleet.recovered

    expected = run(made(), undisturbed)
    found, stats, recovered = run(made(), work)
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert max(gap(new(), played, 0.7) for played in found) < CLOSE
    assert stats.replies == 24
    assert stats.retries > 0
    assert recovered == 1
