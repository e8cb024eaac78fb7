"""Which engines `bench growth` lets grow. Adding one is a file here, and a line in the table below.

The file has three functions. `enter(path, snapshots)` returns a `Growing` on the journal there, made if it is missing;
it is called in a process of its own. `snapshot(path)` puts a fresh snapshot behind the journal, and `start(path)` times
one start from it, each in a process of its own that they start.
"""

from __future__ import annotations

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


ENGINES = (
    Engine("interpreted", "interpreted", fleets=(1_000, 10_000, 100_000), histories=(10_000, 100_000, 1_000_000)),
)
