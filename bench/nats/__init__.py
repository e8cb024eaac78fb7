"""What a fleet on NATS JetStream does per second, against what the servers do alone."""
