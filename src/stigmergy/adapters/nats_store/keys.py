"""The KeyValue port on a stream: a message for each key, whose sequence is its revision."""

from __future__ import annotations

import asyncio
import secrets

from stigmergy.adapters.nats.errors import WRONG_LAST_SEQUENCE_IN_FLIGHT, JetStreamRefused
from stigmergy.adapters.nats.link import REQUEST_S
from stigmergy.adapters.nats_store.asking import asking
from stigmergy.adapters.nats_store.buckets import MARKER_S, BucketPlace
from stigmergy.adapters.nats_store.lease import NatsLease
from stigmergy.adapters.nats_store.line import Line
from stigmergy.adapters.nats_store.messages import EXPECTED, HOLDER, OPERATION, TTL, Last, read_last
from stigmergy.adapters.nats_store.watch import NatsWatch
from stigmergy.core.errors import StoreConflict, StoreForeign, StoreUnavailable
from stigmergy.ports.store import (
    KEYS_COUNT_MAX,
    Change,
    Complete,
    Entry,
    Heard,
    Lease,
    Watch,
    check_key,
    check_lease,
    check_prefix,
    check_value,
)

TRIES_MAX = 5
"""A key that is gone may have a mark with a sequence of its own, and that may go away while we write."""
IN_FLIGHT_PAUSE_S = 0.02
IN_FLIGHT_TRIES_MAX = 50
"""While the write of another one to the same key is under way, the server refuses ours without knowing better."""
BEHIND_TRIES_MAX = 50
LIST_S = 10.0
HOLDER_BYTES = 12


class NatsKeyValue:
    """One bucket of keys."""

    def __init__(self, line: Line, place: BucketPlace) -> None:
        self._line = line
        self._place = place

    @property
    def bucket(self) -> str:
        return self._place.bucket

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        last = await self.last(key)
        return None if last is None or last.is_gone else Entry(key, last.data, last.sequence)

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
            if isinstance(change, Entry):
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
            raise StoreForeign(f"{self.bucket}: {len(found)} keys, {KEYS_COUNT_MAX} at most; this is no bucket of ours")
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
        return NatsLease(self, self._line.clock, Entry(key, value, revision), holder, ttl_s, asked_ns)

    async def last(self, key: str, within_s: float = REQUEST_S) -> Last | None:
        """The last message of a key, also one that says that it is gone."""
        self._line.check_open()
        with asking(f"{self.bucket}: {key}", writes=False):
            return await read_last(self._line.link, self._place, self._subject(key), within_s)

    async def write(self, key: str, value: bytes, headers: dict[str, str], within_s: float = REQUEST_S) -> int:
        """Writes one message; returns its sequence."""
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
        raise StoreConflict(f"{self.bucket}: {key} is being written by another one; read it and decide again")

    async def _put_new(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        """Writes a key that is not there: nothing, or a mark that it is gone."""
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
        """The last message of a key, once the leader knows what a replica has told us: it may be behind for a moment.
        Who hears that a lease is over and asks for it at once must not be told that somebody has it."""
        last = await self.last(key)
        for _ in range(BEHIND_TRIES_MAX):
            if last is None or last.sequence >= self._line.gone_at(self._subject(key)):
                break
            await asyncio.sleep(IN_FLIGHT_PAUSE_S)
            last = await self.last(key)
        return last

    def _subject(self, key: str) -> str:
        return f"$KV.{self.bucket}.{key}"
