"""Untrusted programs run here, out of process: jobs in, results out."""

from agentrl.sandbox.jobs import Batch, Calls, CaseOutcome, Job, JobResult, Limits, Outcome, Suite
from agentrl.sandbox.pool import Pool, PoolStats
from agentrl.sandbox.together import Runner, Together

__all__ = [
    "Batch",
    "Calls",
    "CaseOutcome",
    "Job",
    "JobResult",
    "Limits",
    "Outcome",
    "Pool",
    "PoolStats",
    "Runner",
    "Suite",
    "Together",
]
