"""Stores: what is alive and what is known, whatever way it came."""

from __future__ import annotations

import pytest

from stigmergy.crdt.delta import Delta, Edit, mint
from stigmergy.crdt.errors import NotContiguous
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.store import EMPTY, Store, read_store
from stigmergy.crdt.value import SharedValue

A, B, C = b"A" * 8, b"B" * 8, b"C" * 8
NAMES = SharedValue.empty(ORSet[str], "names")
assert isinstance(NAMES, ORSet)
Names = ORSet[str]


def names(store: Store) -> Names:
    assert isinstance(NAMES, ORSet)
    return NAMES.with_store(store)


def write(store: Store, edit: Edit, replica: bytes) -> tuple[Store, Delta]:
    delta = mint(edit, store, replica, 0)
    return store.apply(delta), delta


def test_a_delta_is_applied_once() -> None:
    store, delta = write(EMPTY, names(EMPTY).add("x"), A)
    assert store.apply(delta) is store
    assert list(names(store)) == ["x"]


def test_an_addition_wins_over_a_concurrent_removal() -> None:
    base, _ = write(EMPTY, names(EMPTY).add("x"), A)
    removed, removal = write(base, names(base).remove("x"), A)
    added, addition = write(base, names(base).add("x"), B)
    assert list(names(removed)) == []
    one, other = removed.apply(addition), added.apply(removal)
    assert one == other == removed.join(added) == added.join(removed)
    assert one.to_bytes() == other.to_bytes()
    assert one.digest() == other.digest() != base.digest()
    assert list(names(one)) == ["x"]


def test_what_a_delta_builds_upon_must_be_there() -> None:
    one, first = write(EMPTY, names(EMPTY).add("x"), A)
    two, second = write(one, names(one).remove("x"), A)
    _, third = write(two, names(two).add("y"), B)
    with pytest.raises(NotContiguous) as missing:
        EMPTY.apply(second)
    assert missing.value.missing == ((A, 1),)
    with pytest.raises(NotContiguous) as missing:
        EMPTY.apply(first).apply(third)
    assert missing.value.missing == ((A, 2),)


def test_a_delta_names_only_what_does_not_follow_from_the_rest() -> None:
    one, _ = write(EMPTY, names(EMPTY).add("x"), A)
    two, second = write(one, names(one).add("y"), B)
    _, third = write(two, names(two).add("z"), C)
    assert second.seen == ((A, 1),)
    assert third.seen == ((B, 1),)
    three, fourth = write(read_store(two.to_bytes()), names(two).add("w"), B)
    assert fourth.seen == ()
    assert three.seen_by(A) == ((B, 2),)
