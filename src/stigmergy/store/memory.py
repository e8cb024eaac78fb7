"""A store in this process, for tests, simulations and fleets in one program. It never touches a disk.

`memory:PLACE` is one store for all who open it. `MemoryStoreServer` stands for a cluster: it outlives connections, so a
test can kill a process and start another. Time comes from the given clock, pauses from the event loop, so it runs in
virtual time and every run repeats.

    store = MemoryStore(server, clock)
    store.line.cut_off = True          # nothing passes, in either direction, until it is False again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from blake3 import blake3
from msgspec import Struct

from stigmergy.base.clock import Clock
from stigmergy.base.errors import Bug, ConfigError, StoreConflict, StoreUnavailable
from stigmergy.diagnostics.logger import Log
from stigmergy.store.port import (
    NS,
    Anew,
    Change,
    Complete,
    Gone,
    Heard,
    HeldLease,
    KeyValue,
    Lease,
    Objects,
    ObjectVersion,
    StoredEntry,
    Watch,
    begins_with,
    check_bucket,
    check_key,
    check_lease,
    check_object,
    check_object_name,
    check_prefix,
    check_value,
    lease_end_ns,
)

# The link from one program to a server: it can be cut off, restored and closed.


class ConnectionWatcher(Protocol):
    """Watchers to notify when the link is restored, and to stop when it is closed."""

    def begin(self) -> None:
        """Reports everything again."""
        ...

    def stop(self) -> None:
        """Reports nothing more."""
        ...


class MemoryConnection:
    """One connection. Each call over it yields to the event loop once, as a network would."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._cut_off = False
        self._closed = False
        self._watchers: list[ConnectionWatcher] = []

    @property
    def cut_off(self) -> bool:
        """Whether nothing passes."""
        return self._cut_off

    @cut_off.setter
    def cut_off(self, cut_off: bool) -> None:
        was, self._cut_off = self._cut_off, cut_off
        if was and not cut_off:
            for watcher in list(self._watchers):
                watcher.begin()

    async def reach(self) -> None:
        """Yields once; raises StoreUnavailable if the link is cut."""
        self.check_open()
        await asyncio.sleep(0)
        self.check_open()
        if self._cut_off:
            raise StoreUnavailable("the store is unreachable; nothing was written, try again")

    def check_open(self) -> None:
        """Raises Bug if the store was closed."""
        if self._closed:
            raise Bug("the store is closed; open it again")

    def enlist(self, watcher: ConnectionWatcher) -> None:
        """Adds a watcher."""
        self._watchers.append(watcher)

    def dismiss(self, watcher: ConnectionWatcher) -> None:
        """Removes a watcher."""
        self._watchers.remove(watcher)

    def close(self) -> None:
        """Ends it, and all its watchers."""
        self._closed = True
        for watcher in list(self._watchers):
            watcher.stop()


# Stands for a cluster: buckets of keys that expire by a clock, and of objects. It outlives all connections.

CAPACITY_BYTES = 1 << 30
"""In bytes, of a server."""


class _Kept(Struct):
    value: bytes
    revision: int
    ends_ns: int | None = None
    """On the server's clock; None for a key that does not expire."""


class KeyListener(Struct, eq=False):
    """A callback for changes of some keys."""

    prefix: str
    hear: Callable[[Change], None]


class MemoryBucket:
    """The keys of one bucket, and their watchers. Leases expire by its clock."""

    def __init__(self, name: str, clock: Clock, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.name = name
        self.listeners: list[KeyListener] = []
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._revision = 0
        self._kept: dict[str, _Kept] = {}

    def entries(self, prefix: str = "") -> list[StoredEntry]:
        """The existing entries, in the order in which they were written."""
        self.expire()
        found = [
            StoredEntry(key, kept.value, kept.revision) for key, kept in self._kept.items() if begins_with(key, prefix)
        ]
        return sorted(found, key=lambda entry: entry.revision)

    def find(self, key: str) -> StoredEntry | None:
        self.expire()
        kept = self._kept.get(key)
        return None if kept is None else StoredEntry(key, kept.value, kept.revision)

    def write(self, key: str, value: bytes, expected: int | None, ttl_s: int | None = None) -> int:
        """Writes a key if it has the expected revision; None means any."""
        self._check_revision(key, expected)
        before = self._kept.get(key)
        more_bytes = len(value) - (0 if before is None else len(before.value))
        if self._used_bytes + more_bytes > self._capacity_bytes:
            raise StoreUnavailable(f"{self.name}: no room for {key}; nothing was written, delete what is not needed")
        self._used_bytes += more_bytes
        self._revision += 1
        ends_ns = None if ttl_s is None else self._clock.monotonic_ns() + ttl_s * NS
        self._kept[key] = _Kept(value, self._revision, ends_ns)
        self._tell(key, StoredEntry(key, value, self._revision))
        return self._revision

    def delete(self, key: str, expected: int | None) -> None:
        """Deletes a key if it has the expected revision; None means any."""
        self._check_revision(key, expected)
        if key in self._kept:
            self._drop(key)

    def expire(self) -> None:
        """Removes expired keys."""
        now_ns = self._clock.monotonic_ns()
        over = [key for key, kept in self._kept.items() if kept.ends_ns is not None and kept.ends_ns <= now_ns]
        for key in over:
            self._drop(key)

    def next_expiry_s(self) -> float | None:
        """The time until the next lease expires; None if there is none."""
        ends = [kept.ends_ns for kept in self._kept.values() if kept.ends_ns is not None]
        return max(0, min(ends) - self._clock.monotonic_ns()) / NS if ends else None

    def _check_revision(self, key: str, expected: int | None) -> None:
        self.expire()
        kept = self._kept.get(key)
        found = 0 if kept is None else kept.revision
        if expected is not None and expected != found:
            raise StoreConflict(
                f"{self.name}: {key} has revision {found}, not {expected}; another client wrote it, read it and "
                "decide again"
            )

    def _drop(self, key: str) -> None:
        self._used_bytes -= len(self._kept.pop(key).value)
        self._revision += 1
        self._tell(key, Gone(key))

    def _tell(self, key: str, change: Change) -> None:
        for listener in list(self.listeners):
            if begins_with(key, listener.prefix):
                listener.hear(change)


class StoredObject(Struct, frozen=True):
    """One version with its bytes."""

    about: ObjectVersion
    data: bytes


class MemoryStoreServer:
    """All buckets of one store."""

    def __init__(self, clock: Clock, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._keys: dict[str, MemoryBucket] = {}
        self._objects: dict[str, dict[str, list[StoredObject]]] = {}
        self._versions = 0

    def keys(self, bucket: str) -> MemoryBucket:
        if check_bucket(bucket) not in self._keys:
            self._keys[bucket] = MemoryBucket(bucket, self._clock, self._capacity_bytes)
        return self._keys[bucket]

    def objects(self, bucket: str) -> dict[str, list[StoredObject]]:
        """A bucket of objects: the versions of each name, the newest last."""
        return self._objects.setdefault(check_bucket(bucket), {})

    def has_objects(self, bucket: str) -> bool:
        return check_bucket(bucket) in self._objects

    def next_version(self) -> int:
        """A version number that was never used."""
        self._versions += 1
        return self._versions

    def check_room(self, size_bytes: int) -> None:
        """Raises StoreUnavailable if there is no room for an object."""
        held = self._objects.values()
        used = sum(len(stored.data) for names in held for versions in names.values() for stored in versions)
        if used + size_bytes > self._capacity_bytes:
            raise StoreUnavailable(f"no room for {size_bytes} bytes; nothing was written, delete old versions")


# Reports the contents of a bucket of keys to one listener, and every change.

EXPIRY_PAUSE_S_MIN = 0.001
"""The shortest wait before it checks again whether a lease is over: clocks and timers may differ."""

_log = Log("store")


class MemoryWatch:
    """Calls one listener, each time from the event loop, and wakes up when leases expire."""

    def __init__(self, line: MemoryConnection, bucket: MemoryBucket, prefix: str, heard: Heard) -> None:
        self._line = line
        self._bucket = bucket
        self._heard = heard
        self._listener = KeyListener(prefix, self._tell)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._blind = True
        """No change is reported before everything was reported again."""
        line.enlist(self)
        bucket.listeners.append(self._listener)

    def begin(self) -> None:
        """Reports everything, now or when the link is back."""
        self._blind = True
        self._loop.call_soon(self._tell_all)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._line.dismiss(self)
            self._bucket.listeners.remove(self._listener)
            if self._timer is not None:
                self._timer.cancel()

    def _tell_all(self) -> None:
        if self._stopped or self._line.cut_off or not self._blind:
            return
        self._call(Anew())
        entries = self._bucket.entries(self._listener.prefix)
        self._blind = False
        for entry in entries:
            self._call(entry)
        self._call(Complete())
        self._set_timer()

    def _tell(self, change: Change) -> None:
        if self._line.cut_off:
            self._blind = True
        if not self._blind:
            self._loop.call_soon(self._call, change)
            self._set_timer()

    def _call(self, change: Change) -> None:
        if self._stopped:
            return
        try:
            self._heard(change)
        except Exception as error:
            text = f"a watcher of {self._bucket.name} failed; it still gets the next change"
            _log.say("store-watch-failed", text, error=error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_s = self._bucket.next_expiry_s()
        if left_s is not None and not self._stopped:
            self._timer = self._loop.call_later(max(left_s, EXPIRY_PAUSE_S_MIN), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._bucket.expire()
        self._set_timer()


# The KeyValue port over a link to a server, and its leases.


class MemoryKeyValue:
    """The KeyValue port."""

    def __init__(self, line: MemoryConnection, bucket: MemoryBucket) -> None:
        self._line = line
        self._bucket = bucket

    @property
    def bucket(self) -> str:
        return self._bucket.name

    async def get(self, key: str) -> StoredEntry | None:
        check_key(key)
        await self._line.reach()
        return self._bucket.find(key)

    async def create(self, key: str, value: bytes) -> int:
        return await self.put(key, value, 0)

    async def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        check_value(check_key(key), value)
        await self._line.reach()
        return self._bucket.write(key, bytes(value), revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        check_key(key)
        await self._line.reach()
        self._bucket.delete(key, revision)

    async def keys(self, prefix: str = "") -> list[str]:
        check_prefix(prefix)
        await self._line.reach()
        return sorted(entry.key for entry in self._bucket.entries(prefix))

    def watch(self, prefix: str, heard: Heard) -> Watch:
        self._line.check_open()
        watch = MemoryWatch(self._line, self._bucket, check_prefix(prefix), heard)
        watch.begin()
        return watch

    async def acquire(self, key: str, value: bytes, ttl_s: int) -> Lease | None:
        check_lease(ttl_s)
        check_value(check_key(key), value)
        asked_ns = self._line.clock.monotonic_ns()
        await self._line.reach()
        try:
            revision = self._bucket.write(key, bytes(value), 0, ttl_s)
        except StoreConflict:
            return None
        return MemoryLease(self._line, self._bucket, StoredEntry(key, bytes(value), revision), ttl_s, asked_ns)


class MemoryLease(HeldLease):
    """The Lease port."""

    def __init__(
        self, line: MemoryConnection, bucket: MemoryBucket, entry: StoredEntry, ttl_s: int, asked_ns: int
    ) -> None:
        self._line = line
        self._bucket = bucket
        super().__init__(entry, lease_end_ns(asked_ns, ttl_s))
        self._ttl_s = ttl_s

    async def renew(self, value: bytes | None = None) -> None:
        kept = self.value if value is None else bytes(value)
        check_value(self.key, kept)
        with self._renewing():
            asked_ns = self._line.clock.monotonic_ns()
            await self._line.reach()
            revision = self._bucket.write(self.key, kept, self.revision, self._ttl_s)
            self._entry = StoredEntry(self.key, kept, revision)
            self._ends_ns = lease_end_ns(asked_ns, self._ttl_s)

    async def release(self) -> None:
        with self._one_at_a_time(), suppress(StoreConflict):
            if not self._lost:
                self._lost = True
                await self._line.reach()
                self._bucket.delete(self.key, self.revision)


# The Objects port over a link to a server.


class MemoryObjects:
    """The Objects port."""

    def __init__(self, line: MemoryConnection, server: MemoryStoreServer, bucket: str) -> None:
        self._line = line
        self._server = server
        self._bucket = bucket
        self._kept = server.objects(bucket)

    @property
    def bucket(self) -> str:
        return self._bucket

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        check_object(name, len(data), label, versions_kept)
        await self._line.reach()
        self._server.check_room(len(data))
        digest = blake3(data).hexdigest()
        wall_ns = self._line.clock.wall_ns()
        about = ObjectVersion(name, self._server.next_version(), len(data), digest, label, wall_ns)
        kept = self._kept.setdefault(name, [])
        kept.append(StoredObject(about, bytes(data)))
        del kept[:-versions_kept]
        return about

    async def versions(self, name: str) -> list[ObjectVersion]:
        check_object_name(name)
        await self._line.reach()
        return [stored.about for stored in self._kept.get(name, ())]

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        check_object_name(name)
        await self._line.reach()
        kept = self._kept.get(name, [])
        found = [stored.data for stored in kept if version is None or stored.about.version == version]
        return found[-1] if found else None

    async def names(self, prefix: str = "") -> list[str]:
        await self._line.reach()
        return sorted(name for name in self._kept if name.startswith(prefix))

    async def delete(self, name: str, version: int | None = None) -> None:
        check_object_name(name)
        await self._line.reach()
        left = [stored for stored in self._kept.get(name, ()) if version not in (None, stored.about.version)]
        if left:
            self._kept[name] = left
        else:
            self._kept.pop(name, None)


SCHEME = "memory:"

_shelves: dict[str, MemoryStoreServer] = {}


def memory_store_server(place: str, clock: Clock) -> MemoryStoreServer:
    """The server at `memory:PLACE`; made with this clock if there is none."""
    if place not in _shelves:
        _shelves[place] = MemoryStoreServer(clock)
    return _shelves[place]


def forget_store_server(place: str) -> None:
    """The next use of this name gets a new, empty server."""
    _shelves.pop(place, None)


class MemoryStore:
    """The Store port: one connection to a server, with the clock of its opener."""

    def __init__(self, server: MemoryStoreServer, clock: Clock) -> None:
        self.line = MemoryConnection(clock)
        self._server = server

    async def key_value(self, bucket: str) -> KeyValue:
        await self.line.reach()
        return MemoryKeyValue(self.line, self._server.keys(bucket))

    async def objects(self, bucket: str) -> Objects:
        await self.line.reach()
        return MemoryObjects(self.line, self._server, bucket)

    async def find_objects(self, bucket: str) -> Objects | None:
        await self.line.reach()
        return await self.objects(bucket) if self._server.has_objects(bucket) else None

    async def close(self) -> None:
        self.line.close()


async def open_store(url: str, clock: Clock) -> MemoryStore:
    """Connects to the store at `memory:PLACE`; makes it if there is none."""
    place = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not place:
        raise ConfigError(f"store {url!r}: write memory:PLACE, for example memory:town")
    return MemoryStore(memory_store_server(place, clock), clock)
