"""Shared context of all parts of a machine: who we are, what we hold, the members, and what goes out. Pure."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.crdt.anti_entropy.authorship import (
    OBJECT_BYTES,
    KnownKeys,
    NodeIdentity,
    Quarantine,
    Quarantined,
    Trust,
    gossip_statement,
)
from stigmergy.crdt.anti_entropy.held_object import HeldObject, PendingMerge
from stigmergy.crdt.anti_entropy.messages import AntiEntropyMessage, SignedMessage, write_frame, write_message
from stigmergy.crdt.anti_entropy.peers import Choose, Outstanding, Peer, Peers, interests_digest
from stigmergy.crdt.anti_entropy.pool import SignedChange
from stigmergy.crdt.anti_entropy.rules import ClockReading, Rules
from stigmergy.crdt.anti_entropy.transfers import Incoming, Outgoing

NO_OBJECT = bytes(OBJECT_BYTES)
TROUBLES_COUNT_MAX = 100
"""Different troubles that are remembered; the first goes."""


class BehindPeer(Struct, frozen=True):
    """A node that lacks something of an object, or has something of it that is not here, for so long."""

    object: str
    node: str
    seconds: float


class SharedStatus(Struct, frozen=True):
    """How this node stands with the others that share its state."""

    objects: int = 0
    replicas: int = 0
    """Fields of agents here that are shared."""
    peers: int = 0
    waiting: int = 0
    """Changes that wait for others, for the disk or for our clock."""
    unacknowledged: int = 0
    """Own changes that a peer has not acknowledged yet."""
    diverged: tuple[str, ...] = ()
    """Objects of which replicas hold different things, and no gossip can mend it."""
    quarantined: tuple[str, ...] = ()
    """Keys, in hex, from which nothing is taken any more."""
    behind: tuple[BehindPeer, ...] = ()
    """Nodes that are not known to be in step, the longest first."""


class AntiEntropyCounters(Struct):
    """What became of changes and messages since the machine was made."""

    shared_written: int = 0
    """Own changes that became durable."""
    shared_signed: int = 0
    """Signed datagrams of own changes; adjacent ones are joined."""
    shared_taken: int = 0
    """Changes of others that were believed and new."""
    shared_known: int = 0
    """Changes that came again."""
    shared_resent: int = 0
    shared_repaired: int = 0
    """Changes sent because a digest showed that they are missing."""
    shared_states_sent: int = 0
    shared_states_taken: int = 0
    shared_declined: int = 0
    """Handed to the host, which would not have it."""
    shared_dropped: int = 0
    """Waited and had to go because there was no room; digests bring them again."""
    shared_skewed: int = 0
    """Stamped too far ahead of our clock; they wait."""
    shared_refused: int = 0
    """Datagrams that are no messages, badly signed, of strangers, or about something else than they say."""
    shared_misfits: int = 0
    """Changes that do not fit the declared types."""
    shared_strange: int = 0
    """About objects that we do not hold, or from nodes that are no members."""
    shared_shut_out: int = 0
    """From somebody in quarantine."""
    shared_divergences: int = 0
    """Stores that differ although they know the same."""
    shared_too_large: int = 0
    """States or changes too large for any transfer."""


class AntiEntropyReady(Struct, frozen=True):
    """What to do now: send each datagram, and hand over each thing. In this order, and without waiting."""

    datagrams: tuple[tuple[str, bytes], ...] = ()
    merges: tuple[PendingMerge, ...] = ()


class AntiEntropyContext:
    """The state that the parts of one machine share."""

    def __init__(self, node: NodeIdentity, trust: Trust, rules: Rules, choose: Choose, bytes_max: int) -> None:
        self.node = node
        self.trust = trust
        self.rules = rules
        self.bytes_max = bytes_max
        self.keys = KnownKeys(trust)
        self.peers = Peers(rules, choose)
        self.outstanding = Outstanding(rules)
        self.outgoing = Outgoing(rules, bytes_max)
        self.incoming = Incoming(rules)
        self.quarantine = Quarantine()
        self.counters = AntiEntropyCounters()
        self.held: dict[bytes, HeldObject] = {}
        self._interests: tuple[bytes, bytes] | None = None
        self.troubles: dict[str, None] = {}
        self._datagrams: list[tuple[str, bytes]] = []
        self._merges: list[PendingMerge] = []

    # What goes out.

    def ready(self) -> AntiEntropyReady:
        """All that came together since the last time."""
        ready = AntiEntropyReady(tuple(self._datagrams), tuple(self._merges))
        self._datagrams, self._merges = [], []
        return ready

    def say(self, names: list[str], message: AntiEntropyMessage, now_ns: int) -> None:
        """Tells peers something, signed."""
        if names:
            self.send(names, self.signed(message), now_ns)

    def signed(self, message: AntiEntropyMessage) -> bytes:
        """A message as it travels."""
        body = write_message(message)
        node = self.node
        signature = self.trust.sign(gossip_statement(node.fleet, node.name, body))
        return write_frame(SignedMessage(node.algorithm, node.key, node.name, body, signature))

    def send(self, names: list[str], data: bytes, now_ns: int, about: bytes = NO_OBJECT) -> None:
        """Sends a datagram; what is too long for one is offered."""
        if len(data) <= self.bytes_max:
            self._datagrams += [(name, data) for name in names]
            return
        offer = self.outgoing.offer(data, about, now_ns)
        if offer is None:
            self.counters.shared_too_large += 1
            self.trouble(
                f"{len(data)} bytes are more than the {self.rules.body_bytes_max} that are sent in parts: a shared "
                "object has grown too large for a replica that is far behind; divide it into groups"
            )
            return
        self.say(names, offer, now_ns)

    # What is handed over.

    def feed(self, held: HeldObject, moment: ClockReading) -> None:
        """Hands to the host what can be merged into our replicas of an object."""
        for local in held.locals.values():
            merge = held.feed(local, moment.monotonic_ns, self.horizon_ns(moment))
            if merge is not None:
                self._merges.append(merge)

    def horizon_ns(self, moment: ClockReading) -> int:
        """No stamp beyond this is taken now."""
        return moment.wall_ns + self.rules.skew_ns_max

    # Who is there.

    def believable(self, names: list[str]) -> list[str]:
        """Those of them that are not shut out."""
        if not len(self.quarantine):
            return names
        return [name for name in names if not self.is_out(self.peers.get(name))]

    def is_out(self, peer: Peer | None) -> bool:
        """Whether a peer is shut out."""
        return peer is not None and peer.key is not None and peer.key in self.quarantine

    @property
    def interests(self) -> bytes:
        """What we hold, as it is told."""
        return self._told_interests()[0]

    @property
    def interests_digest(self) -> bytes:
        """The digest of that."""
        return self._told_interests()[1]

    def _told_interests(self) -> tuple[bytes, bytes]:
        # Made when it is needed: at a start thousands of objects come one after the other.
        if self._interests is None:
            objects = b"".join(sorted(self.held))
            self._interests = (objects, interests_digest(objects))
        return self._interests

    def change_interests(self) -> None:
        """What we hold has changed."""
        self._interests = None

    # What is wrong.

    def trouble(self, text: str) -> None:
        """Something that does not mend itself, for people."""
        if text not in self.troubles:
            if len(self.troubles) >= TROUBLES_COUNT_MAX:
                del self.troubles[next(iter(self.troubles))]
            self.troubles[text] = None

    def shut_out(self, one: Quarantined) -> None:
        """Takes nothing more from a key."""
        if self.quarantine.put(one):
            for held in self.held.values():
                held.let_go(one.key)
            self.trouble(
                f"shared object '{one.object}': {one.why}; nothing more is taken from node {one.node or 'unknown'} "
                f"with the key {one.key.hex()} until an operator lifts the quarantine"
            )

    def spread(self, held: HeldObject, kept: SignedChange, without: str, now_ns: int) -> None:
        """Passes a change on to some who hold the object."""
        names = [name for name in self.believable(self.peers.holders(held.id)) if name != without]
        self.send(self.peers.some(names), kept.data, now_ns)
