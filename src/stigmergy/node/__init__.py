"""The host of shards: takes inputs, steps, commits, then answers and carries out effects."""
