"""What operators and programs ask of a running node: protocol, server, router, client side."""
