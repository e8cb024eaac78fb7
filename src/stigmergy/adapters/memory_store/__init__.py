"""A store in this process, for tests, simulations and fleets that live in one program. It never touches a disk.

`memory:PLACE` is one store for all who open it. `MemoryShelf` is what a cluster would be: it outlives connections, so
that a test can let a process die and start another. Time comes from the clock that is given, pauses from the event
loop, so that it runs in virtual time and every run repeats.

    store = MemoryStore(shelf, clock)
    store.line.cut_off = True          # nothing comes through, in either direction, until it is False again
"""

from __future__ import annotations

from stigmergy.adapters.memory_store.keys import MemoryKeyValue
from stigmergy.adapters.memory_store.line import Line
from stigmergy.adapters.memory_store.objects import MemoryObjects
from stigmergy.adapters.memory_store.shelf import MemoryShelf
from stigmergy.core.errors import ConfigError
from stigmergy.ports.clock import Clock
from stigmergy.ports.store import KeyValue, Objects

SCHEME = "memory:"

_shelves: dict[str, MemoryShelf] = {}


def memory_shelf(place: str, clock: Clock) -> MemoryShelf:
    """The shelf at `memory:PLACE`, made with this clock if there is none."""
    if place not in _shelves:
        _shelves[place] = MemoryShelf(clock)
    return _shelves[place]


def forget_shelf(place: str) -> None:
    """The next one to open it gets a new shelf that knows nothing."""
    _shelves.pop(place, None)


class MemoryStore:
    """The Store port: one connection to a shelf, with the clock of who opened it."""

    def __init__(self, shelf: MemoryShelf, clock: Clock) -> None:
        self.line = Line(clock)
        self._shelf = shelf

    async def key_value(self, bucket: str) -> KeyValue:
        await self.line.reach()
        return MemoryKeyValue(self.line, self._shelf.keys(bucket))

    async def objects(self, bucket: str) -> Objects:
        await self.line.reach()
        return MemoryObjects(self.line, self._shelf, bucket)

    async def find_objects(self, bucket: str) -> Objects | None:
        await self.line.reach()
        return await self.objects(bucket) if self._shelf.has_objects(bucket) else None

    async def close(self) -> None:
        self.line.close()


async def open_store(url: str, clock: Clock) -> MemoryStore:
    """A connection to the store at `memory:PLACE`, made if there is none."""
    place = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not place:
        raise ConfigError(f"store {url!r}: write memory:PLACE, for example memory:town")
    return MemoryStore(memory_shelf(place, clock), clock)
