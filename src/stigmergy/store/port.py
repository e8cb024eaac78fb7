"""The store port: small values by key, with compare-and-set, watchers and leases; and large objects with digests.

A store has buckets. A bucket holds either keys (`KeyValue`) or objects (`Objects`). An adapter may be a dictionary in
this process or a cluster that a majority decides. It gives keys and objects no meaning.

    store = await open_store("nats://hub:4222", clock)     # an entry point of the group `stigmergy.stores`
    keys = await store.key_value("town")
    lease = await keys.acquire("worker.a", b"here", ttl_s=2)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from msgspec import Struct

from stigmergy.base.errors import Bug, ConfigError, StoreConflict, TooLarge

KEY_CHARS_MAX = 200
VALUE_BYTES_MAX = 256 * 1024
KEYS_COUNT_MAX = 65_536
"""Keys of one bucket that are listed or watched together; a bucket with more of them is refused as foreign."""
BUCKET_CHARS_MAX = 200
LEASE_S_MIN = 1
LEASE_S_MAX = 3_600
LEASE_DRIFT_SHARE = 0.01
"""The holder of a lease counts so much less than the store does, because two clocks never run alike."""
EXPIRY_HEARD_S_MAX = 3.0
"""A watcher that can reach the store hears of a lease that ran out within this time after it did."""
OBJECT_NAME_CHARS_MAX = 200
OBJECT_BYTES_MAX = 64 * 1024 * 1024
LABEL_CHARS_MAX = 1_000
VERSIONS_COUNT_MAX = 1_000
"""Versions of one object that may be kept."""
OBJECTS_COUNT_MAX = 65_536
"""Names of objects that one list gives at most; a bucket with more of them is refused as foreign."""

_KEY = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
NS = 1_000_000_000


class Entry(Struct, frozen=True, tag="entry"):
    """A key that is there. As a change: it was written just now, or is told for the first time."""

    key: str
    value: bytes
    revision: int
    """Above 0, and higher than those of all earlier writes to the bucket, whatever their keys."""


class Gone(Struct, frozen=True, tag="gone"):
    """A change: the key is not there any more; it was deleted, or its lease ran out."""

    key: str


class Anew(Struct, frozen=True, tag="anew"):
    """A change: something may have been missed, or nothing was told yet. All that is there follows, then Complete.

    Until then what was told before is the best that is known.
    """


class Complete(Struct, frozen=True, tag="complete"):
    """A change: everything that is there has been told since Anew. A key that was not is gone."""


Change = Entry | Gone | Anew | Complete
Heard = Callable[[Change], None]
"""Called on the event loop, in order. It must not raise: what it raises is logged, and the watch goes on."""


class ObjectVersion(Struct, frozen=True):
    """One version of an object, without its bytes."""

    name: str
    version: int
    """Above 0; later ones are higher, though not by one."""
    size_bytes: int
    digest: str
    """BLAKE3 of the bytes, in hexadecimal."""
    label: str = ""
    """What its writer said about it."""
    made_ns: int = 0
    """When it was put, as its writer's wall clock believed: for people."""


class Watch(Protocol):
    """Somebody who is told of changes, until told to stop."""

    def stop(self) -> None:
        """Nobody is called any more, from now on. Stopping twice does nothing."""
        ...


class Lease(Protocol):
    """A key that is ours for a while, and goes away by itself when we do not renew it.

    The store counts the time from the last write that it took; the holder from before it asked, on its own monotonic
    clock and a little less (LEASE_DRIFT_SHARE). So the holder gives up first, whatever is lost or late between them.
    Two that hold the same key at the same time cannot be, as far as both ask `held` before they act, and clocks run
    within LEASE_DRIFT_SHARE of each other. Who must be sure sends the revision along, and the receiver refuses a lower
    one than it has seen.

    Concurrency: one `renew` or `release` at a time, a second one raises Bug.
    """

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes:
        """What was written last, as far as is known."""
        ...

    @property
    def revision(self) -> int:
        """The fencing token. It grows with every renewal; that of any later holder is higher than all of ours."""
        ...

    @property
    def ends_ns(self) -> int:
        """The moment of the holder's monotonic clock from which on it does not count as held; 0 when it is lost."""
        ...

    def held(self, monotonic_ns: int) -> bool:
        """Whether it is ours at this moment of our own clock. Never again once it was lost or released."""
        ...

    async def renew(self, value: bytes | None = None) -> None:
        """Restarts the time of the lease, optionally with another value.

        StoreConflict: it is lost, for good. StoreUnavailable: nothing was written. StoreUnknown: renewed or not; the
        next call finds out. After the last two it is ours until its time is over: try again.
        """
        ...

    async def release(self) -> None:
        """Lets go: the key is deleted if it is still ours, and watchers hear of it.

        It does not count as held from the moment of the call, whatever comes of it: after StoreUnavailable or
        StoreUnknown the key goes away when its time is over. Releasing twice does nothing.
        """
        ...


class KeyValue(Protocol):
    """A bucket of small values by key.

    A key is one or more words of letters, digits, `_`, `-`, `=` and `/`, with dots between them: `worker.a`. A prefix
    that ends in a dot means all keys that begin with it, one that does not means this very key, none at all every key.

    Ordering: all writes to a bucket are in one order, and the revision of a later one is higher. Watchers are told in
        this order; if a key was written several times they may be told of the last only. That the time of a lease is
        over is told within EXPIRY_HEARD_S_MAX; a client that hears on a connection that a key is gone can
        make it there.
    Durability: when a write has returned it survives loss of power, of a minority where there are several machines.
    Duplication: none by itself. Who repeats after StoreUnknown may write twice; compare-and-set then tells: the second
        one is refused, and reading shows whose write is there.
    Concurrency: any number of connections in any number of processes; calls on one may overlap. Of several that
        compare-and-set from one revision exactly one is taken. A read may return what was true a moment ago: decide by
        compare-and-set, never by reading alone.
    Errors: StoreUnavailable (it cannot be reached or has no room; nothing was written), StoreUnknown (written or not,
        and it may still be), StoreConflict (the key has another revision; nothing was written), StoreForeign and
        StoreCorrupt (neither mends itself), ConfigError (no key or bucket), TooLarge, and Bug for a call on a closed
        store. No error of a driver passes unchanged.
    """

    @property
    def bucket(self) -> str: ...

    async def get(self, key: str) -> Entry | None:
        """What is there; None if nothing is."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """Writes a key that is not there; StoreConflict if it is. Returns its revision."""
        ...

    async def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        """Writes a key whatever is there; or only if it has this revision, 0 meaning none. Returns the new one."""
        ...

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Takes a key away; or only if it has this revision, else StoreConflict. No key, no revision: nothing."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys that are there, in alphabetical order."""
        ...

    def watch(self, prefix: str, heard: Heard) -> Watch:
        """Has this called with Anew, an Entry for each key that is there, Complete; and then with every change.

        While the store cannot be reached nothing is told. If something may have been missed it begins with Anew again.
        """
        ...

    async def acquire(self, key: str, value: bytes, ttl_s: int) -> Lease | None:
        """Makes a key that goes away after so many whole seconds; None if somebody has it."""
        ...


class Objects(Protocol):
    """A bucket of large objects by name, each in one or more versions.

    Ordering: versions of a name have growing numbers, in the order in which they became complete.
    Durability: when `put` has returned the version survives as a key does. It is there with all its bytes, or not at
        all: what breaks off half way leaves nothing that anybody can read.
    Duplication: who repeats a `put` after StoreUnknown may make two versions of the same bytes.
    Concurrency: any number of connections; calls may overlap. A version that is deleted while it is read raises
        StoreConflict: look which ones are there.
    Errors: as KeyValue has them. StoreCorrupt where bytes do not have the digest that they were put with.
    """

    @property
    def bucket(self) -> str: ...

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        """Stores another version, and then takes away the oldest ones until no more than so many are left."""
        ...

    async def versions(self, name: str) -> list[ObjectVersion]:
        """The versions that are there, the newest last; none if there is no such object."""
        ...

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        """The bytes of a version, or of the newest, held against their digest; None if it is not there."""
        ...

    async def names(self, prefix: str = "") -> list[str]:
        """The names that begin so, in alphabetical order."""
        ...

    async def delete(self, name: str, version: int | None = None) -> None:
        """Takes away one version, or all. What is not there is not missed."""
        ...


class Store(Protocol):
    """One connection to a store. It mends itself: while nobody answers, calls raise StoreUnavailable."""

    async def key_value(self, bucket: str) -> KeyValue:
        """The bucket of keys of this name, made if there is none. StoreForeign if it is set up in another way.

        It has nothing to do with a bucket of objects of the same name.
        """
        ...

    async def objects(self, bucket: str) -> Objects:
        """The bucket of objects of this name, made if there is none. StoreForeign if it is set up in another way."""
        ...

    async def find_objects(self, bucket: str) -> Objects | None:
        """The same, or None if it does not exist: for readers. Nothing is made."""
        ...

    async def close(self) -> None:
        """Ends the connection and all watches of it. Leases are not released: they run out. Twice does nothing."""
        ...


class HeldLease:
    """What the holder knows of its lease, wherever the key is kept: the base of the adapters' leases."""

    def __init__(self, entry: Entry, ends_ns: int) -> None:
        self._entry = entry
        self._ends_ns = ends_ns
        self._lost = False
        self._busy = False

    @property
    def key(self) -> str:
        return self._entry.key

    @property
    def value(self) -> bytes:
        return self._entry.value

    @property
    def revision(self) -> int:
        return self._entry.revision

    @property
    def ends_ns(self) -> int:
        return 0 if self._lost else self._ends_ns

    def held(self, monotonic_ns: int) -> bool:
        return not self._lost and monotonic_ns < self._ends_ns

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Around a renewal or a release: a second one meanwhile raises Bug."""
        if self._busy:
            raise Bug(f"{self.key}: a renewal of the lease is under way; wait for it")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        """Around the write of a renewal: a conflict means that the lease is lost, for good."""
        with self._one_at_a_time():
            try:
                if self._lost:
                    raise StoreConflict(f"{self.key}: the lease is lost; acquire it again")
                yield
            except StoreConflict:
                self._lost = True
                raise


def lease_end_ns(asked_ns: int, ttl_s: int) -> int:
    """Until when the holder of a lease counts on it, if it asked at this moment of its monotonic clock."""
    return asked_ns + int(ttl_s * NS * (1 - LEASE_DRIFT_SHARE))


def check_bucket(bucket: str) -> str:
    """Refuses a name that no bucket can have."""
    if not _BUCKET.fullmatch(bucket) or len(bucket) > BUCKET_CHARS_MAX:
        raise ConfigError(f"bucket {bucket!r}: give 1 to {BUCKET_CHARS_MAX} letters, digits, _ or -")
    return bucket


def check_key(key: str) -> str:
    """Refuses what cannot be a key."""
    if not _KEY.fullmatch(key) or len(key) > KEY_CHARS_MAX:
        raise ConfigError(
            f"key {key!r}: give words of letters, digits, _ - = / with dots between them, {KEY_CHARS_MAX} signs at most"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Refuses what no key can begin with."""
    if prefix:
        check_key(prefix.removesuffix("."))
    return prefix


def begins_with(key: str, prefix: str) -> bool:
    """Whether a key is one of those that a prefix means."""
    return not prefix or key == prefix or (prefix.endswith(".") and key.startswith(prefix))


def check_value(key: str, value: bytes) -> None:
    """Refuses a value that is too large."""
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(f"{key}: a value of {len(value)} bytes, {VALUE_BYTES_MAX} at most; put it as an object")


def check_lease(ttl_s: int) -> None:
    """Refuses a time that no lease can have."""
    if not LEASE_S_MIN <= ttl_s <= LEASE_S_MAX or int(ttl_s) != ttl_s:
        raise ConfigError(f"a lease of {ttl_s} s: give {LEASE_S_MIN} to {LEASE_S_MAX} whole seconds")


def check_object_name(name: str) -> str:
    """Refuses what cannot be the name of an object."""
    if not name or len(name) > OBJECT_NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(f"object name {name!r}: give 1 to {OBJECT_NAME_CHARS_MAX} printable characters")
    return name


def check_object(name: str, size_bytes: int, label: str, versions_kept: int) -> None:
    """Refuses what cannot be put."""
    check_object_name(name)
    if size_bytes > OBJECT_BYTES_MAX:
        raise TooLarge(f"{name}: an object of {size_bytes} bytes, {OBJECT_BYTES_MAX} at most; put it in pieces")
    if len(label) > LABEL_CHARS_MAX:
        raise TooLarge(f"{name}: a label of {len(label)} characters, {LABEL_CHARS_MAX} at most")
    if not 1 <= versions_kept <= VERSIONS_COUNT_MAX:
        raise Bug(f"{name}: to keep {versions_kept} versions; 1 to {VERSIONS_COUNT_MAX} can be")
