"""Arithmetic with names: text to tokens, tokens to a tree, tree to a number."""
