"""Shared state that converges: values that every replica writes on its own, and anti-entropy between them. Pure."""
