"""State that converges: values that every replica writes on its own, and what it takes to bring replicas together. Pure."""
