"""Samplers: what continues token sequences with a versioned policy."""
