"""Policies that sample more than once: what they hand in is worth what the estimators say."""

import asyncio
import random
from itertools import combinations

import numpy as np
import pytest

from agentrl.engine.openai import OpenAIPolicy
from agentrl.errors import SamplerError
from agentrl.evals import stats
from agentrl.evals.baselines import scripted_harness
from agentrl.evals.inference import best_of_n, majority, pick_best, pick_vote, player_of, revise, vote_of_k
from agentrl.harness.chat import ChatLoop
from agentrl.harness.loop import Limits
from agentrl.tasks.answering import AnswerEnvironment, answer_of
from agentrl.types import Message, Task
from tests.engine.chat_server import Answer, ChatServer, said
from tests.evals.inference.test_curves import trace
from tests.evals.world import Coin, Lines

WORLD = Lines(4)


def edited(one):
    """A verifier that sees whether the attempt repaired anything."""
    return float(any(call.name == "edit" for node in one.nodes for call in node.message.tool_calls))


def test_the_best_of_n_is_what_the_verifier_takes():
    play = player_of(WORLD, scripted_harness(4), Coin(WORLD, 0.5))
    chosen = [asyncio.run(best_of_n(play, WORLD[0], 8, pick_best(edited), seed=seed)) for seed in range(10)]
    assert all(len(one.played) == 8 for one in chosen)
    assert all(one.trace.reward == 1.0 for one in chosen)
    assert 0.0 < np.mean([trace.reward for one in chosen for trace in one.played]) < 1.0
    assert len({trace.seed for one in chosen for trace in one.played}) == 80
    assert chosen[0].tokens == sum(trace.num_sampled for trace in chosen[0].played)
    assert asyncio.run(best_of_n(play, WORLD[0], 8, pick_best(edited), seed=3)).trace.id == chosen[3].trace.id


@pytest.mark.parametrize("k", [1, 2, 4])
def test_choosers_are_worth_what_the_estimators_say(k):
    gold, proxy = [0.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0, 1.0]
    answers = ["a", "b", "b", "a", "c"]
    rows = [trace("t", n, gold[n], proxy[n], answer=answers[n]) for n in range(5)]
    rng = random.Random(0)

    def weight(one):
        return one.scores[1].value

    def worth(choose):
        picks = []
        for drawn in combinations(rows, k):
            picks += [drawn[choose(drawn, rng)].reward for _ in range(300)]
        return np.mean(picks)

    def text(one):
        return one.nodes[0].message.content

    codes = [[ord(one) for one in answers]]
    assert worth(pick_best(weight)) == pytest.approx(stats.best_of_k([proxy], [gold], k)[0], abs=0.05)
    assert worth(pick_vote(text)) == pytest.approx(vote_of_k(codes, [gold], k)[0], abs=0.05)
    weighted = vote_of_k(codes, [gold], k, weights=[proxy])[0]
    assert worth(pick_vote(text, weight)) == pytest.approx(weighted, abs=0.05)


def test_a_verifier_without_an_opinion_comes_last():
    rows = [trace("t", n, 1.0, 0.0) for n in range(3)]
    opinions = {0: None, 1: -5.0, 2: None}
    assert pick_best(lambda one: opinions[one.attempt])(rows, random.Random(0)) == 1


class Questions:
    """One question, whose answer is 4; the verifier is a comparison."""

    id = "questions"

    def __init__(self):
        self.task = Task(id="questions/0", prompt=(Message(role="user", content="2 + 2?"),))

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return [self.task][index]

    def environment(self, task):
        """Compares."""

        async def verify(answer):
            return {"value": float(answer == "4"), "note": ""}

        return AnswerEnvironment(task, verify=verify, rule="any", threshold=1.0)


def ask(script, use):
    """What ``use(play, task)`` gives with a model that answers as the script does, and the server."""
    questions = Questions()
    with ChatServer(script) as server:
        policy = OpenAIPolicy(server.endpoint(retries=0))
        loop = ChatLoop(Limits(turns=1, reply=9, context=1000))
        play = player_of(questions, loop, lambda task, seed: policy.session(seed))
        return asyncio.run(use(play, questions.task)), server


def test_a_majority_of_a_model_behind_an_endpoint():
    replies = ["4", "5", "4", "6", "4"]
    chosen, _ = ask(
        lambda n, body: said(f"\\boxed{{{replies[n]}}}"),
        lambda play, task: majority(play, task, 5, lambda one: answer_of(one, "any"), seed=0),
    )
    assert (chosen.trace.reward, chosen.tokens) == (1.0, 25.0)


def test_revision_sees_the_last_answer():
    replies = [r"\boxed{5}", r"\boxed{4}", r"\boxed{3}"]
    chosen, server = ask(lambda n, body: said(replies[n]), lambda play, task: revise(play, task, 2, seed=0))
    assert [one.reward for one in chosen.played] == [0.0, 1.0]
    assert chosen.trace is chosen.played[-1]
    assert chosen.tokens == 10.0
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert server.requests[1]["messages"][1]["content"] == r"\boxed{5}"
    assert len(server.requests) == 2


def test_revision_ends_when_there_is_nothing_to_say():
    def feedback(one):
        return None if answer_of(one, "any") == "4" else "No."

    replies = [r"\boxed{5}", r"\boxed{4}", r"\boxed{3}"]
    chosen, server = ask(
        lambda n, body: said(replies[n]), lambda play, task: revise(play, task, 3, seed=0, feedback=feedback)
    )
    assert (len(chosen.played), chosen.trace.reward) == (2, 1.0)
    assert server.requests[1]["messages"][-1]["content"] == "No."


def test_a_failed_revision_leaves_the_answer_as_it_was():
    answers = [said(r"\boxed{4}"), Answer("down", 500)]
    chosen, _ = ask(lambda n, body: answers[n], lambda play, task: revise(play, task, 3, seed=0))
    assert (chosen.trace.reward, len(chosen.played)) == (1.0, 2)
    with pytest.raises(SamplerError, match="no answer to questions/0"):
        ask(lambda n, body: Answer("down", 500), lambda play, task: revise(play, task, 3, seed=0))


def test_attempts_that_failed_are_no_candidates():
    answers = [Answer("down", 500), said(r"\boxed{4}"), Answer("down", 500)]
    chosen, _ = ask(
        lambda n, body: answers[n], lambda play, task: best_of_n(play, task, 3, pick_best(lambda one: None), seed=0)
    )
    assert chosen.trace.reward == 1.0
    assert chosen.tokens is not None
    with pytest.raises(SamplerError, match="none of 3 attempts"):
        ask(
            lambda n, body: Answer("down", 500),
            lambda play, task: best_of_n(play, task, 3, pick_best(lambda one: 1.0), seed=0),
        )
