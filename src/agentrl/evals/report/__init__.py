"""What reinforcement learning changed in a model: the report of one run, from what the run and its evaluations left."""
