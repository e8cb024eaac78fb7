"""Copies of a node's journal in other places: made beside its work, kept as points to go back to, and restored."""
