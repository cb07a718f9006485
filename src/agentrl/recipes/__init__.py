"""One file per experiment: a function that returns the full configuration, and its measured result."""

FILES = {"qwen3-0.6b-bugfix": "qwen3_06b_bugfix"}
"""Recipes whose names are none of a module. Every other file is a recipe by its own name, with dashes."""
