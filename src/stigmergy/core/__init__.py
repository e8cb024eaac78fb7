"""The pure heart: messages, agents, shards, commits. No I/O, clock, randomness, async, logging or threads."""
