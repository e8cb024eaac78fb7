"""Vectors as they are told: replicas that have long been silent are named only by a common digest. Pure.

A *retired* replica is one of which nothing new came for a stated time, or that an operator has retired. Its entry
leaves the vectors that nodes tell each other: all retired entries of an object together are an *epoch*, a count and a
digest. Nodes of the same epoch compare the rest; others tell each other everything once. A retired replica that
writes again is no longer retired.

In the store the entry stays, some 10 bytes for each replica that ever wrote. That is on purpose, and it is what makes
the return of anybody after any absence safe without a rule of its own. Whoever comes back holds things that were
removed since, and perhaps writes that nobody has seen. Only the counter up to which its writes, and those of others,
were known tells the two apart. A fleet that forgets the counter must either revive the first or lose the second, and
must agree on when to forget, which two halves of a cut fleet cannot. With the entry, a return is a join like any
other: what was removed stays removed, unseen writes are taken, and no id has to be changed; two halves that retired
different replicas differ in what they tell, never in what they hold.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.crdt.anti_entropy.messages import SHORT_DIGEST_BYTES, Vectors
from stigmergy.crdt.causality import Context

NO_EPOCH = bytes(SHORT_DIGEST_BYTES)
_EPOCH_CONTEXT = "stigmergy 2026 retired replicas"
_encode = msgspec.msgpack.Encoder().encode

Vector = tuple[tuple[bytes, int], ...]


class Epoch(Struct, frozen=True):
    """The retired replicas of an object with their counters, in short."""

    count: int = 0
    digest: bytes = NO_EPOCH


class Silence:
    """When something new last came of each replica of one object, and who is retired."""

    def __init__(self) -> None:
        self._moved: dict[bytes, tuple[int, int]] = {}
        """By replica: the counter, and since when it is that."""
        self._retired: dict[bytes, int] = {}
        """By an operator, at which counter."""

    def note(self, context: Context, now_ns: int) -> None:
        """What is known by now. Time counts from when a counter is first noted, so it may be called now and then."""
        for replica, counter in context.vector():
            if self._moved.get(replica, (0, 0))[0] != counter:
                self._moved[replica] = (counter, now_ns)
                self._retired.pop(replica, None)

    def retire(self, replica: bytes) -> bool:
        """Retires a replica at once; False if nothing is known of it."""
        if replica not in self._moved:
            return False
        self._retired[replica] = self._moved[replica][0]
        return True

    def split(self, context: Context, own: Container[bytes], now_ns: int, retire_ns: int) -> tuple[Vector, Vector]:
        """The vector without the retired, and the retired. Our own replicas are never retired."""
        self.note(context, now_ns)
        living: list[tuple[bytes, int]] = []
        retired: list[tuple[bytes, int]] = []
        for replica, counter in context.vector():
            _, since_ns = self._moved[replica]
            silent = replica in self._retired or now_ns - since_ns >= retire_ns
            (retired if silent and replica not in own else living).append((replica, counter))
        return tuple(living), tuple(retired)


def epoch_of(retired: Vector) -> Epoch:
    """The epoch with these retired replicas, sorted."""
    if not retired:
        return Epoch()
    digest = blake3(_encode(retired), derive_key_context=_EPOCH_CONTEXT).digest(length=SHORT_DIGEST_BYTES)
    return Epoch(len(retired), digest)


def understood(told: Vectors, here: Context, retired: Vector) -> dict[bytes, int] | None:
    """All that a peer knows, by its vector and what we know ourselves; None if its epoch is one that we cannot read.

    The replicas that a peer has retired are those that we have, or else all that it does not name, at the very counters
    that we know: its digest tells whether that is so.
    """
    named = dict(told.vector)
    if not told.retired_count:
        return named
    epoch = Epoch(told.retired_count, told.retired)
    unnamed = tuple(one for one in here.vector() if one[0] not in named)
    for guess in (retired, unnamed):
        if epoch_of(guess) == epoch:
            return dict(guess) | named
    return None
