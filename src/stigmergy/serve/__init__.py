"""The HTTP API of a fleet: a transport of the control protocol."""
