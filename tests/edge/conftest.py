"""Real brokers for the tests of whole nodes."""

from tests.adapters.conftest import mosquitto, nats

__all__ = ["mosquitto", "nats"]
