"""One object at this node: its local replicas, its known and waiting changes, and what goes to the host. Pure.

Several agents of a node may hold the same object. Each has a replica with its own store; what any of them has on disk,
the node *has*: it sends and acknowledges it, and feeds it to the others here.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.crdt.anti_entropy.authorship import object_id
from stigmergy.crdt.anti_entropy.messages import SHORT_DIGEST_BYTES, Vectors
from stigmergy.crdt.anti_entropy.pool import ChangePool, SignedChange, ripe
from stigmergy.crdt.anti_entropy.rules import SECOND_NS, Rules
from stigmergy.crdt.causality import Context
from stigmergy.crdt.delta import Delta, join_deltas
from stigmergy.crdt.errors import CrdtError, LimitReached, NotContiguous
from stigmergy.crdt.store import EMPTY, ReplicaStore
from stigmergy.crdt.value import SharedValue

# Vectors as nodes exchange them: long-silent replicas are summarised in a common digest. Pure.
#
# A *retired* replica is one that was silent for a stated time, or that an operator has retired. Its entry leaves the
# exchanged vectors: all retired entries of an object together are an *epoch*, a count and a digest. Nodes of the same
# epoch compare the rest; others exchange everything once. A retired replica that writes again is no longer retired.
#
# The store keeps the entry, some 10 bytes for each replica that ever wrote. That is deliberate: it makes any return
# after any absence safe without a special rule. A returning node holds elements that were removed since, and perhaps
# writes that nobody has seen. Only the counter up to which its writes, and those of others, were known tells the two
# apart. A fleet that forgets the counter must either revive the first or lose the second, and must agree on when to
# forget, which two halves of a partitioned fleet cannot. With the entry, a return is an ordinary join: removed elements
# stay removed, unseen writes are taken, and no id changes. Two halves that retired different replicas differ in what
# they send, never in what they hold.

NO_EPOCH = bytes(SHORT_DIGEST_BYTES)
_EPOCH_CONTEXT = "stigmergy 2026 retired replicas"
_encode = msgspec.msgpack.Encoder().encode

Vector = tuple[tuple[bytes, int], ...]


class Retirements(Struct, frozen=True):
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


def epoch_of(retired: Vector) -> Retirements:
    """The epoch with these retired replicas, sorted."""
    if not retired:
        return Retirements()
    digest = blake3(_encode(retired), derive_key_context=_EPOCH_CONTEXT).digest(length=SHORT_DIGEST_BYTES)
    return Retirements(len(retired), digest)


def understood(told: Vectors, here: Context, retired: Vector) -> dict[bytes, int] | None:
    """All that a peer knows, by its vector and what we know ourselves; None if its epoch is one that we cannot read.

    The replicas that a peer has retired are those that we have, or else all that it does not name, at the very counters
    that we know: its digest tells whether that is so.
    """
    named = dict(told.vector)
    if not told.retired_count:
        return named
    epoch = Retirements(told.retired_count, told.retired)
    unnamed = tuple(one for one in here.vector() if one[0] not in named)
    for guess in (retired, unnamed):
        if epoch_of(guess) == epoch:
            return dict(guess) | named
    return None


DECLINED_NS = SECOND_NS
"""After the host has declined something it is left alone for so long."""


class PendingMerge(Struct, frozen=True):
    """What the host is to merge into one replica, and to report as `merged` once it is durable, or as `declined`."""

    object: str
    replica: bytes
    deltas: tuple[bytes, ...] = ()
    """In the order in which they can be applied."""
    state: bytes = b""
    """A store to join with, instead of deltas."""


class Local:
    """A replica of ours."""

    __slots__ = ("address", "busy", "expects", "handed", "paused_until_ns", "replica", "store")

    def __init__(self, replica: bytes, address: str, store: ReplicaStore) -> None:
        self.replica = replica
        self.address = address
        self.store = store
        """As it is on disk."""
        self.busy = False
        """Whether the host has something of ours to merge."""
        self.handed: tuple[SignedChange, ...] = ()
        self.expects: tuple[tuple[bytes, int], ...] = ()
        """Up to where changes are known here once what was handed over is merged."""
        self.paused_until_ns = -(1 << 62)


class HeldObject:
    """One object."""

    def __init__(self, name: str, rules: Rules, kind: SharedValue | None) -> None:
        self.name = name
        self.id = object_id(name)
        self.kind = kind
        """An empty value of the declared types; None if they are not checked here."""
        self.locals: dict[bytes, Local] = {}
        self.store = EMPTY
        """All that is on disk here, of all our replicas together."""
        self.pool = ChangePool(rules)
        self.waiting: dict[tuple[bytes, int], SignedChange] = {}
        """In the pool and on no disk of ours yet."""
        self.state: tuple[ReplicaStore, bytes] | None = None
        """A whole state that was received and is not on disk yet."""
        self.owed: dict[str, dict[bytes, int]] = {}
        """The acknowledgements that we owe: per replica up to where."""
        self.silence = Silence()
        self.unsigned: dict[bytes, list[Delta]] = {}
        """Own changes, by replica, that are durable and not signed yet."""
        self.asked_ns: dict[str, int] = {}
        """When each peer was last asked for, or told, what is missing."""
        self.whole_ns: dict[str, int] = {}
        """When each peer was last sent the whole state."""
        self.diverged_ns: dict[str, int] = {}
        """Since when peers that know the same hold something else."""
        self.shown: dict[str, int] = {}
        """How many of the signed changes, from the newest on, were named to such peers."""
        self.told: dict[str, bytes] = {}
        """The digest of its store that each peer has last told."""
        self.liars: dict[bytes, None] = {}
        """Keys of authors that have contradicted themselves here."""
        self.state_frame: tuple[bytes, bytes] | None = None
        """The last state that was sent: the store's digest and the datagram."""
        self._rules = rules

    @property
    def diverged(self) -> bool:
        """Whether replicas hold different things and no gossip can mend it."""
        return bool(self.diverged_ns or self.liars)

    def knows(self, replica: bytes) -> int:
        """Up to where the changes of a replica are on disk here."""
        return self.store.context.counter(replica)

    def put_store(self, local: Local, store: ReplicaStore) -> None:
        """A replica of ours has this on disk now."""
        local.store = store
        here = self.store.context
        if len(self.locals) == 1 or store.context.covers(here):
            self.store = store
        elif not here.covers(store.context):
            self.store = self.store.join(store)
        counter_of = self.store.context.counter
        for key in [key for key, kept in self.waiting.items() if kept.delta.last <= counter_of(key[0])]:
            del self.waiting[key]
        if self.state is not None and all(
            one.store.context.covers(self.state[0].context) for one in self.locals.values()
        ):
            self.state = None

    def keep(self, kept: SignedChange) -> int:
        """Puts a change that is not on disk here into the pool to wait; how many had to go unused for it."""
        lost = self._forget(self.pool.add(kept))
        self.waiting[kept.delta.replica, kept.delta.first] = kept
        while len(self.waiting) > self._rules.waiting_count_max:
            key = next(iter(self.waiting))
            lost += self._forget([self.pool.drop(key)])
        return lost

    def add(self, kept: SignedChange) -> int:
        """Puts a change that is on disk here into the pool; how many had to go unused for it."""
        return self._forget(self.pool.add(kept))

    def let_go(self, author: bytes) -> None:
        """What an author has signed and is neither on disk here nor on its way there is wanted no more."""
        handed = [kept for local in self.locals.values() for kept in local.handed]
        waiting = [key for key, kept in self.waiting.items() if kept.key == author and kept not in handed]
        for key in waiting:
            del self.waiting[key]
            self.pool.drop(key)

    def _forget(self, gone: list[SignedChange]) -> int:
        return sum(self.waiting.pop((kept.delta.replica, kept.delta.first), None) is not None for kept in gone)

    def feed(self, local: Local, now_ns: int, horizon_ns: int) -> PendingMerge | None:
        """What the host is to merge next into one of our replicas; None for nothing, or if it is busy with the last."""
        if local.busy or now_ns < local.paused_until_ns:
            return None
        context = local.store.context
        if self.state is not None and not context.covers(self.state[0].context):
            local.busy, local.handed, local.expects = True, (), self.state[0].context.vector()
            return PendingMerge(self.name, local.replica, state=self.state[1])
        behind: list[SignedChange] | None = []
        if local.store is not self.store:
            behind = self.pool.lacking(self.store.context, context.counter)
        if behind is None:
            local.busy, local.handed, local.expects = True, (), self.store.context.vector()
            return PendingMerge(self.name, local.replica, state=self.store.to_bytes())
        # What is on disk here already was let pass once, whatever its stamp.
        found = ripe(behind, context.counter, 1 << 63) if behind else []
        if self.waiting and not found:
            found = ripe(self.waiting.values(), context.counter, horizon_ns)
        if not found:
            return None
        taken: list[SignedChange] = []
        size_bytes = 0
        for kept in found:
            size_bytes += len(kept.data)
            if taken and size_bytes > self._rules.merge_bytes_max:
                break
            taken.append(kept)
        local.busy, local.handed = True, tuple(taken)
        local.expects = tuple((kept.delta.replica, kept.delta.last) for kept in taken)
        return PendingMerge(self.name, local.replica, joined([kept.delta for kept in taken]))

    def merged(self, local: Local) -> bool:
        """The host is done with what was handed over; whether it has merged it."""
        if any(local.store.context.counter(replica) < counter for replica, counter in local.expects):
            return False
        local.busy, local.handed, local.expects = False, (), ()
        return True

    def declined(self, local: Local, now_ns: int) -> None:
        """The host will not have it: it is let go, and digests bring it again if it is worth anything."""
        for kept in local.handed:
            key = (kept.delta.replica, kept.delta.first)
            if self.waiting.pop(key, None) is not None:
                self.pool.drop(key)
        self.state = None
        local.busy, local.handed, local.expects = False, (), ()
        local.paused_until_ns = now_ns + DECLINED_NS

    def missing(self, horizon_ns: int) -> bool:
        """Whether something waits for other changes, and not for the disk or the clock."""
        count = sum(kept.stamp_ns <= horizon_ns for kept in self.waiting.values())
        return count > len(ripe(self.waiting.values(), self.knows, horizon_ns))


def joined(deltas: list[Delta]) -> tuple[bytes, ...]:
    """As few equivalent deltas as possible, each author's adjacent ones joined, in an order that can be applied."""
    found: list[Delta] = []
    for delta in deltas:
        if found and found[-1].replica == delta.replica:
            try:
                found[-1] = join_deltas(found[-1], delta)
                continue
            except (NotContiguous, LimitReached):
                pass
        found.append(delta)
    return tuple(delta.to_bytes() for delta in found)


def misfit(kind: SharedValue | None, one: Delta | ReplicaStore) -> str | None:
    """Why a change or a state does not fit the declared types; None if it does."""
    if kind is None:
        return None
    try:
        if isinstance(one, Delta):
            kind.check(one)
        else:
            kind.check_store(one)
    except CrdtError as error:
        return str(error)
    return None
