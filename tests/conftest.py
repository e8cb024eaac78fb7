"""What holds for all tests: how patient hypothesis is. A busy machine must not fail a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")
