"""The machine's own clocks and entropy: the Clock and Entropy ports over the operating system. Keeps no state."""

from __future__ import annotations

import gc
import secrets
import sys
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


def make_process_ours() -> None:
    """Sets this process up for a node that is all it does. Not for programs that embed one: they have their own needs.

    What is there now is taken out of the garbage collector's rounds, which then come less often: a fleet makes many
    small objects and no cycles. And the journal's thread, which needs the interpreter for moments only, gets it after
    half a millisecond and not after five, so that the disk works while the next commit is being stepped.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    sys.setswitchinterval(0.0005)
