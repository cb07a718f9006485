"""Evaluation: run a policy on held-out tasks, and say how sure the result is."""
