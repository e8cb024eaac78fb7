"""A ledger in this process, for tests, simulations and fleets in one program. It never touches a disk.

`memory:PLACE` is one ledger for all who open it. `MemoryLedgerStore` stands for a file or a cluster: it outlives the
connections, so a test can kill a process and start another. Nothing here uses a clock, randomness or threads, so it
runs in virtual time and every run repeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stigmergy.base.errors import Bug, ConfigError, LedgerCorrupt, LedgerCut, LedgerForeign, LedgerUnavailable
from stigmergy.claims.port import (
    READ_COUNT_MAX,
    Heard,
    LedgerCheckpoint,
    LedgerEntry,
    check_checkpoint,
    check_entries,
    check_name,
)

SCHEME = "memory:"
CAPACITY_BYTES = 1 << 30
"""What a store holds before it is full."""

_stores: dict[str, MemoryLedgerStore] = {}


def memory_ledger(place: str, name: str = "") -> MemoryLedgerStore:
    """The store at `memory:PLACE`; made under this name if there is none."""
    if place not in _stores:
        _stores[place] = MemoryLedgerStore(name or place)
    return _stores[place]


def forget_ledger(place: str) -> None:
    """The next use of this name gets a new, empty store."""
    _stores.pop(place, None)


class MemoryLedgerStore:
    """The log itself, and its watchers."""

    def __init__(self, name: str, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.name = check_name(name)
        self.end = 0
        self.first = 1
        """The lowest position that still exists, or would."""
        self.checkpoint: LedgerCheckpoint | None = None
        self.watchers: list[Heard] = []
        self._bodies: list[bytes] = []
        self._room_bytes = capacity_bytes

    def append(self, entries: Sequence[bytes]) -> int:
        """Writes entries; returns the position of the first."""
        size_bytes = sum(len(entry) for entry in entries)
        if size_bytes > self._room_bytes:
            raise LedgerUnavailable(f"{self.name}: no room for {size_bytes} bytes; store a checkpoint and cut the log")
        self._room_bytes -= size_bytes
        self._bodies += entries
        first = self.end + 1
        self.end += len(entries)
        for heard in list(self.watchers):
            heard(self.end)
        return first

    def read(self, after: int, count_max: int) -> list[LedgerEntry]:
        """The entries after a position."""
        if after > self.end:
            raise LedgerCorrupt(f"{self.name}: ends at {self.end}, but {after} was read before; it has lost its end")
        if after < self.first - 1:
            raise LedgerCut(f"{self.name}: begins at {self.first}, {after + 1} is gone; begin with the checkpoint")
        start = after + 1 - self.first
        bodies = self._bodies[start : start + count_max]
        return [LedgerEntry(position, body) for position, body in enumerate(bodies, start=after + 1)]

    def cut(self, upto: int) -> None:
        """Deletes the entries up to a position."""
        if self.checkpoint is None or upto > self.checkpoint.position:
            raise Bug(f"{self.name}: no checkpoint covers {upto}; store one before the log is cut")
        if upto >= self.first:
            gone = self._bodies[: upto + 1 - self.first]
            self._room_bytes += sum(len(body) for body in gone)
            del self._bodies[: len(gone)]
            self.first = upto + 1


class MemoryLedger:
    """The Ledger port: one connection to a store. Each call yields to the event loop once, as a network would."""

    def __init__(self, store: MemoryLedgerStore) -> None:
        self._store = store
        self._watching: list[Heard] = []
        self._appending = False
        self._closed = False

    @property
    def name(self) -> str:
        return self._store.name

    async def append(self, entries: Sequence[bytes]) -> int:
        self._check_open()
        check_entries(entries, under_way=self._appending)
        self._appending = True
        try:
            await asyncio.sleep(0)
            self._check_open()
            return self._store.append(tuple(entries))
        finally:
            self._appending = False

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        self._check_open()
        await asyncio.sleep(0)
        return self._store.read(after, min(count_max, READ_COUNT_MAX))

    def watch(self, heard: Heard) -> None:
        self._check_open()
        self._watching.append(heard)
        self._store.watchers.append(heard)

    async def checkpoint(self) -> LedgerCheckpoint | None:
        self._check_open()
        await asyncio.sleep(0)
        return self._store.checkpoint

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        self._check_open()
        check_checkpoint(checkpoint, self._store.end)
        await asyncio.sleep(0)
        stored = self._store.checkpoint
        if stored is None or stored.position < checkpoint.position:
            self._store.checkpoint = checkpoint

    async def cut(self, upto: int) -> None:
        self._check_open()
        await asyncio.sleep(0)
        self._store.cut(upto)

    async def close(self) -> None:
        self._closed = True
        for heard in self._watching:
            self._store.watchers.remove(heard)
        self._watching.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise Bug("the ledger is closed; open it again")


def open_ledger(url: str, name: str) -> MemoryLedger:
    """Connects to the ledger of this name at `memory:PLACE`; makes it if there is none."""
    place = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not place:
        raise ConfigError(f"ledger {url!r}: write memory:PLACE, for example memory:fleet")
    store = memory_ledger(place, check_name(name))
    if store.name != name:
        raise LedgerForeign(f"{url}: the ledger {store.name!r}, not {name!r}; name another place for it")
    return MemoryLedger(store)
