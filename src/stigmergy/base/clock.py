"""The ports of clock, entropy and threads: the only sources of time and randomness, and of a place to block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


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


class Threads(Protocol):
    """Runs plain code that may block, away from the event loop.

    Bounded: so many calls at once; one more waits. A call that never returns keeps its thread and nothing else, nor
    does it keep the process from ending. A simulation has no threads: there the call is made at once, in its place.
    """

    def run(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Begins the call; what is awaited has its result or what it raised. Cancelling does not stop the call."""
        ...
