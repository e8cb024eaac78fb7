"""What everything else stands on: the error tree, the clock and signer ports, the system's clocks, small queues."""
