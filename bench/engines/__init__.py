"""Which engines `bench growth` lets grow. Adding one is a file here, and a line in the table below.

The file has three functions. `enter(path, snapshots)` returns a `Growing` on the journal there, made if it is missing;
it is called in a process of its own. `snapshot(path)` puts a fresh snapshot behind the journal, and `start(path)` times
one start from it, each in a process of its own that they start.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Protocol

from msgspec import Struct


class Growing(Protocol):
    """A whole host with its journal, while its fleet and its log grow."""

    def enrol(self, agents: int) -> None:
        """One event of each of so many agents: from now on they are there."""

    def prepare(self, seed: int, events: int, agents: int) -> Any:
        """Events of random agents among so many, in the form in which they come to it. Not timed."""

    def take(self, prepared: Any) -> None:
        """Takes them; returns once they are durable. This is timed."""

    def close(self) -> None:
        """Stops the host."""


class Engine(Struct, frozen=True):
    """One line of the table."""

    name: str
    module: str
    fleets: tuple[int, ...]
    """The sizes of fleets that are measured."""
    histories: tuple[int, ...]
    """The lengths of logs that are measured, in events."""
    window_events: int = 50_000
    """In each window of a fleet."""
    history_events: int = 5_000
    """In each window behind a length: little beside the shortest."""
    needs: tuple[str, ...] = ()
    """Modules that must be there; the extra of the engine's name brings them."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What it needs and is not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)


INTERPRETED = Engine(
    "interpreted", "interpreted", fleets=(1_000, 10_000, 100_000), histories=(10_000, 100_000, 1_000_000)
)
COMPILED = Engine(
    "compiled",
    "compiled",
    fleets=(1_000, 10_000, 100_000, 1_000_000),
    histories=(1_000_000, 3_000_000, 10_000_000),
    window_events=2_000_000,
    history_events=100_000,
    needs=("numpy", "numba"),
)
ENGINES = (INTERPRETED, COMPILED)
