"""The clock and entropy ports: the only sources of time and randomness."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two clocks. The wall clock may jump in both directions; the monotonic one never goes back and has no meaning
    across restarts. Sleeping is the event loop's, which in a simulation is virtual."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, as the device believes."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; for durations only."""
        ...


class Entropy(Protocol):
    """Unpredictable bytes for ids and keys; in a simulation, from the seed."""

    def token(self, size_bytes: int) -> bytes:
        """So many fresh random bytes."""
        ...
