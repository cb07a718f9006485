"""One file per experiment: a function that returns the full configuration, and its measured result."""
