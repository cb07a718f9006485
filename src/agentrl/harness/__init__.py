"""The agent loop and its limits."""
