"""How often decoding and encoding would change what was sampled, and that training never does it."""

import itertools
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentrl
from agentrl.tokens.drift import Difference, drift, drift_lines, vocabulary_drift
from agentrl.tokens.samples import samples
from agentrl.types import Message, Node, Score, Stop, Trace
from tests.tokens.real import needs_assets, vocabulary


def attempt(*replies, context=(), trace_id="t"):
    nodes = tuple(
        Node(
            parent=index - 1 if index else None,
            message=Message(role="assistant"),
            context_ids=tuple(context),
            sampled_ids=tuple(ids),
            logprobs=(-0.5,) * len(ids),
            versions=(0,) * len(ids),
        )
        for index, ids in enumerate(replies)
    )
    return Trace(
        id=trace_id,
        task_id="t",
        group_id="g",
        attempt=0,
        seed=0,
        nodes=nodes,
        stop=Stop.DONE,
        scores=(Score(name="pass", value=1.0),),
    )


# A tokenizer of three pieces: 1 "a", 2 "b", 3 "ab". It writes "ab" as 3, whatever was sampled.
PIECES = {1: "a", 2: "b", 3: "ab"}


def decode(ids):
    return "".join(PIECES[index] for index in ids)


def encode(text):
    ids = []
    while text:
        index = 3 if text.startswith("ab") else 1 if text[0] == "a" else 2
        ids.append(index)
        text = text[len(PIECES[index]) :]
    return ids


def test_positions_and_rate_of_a_small_tokenizer():
    # Sampled: a ab a b b, given: b. Written again, "a", "b" is one piece: two sampled tokens of five are lost.
    found = drift([attempt((1, 3, 1, 2, 2), context=(2,))], encode, decode)
    assert found.differences == (Difference("t", 0, 3, (1, 2), (3,), 2),)
    assert (found.num_sampled, found.num_drifted, found.num_nodes, found.num_nodes_drifted) == (5, 2, 1, 1)
    assert found.rate == 2 / 5
    lines = drift_lines(found, decode)
    assert lines[0].startswith("2 of 5 sampled tokens (40.000%) would be lost")
    assert lines[1] == "t, node 0, at 3 (2 sampled): 1:'a' 2:'b' -> 3:'ab'"


def test_what_was_given_is_not_counted_as_sampled():
    # The seam: given a, sampled b. One piece is lost on either side.
    found = drift([attempt((2, 2), context=(1,))], encode, decode)
    assert (found.num_drifted, found.differences[0].num_sampled) == (1, 1)
    assert drift([attempt((2, 2), context=(2,))], encode, decode).differences == ()


def test_nothing_sampled_has_no_rate():
    found = drift([attempt((), context=(1,))], encode, decode)
    assert found.rate is None
    assert drift_lines(found, decode) == ["no token was sampled"]


def test_of_many_differences_some_are_shown_and_the_rest_is_counted():
    found = drift([attempt(*[(1, 2)] * 5)], encode, decode)
    assert drift_lines(found, decode, limit=2)[-1] == "and 3 more"


@given(st.lists(st.integers(1, 3), max_size=30))
def test_without_a_difference_the_ids_come_back_and_otherwise_they_do_not(ids):
    found = drift([attempt(ids)], encode, decode)
    assert (found.differences == ()) == (encode(decode(ids)) == list(ids))
    # The differences are exactly what turns one sequence into the other.
    mended = list(ids)
    for difference in reversed(found.differences):
        mended[difference.start : difference.start + len(difference.ids)] = difference.encoded_ids
    assert mended == encode(decode(ids))


class Bigram:
    """A language model of our own sources in pieces of Qwen3: what followed a piece may follow it."""

    def __init__(self):
        self.following = defaultdict(list)
        for path in sorted(Path(agentrl.__file__).parent.joinpath("tasks/bugfix/small_programs").glob("*.py")):
            ids = vocabulary().text_ids(path.read_text(encoding="utf-8"))
            for one, other in itertools.pairwise(ids):
                self.following[one].append(other)

    def sample(self, seed, length):
        draw = random.Random(seed)
        ids = [draw.choice(sorted(self.following))]
        while len(ids) < length and self.following[ids[-1]]:
            ids.append(draw.choice(self.following[ids[-1]]))
        return tuple(ids)


@pytest.mark.assets
class TestWithTheRealTokenizer:
    pytestmark = needs_assets

    def test_what_a_policy_samples_drifts_and_what_the_tokenizer_wrote_does_not(self):
        policy = Bigram()
        replies = [policy.sample(seed, 200) for seed in range(100)]
        found = vocabulary_drift([attempt(*replies)], vocabulary())
        assert 0.0 < found.rate < 0.1  # measured: 64 of 100,000 tokens, in 32 of 500 replies
        assert found.num_nodes_drifted > 1
        text = vocabulary().decode(replies[0])
        assert vocabulary_drift([attempt(vocabulary().encode(text))], vocabulary()).rate == 0.0

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.lists(st.integers(0, 151668), max_size=20).map(tuple), min_size=1, max_size=4))
    def test_training_is_immune_to_it(self, replies):
        # Drawn evenly from the vocabulary, almost every reply drifts; each sampled id is trained all the same.
        trace = attempt(*replies, context=(198,))
        vocabulary_drift([trace], vocabulary())
        trained = [
            token
            for sample in samples(trace, 1.0)
            for token, weight in zip(sample.token_ids, sample.weights["pg"], strict=True)
            if weight
        ]
        assert trained == [token for reply in replies for token in reply]

    def test_encoding_again_would_train_other_ids(self):
        # The negative control of the property above: text that is stored and encoded again is not what was sampled.
        reply = (*vocabulary().text_ids("a"), *vocabulary().text_ids("b"))  # two pieces; the tokenizer has "ab"
        assert vocabulary().encode(vocabulary().decode(reply)) != reply
        (sample,) = samples(attempt(reply), 1.0)
        assert sample.token_ids == reply

    def test_a_text_that_spells_a_control_token_is_found(self):
        given = vocabulary().text_ids("so <|im_end|>")
        (difference,) = vocabulary_drift([attempt((13,), context=given)], vocabulary()).differences
        assert (difference.encoded_ids, difference.num_sampled) == ((220, 151645), 0)

    def test_a_piece_of_a_character_is_found(self):
        # Four bytes of an emoji in two pieces; the second was not sampled.
        (first, *_) = vocabulary().text_ids("🫠")
        found = vocabulary_drift([attempt((first, 13))], vocabulary())
        assert found.num_drifted == 1
