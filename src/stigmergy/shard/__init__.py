"""A shard as a pure state machine: inputs in, one commit out; and the replay of commits into the same state."""
