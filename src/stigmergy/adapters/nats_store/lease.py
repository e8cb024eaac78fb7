"""A lease: a message that the server takes away after a while, written again before that.

Each write expects the sequence of the one before it, so that a holder who was late, or paused, cannot renew what
another one has by now. A write whose answer got lost is found again by the holder's own sign on it.
"""

from __future__ import annotations

from typing import Protocol

from stigmergy.adapters.nats.link import REQUEST_S
from stigmergy.adapters.nats_store.buckets import MARKER_S
from stigmergy.adapters.nats_store.messages import EXPECTED, HOLDER, OPERATION, TTL, Last
from stigmergy.core.errors import Bug, StoreConflict
from stigmergy.ports.clock import Clock
from stigmergy.ports.store import Entry, HeldLease, check_value, lease_end_ns

FOUND_AGAIN_MAX = 3
"""Writes of our own, without an answer, that may turn up while one more is made."""


class Keys(Protocol):
    """What a lease needs of the bucket."""

    async def last(self, key: str, within_s: float = ...) -> Last | None: ...

    async def write(self, key: str, value: bytes, headers: dict[str, str], within_s: float = ...) -> int: ...


class NatsLease(HeldLease):
    """The Lease port."""

    def __init__(self, keys: Keys, clock: Clock, entry: Entry, holder: str, ttl_s: int, asked_ns: int) -> None:
        self._keys = keys
        self._clock = clock
        super().__init__(entry, lease_end_ns(asked_ns, ttl_s))
        self._holder = holder
        self._ttl_s = ttl_s
        self._busy = False
        self._within_s = min(REQUEST_S, ttl_s / 2)
        """So long a renewal waits for an answer: there must be time for another one."""

    async def renew(self, value: bytes | None = None) -> None:
        kept = self.value if value is None else value
        check_value(self.key, kept)
        self._begin()
        try:
            if self._lost:
                raise StoreConflict(f"{self.key}: the lease is lost; acquire it again")
            asked_ns = self._clock.monotonic_ns()
            revision = await self._write(kept, {TTL: str(self._ttl_s), HOLDER: self._holder})
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
                await self._write(b"", {OPERATION: "DEL", TTL: str(MARKER_S)})
        except StoreConflict:
            return
        finally:
            self._busy = False

    async def _write(self, value: bytes, headers: dict[str, str]) -> int:
        """Writes over our last write, also if that one's answer never came."""
        for _ in range(FOUND_AGAIN_MAX):
            try:
                return await self._keys.write(
                    self.key, value, {**headers, EXPECTED: str(self.revision)}, self._within_s
                )
            except StoreConflict:
                last = await self._keys.last(self.key, self._within_s)
                if last is None or last.is_gone or last.holder != self._holder or last.sequence <= self.revision:
                    raise
                self._entry = Entry(self.key, last.data, last.sequence)
        raise StoreConflict(f"{self.key}: other writes of ours keep turning up; acquire it again")

    def _begin(self) -> None:
        if self._busy:
            raise Bug(f"{self.key}: a renewal of the lease is under way; wait for it")
        self._busy = True
