"""Amounts in text: reading and adding them up."""
