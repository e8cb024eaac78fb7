"""A swarm that carries parcels: drones that decide on board, dispatchers, shared airspace, on the public API alone."""

__all__: list[str] = []
