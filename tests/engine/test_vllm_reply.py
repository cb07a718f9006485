"""What a vLLM server answers: the ids that could be drawn come along, and numbers that cannot be are refused."""

import pytest

from agentrl.errors import SamplerError
from agentrl.types import Sampling
from tests.engine.vllm_runs import play, replies, run
from tests.engine.vllm_server import VOCABULARY, FakeVLLM, Twist

pytest.importorskip("httpx")


def test_the_support_is_the_servers_mask(tmp_path):
    with FakeVLLM() as server:
        server.masks = True
        (reply,) = run(tmp_path, [server], lambda s: play(s, (5,)), sampling=Sampling(top_p=0.9))
    assert reply.support == tuple(tuple(sorted((token, (token + 1) % VOCABULARY))) for token in reply.token_ids)


def test_without_masks_the_support_is_what_is_listed_when_that_is_all(tmp_path):
    with FakeVLLM() as server:
        (reply,) = run(tmp_path, [server], lambda s: play(s, (5,)), sampling=Sampling(top_k=3))
        assert replies(server)[0]["sampling_params"]["logprobs"] == 3
    # of three listed the last has no probability: exp(-0.5) + (1 - exp(-0.5)) = 1
    assert reply.support == tuple(tuple(sorted((token, (token + 1) % VOCABULARY))) for token in reply.token_ids)


def test_a_support_that_is_not_known_is_an_error(tmp_path):
    with FakeVLLM() as server, pytest.raises(SamplerError, match=r"probability of 0\.6065 together.*set top_k as well"):
        run(tmp_path, [server], lambda s: play(s, (5,)), sampling=Sampling(top_p=0.9))


def _first(change):
    """A twist that changes the choice of the first reply."""
    return lambda n, path, body: (
        Twist(change=lambda answer: change(answer["choices"][0])) if "request_id" in body else None
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: c["token_ids"].pop(), "3 tokens came with the log-probabilities of 4"),
        (lambda c: c["token_ids"].__setitem__(0, 49), "not all are of the same ids"),
        (lambda c: c["logprobs"]["content"][1].update(logprob=-9999.0), "position 1 is -9999.0"),
        (lambda c: c["logprobs"]["content"][2].update(logprob=0.25), "position 2 is 0.25"),
        (lambda c: c["logprobs"]["content"][0].update(logprob=None), "without a reply and its log-probabilities"),
        (lambda c: c.update(logprobs=None), "without a reply and its log-probabilities"),
        (lambda c: c.update(weight_versions=None), "does not say which weights"),
        (lambda c: c["weight_versions"][0].update(end=3), "names the weights of 3 tokens of 4"),
        (lambda c: c.update(finish_reason="stop"), "ended for 'stop'; 4 tokens or one of the ids"),
        (lambda c: c.update(finish_reason="error"), "ended for 'error'"),
    ],
)
def test_a_reply_with_impossible_numbers_is_an_error_at_once(tmp_path, change, problem):
    with FakeVLLM(_first(change)) as server:
        with pytest.raises(SamplerError, match=problem):
            run(tmp_path, [server], lambda s: play(s, (5,)))
        assert len(replies(server)) == 1
