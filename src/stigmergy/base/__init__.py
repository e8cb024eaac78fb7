"""The foundation of all other packages: the error tree, the clock and signer ports, system clocks, small queues."""
