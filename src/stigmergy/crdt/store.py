"""The state of an object at one replica: what is alive, and which changes are known. Immutable and pure.

There are no tombstones: what is known and not alive is gone. `apply` takes the changes of one author, in causal order,
and touches only the places that they name. `join` takes a whole other store. Whatever the order, repetition and path,
replicas that know the same changes are equal, and so are their bytes and digests.

A store also remembers its *frontier*: the replicas whose newest known change no other known change builds upon.
Everything known follows from it, so the next own delta names only the frontier as seen. It is in the bytes, but counts
neither for equality nor for the digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Final

import msgspec
from blake3 import blake3
from immutables import Map
from msgspec import Meta, Struct

from stigmergy.crdt.bounds import (
    CHANGE_BYTES_MAX,
    COUNTER_MAX,
    ELEMENT_BYTES_MAX,
    LIVE_COUNT_HARD_MAX,
    LIVE_COUNT_MAX,
    PATH_DEPTH_MAX,
    PAYLOAD_BYTES_MAX,
    PLACE_DOTS_COUNT_HARD_MAX,
    PLACE_DOTS_COUNT_MAX,
    REPLICAS_COUNT_HARD_MAX,
    REPLICAS_COUNT_MAX,
    SEEN_COUNT_MAX,
    STORE_BYTES_MAX,
)
from stigmergy.crdt.causality import NOTHING, Context, Counter, Dot
from stigmergy.crdt.delta import Delta, Edit, check_replica, next_stamp_ns, one_each
from stigmergy.crdt.errors import BadStore, LimitReached, NotContiguous
from stigmergy.crdt.payloads import PRESENCE, STAMPED, TOTAL, fault_of, stamped, total_of, total_payload
from stigmergy.crdt.tree import BARE, Dots, Path, TreeNode, differing, node_at, places_of, tree_of, with_dots

DIGEST_BYTES: Final = 16
ENTRY_BYTES_MAX: Final = 24
"""Of a live dot beside its keys and payload: numbers and framing."""
REPLICA_ENTRY_BYTES_MAX: Final = 24
"""Of a replica in the vector and in the frontier; and, counted once more, of the framing of the whole."""
_SUM_MASK: Final = 2 ** (8 * DIGEST_BYTES) - 1
_encode = msgspec.msgpack.Encoder().encode


class ReplicaStore:
    """One object at one replica. Never changed, only replaced. Begin with EMPTY."""

    __slots__ = ("_frontier", "_sum", "context", "live_bytes", "live_count", "root")

    def __init__(
        self,
        root: TreeNode,
        context: Context,
        frontier: Map[bytes, None],
        live_count: int,
        live_bytes: int,
        entries_sum: int,
    ) -> None:
        self.root = root
        self.context = context
        """Which changes are known. Never anything beyond: what comes too early is not applied."""
        self.live_count = live_count
        """How many dots are alive."""
        self.live_bytes = live_bytes
        """Of all that is alive: its keys and payloads."""
        self._frontier = frontier
        self._sum = entries_sum
        """Of the digests of all that is alive. A sum, so that a change costs no look at the rest."""

    def dots_at(self, path: Path) -> Dots:
        """What is alive in this very place, by replica."""
        return node_at(self.root, path).dots

    def seen_by(self, author: bytes) -> tuple[Dot, ...]:
        """What the next change of this author names as seen, apart from its own: sorted, and bounded. What is left out
        stays in the frontier, for the change after it; what a change removes is waited for in any case."""
        frontier = self._frontier
        if not frontier or (len(frontier) == 1 and author in frontier):
            return ()
        counter = self.context.counter
        others = [replica for replica in sorted(frontier) if replica != author]
        return tuple([Dot(replica, counter(replica)) for replica in others[:SEEN_COUNT_MAX]])

    def apply(self, delta: Delta) -> ReplicaStore:
        """With the changes of a delta; the same store if all are known. Part of them may be known.

        Raises NotContiguous if changes are missing that it builds upon, LimitReached if a hard bound would be passed.
        """
        author, context = delta.replica, self.context
        known = context.counter(author)
        if delta.last <= known:
            return self
        seen = delta.seen
        if delta.first > known + 1 or (seen and any(context.counter(replica) < counter for replica, counter in seen)):
            raise self._missing(delta)
        if delta.removed and self._unknown(delta):
            raise self._missing(delta)
        if known == 0 and len(context) >= REPLICAS_COUNT_HARD_MAX:
            raise LimitReached(f"more than {REPLICAS_COUNT_HARD_MAX} replicas have written to one object")
        writing = _Writing(self)
        for path, dots in delta.removed:
            writing.remove(path, dots)
        for path, counter, payload in delta.added:
            if counter > known:
                writing.add(path, author, counter, payload)
        frontier = self._frontier
        for replica, counter in seen:
            if replica in frontier and context.counter(replica) == counter:
                frontier = frontier.delete(replica)
        if author not in frontier:
            frontier = frontier.set(author, None)
        return writing.written(context.advanced(author, delta.last), frontier)

    def join(self, other: ReplicaStore) -> ReplicaStore:
        """What both know and neither has removed."""
        if not self.context or self is other:
            return other
        if not other.context:
            return self
        writing = _Writing(self)
        for path, here, there in differing(self.root, other.root):
            for replica, (counter, payload) in there.items():
                if counter > self.context.counter(replica):
                    writing.add(path, replica, counter, payload)
            gone = [
                Dot(replica, counter)
                for replica, (counter, _) in here.items()
                if (found := there.get(replica)) is None or found[0] != counter
                if counter <= other.context.counter(replica)
            ]
            writing.remove(path, gone)
        context = self.context.join(other.context)
        if len(context) > REPLICAS_COUNT_HARD_MAX:
            raise LimitReached(f"more than {REPLICAS_COUNT_HARD_MAX} replicas have written to one object")
        frontier = {
            replica: None
            for one, two in ((self, other), (other, self))
            for replica in one._frontier
            if one.context.counter(replica) > two.context.counter(replica)
            or (replica in two._frontier and one.context.counter(replica) == two.context.counter(replica))
        }
        return writing.written(context, Map(frontier))

    @property
    def size_bytes(self) -> int:
        """At most so many bytes it has, without making them."""
        return self.live_bytes + ENTRY_BYTES_MAX * self.live_count + REPLICA_ENTRY_BYTES_MAX * (len(self.context) + 1)

    def digest(self) -> bytes:
        """16 bytes, equal for equal stores, whatever happened before."""
        return blake3(_encode((self._sum.to_bytes(DIGEST_BYTES), self.context.vector()))).digest(DIGEST_BYTES)

    def to_bytes(self) -> bytes:
        """Its canonical bytes."""
        vector = self.context.vector()
        numbers = {replica: number for number, (replica, _) in enumerate(vector)}
        return _encode(
            StoredReplica(
                vector=tuple(Dot(*one) for one in vector),
                frontier=tuple(sorted(numbers[replica] for replica in self._frontier)),
                places=tuple([(path, _numbered(dots, numbers)) for path, dots in places_of(self.root)]),
            )
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReplicaStore):
            return NotImplemented
        return self is other or (
            self._sum == other._sum and self.live_count == other.live_count and self.context == other.context
        )

    def __hash__(self) -> int:
        return hash((self._sum, self.context))

    def __repr__(self) -> str:
        return f"Store({self.live_count} live, {self.context})"

    def _unknown(self, delta: Delta) -> list[Dot]:
        """What the delta removes before it is known here. An honest author names all that as seen; of another one it
        waits as well, because what came after its removal would stay."""
        context, author = self.context, delta.replica
        return [
            dot for _, dots in delta.removed for dot in dots if dot[1] > context.counter(dot[0]) and dot[0] != author
        ]

    def _missing(self, delta: Delta) -> NotContiguous:
        needed = [(delta.replica, delta.first - 1), *delta.seen, *self._unknown(delta)]
        missing = tuple((replica, counter) for replica, counter in needed if self.context.counter(replica) < counter)
        named = ", ".join(f"{counter} of {replica.hex()}" for replica, counter in missing[:3])
        return NotContiguous(
            f"change {delta.first} of {delta.replica.hex()} builds upon change {named}, not known here; get it first",
            missing,
        )


class _Writing:
    """A tree with its figures while several places of it are written."""

    __slots__ = ("live_bytes", "live_count", "root", "sum")

    def __init__(self, store: ReplicaStore) -> None:
        self.root = store.root
        self.live_count = store.live_count
        self.live_bytes = store.live_bytes
        self.sum = store._sum

    def add(self, path: Path, replica: bytes, counter: int, payload: bytes) -> None:
        """Puts a dot into a place, instead of an older one of the same replica."""
        dots = node_at(self.root, path).dots
        old = dots.get(replica)
        if old is not None:
            self.sum -= _entry_sum(path, replica, *old)
            self.live_bytes -= _entry_bytes(path, old[1])
        else:
            self.live_count += 1
            if self.live_count > LIVE_COUNT_HARD_MAX or len(dots) >= PLACE_DOTS_COUNT_HARD_MAX:
                raise LimitReached(
                    f"more than {LIVE_COUNT_HARD_MAX} live entries in one object, or {PLACE_DOTS_COUNT_HARD_MAX} in "
                    "one place: far more than writers may write; this object stops converging here"
                )
        self.sum += _entry_sum(path, replica, counter, payload)
        self.live_bytes += _entry_bytes(path, payload)
        self.root = with_dots(self.root, path, 0, dots.set(replica, (counter, payload)))

    def remove(self, path: Path, dots: Iterable[tuple[bytes, int]]) -> None:
        """Takes these dots out of a place, those that are there, and any older one of the same replica.

        There is an older one if a delta holds several changes: one replaced it, a later one removed what that added.
        """
        live = left = node_at(self.root, path).dots
        for replica, counter in dots:
            found = left.get(replica)
            if found is not None and found[0] <= counter:
                left = left.delete(replica)
                self.live_count -= 1
                self.live_bytes -= _entry_bytes(path, found[1])
                self.sum -= _entry_sum(path, replica, *found)
        if left is not live:
            self.root = with_dots(self.root, path, 0, left)

    def written(self, context: Context, frontier: Map[bytes, None]) -> ReplicaStore:
        return ReplicaStore(self.root, context, frontier, self.live_count, self.live_bytes, self.sum & _SUM_MASK)


EMPTY: Final = ReplicaStore(BARE, NOTHING, Map(), 0, 0, 0)
"""Nothing is known, nothing is alive."""


def read_store(body: bytes) -> ReplicaStore:
    """The store in canonical bytes. Raises BadStore, and nothing else, for everything else."""
    if len(body) > STORE_BYTES_MAX:
        raise BadStore(f"a store of {len(body)} bytes, at most {STORE_BYTES_MAX}")
    try:
        stored = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadStore(f"no store: {error}") from error
    fault = _fault(stored)
    if fault is not None:
        raise BadStore(f"no store: {fault}")
    if _encode(stored) != body:
        raise BadStore("no store: not in its shortest form")
    replicas = [dot.replica for dot in stored.vector]
    places = [
        (path, {replicas[number]: (counter, payload) for number, counter, payload in dots})
        for path, dots in stored.places
    ]
    entries_sum = sum(_entry_sum(path, writer, *live) for path, dots in places for writer, live in dots.items())
    return ReplicaStore(
        tree_of(places),
        Context.of(stored.vector),
        Map({replicas[number]: None for number in stored.frontier}),
        sum(len(dots) for _, dots in places),
        sum(_entry_bytes(path, payload) for path, dots in places for _, payload in dots.values()),
        entries_sum & _SUM_MASK,
    )


_Key = Annotated[bytes, Meta(min_length=1, max_length=ELEMENT_BYTES_MAX)]
_Path = Annotated[tuple[_Key, ...], Meta(max_length=PATH_DEPTH_MAX)]
_Number = Annotated[int, Meta(ge=0, le=COUNTER_MAX)]
_Live = tuple[_Number, Counter, Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]]
_Place = tuple[_Path, Annotated[tuple[_Live, ...], Meta(min_length=1, max_length=PLACE_DOTS_COUNT_HARD_MAX)]]


class StoredReplica(Struct, frozen=True, array_like=True, tag_field="format", tag=1):
    """A store as bytes. Numbers count through the vector."""

    vector: Annotated[tuple[Dot, ...], Meta(max_length=REPLICAS_COUNT_HARD_MAX)]
    frontier: Annotated[tuple[_Number, ...], Meta(max_length=REPLICAS_COUNT_HARD_MAX)]
    places: Annotated[tuple[_Place, ...], Meta(max_length=LIVE_COUNT_HARD_MAX)]


_decoder = msgspec.msgpack.Decoder(StoredReplica)


def _fault(stored: StoredReplica) -> str | None:
    """What is wrong with a store that has the right types; none if nothing is."""
    vector = [dot.replica for dot in stored.vector]
    if not _rising(vector):
        return "replicas are not sorted, or come twice"
    if any(dot.counter < 1 for dot in stored.vector):
        return "the context names a replica that has written nothing"
    if not _rising(stored.frontier) or (stored.frontier and stored.frontier[-1] >= len(vector)):
        return "the frontier is not sorted, or names nobody"
    if not _rising([path for path, _ in stored.places]):
        return "places are not sorted"
    live_count = 0
    for _, dots in stored.places:
        live_count += len(dots)
        if len(dots) > 1 and not _rising([number for number, _, _ in dots]):
            return "dots are not sorted"
        for number, counter, payload in dots:
            if number >= len(vector):
                return f"a dot of replica number {number}, of {len(vector)}"
            if not 1 <= counter <= stored.vector[number].counter:
                return f"change {counter} of {vector[number].hex()} is alive and not known"
            if (fault := fault_of(payload)) is not None:
                return fault
    if live_count > LIVE_COUNT_HARD_MAX:
        return f"{live_count} live entries, at most {LIVE_COUNT_HARD_MAX}"
    return None


def _numbered(dots: Dots, numbers: dict[bytes, int]) -> tuple[tuple[int, int, bytes], ...]:
    listed = [(numbers[replica], counter, payload) for replica, (counter, payload) in dots.items()]
    listed.sort()
    return tuple(listed)


def _rising(values: Iterable[object]) -> bool:
    listed = list(values)
    return all(one < two for one, two in pairwise(listed))  # type: ignore[operator]


def _entry_bytes(path: Path, payload: bytes) -> int:
    if len(path) == 1:
        return len(payload) + len(path[0]) + 3
    return len(payload) + sum([len(key) + 3 for key in path])


def _entry_sum(path: Path, replica: bytes, counter: int, payload: bytes) -> int:
    """What one live dot adds to the sum."""
    return int.from_bytes(blake3(_encode((path, replica, counter, payload))).digest(DIGEST_BYTES))


def mint(edit: Edit, store: ReplicaStore, replica: bytes, now_ns: int) -> Delta:
    """Makes an edit the next change of this replica. Raises LimitReached if it would pass a writer's bound.

    The edit may have been made against an older store than this one, by the same replica: of the dots to be removed
    those count that are still there, and what it adds replaces what the replica has written in that place since.
    """
    counter = store.context.counter(replica) + 1
    if counter == 1:
        _check_new_replica(store, replica)
    elif counter > COUNTER_MAX:
        raise LimitReached(f"replica {replica.hex()} has made all changes it can; give it a new id")
    added: tuple[tuple[Path, int, bytes], ...] = tuple(
        [
            (path, counter, _minted(edit, store, replica, path, payload, now_ns) if payload else PRESENCE)
            for path, payload in edit.added
        ]
    )
    removed = tuple(_still_there(edit, store, replica)) if edit.removed else ()
    if len(added) > 1:
        added = one_each(added)
    if len(removed) > 1:
        removed = one_each(removed)
    if added:
        _check_room(store, added)
    delta = Delta(replica, counter, counter, store.seen_by(replica), added, removed)
    size_bytes = len(_encode(delta))
    if size_bytes > CHANGE_BYTES_MAX:
        raise LimitReached(
            f"field '{edit.field}': one change of {size_bytes} bytes, at most {CHANGE_BYTES_MAX}; make several changes"
        )
    return delta


def _check_new_replica(store: ReplicaStore, replica: bytes) -> None:
    check_replica(replica)
    if len(store.context) >= REPLICAS_COUNT_MAX:
        raise LimitReached(
            f"{len(store.context)} replicas have written to this object, at most {REPLICAS_COUNT_MAX} in its whole "
            "life; divide it into groups with shared(by=…)"
        )


def _minted(edit: Edit, store: ReplicaStore, replica: bytes, path: Path, payload: bytes, now_ns: int) -> bytes:
    """The payload as it is kept: with its stamp, or as a total."""
    kind = payload[0]
    if kind == STAMPED and edit.after_ns is not None:
        payload = stamped(payload, next_stamp_ns(now_ns, edit.after_ns))
    elif kind == TOTAL:
        own = store.dots_at(path).get(replica)
        total = total_of(payload) + (total_of(own[1]) if own is not None else 0)
        if not -COUNTER_MAX <= total <= COUNTER_MAX:
            raise LimitReached(f"field '{edit.field}': the counter would pass 63 bits")
        payload = total_payload(total)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise LimitReached(f"field '{edit.field}': a value of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
    return payload


def _still_there(edit: Edit, store: ReplicaStore, replica: bytes) -> list[tuple[Path, tuple[Dot, ...]]]:
    """What is to be removed and is alive; without the author's own where something is added instead."""
    added = dict(edit.added)
    found = []
    for path, dots in edit.removed:
        live = store.dots_at(path)
        left = []
        for dot in dots:
            alive = live.get(dot[0])
            if alive is not None and alive[0] == dot[1] and (dot[0] != replica or path not in added):
                left.append(dot)
        if left:
            left.sort()
            found.append((path, tuple(left)))
    return found


def _check_room(store: ReplicaStore, added: tuple[tuple[Path, int, bytes], ...]) -> None:
    if store.live_count + len(added) > LIVE_COUNT_MAX:
        raise LimitReached(
            f"the object has {store.live_count} live entries and would get {len(added)} more, at most "
            f"{LIVE_COUNT_MAX}; remove some, or divide it into groups"
        )
    for path, _, _ in added:
        if len(store.dots_at(path)) > PLACE_DOTS_COUNT_MAX:
            raise LimitReached(
                f"one place has more than {PLACE_DOTS_COUNT_MAX} concurrent writes, or totals of a counter; divide the "
                "object into groups with shared(by=…)"
            )
