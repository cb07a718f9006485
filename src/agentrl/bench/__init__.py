"""Benchmarks that an installed agentrl can run: ratios of arms that were measured side by side in one run."""
