"""Training runs, each readable from top to bottom."""
