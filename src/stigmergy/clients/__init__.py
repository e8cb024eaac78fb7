"""Programs outside a fleet: what every client can do, and the clients over HTTP and gRPC."""
