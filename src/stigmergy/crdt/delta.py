"""Edits and deltas: an edit has no dot yet, a delta is what travels. How both are made, joined and read.

A mutator of a value returns an Edit. `mint` gives it the next dot of its replica and makes it a Delta, which holds
consecutive changes of one author in net form: additions that still exist, and dots that were removed. An addition
replaces what the same author had in that place, so that is not listed as removed.

Bytes are canonical: equal deltas are equal bytes, and anything but exactly the bytes of a delta within all bounds is
refused as BadDelta. `SharedValue.check` decides whether elements fit the declared types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from stigmergy.crdt.bounds import (
    COUNTER_MAX,
    DELTA_BYTES_MAX,
    DELTA_ENTRIES_COUNT_MAX,
    ELEMENT_BYTES_MAX,
    PATH_DEPTH_MAX,
    PAYLOAD_BYTES_MAX,
    REPLICA_BYTES,
    REPLICAS_COUNT_HARD_MAX,
)
from stigmergy.crdt.causality import Counter, Dot, Replica
from stigmergy.crdt.errors import BadDelta, LimitReached, NotContiguous
from stigmergy.crdt.payloads import STAMPED, fault_of, stamp_of
from stigmergy.crdt.tree import Path

# The hybrid logical clock of registers: a stamp is the time, unless that is not after what the writer has seen.
#
# So a later write by somebody who saw the earlier one always has the higher stamp, whatever the clocks say; while
# clocks are right, stamps are times. A clock far ahead would win every register until the others catch up: a receiver
# does not yet take a stamp more than SKEW_NS_MAX ahead of its own clock.

SKEW_NS_MAX = 60 * 1_000_000_000
"""How far ahead of our clock a stamp of another replica may be."""


def next_stamp_ns(now_ns: int, after_ns: int) -> int:
    """The stamp of a write at this time by somebody who has seen the stamp `after_ns`."""
    stamp_ns = max(now_ns, after_ns + 1)
    if stamp_ns > COUNTER_MAX:
        raise LimitReached(f"a register was stamped {after_ns} ns, the last there is; set the clocks and remove it")
    return stamp_ns


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


def one_each(entries: Sequence[Any]) -> tuple[Any, ...]:
    """Sorted by place; of a place that comes twice, the last."""
    by_path = {entry[0]: entry for entry in entries}
    return tuple(by_path[path] for path in sorted(by_path))


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
