"""The KeyValue port over a line to a shelf, and the leases that it gives."""

from __future__ import annotations

from stigmergy.adapters.memory_store.line import Line
from stigmergy.adapters.memory_store.shelf import MemoryBucket
from stigmergy.adapters.memory_store.watch import MemoryWatch
from stigmergy.core.errors import Bug, StoreConflict
from stigmergy.ports.store import (
    Entry,
    Heard,
    HeldLease,
    Lease,
    Watch,
    check_key,
    check_lease,
    check_prefix,
    check_value,
    lease_end_ns,
)


class MemoryKeyValue:
    """The KeyValue port."""

    def __init__(self, line: Line, bucket: MemoryBucket) -> None:
        self._line = line
        self._bucket = bucket

    @property
    def bucket(self) -> str:
        return self._bucket.name

    async def get(self, key: str) -> Entry | None:
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
        return MemoryLease(self._line, self._bucket, Entry(key, bytes(value), revision), ttl_s, asked_ns)


class MemoryLease(HeldLease):
    """The Lease port."""

    def __init__(self, line: Line, bucket: MemoryBucket, entry: Entry, ttl_s: int, asked_ns: int) -> None:
        self._line = line
        self._bucket = bucket
        super().__init__(entry, lease_end_ns(asked_ns, ttl_s))
        self._ttl_s = ttl_s
        self._busy = False

    async def renew(self, value: bytes | None = None) -> None:
        kept = self.value if value is None else bytes(value)
        check_value(self.key, kept)
        self._begin()
        try:
            if self._lost:
                raise StoreConflict(f"{self.key}: the lease is lost; acquire it again")
            asked_ns = self._line.clock.monotonic_ns()
            await self._line.reach()
            revision = self._bucket.write(self.key, kept, self.revision, self._ttl_s)
            self._entry = Entry(self.key, kept, revision)
            self._ends_ns = lease_end_ns(asked_ns, self._ttl_s)
        except StoreConflict:
            self._lost = True
            raise
        finally:
            self._busy = False

    async def release(self) -> None:
        self._begin()
        try:
            if not self._lost:
                self._lost = True
                await self._line.reach()
                self._bucket.delete(self.key, self.revision)
        except StoreConflict:
            return
        finally:
            self._busy = False

    def _begin(self) -> None:
        if self._busy:
            raise Bug(f"{self.key}: a renewal of the lease is under way; wait for it")
        self._busy = True
