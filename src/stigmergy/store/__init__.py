"""Small values by key with leases, and large objects: the port, and stores in memory and in a folder."""
