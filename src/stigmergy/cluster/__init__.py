"""Workers that share the shards of a fleet and take them over from each other."""
