"""Admits changes and states of others: believed or refused, stored or already known, applied or waiting. Pure.

A change must be signed by a key that we believe, under a replica id derived from that key; it must fit the declared
types and contradict nothing that the same replica has signed. A state rests on the word of its sender: it must not
contain changes of ours that we never made. A proof is two contradicting changes signed by one replica, no matter who
shows it.
"""

from __future__ import annotations

from stigmergy.crdt.anti_entropy.authorship import Quarantined, delta_statement, object_id
from stigmergy.crdt.anti_entropy.context import AntiEntropyContext
from stigmergy.crdt.anti_entropy.held_object import HeldObject, epoch_of, misfit, understood
from stigmergy.crdt.anti_entropy.messages import (
    DIGESTS_COUNT_MAX,
    PROOFS_COUNT_MAX,
    SHORT_DIGEST_BYTES,
    SHOWN_COUNT_MAX,
    Acknowledged,
    Caught,
    Change,
    Digests,
    FullState,
    Interests,
    Proof,
    Shown,
    Vectors,
    body_digest,
    read_frame,
    write_frame,
)
from stigmergy.crdt.anti_entropy.peers import NOTHING_KNOWN, Peer
from stigmergy.crdt.anti_entropy.pool import SignedChange
from stigmergy.crdt.anti_entropy.rules import ClockReading
from stigmergy.crdt.delta import Delta, read_delta
from stigmergy.crdt.errors import BadDelta, BadStore
from stigmergy.crdt.payloads import STAMPED, stamp_of
from stigmergy.crdt.store import ReplicaStore, read_store
from stigmergy.crdt.tree import entries_of

# Finds an author that signed two different changes, and shows the proof to all others. Pure.
#
#     Shown     ->                 equal vectors, different stores: which signed changes are kept here, page after page
#               <-  a change       the one that is kept there under the same number, and is another
#     Proof     ->                 both of them, to everybody: each receiver checks it, and passes it on
#     Caught    ->                 every interval, to whom other authors are proven than to us
#               <-  Caught, Proof  what each of the two lacks
#
# A proof is two signed changes and needs no trust in its sender. Different stores prove nothing about the two nodes
# that hold them: both may have been lied to. So nobody is quarantined for that; the object is flagged, and the search
# goes on.
#
# Only whole changes are evidence, as long as the pool keeps them. The digest and signature of an evicted change would
# convince only ourselves: the signature covers the whole change. And a node that quarantines an author alone diverges
# from the honest nodes that still take its changes, and from everything built upon those.

SHOWN_ENTRY_BYTES = 48
"""What one change takes in a message that names it."""
SHOWN_OVERHEAD_BYTES = 256
CONTRADICTIONS_COUNT_MAX = 8
"""Changes sent in answer to one message that names others under their numbers."""
PROOFS_SENT_MAX = 4
"""Proofs sent to one peer at a time; they may be long."""


class EquivocationCheck:
    """Who is proven to lie, and what is done to find it out."""

    def __init__(self, context: AntiEntropyContext) -> None:
        self._context = context
        self._proofs: dict[bytes, Proof] = {}
        """By the author's key."""
        self._lifted: dict[bytes, None] = {}
        """Authors that an operator lets take part again: known, and told to nobody."""
        self._told: Caught = Caught(())

    # The search.

    def show(self, peer: Peer, held: HeldObject, moment: ClockReading) -> None:
        """Names a peer that holds something else the next of the signed changes that are kept here, newest first."""
        context = self._context
        kept = [one for one in reversed(held.pool.all()) if one.key not in context.quarantine]
        start = held.shown.get(peer.name, 0)
        start = start if start < len(kept) else 0
        page = kept[start : start + SHOWN_COUNT_MAX]
        held.shown[peer.name] = start + len(page)
        fits = max(1, (context.bytes_max - SHOWN_OVERHEAD_BYTES) // SHOWN_ENTRY_BYTES)
        for at in range(0, len(page), fits):
            named = tuple((one.delta.replica, one.delta.first, one.delta.last, one.digest) for one in page[at:][:fits])
            context.say([peer.name], Shown(held.id, named), moment.monotonic_ns)

    def shown(self, peer: Peer, shown: Shown, moment: ClockReading) -> None:
        """A peer names what it keeps: it gets those that are others here. It will see that both are signed."""
        context = self._context
        held = context.held.get(shown.object)
        if held is None:
            context.counters.shared_strange += 1
            return
        sent: dict[bytes, None] = {}
        for replica, first, last, digest in shown.changes:
            other = held.pool.differs(replica, first, last, digest)
            if other is not None and other.key not in context.quarantine and len(sent) < CONTRADICTIONS_COUNT_MAX:
                sent[other.data] = None
        for data in sent:
            context.send([peer.name], data, moment.monotonic_ns)

    # The proof.

    def knows(self, key: bytes) -> bool:
        """Whether this author was proven to lie before."""
        return key in self._proofs

    def found(self, proof: Proof, one: SignedChange, other: SignedChange, moment: ClockReading) -> None:
        """Two different changes under one number, both signed: their author is shut out, and all are shown both."""
        context, delta, key = self._context, one.delta, one.key
        first, last = max(delta.first, other.delta.first), min(delta.last, other.delta.last)
        why = f"replica {delta.replica.hex()} has signed two different changes {first} to {last}"
        if key == context.node.key:
            context.trouble(
                f"shared object '{proof.name}': {why} with our own key: this disk is a copy that runs elsewhere too, "
                "or was put back to an earlier state; restore it as a copy: it gets a new incarnation"
            )
        else:
            node = next((peer.name for peer in context.peers.all() if peer.key == key), "")
            context.shut_out(Quarantined(key, node, proof.name, delta.replica, why, moment.wall_ns))
            for held in context.held.values():
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
        names = context.believable([peer.name for peer in context.peers.all()])
        context.say(context.peers.some(names), proof, moment.monotonic_ns)

    def lift(self, key: bytes) -> None:
        """An operator lets this author take part again: its old lies are no news any more."""
        if key in self._proofs:
            self._lifted[key] = None

    # What others know of it.

    def tell(self, peer: Peer, moment: ClockReading) -> None:
        """Tells a peer who was caught, if that is not what it has told us."""
        if peer.caught != self._told.keys:
            self._context.say([peer.name], self._told, moment.monotonic_ns)

    def caught(self, peer: Peer, told: Caught, moment: ClockReading) -> None:
        """A peer says who was caught: it gets the proofs that it lacks, and is told what we know if we lack some."""
        context, now_ns = self._context, moment.monotonic_ns
        peer.caught = told.keys
        if now_ns - peer.proved_ns < context.rules.ask_ns:
            return
        peer.proved_ns = now_ns
        theirs = dict.fromkeys(told.keys)
        lacking = [
            proof for key, proof in self._proofs.items() if _named(key) not in theirs and key not in self._lifted
        ]
        for proof in lacking[:PROOFS_SENT_MAX]:
            context.say([peer.name], proof, now_ns)
        if any(key not in self._told.keys for key in told.keys):
            context.say([peer.name], self._told, now_ns)


def _named(key: bytes) -> bytes:
    return body_digest(key)[:SHORT_DIGEST_BYTES]


# Finds what the other node lacks, by digests and vectors, and sends it: changes, or the whole state. Pure.
#
#     Digests   ->                 every interval; equal ones end it
#               <-  Vectors        what is durable here of an object whose digest differs; asks for the same
#     changes   ->                 what the other lacks
#     Vectors   ->                 if we lack something, too
#               <-  changes
#
# Equal vectors with different digests are a divergence: the object is flagged, and both search for an author that
# signed two different changes. Neither of the two is blamed.
#
# A node that lacks changes of a quarantined author gets the state instead: such changes are refused one by one, but
# what honest nodes took of them earlier must be the same everywhere, and other changes build upon it.

DIGEST_ENTRY_BYTES = 28
"""What one object takes in a message with digests."""
DIGEST_OVERHEAD_BYTES = 256
NO_ANSWER, ANSWER, ANSWER_WHOLE = 0, 1, 2


class Repair:
    """What is compared with peers, and sent for it."""

    def __init__(self, context: AntiEntropyContext, proving: EquivocationCheck) -> None:
        self._context = context
        self._proving = proving

    # What is held.

    def send_digests(self, peer: Peer, moment: ClockReading) -> None:
        """Tells a peer what we hold of the objects that it holds, too; of many, some each time."""
        context, rules = self._context, self._context.rules
        both = sorted(one for one in peer.objects if one in context.held)
        count = min(len(both), rules.digests_count_max)
        start = peer.turn if peer.turn < len(both) else 0
        chosen = (both[start:] + both[:start])[:count]
        peer.turn = start + count
        for one in chosen:
            context.held[one].silence.note(context.held[one].store.context, moment.monotonic_ns)
        fits = max(1, min(DIGESTS_COUNT_MAX, (context.bytes_max - DIGEST_OVERHEAD_BYTES) // DIGEST_ENTRY_BYTES))
        for at in range(0, max(1, len(chosen)), fits):
            stores = tuple((one, context.held[one].store.digest()) for one in chosen[at : at + fits])
            message = Digests(context.interests_digest, peer.interests, stores)
            if peer.said is None or peer.said[0] != message:
                peer.said = (message, context.signed(message))
            context.send([peer.name], peer.said[1], moment.monotonic_ns)

    def digests(self, peer: Peer, told: Digests, moment: ClockReading) -> None:
        """A peer says what it holds: asks about what differs, and tells it our interests if it has others in mind."""
        context, now_ns = self._context, moment.monotonic_ns
        if (told.yours, told.mine) != (context.interests_digest, peer.interests) and self._may_answer(peer, now_ns):
            if told.yours != context.interests_digest:
                context.say([peer.name], Interests(context.interests), now_ns)
            if told.mine != peer.interests:
                context.say([peer.name], Digests(context.interests_digest, peer.interests, ()), now_ns)
        if told.yours == NOTHING_KNOWN:
            peer.caught = ()  # it has just come, and knows of nobody
        for one, digest in told.stores:
            held = context.held.get(one)
            if held is None:
                continue
            held.told[peer.name] = digest
            if held.store.digest() != digest:
                self.tell(peer.name, held, moment, ANSWER)

    def _may_answer(self, peer: Peer, now_ns: int) -> bool:
        if now_ns - peer.answered_ns < self._context.rules.ask_ns:
            return False
        peer.answered_ns = now_ns
        return True

    def interests(self, peer: Peer, told: Interests, moment: ClockReading) -> None:
        """A peer says which objects it holds; it is compared with at once."""
        if peer.interests == NOTHING_KNOWN or told.objects != b"".join(sorted(peer.objects)):
            self._context.peers.told_interests(peer, told.objects)
            self._context.peers.hurry(peer, moment.monotonic_ns)

    # What is known.

    def tell(self, name: str, held: HeldObject, moment: ClockReading, answer: int, *, whole: bool = False) -> None:
        """Tells a peer which changes of an object are on disk here."""
        context = self._context
        living, retired = held.silence.split(
            held.store.context, held.locals, moment.monotonic_ns, context.rules.retire_ns
        )
        if whole:
            living, retired = held.store.context.vector(), ()
        epoch = epoch_of(retired)
        message = Vectors(held.id, held.store.digest(), living, epoch.count, epoch.digest, answer)
        context.say([name], message, moment.monotonic_ns)

    def ask(self, name: str, held: HeldObject, moment: ClockReading) -> None:
        """Lets a peer know what we have, so that it sends the rest; not too often."""
        if name in self._context.peers and self._is_time(held.asked_ns, name, moment, self._context.rules.ask_ns):
            self.tell(name, held, moment, NO_ANSWER)

    def vectors(self, peer: Peer, told: Vectors, moment: ClockReading) -> None:
        """A peer says which changes it has."""
        context = self._context
        held = context.held.get(told.object)
        if held is None:
            context.counters.shared_strange += 1
            return
        held.told[peer.name] = told.digest
        here = held.store.context
        _, retired = held.silence.split(here, held.locals, moment.monotonic_ns, context.rules.retire_ns)
        there = understood(told, here, retired)
        if there is None:
            if self._is_time(held.asked_ns, peer.name, moment, context.rules.ask_ns):
                self.tell(peer.name, held, moment, ANSWER_WHOLE, whole=True)
            return
        lacks_here = any(counter > here.counter(replica) for replica, counter in there.items())
        lacks_there = any(counter > there.get(replica, 0) for replica, counter in here.vector())
        self._acknowledge(peer, held, there)
        if not lacks_here and not lacks_there:
            self._compare(peer, held, told, moment)
        else:
            held.diverged_ns.pop(peer.name, None)
        if lacks_there:
            self._send_missing(peer, held, there, moment)
        if told.answer == ANSWER_WHOLE:
            self.tell(peer.name, held, moment, NO_ANSWER, whole=True)
        elif lacks_here and (told.answer == ANSWER or not held.waiting):
            self.ask(peer.name, held, moment)

    def _acknowledge(self, peer: Peer, held: HeldObject, there: dict[bytes, int]) -> None:
        for replica in held.locals:
            self._context.outstanding.acknowledged((peer.name, held.id, replica), there.get(replica, 0))

    def acknowledged(self, name: str, told: Acknowledged) -> None:
        """A peer has changes of ours on disk."""
        for replica, counter in told.vector:
            self._context.outstanding.acknowledged((name, told.object, replica), counter)

    # What is sent for it.

    def _send_missing(self, peer: Peer, held: HeldObject, there: dict[bytes, int], moment: ClockReading) -> None:
        context = self._context
        missing = held.pool.lacking(held.store.context, lambda replica: there.get(replica, 0))
        if missing is None or any(kept.key in context.quarantine for kept in missing):
            self._send_state(peer, held, moment)
            return
        size_bytes = 0
        for kept in missing:
            size_bytes += len(kept.data)
            if size_bytes > context.rules.repair_bytes_max and size_bytes > len(kept.data):
                return
            context.counters.shared_repaired += 1
            context.send([peer.name], kept.data, moment.monotonic_ns)

    def _send_state(self, peer: Peer, held: HeldObject, moment: ClockReading) -> None:
        """The whole state, which takes longer than an interval maybe: not more often than that."""
        context = self._context
        if not self._is_time(held.whole_ns, peer.name, moment, context.rules.interval_ns_of(peer.name)):
            return
        digest = held.store.digest()
        if held.state_frame is None or held.state_frame[0] != digest:
            held.state_frame = (digest, context.signed(FullState(held.id, held.store.to_bytes())))
        context.counters.shared_states_sent += 1
        context.send([peer.name], held.state_frame[1], moment.monotonic_ns, held.id)

    @staticmethod
    def _is_time(last_ns: dict[str, int], name: str, moment: ClockReading, pause_ns: int) -> bool:
        now_ns = moment.monotonic_ns
        if name in last_ns and now_ns - last_ns[name] < pause_ns:
            return False
        last_ns[name] = now_ns
        return True

    # What cannot be.

    def _compare(self, peer: Peer, held: HeldObject, told: Vectors, moment: ClockReading) -> None:
        """Both know the same, so both must hold the same."""
        context = self._context
        if told.digest == held.store.digest():
            held.diverged_ns.pop(peer.name, None)
            return
        if held.liars:
            return  # it is known why, and no peer is to blame
        if peer.name not in held.diverged_ns:
            held.diverged_ns[peer.name] = moment.monotonic_ns
            context.counters.shared_divergences += 1
            context.trouble(
                f"shared object '{held.name}': node {peer.name} knows the same changes and holds something else; "
                "the author of two different changes is searched for, and quarantined once proven"
            )
        self._proving.show(peer, held, moment)


class Admission:
    """What is taken of what others send."""

    def __init__(self, context: AntiEntropyContext, repairing: Repair, proving: EquivocationCheck) -> None:
        self._context = context
        self._proving = proving
        self._repairing = repairing

    def change(self, sender: str, change: Change, data: bytes, moment: ClockReading) -> None:
        """A change, from its author or passed on."""
        context, counters = self._context, self._context.counters
        held = context.held.get(change.object)
        if held is None:
            counters.shared_strange += 1
            return
        if change.key in context.quarantine:
            counters.shared_shut_out += 1
            return
        try:
            delta = read_delta(change.delta)
        except BadDelta:
            counters.shared_refused += 1
            return
        found = held.pool.find(delta.replica, delta.first)
        if found is not None and found.data == data:
            counters.shared_known += 1
            self._owe(held, found, sender, moment)
            return
        if not self._is_authors(held.name, change, delta):
            counters.shared_refused += 1
            return
        kept = SignedChange(data, delta, change.key, sender)
        other = held.pool.contradicts(kept)
        if delta.replica in held.locals:
            self._own(held, kept, other)
        elif other is not None:
            self._proving.found(Proof(held.name, other.data, data), other, kept, moment)
        elif (why := misfit(held.kind, delta)) is not None:
            counters.shared_misfits += 1
            context.trouble(f"shared object '{held.name}': a change of '{change.address}' does not fit here: {why}")
        else:
            self._take(held, kept, moment)

    def _is_authors(self, name: str, change: Change, delta: Delta) -> bool:
        """Whether it is signed by the node whose replica this is."""
        context, fleet = self._context, self._context.node.fleet
        if delta.replica != context.trust.id_of(change.key, change.incarnation, change.address):
            return False
        statement = delta_statement(fleet, name, change.address, change.incarnation, delta, change.delta)
        return context.keys.signed_by(change.algorithm, change.key, statement, change.signature)

    def _take(self, held: HeldObject, kept: SignedChange, moment: ClockReading) -> None:
        """A change that is believed."""
        context, delta = self._context, kept.delta
        if delta.last <= held.knows(delta.replica):
            context.counters.shared_known += 1
            context.counters.shared_dropped += held.add(kept)
            self._owe(held, kept, kept.sender, moment)
            return
        context.counters.shared_taken += 1
        context.counters.shared_dropped += held.keep(kept)
        self._owe(held, kept, kept.sender, moment)
        horizon_ns = context.horizon_ns(moment)
        if kept.stamp_ns > horizon_ns:
            context.counters.shared_skewed += 1
            return
        if len(context.peers.holders(held.id)) > context.rules.fan_out:
            context.spread(held, kept, kept.sender, moment.monotonic_ns)
        context.feed(held, moment)
        if held.missing(horizon_ns):
            self._repairing.ask(kept.sender, held, moment)

    def _owe(self, held: HeldObject, kept: SignedChange, sender: str, moment: ClockReading) -> None:
        """Acknowledges to its author what is on disk, and the rest once it is. Who passes on waits for nothing."""
        delta, peer = kept.delta, self._context.peers.get(sender)
        if peer is not None and peer.key not in {None, kept.key}:
            return
        if delta.last <= held.knows(delta.replica):
            message = Acknowledged(held.id, ((delta.replica, held.knows(delta.replica)),))
            self._context.send([sender], write_frame(message), moment.monotonic_ns)
            return
        owed = held.owed.setdefault(sender, {})
        owed[delta.replica] = max(delta.last, owed.get(delta.replica, 0))

    def _own(self, held: HeldObject, kept: SignedChange, other: SignedChange | None) -> None:
        """A change of a replica of ours comes back to us, signed with our key."""
        delta = kept.delta
        if other is None and delta.last <= held.locals[delta.replica].store.context.counter(delta.replica):
            self._context.counters.shared_known += 1
            return
        self._context.counters.shared_refused += 1
        self._context.trouble(
            f"shared object '{held.name}': somebody writes with our key as replica {delta.replica.hex()}: this disk is "
            "a copy that runs elsewhere too, or was put back to an earlier state; restore it as a copy: it gets "
            "a new incarnation"
        )

    # Proofs.

    def proof(self, proof: Proof, moment: ClockReading) -> None:
        """Somebody shows that an author has signed two different changes. It is checked, not believed."""
        one, other = self._proven(proof.name, proof.one), self._proven(proof.name, proof.other)
        if one is None or other is None or not _contradict(one.delta, other.delta):
            self._context.counters.shared_refused += 1
        elif not self._proving.knows(one.key):
            self._proving.found(proof, one, other, moment)

    def _proven(self, name: str, data: bytes) -> SignedChange | None:
        """The signed change in these bytes; None if there is none, or it is of another object. Raises BadMessage."""
        change = read_frame(data)
        if not isinstance(change, Change) or change.object != object_id(name):
            return None
        try:
            delta = read_delta(change.delta)
        except BadDelta:
            return None
        return SignedChange(data, delta, change.key, "") if self._is_authors(name, change, delta) else None

    # States.

    def state(self, sender: str, key: bytes, state: FullState, moment: ClockReading) -> None:
        """All that a peer holds of an object."""
        context, counters = self._context, self._context.counters
        held = context.held.get(state.object)
        if held is None:
            counters.shared_strange += 1
            return
        try:
            store = read_store(state.store)
        except BadStore:
            counters.shared_refused += 1
            return
        if held.store.context.covers(store.context) or (
            held.state is not None and held.state[0].context.covers(store.context)
        ):
            counters.shared_known += 1
            return
        if self._is_forged(held, sender, key, store, moment):
            return
        if _stamp_ns_max(store) > context.horizon_ns(moment):
            counters.shared_skewed += 1
            return
        if (why := misfit(held.kind, store)) is not None:
            counters.shared_misfits += 1
            context.trouble(f"shared object '{held.name}': the state of node {sender} does not fit here: {why}")
            return
        counters.shared_states_taken += 1
        held.state = (store, state.store)
        context.feed(held, moment)

    def _is_forged(self, held: HeldObject, sender: str, key: bytes, store: ReplicaStore, moment: ClockReading) -> bool:
        for local in held.locals.values():
            told, made = store.context.counter(local.replica), local.store.context.counter(local.replica)
            if told > made:
                why = (
                    f"node {sender} holds change {told} of '{local.address}', which has made {made}: it was forged, or "
                    "this disk was put back to an earlier state and must be restored as a copy"
                )
                self._context.shut_out(Quarantined(key, sender, held.name, local.replica, why, moment.wall_ns))
                return True
        return False


def _contradict(one: Delta, other: Delta) -> bool:
    """Whether two changes are of one replica, overlap, and are not the same."""
    overlap = one.replica == other.replica and one.first <= other.last and other.first <= one.last
    return overlap and one != other


def _stamp_ns_max(store: ReplicaStore) -> int:
    """The newest stamp that is alive in a store, or 0."""
    stamped = (payload for _, _, _, payload in entries_of(store.root) if payload and payload[0] == STAMPED)
    return max((stamp_of(payload) for payload in stamped), default=0)
