"""Simulated clocks and chance: the Clock and Entropy ports over a VirtualLoop and a seed.

A SimClock reads virtual time; it never moves it. Its faults change what one device believes: a wall clock that
jumps, drifts, stands still or starts in 1970; an oscillator that makes the monotonic clock run fast or slow. The
monotonic clock never goes back, whatever is done here. Give each simulated device its own clock and its own entropy.
"""

from __future__ import annotations

import random

from stigmergy.sim.loop import VirtualLoop
from stigmergy.sim.timers import NS

PARTS_PER_MILLION = 1_000_000
DRIFT_PPM_MAX = 500_000
"""Far beyond any oscillator; kept under a million so that the monotonic clock cannot run backwards."""


class _Line:
    """A clock hand: integer nanoseconds that grow from an anchor at a rate close to, or exactly, that of true time."""

    def __init__(self, true_ns: int, value_ns: int) -> None:
        self._true_ns = true_ns
        self._value_ns = value_ns
        self._rate_ppm = PARTS_PER_MILLION

    def read(self, true_ns: int) -> int:
        return self._value_ns + (true_ns - self._true_ns) * self._rate_ppm // PARTS_PER_MILLION

    def set(self, true_ns: int, value_ns: int) -> None:
        self._true_ns, self._value_ns = true_ns, value_ns

    def set_rate(self, true_ns: int, rate_ppm: int) -> None:
        self.set(true_ns, self.read(true_ns))
        self._rate_ppm = rate_ppm


class SimClock:
    """One device's clocks (the Clock port). Without faults: wall = the loop's wall start + virtual time."""

    def __init__(self, loop: VirtualLoop, *, wall_start_ns: int | None = None) -> None:
        self._loop = loop
        now_ns = loop.time_ns()
        start_ns = loop.wall_start_ns + now_ns if wall_start_ns is None else wall_start_ns
        self._wall = _Line(now_ns, start_ns)
        self._monotonic = _Line(now_ns, now_ns)
        self._drift_ppm = 0

    def wall_ns(self) -> int:
        """What the device believes the time to be; never before 1970, as Linux has it."""
        return max(0, self._wall.read(self._loop.time_ns()))

    def monotonic_ns(self) -> int:
        """The loop's virtual time, or what a drifting oscillator makes of it."""
        return self._monotonic.read(self._loop.time_ns())

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward or, with a negative number, back."""
        now_ns = self._loop.time_ns()
        self._wall.set(now_ns, max(0, self._wall.read(now_ns) + round(seconds * NS)))

    def set_wall_ns(self, wall_ns: int) -> None:
        """Sets the wall clock to a time: what NTP or a person with a wrist watch does."""
        self._wall.set(self._loop.time_ns(), wall_ns)

    def boot_in_1970(self) -> None:
        """What a device without a battery for its clock believes after it starts. The monotonic clock goes on."""
        self.set_wall_ns(0)

    def set_drift(self, ppm: int) -> None:
        """From now on the wall clock gains so many microseconds each second; negative: it loses them. Also thaws."""
        self._drift_ppm = _checked_drift(ppm)
        self._wall.set_rate(self._loop.time_ns(), PARTS_PER_MILLION + ppm)

    def set_monotonic_drift(self, ppm: int) -> None:
        """From now on the monotonic clock runs fast or slow against the loop's timers: leases need a margin for it."""
        self._monotonic.set_rate(self._loop.time_ns(), PARTS_PER_MILLION + _checked_drift(ppm))

    def freeze(self) -> None:
        """The wall clock stands still until `thaw`; the monotonic one goes on."""
        self._wall.set_rate(self._loop.time_ns(), 0)

    def thaw(self) -> None:
        """The wall clock goes on from where it stood, at its former drift."""
        self.set_drift(self._drift_ppm)


class SimEntropy:
    """Bytes from a seed (the Entropy port). `stream` tells apart the devices of one seed: "drone/7"."""

    def __init__(self, seed: int, stream: str = "") -> None:
        # A string is seeded through SHA-512, so that neighbouring seeds and streams have nothing in common.
        self._random = random.Random(f"stigmergy.sim.entropy/{seed}/{stream}")

    def token(self, size_bytes: int) -> bytes:
        """So many bytes; the same sequence for the same seed and stream."""
        return self._random.randbytes(size_bytes)


def _checked_drift(ppm: int) -> int:
    if not -DRIFT_PPM_MAX <= ppm <= DRIFT_PPM_MAX:
        raise ValueError(f"drift of {ppm} ppm: at most {DRIFT_PPM_MAX} either way")
    return ppm
