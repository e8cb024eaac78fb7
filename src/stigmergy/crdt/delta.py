"""Writes on their way: an edit has no dot yet, a delta is what travels. Also how both are made, joined and read.

A mutator of a value returns an Edit. `mint` gives it the next dot of its replica and makes it a Delta, which holds
consecutive changes of one author in net form: what they added and is still there, and which dots they removed. To add
to a place replaces what the same author had there, so that is not listed as removed.

Bytes are canonical: equal deltas are equal bytes, and whatever is not exactly the bytes of a delta within all bounds is
refused as BadDelta. Whether elements fit the declared types is for `SharedValue.check` to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from stigmergy.crdt.bounds import (
    CHANGE_BYTES_MAX,
    COUNTER_MAX,
    DELTA_BYTES_MAX,
    DELTA_ENTRIES_COUNT_MAX,
    ELEMENT_BYTES_MAX,
    LIVE_COUNT_MAX,
    PATH_DEPTH_MAX,
    PAYLOAD_BYTES_MAX,
    PLACE_DOTS_COUNT_MAX,
    REPLICA_BYTES,
    REPLICAS_COUNT_HARD_MAX,
    REPLICAS_COUNT_MAX,
)
from stigmergy.crdt.causality import Counter, Dot, Replica
from stigmergy.crdt.clocks import next_stamp_ns
from stigmergy.crdt.errors import BadDelta, LimitReached, NotContiguous
from stigmergy.crdt.payloads import (
    PRESENCE,
    STAMPED,
    TOTAL,
    fault_of,
    stamp_of,
    stamped,
    total_of,
    total_payload,
)

if TYPE_CHECKING:
    from stigmergy.crdt.store import Store

Path = tuple[bytes, ...]
"""The keys that lead to a place; for the object itself none."""
_Key = Annotated[bytes, Meta(min_length=1, max_length=ELEMENT_BYTES_MAX)]
_Path = Annotated[tuple[_Key, ...], Meta(max_length=PATH_DEPTH_MAX)]
_Payload = Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
_First = Annotated[int, Meta(ge=1, le=COUNTER_MAX)]
_Dots = Annotated[tuple[Dot, ...], Meta(min_length=1, max_length=DELTA_ENTRIES_COUNT_MAX)]


class Edit(Struct, frozen=True):
    """What a mutator wants written: a change before it has its dot."""

    field: str
    """Of the agent."""
    added: tuple[tuple[Path, bytes], ...] = ()
    """Places, and what goes there. A counter gives the amount; minting makes it the new total."""
    removed: tuple[tuple[Path, tuple[Dot, ...]], ...] = ()
    after_ns: int | None = None
    """For a register: the newest stamp that the writer saw there, or 0. Minting stamps what is added."""

    @property
    def changes_nothing(self) -> bool:
        """Whether it may as well be left out: something was removed that is not there. Minting it does no harm."""
        return not self.added and not self.removed


class Delta(Struct, frozen=True, array_like=True, tag_field="format", tag=1):
    """The changes from first to last of one replica, in net form."""

    replica: Replica
    first: _First
    last: _First
    seen: Annotated[tuple[Dot, ...], Meta(max_length=REPLICAS_COUNT_HARD_MAX)]
    """What of others they build upon, beyond what those name themselves: sorted, without the author."""
    added: Annotated[tuple[tuple[_Path, Counter, _Payload], ...], Meta(max_length=DELTA_ENTRIES_COUNT_MAX)]
    """Sorted by place; a place comes once, with the author's newest change to it."""
    removed: Annotated[tuple[tuple[_Path, _Dots], ...], Meta(max_length=DELTA_ENTRIES_COUNT_MAX)]
    """Sorted; never the author's own dots in a place that is added to as well: those go by themselves."""

    @property
    def stamp_ns_max(self) -> int:
        """The newest stamp in it, or 0: what is compared with our clock before it is taken."""
        stamps = (stamp_of(payload) for _, _, payload in self.added if payload and payload[0] == STAMPED)
        return max(stamps, default=0)

    def to_bytes(self) -> bytes:
        """Its canonical bytes."""
        return _encode(self)


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Delta)


def mint(edit: Edit, store: Store, replica: bytes, now_ns: int) -> Delta:
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
        added = _one_each(added)
    if len(removed) > 1:
        removed = _one_each(removed)
    if added:
        _check_room(store, added)
    delta = Delta(replica, counter, counter, store.seen_by(replica), added, removed)
    size_bytes = len(_encode(delta))
    if size_bytes > CHANGE_BYTES_MAX:
        raise LimitReached(
            f"field '{edit.field}': one change of {size_bytes} bytes, at most {CHANGE_BYTES_MAX}; make several changes"
        )
    return delta


def join_deltas(earlier: Delta, later: Delta) -> Delta:
    """Two deltas as one. Raises NotContiguous unless they are consecutive and of one author, and the later one builds
    upon nothing of others that the earlier does not: otherwise two joined deltas could wait for each other for ever.
    """
    if earlier.replica != later.replica or later.first != earlier.last + 1:
        raise NotContiguous(f"changes {later.first} to {later.last} do not follow {earlier.first} to {earlier.last}")
    if later.seen:
        known = dict(earlier.seen)
        if any(known.get(replica, 0) < counter for replica, counter in later.seen):
            raise NotContiguous(f"change {later.first} builds upon more than change {earlier.first} does")
    replica = earlier.replica
    added = {path: (path, counter, payload) for path, counter, payload in earlier.added}
    removed: dict[Path, dict[Dot, None]] = {path: dict.fromkeys(dots) for path, dots in earlier.removed}
    for path, dots in later.removed:
        removed.setdefault(path, {}).update(dict.fromkeys(dots))
        if path in added and Dot(replica, added[path][1]) in dots:
            del added[path]
    added |= {path: (path, counter, payload) for path, counter, payload in later.added}
    for path in added:
        if path in removed:
            removed[path] = {dot: None for dot in removed[path] if dot.replica != replica}
    joined = Delta(
        replica,
        earlier.first,
        later.last,
        earlier.seen,
        tuple(added[path] for path in sorted(added)),
        tuple((path, tuple(sorted(removed[path]))) for path in sorted(removed) if removed[path]),
    )
    count = max(len(added), sum(len(dots) for _, dots in joined.removed))
    if count > DELTA_ENTRIES_COUNT_MAX:
        raise LimitReached(f"a delta with {count} entries, at most {DELTA_ENTRIES_COUNT_MAX}; send several")
    return joined


def read_delta(body: bytes) -> Delta:
    """The delta in canonical bytes. Raises BadDelta, and nothing else, for everything else."""
    if len(body) > DELTA_BYTES_MAX:
        raise BadDelta(f"a delta of {len(body)} bytes, at most {DELTA_BYTES_MAX}")
    try:
        delta = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadDelta(f"no delta: {error}") from error
    fault = _fault(delta)
    if fault is not None:
        raise BadDelta(f"no delta: {fault}")
    if _encode(delta) != body:
        raise BadDelta("no delta: not in its shortest form")
    return delta


def check_replica(replica: bytes) -> None:
    """Raises ValueError for what can be no replica's id."""
    if len(replica) != REPLICA_BYTES:
        raise ValueError(f"{replica.hex() or 'nothing'} is no replica's id, which has {REPLICA_BYTES} bytes")


def _check_new_replica(store: Store, replica: bytes) -> None:
    check_replica(replica)
    if len(store.context) >= REPLICAS_COUNT_MAX:
        raise LimitReached(
            f"{len(store.context)} replicas have written to this object, at most {REPLICAS_COUNT_MAX} in its whole "
            "life; divide it into groups with shared(by=…)"
        )


def _minted(edit: Edit, store: Store, replica: bytes, path: Path, payload: bytes, now_ns: int) -> bytes:
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


def _still_there(edit: Edit, store: Store, replica: bytes) -> list[tuple[Path, tuple[Dot, ...]]]:
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


def _one_each(entries: Sequence[Any]) -> tuple[Any, ...]:
    """Sorted by place; of a place that comes twice, the last."""
    by_path = {entry[0]: entry for entry in entries}
    return tuple(by_path[path] for path in sorted(by_path))


def _check_room(store: Store, added: tuple[tuple[Path, int, bytes], ...]) -> None:
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


def _fault(delta: Delta) -> str | None:
    """What is wrong with a delta that has the right types; none if nothing is."""
    if delta.first > delta.last:
        return f"changes from {delta.first} to {delta.last}"
    own: Dot | None = None
    before: Any = None
    for dot in delta.seen:
        if dot.replica == delta.replica or dot.counter < 1:
            return f"it builds upon change {dot.counter} of {dot.replica.hex()}"
        if before is not None and before >= dot.replica:
            return "what it builds upon is not sorted"
        before = dot.replica
    before = None
    for path, counter, payload in delta.added:
        if before is not None and before >= path:
            return "what is added is not sorted"
        if not delta.first <= counter <= delta.last:
            return f"it adds change {counter}, which is not one of its own"
        if (fault := fault_of(payload)) is not None:
            return fault
        before = path
    places = {path for path, _, _ in delta.added}
    before = None
    for path, dots in delta.removed:
        if before is not None and before >= path:
            return "what is removed is not sorted"
        before, own = path, None
        for dot in dots:
            if own is not None and own >= dot:
                return "removed dots are not sorted"
            if dot.counter < 1:
                return f"it removes change {dot.counter} of {dot.replica.hex()}"
            if dot.replica == delta.replica and (dot.counter > delta.last or path in places):
                return f"it removes change {dot.counter} of its own"
            own = dot
    return None
