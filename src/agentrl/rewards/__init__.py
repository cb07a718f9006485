"""Scorers: what counts as a pass, decided in a process that never runs the candidate's code."""
