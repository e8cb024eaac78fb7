"""A fleet on several machines: workers that share its shards, and hand them over to each other."""
