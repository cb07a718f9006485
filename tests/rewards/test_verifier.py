"""Answers in processes of their own: verdicts, limits, and what a hanging answer costs the next."""

import asyncio
import os

import pytest

from agentrl.errors import ScorerError, TaskError
from agentrl.rewards.verifier import Verifier

pytest.importorskip("math_verify")
POISON = {"gold": "9", "answer": "9^{9^{9}}"}
"""An answer that keeps a computer busy for ever."""


@pytest.fixture(scope="module")
def verifier():
    """Two processes with little time."""
    verifier = Verifier(workers=2, cpu_s=20.0)
    yield verifier
    verifier.close()


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("1/2", "0.5", 1),
        (r"\frac{1}{2}", "1/2", 1),
        ("1,000", "1000", 1),
        ("42", r"\text{42}", 1),
        ("72", r"\$72", 1),
        ("x^2+2x+1", "(x+1)^2", 1),
        ("1/3", "0.33", 0),
        ("3", "3.0000004", 0),
        ("3", r"\frac{", 0),
        ("3", "three", 0),
        ("2", "2 or 3", 0),
        # case W03: delimiters count
        ("[1,2]", "(1,2)", 0),
        ("(1,2]", "(1,2)", 0),
        ("(1,2)", "( 1 , 2 )", 1),
        (r"\{1,2\}", r"\{2,1\}", 1),
        # case W02: not symmetric, so both have names
        ("0<x<12.5", "(0,12.5)", 1),
        ("(0,12.5)", "0<x<12.5", 0),
        # case W17: a right answer that was kept as a float
        ("1.333335333334e18", "1333335333334000000", 1),
        ("1.333335333334e18", "1333335333335000000", 0),
    ],
)
def test_answers_in_mathematics(verifier, gold, answer, value):
    assert verifier.ask_now("math", {"gold": gold, "answer": answer})["value"] == value


# case W04: a gold answer that cannot be parsed scored 1, or 0, for whatever was answered
@pytest.mark.parametrize("answer", ["3", "x", r"\operatorname{undefined}(", ""])
def test_a_right_answer_that_is_none_gives_no_verdict(verifier, answer):
    with pytest.raises(ScorerError, match="cannot be read as mathematics"):
        verifier.ask_now("math", {"gold": r"\operatorname{undefined}(", "answer": answer})


# case O06: answers that hang the checker occupied its workers for good
def test_answers_that_never_end_cost_only_themselves():
    verifier = Verifier(workers=2, cpu_s=2.0)

    async def grade():
        jobs = [POISON] * 3 + [{"gold": str(n), "answer": f"{n}.0"} for n in range(40)]
        return await asyncio.gather(*(verifier.ask("math", job) for job in jobs), return_exceptions=True)

    try:
        found = asyncio.run(grade())
    finally:
        verifier.close()
    assert all(isinstance(one, ScorerError) and "2 s of processor time" in str(one) for one in found[:3])
    assert [one["value"] for one in found[3:]] == [1.0] * 40
    assert verifier.replaced == 3


def test_an_answer_that_sleeps_is_given_up_too():
    verifier = Verifier(workers=1, wall_s=0.01)  # too short to start a process in
    with pytest.raises(ScorerError, match=r"no verdict within 0\.01 s"):
        verifier.ask_now("math", {"gold": "1", "answer": "1"})
    verifier.close()


def test_it_works_in_threads_and_in_one_event_loop_after_another(verifier):
    for _ in range(2):
        assert asyncio.run(verifier.ask("math", {"gold": "1", "answer": "1"}))["value"] == 1.0


def test_equal_answers_are_one_in_a_vote(verifier):
    answers = ["0.5", "1/2", "2", r"\frac{1}{2}", "2.0", "("]
    assert verifier.ask_now("same", {"answers": answers})["classes"] == [0, 0, 2, 0, 2, 5]


def test_a_missing_package_is_named(verifier):
    with pytest.raises(TaskError, match=r"need the package no_such_package: pip install 'agentrl\[tasks\]'"):
        verifier.ask_now("about", {"package": "no_such_package"})


def test_keys_of_services_are_not_passed_on(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    verifier = Verifier(workers=1)
    try:
        verifier.ask_now("about", {"package": "math_verify"})
        child = verifier._idle.get()
        with open(f"/proc/{child._process.pid}/environ", "rb") as environment:
            assert b"secret" not in environment.read()
        verifier._idle.put(child)
    finally:
        verifier.close()
    assert not os.path.exists(f"/proc/{child._process.pid}")
