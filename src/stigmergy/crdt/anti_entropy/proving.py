"""Finds who has signed two different changes, and shows the proof to all others. Pure.

    Shown     ->                 equal vectors, different stores: which signed changes are kept here, page after page
              <-  a change       the one that is kept there under the same number, and is another
    Proof     ->                 both of them, to everybody: whoever gets it checks it, and passes it on
    Caught    ->                 every interval, to whom other authors are proven than to us
              <-  Caught, Proof  what each of the two lacks

A proof is two signed changes and needs nobody's word. That stores differ proves nothing about the two who hold them:
both may have been lied to. So nobody is shut out for that; the object is flagged, and the search goes on.

Only whole changes are evidence, as long as the pool keeps them. The digest and signature of one that had to go would
convince ourselves and nobody else: the signature is over the whole change. And who shuts an author out alone parts from
the honest who go on to take its changes, and from all that builds upon those.
"""

from __future__ import annotations

from stigmergy.crdt.anti_entropy.desk import Desk
from stigmergy.crdt.anti_entropy.held import Held
from stigmergy.crdt.anti_entropy.messages import (
    PROOFS_COUNT_MAX,
    SHORT_DIGEST_BYTES,
    SHOWN_COUNT_MAX,
    Caught,
    Proof,
    Shown,
    body_digest,
)
from stigmergy.crdt.anti_entropy.peers import Peer
from stigmergy.crdt.anti_entropy.pool import Kept
from stigmergy.crdt.anti_entropy.quarantine import Quarantined
from stigmergy.crdt.anti_entropy.rules import Moment

SHOWN_ENTRY_BYTES = 48
"""What one change takes in a message that names it."""
SHOWN_OVERHEAD_BYTES = 256
CONTRADICTIONS_COUNT_MAX = 8
"""Changes sent in answer to one message that names others under their numbers."""
PROOFS_SENT_MAX = 4
"""Proofs sent to one peer at a time; they may be long."""


class Proving:
    """Who is proven to lie, and what is done to find it out."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._proofs: dict[bytes, Proof] = {}
        """By the author's key."""
        self._lifted: dict[bytes, None] = {}
        """Authors that an operator lets take part again: known, and told to nobody."""
        self._told: Caught = Caught(())

    # The search.

    def show(self, peer: Peer, held: Held, moment: Moment) -> None:
        """Names a peer that holds something else the next of the signed changes that are kept here, newest first."""
        desk = self._desk
        kept = [one for one in reversed(held.pool.all()) if one.key not in desk.quarantine]
        start = held.shown.get(peer.name, 0)
        start = start if start < len(kept) else 0
        page = kept[start : start + SHOWN_COUNT_MAX]
        held.shown[peer.name] = start + len(page)
        fits = max(1, (desk.bytes_max - SHOWN_OVERHEAD_BYTES) // SHOWN_ENTRY_BYTES)
        for at in range(0, len(page), fits):
            named = tuple((one.delta.replica, one.delta.first, one.delta.last, one.digest) for one in page[at:][:fits])
            desk.say([peer.name], Shown(held.id, named), moment.monotonic_ns)

    def shown(self, peer: Peer, shown: Shown, moment: Moment) -> None:
        """A peer names what it keeps: it gets those that are others here. It will see that both are signed."""
        desk = self._desk
        held = desk.held.get(shown.object)
        if held is None:
            desk.counters.shared_strange += 1
            return
        sent: dict[bytes, None] = {}
        for replica, first, last, digest in shown.changes:
            other = held.pool.differs(replica, first, last, digest)
            if other is not None and other.key not in desk.quarantine and len(sent) < CONTRADICTIONS_COUNT_MAX:
                sent[other.data] = None
        for data in sent:
            desk.send([peer.name], data, moment.monotonic_ns)

    # The proof.

    def knows(self, key: bytes) -> bool:
        """Whether this author was proven to lie before."""
        return key in self._proofs

    def found(self, proof: Proof, one: Kept, other: Kept, moment: Moment) -> None:
        """Two different changes under one number, both signed: their author is shut out, and all are shown both."""
        desk, delta, key = self._desk, one.delta, one.key
        first, last = max(delta.first, other.delta.first), min(delta.last, other.delta.last)
        why = f"replica {delta.replica.hex()} has signed two different changes {first} to {last}"
        if key == desk.node.key:
            desk.trouble(
                f"shared object '{proof.name}': {why} with our own key: this disk is a copy that runs elsewhere too, "
                "or was put back to an earlier state; restore it as a copy: it gets a new incarnation"
            )
        else:
            node = next((peer.name for peer in desk.peers.all() if peer.key == key), "")
            desk.shut_out(Quarantined(key, node, proof.name, delta.replica, why, moment.wall_ns))
            for held in desk.held.values():
                if held.name == proof.name:
                    held.liars[key] = None
                    held.diverged_ns.clear()
        self._lifted.pop(key, None)
        if key in self._proofs:
            return
        if len(self._proofs) >= PROOFS_COUNT_MAX:
            del self._proofs[next(iter(self._proofs))]
        self._proofs[key] = proof
        self._told = Caught(tuple(sorted(_named(key) for key in self._proofs)))
        names = desk.believable([peer.name for peer in desk.peers.all()])
        desk.say(desk.peers.some(names), proof, moment.monotonic_ns)

    def lift(self, key: bytes) -> None:
        """An operator lets this author take part again: its old lies are no news any more."""
        if key in self._proofs:
            self._lifted[key] = None

    # What others know of it.

    def tell(self, peer: Peer, moment: Moment) -> None:
        """Tells a peer who was caught, if that is not what it has told us."""
        if peer.caught != self._told.keys:
            self._desk.say([peer.name], self._told, moment.monotonic_ns)

    def caught(self, peer: Peer, told: Caught, moment: Moment) -> None:
        """A peer says who was caught: it gets the proofs that it lacks, and is told what we know if we lack some."""
        desk, now_ns = self._desk, moment.monotonic_ns
        peer.caught = told.keys
        if now_ns - peer.proved_ns < desk.rules.ask_ns:
            return
        peer.proved_ns = now_ns
        theirs = dict.fromkeys(told.keys)
        lacking = [
            proof for key, proof in self._proofs.items() if _named(key) not in theirs and key not in self._lifted
        ]
        for proof in lacking[:PROOFS_SENT_MAX]:
            desk.say([peer.name], proof, now_ns)
        if any(key not in self._told.keys for key in told.keys):
            desk.say([peer.name], self._told, now_ns)


def _named(key: bytes) -> bytes:
    return body_digest(key)[:SHORT_DIGEST_BYTES]
