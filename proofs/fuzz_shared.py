"""Decoders of shared state for the fuzzer: what is read is also checked against types, applied and merged."""

from __future__ import annotations

from typing import Any

from stigmergy.crdt.delta import Delta, Edit, read_delta
from stigmergy.crdt.errors import BadDelta, BadStore, LimitReached, NotContiguous, WrongType
from stigmergy.crdt.flags import DisableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.store import ReplicaStore, mint, read_store
from stigmergy.crdt.tree import entries_of
from stigmergy.crdt.value import SharedValue

REFUSED = (BadDelta, BadStore, NotContiguous, LimitReached, WrongType)
HINTS: tuple[Any, ...] = (
    GCounter,
    LWWRegister[str],
    MVRegister[tuple[int, ...]],
    DisableWinsFlag,
    ORSet[str],
    ORMap[str, ORSet[int]],
)
VALUES = tuple(SharedValue.empty(hint, "field") for hint in HINTS)
REPLICAS = (b"\x11" * 8, b"\x22" * 8, b"\x33" * 8)


def take_delta(data: bytes) -> None:
    """Reads a delta, holds it against every type, and applies it where it fits."""
    delta = read_delta(data)
    assert delta.to_bytes() == data
    for value in VALUES:
        try:
            value.check(delta)
        except BadDelta:
            continue
        _read(value.with_store(value.store.apply(delta)))


def take_store(data: bytes) -> None:
    """Reads a store, holds it against every type and merges it."""
    store = read_store(data)
    assert store.to_bytes() == data
    for value, other in zip(VALUES, _stores(), strict=True):
        try:
            value.check_store(store)
        except BadDelta:
            continue
        joined = store.join(other)
        assert joined == other.join(store) or _says_otherwise(store, other)
        _read(value.with_store(joined))


def deltas() -> list[bytes]:
    """Valid ones, of every type."""
    return [delta.to_bytes() for _, written in _histories() for delta in written]


def stores() -> list[bytes]:
    """Valid ones, of every type."""
    return [store.to_bytes() for store in _stores()]


def _read(value: Any) -> None:
    """Everything that can be read of it."""
    assert repr(value)


def _says_otherwise(store: ReplicaStore, other: ReplicaStore) -> bool:
    """Whether the two disagree about what one change was: somebody lies, and merging cannot mend that."""
    ours = {(path, replica, counter) for path, replica, counter, _ in _live(other)}
    return any((path, replica, counter) in ours for path, replica, counter, _ in _live(store))


def _live(store: ReplicaStore) -> list[Any]:
    return list(entries_of(store.root))


def _stores() -> list[ReplicaStore]:
    return [store for store, _ in _histories()]


def _histories() -> list[tuple[ReplicaStore, list[Delta]]]:
    found = []
    for value in VALUES:
        written, current = [], value
        for number in range(9):
            delta = mint(_edit(current, number), current.store, REPLICAS[number % 3], number * 10**9)
            written.append(delta)
            current = current.with_store(current.store.apply(delta))
        found.append((current.store, written))
    return found


def _edit(value: Any, number: int) -> Edit:
    match value:
        case GCounter():
            return value.add(number)
        case LWWRegister():
            return value.set(f"text {number}")
        case MVRegister():
            return value.set((number, 1 << number))
        case DisableWinsFlag():
            return value.enable() if number & 1 else value.disable()
        case ORSet():
            return value.add(f"element {number % 4}")
        case _:
            below: Any = value[f"key {number % 2}"]
            edit: Edit = below.add(number)
            return edit
