"""What a cluster would be: buckets of keys that run out by a clock, and of objects. It outlives all connections."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from stigmergy.core.errors import StoreConflict, StoreUnavailable
from stigmergy.ports.clock import Clock
from stigmergy.ports.store import NS, Change, Entry, Gone, ObjectVersion, begins_with, check_bucket

CAPACITY_BYTES = 1 << 30
"""What a shelf takes before it says that it has no room."""


class _Kept(Struct):
    value: bytes
    revision: int
    ends_ns: int | None = None
    """On the clock of the shelf; None for a key that stays."""


class Listener(Struct, eq=False):
    """Who is to be told of which keys."""

    prefix: str
    hear: Callable[[Change], None]


class MemoryBucket:
    """The keys of one bucket, and who watches them. Its clock is the one that leases run out by."""

    def __init__(self, name: str, clock: Clock, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.name = name
        self.listeners: list[Listener] = []
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._revision = 0
        self._kept: dict[str, _Kept] = {}

    def entries(self, prefix: str = "") -> list[Entry]:
        """What is there, in the order in which it was written."""
        self.expire()
        found = [Entry(key, kept.value, kept.revision) for key, kept in self._kept.items() if begins_with(key, prefix)]
        return sorted(found, key=lambda entry: entry.revision)

    def find(self, key: str) -> Entry | None:
        """What is there under this key."""
        self.expire()
        kept = self._kept.get(key)
        return None if kept is None else Entry(key, kept.value, kept.revision)

    def write(self, key: str, value: bytes, expected: int | None, ttl_s: int | None = None) -> int:
        """Writes a key if it has the expected revision, whatever that is for None."""
        self._check_revision(key, expected)
        before = self._kept.get(key)
        more_bytes = len(value) - (0 if before is None else len(before.value))
        if self._used_bytes + more_bytes > self._capacity_bytes:
            raise StoreUnavailable(f"{self.name}: no room for {key}; nothing was written, delete what is not needed")
        self._used_bytes += more_bytes
        self._revision += 1
        ends_ns = None if ttl_s is None else self._clock.monotonic_ns() + ttl_s * NS
        self._kept[key] = _Kept(value, self._revision, ends_ns)
        self._tell(key, Entry(key, value, self._revision))
        return self._revision

    def delete(self, key: str, expected: int | None) -> None:
        """Takes a key away if it has the expected revision, whatever that is for None."""
        self._check_revision(key, expected)
        if key in self._kept:
            self._drop(key)

    def expire(self) -> None:
        """Takes away all whose time is over."""
        now_ns = self._clock.monotonic_ns()
        over = [key for key, kept in self._kept.items() if kept.ends_ns is not None and kept.ends_ns <= now_ns]
        for key in over:
            self._drop(key)

    def next_expiry_s(self) -> float | None:
        """How long until the next lease runs out; None if none is there."""
        ends = [kept.ends_ns for kept in self._kept.values() if kept.ends_ns is not None]
        return max(0, min(ends) - self._clock.monotonic_ns()) / NS if ends else None

    def _check_revision(self, key: str, expected: int | None) -> None:
        self.expire()
        kept = self._kept.get(key)
        found = 0 if kept is None else kept.revision
        if expected is not None and expected != found:
            raise StoreConflict(
                f"{self.name}: {key} has revision {found}, not {expected}; another one wrote it, read and decide again"
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


class MemoryShelf:
    """All buckets of one store."""

    def __init__(self, clock: Clock, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._keys: dict[str, MemoryBucket] = {}
        self._objects: dict[str, dict[str, list[StoredObject]]] = {}
        self._versions = 0

    def keys(self, bucket: str) -> MemoryBucket:
        """A bucket of keys."""
        if check_bucket(bucket) not in self._keys:
            self._keys[bucket] = MemoryBucket(bucket, self._clock, self._capacity_bytes)
        return self._keys[bucket]

    def objects(self, bucket: str) -> dict[str, list[StoredObject]]:
        """A bucket of objects: the versions of each name, the newest last."""
        return self._objects.setdefault(check_bucket(bucket), {})

    def has_objects(self, bucket: str) -> bool:
        """Whether there is such a bucket of objects."""
        return check_bucket(bucket) in self._objects

    def next_version(self) -> int:
        """A number that no version had."""
        self._versions += 1
        return self._versions

    def check_room(self, size_bytes: int) -> None:
        """Refuses an object for which there is no room."""
        held = self._objects.values()
        used = sum(len(stored.data) for names in held for versions in names.values() for stored in versions)
        if used + size_bytes > self._capacity_bytes:
            raise StoreUnavailable(f"no room for {size_bytes} bytes; nothing was written, delete old versions")
