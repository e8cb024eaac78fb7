"""The KeyValue port on a stream: a message for each key, whose sequence is its revision."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Protocol

from stigmergy.base.clock import Clock
from stigmergy.base.errors import StoreConflict, StoreForeign, StoreUnavailable
from stigmergy.nats.errors import WRONG_LAST_SEQUENCE_IN_FLIGHT, JetStreamRefused
from stigmergy.nats.link import REQUEST_S
from stigmergy.nats.store.buckets import EXPECTED, HOLDER, MARKER_S, OPERATION, TTL, BucketPlace, Last, read_last
from stigmergy.nats.store.connection import StoreConnection, asking
from stigmergy.nats.store.watch import NatsWatch
from stigmergy.store.port import (
    KEYS_COUNT_MAX,
    Change,
    Complete,
    Heard,
    HeldLease,
    Lease,
    StoredEntry,
    Watch,
    check_key,
    check_lease,
    check_prefix,
    check_value,
    lease_end_ns,
)

# A lease: a message that the server removes after a while, renewed before that.
#
# Each write expects the sequence of the one before it, so a holder that was late or paused cannot renew a lease that
# another one has by now. A write whose answer was lost is recognised by the holder's id in it.

FOUND_AGAIN_MAX = 3
"""How many of our own unanswered writes may turn up during one more write."""


class LeaseBucket(Protocol):
    """What a lease needs from the bucket."""

    async def last(self, key: str, within_s: float = ...) -> Last | None: ...

    async def write(self, key: str, value: bytes, headers: dict[str, str], within_s: float = ...) -> int: ...


class NatsLease(HeldLease):
    """The Lease port."""

    def __init__(
        self, keys: LeaseBucket, clock: Clock, entry: StoredEntry, holder: str, ttl_s: int, asked_ns: int
    ) -> None:
        self._keys = keys
        self._clock = clock
        super().__init__(entry, lease_end_ns(asked_ns, ttl_s))
        self._holder = holder
        self._ttl_s = ttl_s
        self._within_s = min(REQUEST_S, ttl_s / 2)
        """The limit of a renewal: there must be time for another one."""

    async def renew(self, value: bytes | None = None) -> None:
        kept = self.value if value is None else value
        check_value(self.key, kept)
        with self._renewing():
            asked_ns = self._clock.monotonic_ns()
            revision = await self._write(kept, {TTL: str(self._ttl_s), HOLDER: self._holder})
            self._entry = StoredEntry(self.key, kept, revision)
            self._ends_ns = lease_end_ns(asked_ns, self._ttl_s)

    async def release(self) -> None:
        with self._one_at_a_time(), suppress(StoreConflict):
            if not self._lost:
                self._lost = True
                await self._write(b"", {OPERATION: "DEL", TTL: str(MARKER_S)})

    async def _write(self, value: bytes, headers: dict[str, str]) -> int:
        """Writes after our last write, even if that one's answer never came."""
        for _ in range(FOUND_AGAIN_MAX):
            try:
                return await self._keys.write(
                    self.key, value, {**headers, EXPECTED: str(self.revision)}, self._within_s
                )
            except StoreConflict:
                last = await self._keys.last(self.key, self._within_s)
                if last is None or last.is_gone or last.holder != self._holder or last.sequence <= self.revision:
                    raise
                self._entry = StoredEntry(self.key, last.data, last.sequence)
        raise StoreConflict(f"{self.key}: earlier writes of ours keep arriving; acquire it again")


TRIES_MAX = 5
"""A removed key may have a marker, which may expire while we write."""
IN_FLIGHT_PAUSE_S = 0.02
IN_FLIGHT_TRIES_MAX = 50
"""While another write to the same key is under way, the server refuses ours."""
BEHIND_TRIES_MAX = 50
LIST_S = 10.0
HOLDER_BYTES = 12


class NatsKeyValue:
    """One bucket of keys."""

    def __init__(self, line: StoreConnection, place: BucketPlace) -> None:
        self._line = line
        self._place = place

    @property
    def bucket(self) -> str:
        return self._place.bucket

    async def get(self, key: str) -> StoredEntry | None:
        check_key(key)
        last = await self.last(key)
        return None if last is None or last.is_gone else StoredEntry(key, last.data, last.sequence)

    async def create(self, key: str, value: bytes) -> int:
        return await self.put(key, value, 0)

    async def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        check_value(check_key(key), value)
        if revision == 0:
            return await self._put_new(key, value, {})
        return await self.write(key, value, {} if revision is None else {EXPECTED: str(revision)})

    async def delete(self, key: str, revision: int | None = None) -> None:
        check_key(key)
        headers = {OPERATION: "DEL", TTL: str(MARKER_S)}
        if revision:
            await self.write(key, b"", {**headers, EXPECTED: str(revision)})
        elif await self.get(key) is not None:
            if revision is not None:
                raise StoreConflict(f"{self.bucket}: {key} is there; read it and decide again")
            await self.write(key, b"", headers)

    async def keys(self, prefix: str = "") -> list[str]:
        check_prefix(prefix)
        self._line.check_open()
        found: list[str] = []
        done = asyncio.get_running_loop().create_future()

        def hear(change: Change) -> None:
            if isinstance(change, StoredEntry):
                found.append(change.key)
            elif isinstance(change, Complete):
                if not done.done():
                    done.set_result(None)
            else:
                found.clear()

        watch = NatsWatch(self._line, self._place, prefix, hear, headers_only=True)
        try:
            async with asyncio.timeout(LIST_S):
                await done
        except TimeoutError:
            raise StoreUnavailable(f"{self.bucket}: its keys were not listed in {LIST_S:g} s; try again") from None
        finally:
            watch.stop()
        if len(found) > KEYS_COUNT_MAX:
            raise StoreForeign(f"{self.bucket}: {len(found)} keys, {KEYS_COUNT_MAX} at most; this is not our bucket")
        return sorted(found)

    def watch(self, prefix: str, heard: Heard) -> Watch:
        check_prefix(prefix)
        self._line.check_open()
        return NatsWatch(self._line, self._place, prefix, heard)

    async def acquire(self, key: str, value: bytes, ttl_s: int) -> Lease | None:
        check_lease(ttl_s)
        check_value(check_key(key), value)
        holder = secrets.token_hex(HOLDER_BYTES)
        asked_ns = self._line.clock.monotonic_ns()
        try:
            revision = await self._put_new(key, value, {TTL: str(ttl_s), HOLDER: holder})
        except StoreConflict:
            return None
        return NatsLease(self, self._line.clock, StoredEntry(key, value, revision), holder, ttl_s, asked_ns)

    async def last(self, key: str, within_s: float = REQUEST_S) -> Last | None:
        """The last message of a key, also if that is a marker."""
        self._line.check_open()
        with asking(f"{self.bucket}: {key}", writes=False):
            return await read_last(self._line.link, self._place, self._subject(key), within_s)

    async def write(self, key: str, value: bytes, headers: dict[str, str], within_s: float = REQUEST_S) -> int:
        subject = self._place.write_prefix + self._subject(key)
        for number in range(IN_FLIGHT_TRIES_MAX):
            self._line.check_open()
            with asking(f"{self.bucket}: {key}", writes=True):
                try:
                    ack = await self._line.publish(subject, value, headers, within_s)
                    return ack.sequence
                except JetStreamRefused as refused:
                    if refused.code != WRONG_LAST_SEQUENCE_IN_FLIGHT or number == IN_FLIGHT_TRIES_MAX - 1:
                        raise
            await asyncio.sleep(IN_FLIGHT_PAUSE_S)
        raise StoreConflict(f"{self.bucket}: another client is writing {key}; read it and decide again")

    async def _put_new(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        """Writes a key that does not exist: after nothing, or after a marker."""
        expected = 0
        for _ in range(TRIES_MAX):
            try:
                return await self.write(key, value, {**headers, EXPECTED: str(expected)})
            except StoreConflict:
                last = await self._last_as_told(key)
                if last is not None and not last.is_gone:
                    raise
                expected = 0 if last is None else last.sequence
        raise StoreConflict(f"{self.bucket}: {key} comes and goes; read it and decide again")

    async def _last_as_told(self, key: str) -> Last | None:
        """The last message of a key, once the leader is as new as what a replica has told us. A watcher that hears of a
        lease's end and asks for it at once must not be told that the old holder has it."""
        last = await self.last(key)
        for _ in range(BEHIND_TRIES_MAX):
            if last is None or last.sequence >= self._line.gone_at(self._subject(key)):
                break
            await asyncio.sleep(IN_FLIGHT_PAUSE_S)
            last = await self.last(key)
        return last

    def _subject(self, key: str) -> str:
        return f"$KV.{self.bucket}.{key}"
