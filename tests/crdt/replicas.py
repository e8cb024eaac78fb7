"""What the tests of shared types have in common: replicas that write, and exchange what they wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from stigmergy.crdt.delta import Delta, Edit, read_delta
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint
from stigmergy.crdt.value import SharedValue

A, B, C = b"A" * 8, b"B" * 8, b"C" * 8
V = TypeVar("V", bound=SharedValue)


class Replica(Generic[V]):
    """One replica of one object of this type. What it sends are bytes."""

    def __init__(self, hint: type[V], replica: bytes) -> None:
        self.replica = replica
        self.value = cast("V", SharedValue.empty(hint, "field"))

    @property
    def store(self) -> ReplicaStore:
        return self.value.store

    def write(self, mutate: Callable[[V], Edit], now_ns: int = 0) -> Delta:
        """Writes what the mutator returns, and returns it as it travels."""
        return self.keep(mutate(self.value), now_ns)

    def keep(self, edit: Edit, now_ns: int = 0) -> Delta:
        """Writes what a mutator returned."""
        delta = mint(edit, self.store, self.replica, now_ns)
        self.value = self.value.with_store(self.store.apply(delta))
        read = read_delta(delta.to_bytes())
        assert read == delta
        self.value.check(read)
        return read

    def take(self, *deltas: Delta) -> None:
        """Applies what others wrote."""
        for delta in deltas:
            self.value = self.value.with_store(self.store.apply(delta))


def pair(hint: Any) -> tuple[Replica[Any], Replica[Any]]:
    """Two replicas of one object."""
    return Replica(hint, A), Replica(hint, B)


def exchange(one: Replica[Any], other: Replica[Any]) -> None:
    """Both get to know what the other knows; they must be equal then."""
    joined = one.store.join(other.store)
    assert joined == other.store.join(one.store)
    assert joined.to_bytes() == other.store.join(one.store).to_bytes()
    for replica in (one, other):
        replica.value = replica.value.with_store(joined)


def hand_made(**changed: Any) -> Delta:
    """A delta as somebody might make it by hand: the first change of A, which adds nothing."""
    fields: dict[str, Any] = {"replica": A, "first": 1, "last": 1, "seen": (), "added": (), "removed": ()}
    return Delta(**(fields | changed))


__all__ = ["EMPTY", "A", "B", "C", "Replica", "exchange", "hand_made", "pair"]
