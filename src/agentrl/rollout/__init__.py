"""Attempts and groups of attempts."""
