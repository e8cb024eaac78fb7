"""What holds for all tests: how patient hypothesis is, and where compiled code is kept.

A busy machine must not fail a test. What a test compiles, no other test compiles again, and no other process.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")
os.environ.setdefault("STIGMERGY_CACHE", str(Path(__file__).resolve().parents[1] / "build" / "compiled"))
