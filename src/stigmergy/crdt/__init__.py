"""State that converges: values that every replica writes on its own, and how replicas come together. Pure."""
