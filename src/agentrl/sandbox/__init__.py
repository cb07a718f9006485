"""Untrusted programs run here, out of process: jobs in, results out."""

from agentrl.sandbox.jobs import Batch, Calls, CaseOutcome, Job, JobResult, Limits, Outcome, Script, Suite
from agentrl.sandbox.together import Runner, Together
from agentrl.sandbox.worker import PoolStats, WorkerPool

__all__ = [
    "Batch",
    "Calls",
    "CaseOutcome",
    "Job",
    "JobResult",
    "Limits",
    "Outcome",
    "PoolStats",
    "Runner",
    "Script",
    "Suite",
    "Together",
    "WorkerPool",
]
