"""A city that finds its gas leaks: sensors that infer on the device, gateways, a ledger, on the public API alone."""

__all__: list[str] = []
