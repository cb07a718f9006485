"""The judge: hidden tests in a process that never runs the candidate's code, so that a pass cannot be forged."""

from agentrl.rewards.judge.grader import Judge
from agentrl.rewards.judge.hidden import Hidden, HiddenCheck, HiddenReference, HiddenSuite, InsideSuite
from agentrl.rewards.judge.stdio import HiddenPrograms, ProgramCase
from agentrl.rewards.judge.verdict import Verdict

__all__ = [
    "Hidden",
    "HiddenCheck",
    "HiddenPrograms",
    "HiddenReference",
    "HiddenSuite",
    "InsideSuite",
    "Judge",
    "ProgramCase",
    "Verdict",
]
