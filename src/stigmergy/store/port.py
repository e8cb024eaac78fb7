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
"""Keys of one bucket that are listed or watched together; a bucket with more is refused as foreign."""
BUCKET_CHARS_MAX = 200
LEASE_S_MIN = 1
LEASE_S_MAX = 3_600
LEASE_DRIFT_SHARE = 0.01
"""The holder of a lease counts this share less than the store, because two clocks never run alike."""
EXPIRY_HEARD_S_MAX = 3.0
"""A watcher that can reach the store is told of an expired lease within this time."""
OBJECT_NAME_CHARS_MAX = 200
OBJECT_BYTES_MAX = 64 * 1024 * 1024
LABEL_CHARS_MAX = 1_000
VERSIONS_COUNT_MAX = 1_000
"""Versions of one object that may be kept."""
OBJECTS_COUNT_MAX = 65_536
"""The most names of objects in a list; a bucket with more is refused as foreign."""

_KEY = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
NS = 1_000_000_000


class StoredEntry(Struct, frozen=True, tag="entry"):
    """A key and its value. As a change: it was just written, or is reported for the first time."""

    key: str
    value: bytes
    revision: int
    """Above 0, and higher than those of all earlier writes to the bucket, of any key."""


class Gone(Struct, frozen=True, tag="gone"):
    """A change: the key was deleted, or its lease expired."""

    key: str


class Anew(Struct, frozen=True, tag="anew"):
    """A change: something may have been missed, or nothing was reported yet. All existing keys follow, then Complete.

    Until then the earlier reports are the best knowledge.
    """


class Complete(Struct, frozen=True, tag="complete"):
    """A change: everything that exists was reported since Anew. A key that was not is gone."""


Change = StoredEntry | Gone | Anew | Complete
Heard = Callable[[Change], None]
"""Called on the event loop, in order. It must not raise: an exception is logged, and the watch goes on."""


class ObjectVersion(Struct, frozen=True):
    """One version of an object, without its bytes."""

    name: str
    version: int
    """Above 0; later ones are higher, with gaps."""
    size_bytes: int
    digest: str
    """BLAKE3 of the bytes, in hexadecimal."""
    label: str = ""
    """A note of its writer."""
    made_ns: int = 0
    """When it was put, by its writer's wall clock: for people."""


class Watch(Protocol):
    """A subscription to changes."""

    def stop(self) -> None:
        """No call of the listener happens from now on. Stopping twice does nothing."""
        ...


class Lease(Protocol):
    """A key that is ours for a while, and is deleted if we do not renew it.

    The store counts the time from the last write that it stored; the holder from before its request, on its own
    monotonic clock and a little less (LEASE_DRIFT_SHARE). So the holder gives up first, whatever is lost or late
    between them. Two never hold the same key at the same time, if both check `held` before they act, and clocks run
    within LEASE_DRIFT_SHARE of each other. To be sure, send the revision along: the receiver refuses a
    lower one than it has seen.

    Concurrency: one `renew` or `release` at a time; a second one raises Bug.
    """

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes:
        """The value written last, as far as we know."""
        ...

    @property
    def revision(self) -> int:
        """The fencing token. It grows with every renewal; that of any later holder is higher than all of ours."""
        ...

    @property
    def ends_ns(self) -> int:
        """When it stops counting as held, on the holder's monotonic clock; 0 when it is lost."""
        ...

    def held(self, monotonic_ns: int) -> bool:
        """Whether it is ours at this time of our own clock. Never again once it was lost or released."""
        ...

    async def renew(self, value: bytes | None = None) -> None:
        """Restarts the time of the lease, optionally with another value.

        StoreConflict: it is lost, for good. StoreUnavailable: nothing was written. StoreUnknown: renewed or not; the
        next call finds out. After the last two it is ours until its time is over: try again.
        """
        ...

    async def release(self) -> None:
        """Deletes the key if it is still ours; watchers are told.

        It does not count as held from the moment of the call, whatever the outcome: after StoreUnavailable or
        StoreUnknown the key expires when its time is over. Releasing twice does nothing.
        """
        ...


class KeyValue(Protocol):
    """A bucket of small values by key.

    A key is one or more words of letters, digits, `_`, `-`, `=` and `/`, with dots between them: `worker.a`. A prefix
    that ends in a dot matches all keys that begin with it, any other matches this one key, and an empty one every key.

    Ordering: all writes to a bucket are in one order, and the revision of a later one is higher. Watchers are told in
        this order; if a key was written several times they may be told of the last only. An expired lease is reported
        within EXPIRY_HEARD_S_MAX; a connection that was told that a key is gone can create it.
    Durability: a write that has returned survives loss of power, and of a minority if there are several machines.
    Duplication: none by itself. If you repeat a call after StoreUnknown, you may write twice; with compare-and-set the
        second write is refused, and reading shows whose write is there.
    Concurrency: any number of connections in any number of processes; calls on one may overlap. Of several
        compare-and-set calls from one revision exactly one succeeds. A read may return what was true a moment ago:
        decide by compare-and-set, never by reading alone.
    Errors: StoreUnavailable (unreachable or full; nothing was written), StoreUnknown (written or not, and it may still
        be), StoreConflict (the key has another revision; nothing was written), StoreForeign and StoreCorrupt (neither
        goes away by itself), ConfigError (an invalid key or bucket), TooLarge, and Bug for a call on a closed store. No
        driver's error passes unchanged.
    """

    @property
    def bucket(self) -> str: ...

    async def get(self, key: str) -> StoredEntry | None:
        """The entry; None if there is none."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """Writes a key that does not exist; StoreConflict if it does. Returns its revision."""
        ...

    async def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        """Writes a key; with a revision, only if the key has it, 0 meaning no such key. Returns the new revision."""
        ...

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Deletes a key; with a revision, only if the key has it, else StoreConflict. A missing key is no error."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """The existing keys, in alphabetical order."""
        ...

    def watch(self, prefix: str, heard: Heard) -> Watch:
        """Calls `heard` with Anew, a StoredEntry for each existing key, Complete; and then with every change.

        While the store is unreachable nothing is reported. If something may have been missed it starts with Anew again.
        """
        ...

    async def acquire(self, key: str, value: bytes, ttl_s: int) -> Lease | None:
        """Creates a key that expires after this many whole seconds; None if it exists."""
        ...


class Objects(Protocol):
    """A bucket of large objects by name, each in one or more versions.

    Ordering: versions of a name have growing numbers, in the order in which they became complete.
    Durability: a version whose `put` has returned survives like a key. It exists with all its bytes, or not at all: an
        interrupted put leaves nothing that can be read.
    Duplication: if you repeat a `put` after StoreUnknown, you may make two versions of the same bytes.
    Concurrency: any number of connections; calls may overlap. A version that is deleted while it is read raises
        StoreConflict: list the versions again.
    Errors: as in KeyValue. StoreCorrupt if the bytes do not match the digest that they were put with.
    """

    @property
    def bucket(self) -> str: ...

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        """Stores another version, and then deletes the oldest ones until `versions_kept` are left."""
        ...

    async def versions(self, name: str) -> list[ObjectVersion]:
        """The existing versions, the newest last; none if there is no such object."""
        ...

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        """The bytes of a version, or of the newest, checked against their digest; None if it does not exist."""
        ...

    async def names(self, prefix: str = "") -> list[str]:
        """The names with this prefix, in alphabetical order."""
        ...

    async def delete(self, name: str, version: int | None = None) -> None:
        """Deletes one version, or all. A missing one is no error."""
        ...


class Store(Protocol):
    """One connection to a store. It reconnects itself: while nobody answers, calls raise StoreUnavailable."""

    async def key_value(self, bucket: str) -> KeyValue:
        """The bucket of keys of this name; made if there is none. StoreForeign if its settings differ.

        It is independent of a bucket of objects of the same name.
        """
        ...

    async def objects(self, bucket: str) -> Objects:
        """The bucket of objects of this name; made if there is none. StoreForeign if its settings differ."""
        ...

    async def find_objects(self, bucket: str) -> Objects | None:
        """The same, or None if it does not exist: for readers. Nothing is made."""
        ...

    async def close(self) -> None:
        """Ends the connection and its watches. Leases are not released: they expire. Closing twice does nothing."""
        ...


class HeldLease:
    """The holder's view of its lease: the base of the adapters' leases."""

    def __init__(self, entry: StoredEntry, ends_ns: int) -> None:
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
    """When the holder stops relying on a lease that it asked for at this time of its monotonic clock."""
    return asked_ns + int(ttl_s * NS * (1 - LEASE_DRIFT_SHARE))


def check_bucket(bucket: str) -> str:
    """Returns a valid name of a bucket; else raises ConfigError."""
    if not _BUCKET.fullmatch(bucket) or len(bucket) > BUCKET_CHARS_MAX:
        raise ConfigError(f"bucket {bucket!r}: give 1 to {BUCKET_CHARS_MAX} letters, digits, _ or -")
    return bucket


def check_key(key: str) -> str:
    """Returns a valid key; else raises ConfigError."""
    if not _KEY.fullmatch(key) or len(key) > KEY_CHARS_MAX:
        raise ConfigError(
            f"key {key!r}: give words of letters, digits, _ - = / with dots between them, {KEY_CHARS_MAX} signs at most"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Returns a valid prefix; else raises ConfigError."""
    if prefix:
        check_key(prefix.removesuffix("."))
    return prefix


def begins_with(key: str, prefix: str) -> bool:
    """Whether a prefix matches a key."""
    return not prefix or key == prefix or (prefix.endswith(".") and key.startswith(prefix))


def check_value(key: str, value: bytes) -> None:
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(f"{key}: a value of {len(value)} bytes, {VALUE_BYTES_MAX} at most; put it as an object")


def check_lease(ttl_s: int) -> None:
    if not LEASE_S_MIN <= ttl_s <= LEASE_S_MAX or int(ttl_s) != ttl_s:
        raise ConfigError(f"a lease of {ttl_s} s: give {LEASE_S_MIN} to {LEASE_S_MAX} whole seconds")


def check_object_name(name: str) -> str:
    """Returns a valid name of an object; else raises ConfigError."""
    if not name or len(name) > OBJECT_NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(f"object name {name!r}: give 1 to {OBJECT_NAME_CHARS_MAX} printable characters")
    return name


def check_object(name: str, size_bytes: int, label: str, versions_kept: int) -> None:
    check_object_name(name)
    if size_bytes > OBJECT_BYTES_MAX:
        raise TooLarge(f"{name}: an object of {size_bytes} bytes, {OBJECT_BYTES_MAX} at most; put it in pieces")
    if len(label) > LABEL_CHARS_MAX:
        raise TooLarge(f"{name}: a label of {len(label)} characters, {LABEL_CHARS_MAX} at most")
    if not 1 <= versions_kept <= VERSIONS_COUNT_MAX:
        raise Bug(f"{name}: versions_kept is {versions_kept}; give 1 to {VERSIONS_COUNT_MAX}")
