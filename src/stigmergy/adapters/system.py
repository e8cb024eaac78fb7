"""The machine's own clocks and entropy: the Clock and Entropy ports over the operating system. Keeps no state."""

from __future__ import annotations

import secrets
import time


class SystemClock:
    """The Clock port: CLOCK_REALTIME and CLOCK_MONOTONIC. The monotonic clock stands still while the machine sleeps."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, as this machine believes."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; for durations only."""
        return time.monotonic_ns()


class SystemEntropy:
    """The Entropy port: the kernel's generator, fit for keys."""

    def token(self, size_bytes: int) -> bytes:
        """So many fresh random bytes."""
        return secrets.token_bytes(size_bytes)
