"""Who takes part in `bench alternatives`. Adding one is a file here, and a line in the table below.

The file has one function, `enter(folder, variant)`, that returns a `Contestant`. It is called in a process of its
own, so the file may import what it likes; what must be installed for that stands in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from msgspec import Struct

from bench.workload import BATCH_EVENTS, Report

Acted = tuple[str, str]
"""Whose action, and which: the address of a drone and the name of the action."""
EACH, BATCHED = "each", "batched"
"""Variants: every event becomes durable by itself, or 1,000 of them together."""


class Contestant(Protocol):
    """Takes the events of the drones, keeps what it promises to keep, and says which actions follow.

    The order of actions of one drone is that of its events; between drones there is none.
    """

    def prepare(self, reports: Sequence[Report]) -> Any:
        """Brings events into the form in which they come to it. Not timed; what is decoded from bytes is, in `take`."""

    def take(self, prepared: Any) -> Iterable[Acted]:
        """Takes them and returns the actions, once all is as durable as it will get. This is timed."""

    def close(self) -> None:
        """Closes its files."""


class Entry(Struct, frozen=True):
    """One line of the table."""

    name: str
    module: str
    what: str
    keeps: str
    """What is on disk, and when an action may follow from it."""
    variant: str = ""
    """For modules that can run in more than one way."""
    ours: bool = False
    needs: tuple[str, ...] = ()
    """Modules that must be there; the extra [bench] brings them."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What it needs and is not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)


ENTRIES = (
    Entry(
        "compiled",
        "compiled_host",
        "our host with compiled agents",
        "every event, chained and signed, synced before its action",
        ours=True,
        needs=("numpy", "numba"),
    ),
    Entry(
        "interpreted",
        "interpreted_host",
        "our host on SQLite",
        "every event, chained and signed, synced before its action",
        variant="sqlite",
        ours=True,
    ),
    Entry(
        "interpreted_segments",
        "interpreted_host",
        "our host on segments",
        "every event, chained and signed, synced before its action",
        variant="segments",
        ours=True,
    ),
    Entry(
        "sqlite_loop",
        "sqlite_loop",
        "a row and a commit for each event",
        "every event, synced before its action",
        variant=EACH,
    ),
    Entry(
        "sqlite_loop_batched",
        "sqlite_loop",
        "the same, a commit for 1,000",
        "every event, synced before its action",
        variant=BATCHED,
    ),
    Entry(
        "eventsourcing",
        "eventsourcing_application",
        "an aggregate for each drone, saved for each event",
        "every event, synced before its action",
        variant=EACH,
        needs=("eventsourcing",),
    ),
    Entry(
        "eventsourcing_batched",
        "eventsourcing_application",
        "the same, saved together for 1,000",
        "every event, synced before its action",
        variant=BATCHED,
        needs=("eventsourcing",),
    ),
    Entry(
        "bytewax",
        "bytewax_dataflow",
        "stateful_map by drone, a snapshot for 1,000 events",
        "no event; synced snapshots of the states, behind the actions",
        variant=BATCHED,
        needs=("bytewax",),
    ),
    Entry(
        "bytewax_default",
        "bytewax_dataflow",
        "the same, a snapshot every 10 s and at the end",
        "no event; synced snapshots of the states, behind the actions",
        variant="default",
        needs=("bytewax",),
    ),
)
"""Everybody, in the order in which they are shown."""


def batch_events_of(variant: str) -> int:
    """How many events become durable together."""
    return {EACH: 1, BATCHED: BATCH_EVENTS}[variant]


def entry_of(name: str) -> Entry:
    """The contestant of this name."""
    return next(entry for entry in ENTRIES if entry.name == name)
