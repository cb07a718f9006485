"""Data sets of reasoning-gym as tasks: made from a seed, scored by their verifiers, no answer run as a program."""

import asyncio

import pytest

from agentrl.errors import TaskError
from agentrl.evals.baselines import player, scripted_harness
from agentrl.rewards.verifier import Verifier
from agentrl.rollout.attempt import AttemptId, attempt
from agentrl.tasks.reasoning_gym import ReasoningGym
from agentrl.types import Message, Node, Stop, Trace

pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def verifier():
    """Shared by the tests: the package takes a second to import."""
    verifier = Verifier(workers=1)
    yield verifier
    verifier.close()


def scores(task_set, task, reply):
    """The scores of a reply, by name."""
    nodes = (Node(parent=None, message=Message(role="assistant", content=reply)),)
    trace = Trace(id="t", task_id=task.id, group_id="g", attempt=0, seed=0, nodes=nodes, stop=Stop.DONE)
    found = asyncio.run(task_set.environment(task).score(trace))
    return {score.name: score.value for score in found}


def test_tasks_depend_on_name_split_and_index_alone(verifier):
    few = ReasoningGym("word_ladder", "test", 2, verifier=verifier)  # differs between processes by itself
    fresh = Verifier(workers=1)
    try:
        more = ReasoningGym("word_ladder", "test", 4, verifier=fresh)
        other = ReasoningGym("word_ladder", "validation", 2, verifier=fresh)
    finally:
        fresh.close()
    assert [few[n] for n in range(2)] == [more[n] for n in range(2)]
    assert [few.right_reply(few[n].id) for n in range(2)] == [more.right_reply(few[n].id) for n in range(2)]
    assert {few[n].prompt for n in range(2)}.isdisjoint(other[n].prompt for n in range(2))
    assert few[0].id.startswith("reasoning-gym-v1/0.1.")
    assert few[0].id.endswith("/word_ladder/test/0")
    assert few.right_reply(few[0].id) not in str(few[0])


# case W13, on the adapter: countdown accepted numbers that were not given, and ran the answer
def test_countdown_takes_the_given_numbers_and_runs_nothing(verifier, tmp_path):
    task_set = ReasoningGym("countdown", "test", 1, verifier=verifier)
    task = task_set[0]
    right = task_set.right_reply(task.id)
    expression = right.removeprefix("<answer>").removesuffix("</answer>")
    assert scores(task_set, task, right) == {"answer": 1.0, "partial": 1.0, "answer_read": 1.0}
    mark = tmp_path / "mark"
    for wrong in (f"{expression} + 0", f"{expression} + 7 - 7", f"({expression}", f"open({str(mark)!r}, 'w')", "1e3"):
        assert scores(task_set, task, f"<answer>{wrong}</answer>")["answer"] == 0.0
    assert not mark.exists()


def test_a_reply_without_an_answer_scores_0_and_is_seen(verifier):
    task_set = ReasoningGym("game_of_life_halting", "test", 1, verifier=verifier)  # its verifier credits silence
    for reply in ("", "I think True", "<answer></answer>"):
        assert scores(task_set, task_set[0], reply) == {"answer": 0.0, "answer_read": 0.0}
    assert scores(task_set, task_set[0], "<answer>perhaps</answer>")["answer"] == 0.0
    right = task_set.right_reply(task_set[0].id)
    wrong = right.replace("True", "x").replace("False", "True").replace("x", "False")
    assert [scores(task_set, task_set[0], reply)["answer"] for reply in (right, wrong)] == [1.0, 0.0]


# verifiers that credit the right answer to another task
@pytest.mark.parametrize("name", ["puzzle24", "game_of_life_halting", "coin_flip", "complex_arithmetic"])
def test_the_answers_to_other_tasks_are_wrong(name, verifier):
    task_set = ReasoningGym(name, "test", 4, verifier=verifier)
    replies = [task_set.right_reply(task_set[n].id) for n in range(4)]
    for n in range(4):
        for reply in replies:
            assert scores(task_set, task_set[n], reply)["answer"] == float(reply == replies[n])


# case W12: a verifier that raises at a malformed answer
def test_malformed_answers_that_verifiers_raise_at_score_0(verifier):
    task_set = ReasoningGym("prime_factorization", "test", 1, verifier=verifier)
    for reply in ("{", "[]", "two times three", '{"a": 1}'):
        assert scores(task_set, task_set[0], f"<answer>{reply}</answer>")["answer"] == 0.0
    assert scores(task_set, task_set[0], task_set.right_reply(task_set[0].id))["answer"] == 1.0


def test_partial_reward_passes_from_a_threshold(verifier):
    factors = "<answer>{}</answer>"
    strict, lax, raw = (
        ReasoningGym("prime_factorization", "test", 8, threshold=threshold, verifier=verifier)
        for threshold in (1.0, 0.5, None)
    )
    composite = next(
        n for n in range(8) if "×" in strict.right_reply(strict[n].id) or "*" in strict.right_reply(strict[n].id)
    )
    right = strict.right_reply(strict[composite].id).removeprefix("<answer>").removesuffix("</answer>")
    numbers = [int(part) for part in right.replace("×", "*").split("*")]
    product = 1
    for number in numbers:
        product *= number
    reply = factors.format(product)  # the product, not in primes: the verifier gives 0.5
    assert scores(strict, strict[composite], reply) == {"answer": 0.0, "partial": 0.5, "answer_read": 1.0}
    assert scores(lax, lax[composite], reply)["answer"] == 1.0
    assert scores(raw, raw[composite], reply) == {"answer": 0.5, "answer_read": 1.0}


def test_floor_and_ceiling_play_through_the_same_loop(verifier):
    task_set = ReasoningGym("chain_sum", "test", 1, verifier=verifier)

    def play(name):
        session = player(name, task_set)(task_set[0], 0)
        identity = AttemptId(group_id="g", attempt=0, seed=0)
        return asyncio.run(attempt(task_set, task_set[0], scripted_harness(2), session, identity))

    assert [play(name).reward for name in ("submit", "reference")] == [0.0, 1.0]
    with pytest.raises(ValueError, match="keeps no answer"):
        player("reference", ReasoningGym("graph_color", "test", 1, verifier=verifier))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("countdwn",), "no data set 'countdwn'.*countdown"),
        (("composite",), "no data set 'composite'"),
        (("countdown", "dev"), "unknown split 'dev'"),
        (("countdown", "test", 0), "num_tasks is 0"),
    ],
)
def test_bad_words_are_named(arguments, message, verifier):
    with pytest.raises(TaskError, match=message):
        ReasoningGym(*arguments, verifier=verifier)


def test_a_threshold_that_nonsense_reaches_is_refused(verifier):
    with pytest.raises(TaskError, match=r"nonsense 0\.01"):
        ReasoningGym("color_cube_rotation", "test", 1, threshold=0.01, verifier=verifier)
    with pytest.raises(TaskError, match="threshold 2"):
        ReasoningGym("countdown", "test", 1, threshold=2.0, verifier=verifier)
