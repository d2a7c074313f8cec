"""Grammars over a small vocabulary."""
