"""Takes in changes and states of others: believed or refused, kept or known, ripe or waiting. Pure.

A change must be signed by a key that we believe, under a replica's id that follows from that very key; fit the declared
types; and contradict nothing that the same replica has signed. A state is the word of who sends it: it may not have
changes of ours that we never made. A proof is two changes that one replica has signed and that contradict each other,
whoever shows it.
"""

from __future__ import annotations

from stigmergy.crdt.anti_entropy.authorship import delta_statement, object_id
from stigmergy.crdt.anti_entropy.desk import Desk
from stigmergy.crdt.anti_entropy.held import Held, misfit
from stigmergy.crdt.anti_entropy.messages import Acknowledged, Change, Proof, State, read_frame, write_frame
from stigmergy.crdt.anti_entropy.pool import Kept
from stigmergy.crdt.anti_entropy.proving import Proving
from stigmergy.crdt.anti_entropy.quarantine import Quarantined
from stigmergy.crdt.anti_entropy.repairing import Repairing
from stigmergy.crdt.anti_entropy.rules import Moment
from stigmergy.crdt.delta import Delta, read_delta
from stigmergy.crdt.errors import BadDelta, BadStore
from stigmergy.crdt.payloads import STAMPED, stamp_of
from stigmergy.crdt.store import Store, read_store
from stigmergy.crdt.tree import entries_of


class Judging:
    """What is taken of what others send."""

    def __init__(self, desk: Desk, repairing: Repairing, proving: Proving) -> None:
        self._desk = desk
        self._proving = proving
        self._repairing = repairing

    def change(self, sender: str, change: Change, data: bytes, moment: Moment) -> None:
        """A change, from its author or passed on."""
        desk, counters = self._desk, self._desk.counters
        held = desk.held.get(change.object)
        if held is None:
            counters.shared_strange += 1
            return
        if change.key in desk.quarantine:
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
        kept = Kept(data, delta, change.key, sender)
        other = held.pool.contradicts(kept)
        if delta.replica in held.locals:
            self._own(held, kept, other)
        elif other is not None:
            self._proving.found(Proof(held.name, other.data, data), other, kept, moment)
        elif (why := misfit(held.kind, delta)) is not None:
            counters.shared_misfits += 1
            desk.trouble(f"shared object '{held.name}': a change of '{change.address}' does not fit here: {why}")
        else:
            self._take(held, kept, moment)

    def _is_authors(self, name: str, change: Change, delta: Delta) -> bool:
        """Whether it is signed by the node whose replica this is."""
        desk, fleet = self._desk, self._desk.node.fleet
        if delta.replica != desk.trust.id_of(change.key, change.incarnation, change.address):
            return False
        statement = delta_statement(fleet, name, change.address, change.incarnation, delta, change.delta)
        return desk.keys.signed_by(change.algorithm, change.key, statement, change.signature)

    def _take(self, held: Held, kept: Kept, moment: Moment) -> None:
        """A change that is believed."""
        desk, delta = self._desk, kept.delta
        if delta.last <= held.knows(delta.replica):
            desk.counters.shared_known += 1
            desk.counters.shared_dropped += held.add(kept)
            self._owe(held, kept, kept.sender, moment)
            return
        desk.counters.shared_taken += 1
        desk.counters.shared_dropped += held.keep(kept)
        self._owe(held, kept, kept.sender, moment)
        horizon_ns = desk.horizon_ns(moment)
        if kept.stamp_ns > horizon_ns:
            desk.counters.shared_skewed += 1
            return
        if len(desk.peers.holders(held.id)) > desk.rules.fan_out:
            desk.spread(held, kept, kept.sender, moment.monotonic_ns)
        desk.feed(held, moment)
        if held.missing(horizon_ns):
            self._repairing.ask(kept.sender, held, moment)

    def _owe(self, held: Held, kept: Kept, sender: str, moment: Moment) -> None:
        """Acknowledges to its author what is on disk, and the rest once it is. Who passes on waits for nothing."""
        delta, peer = kept.delta, self._desk.peers.get(sender)
        if peer is not None and peer.key not in {None, kept.key}:
            return
        if delta.last <= held.knows(delta.replica):
            message = Acknowledged(held.id, ((delta.replica, held.knows(delta.replica)),))
            self._desk.send([sender], write_frame(message), moment.monotonic_ns)
            return
        owed = held.owed.setdefault(sender, {})
        owed[delta.replica] = max(delta.last, owed.get(delta.replica, 0))

    def _own(self, held: Held, kept: Kept, other: Kept | None) -> None:
        """A change of a replica of ours comes back to us, signed with our key."""
        delta = kept.delta
        if other is None and delta.last <= held.locals[delta.replica].store.context.counter(delta.replica):
            self._desk.counters.shared_known += 1
            return
        self._desk.counters.shared_refused += 1
        self._desk.trouble(
            f"shared object '{held.name}': somebody writes with our key as replica {delta.replica.hex()}: this disk is "
            "a copy that runs elsewhere too, or was put back to an earlier state; restore it as a copy: it gets "
            "a new incarnation"
        )

    # Proofs.

    def proof(self, proof: Proof, moment: Moment) -> None:
        """Somebody shows that an author has signed two different changes. It is checked, not believed."""
        one, other = self._proven(proof.name, proof.one), self._proven(proof.name, proof.other)
        if one is None or other is None or not _contradict(one.delta, other.delta):
            self._desk.counters.shared_refused += 1
        elif not self._proving.knows(one.key):
            self._proving.found(proof, one, other, moment)

    def _proven(self, name: str, data: bytes) -> Kept | None:
        """The signed change in these bytes; None if it is none, or of another object. Raises BadMessage."""
        change = read_frame(data)
        if not isinstance(change, Change) or change.object != object_id(name):
            return None
        try:
            delta = read_delta(change.delta)
        except BadDelta:
            return None
        return Kept(data, delta, change.key, "") if self._is_authors(name, change, delta) else None

    # States.

    def state(self, sender: str, key: bytes, state: State, moment: Moment) -> None:
        """All that a peer holds of an object."""
        desk, counters = self._desk, self._desk.counters
        held = desk.held.get(state.object)
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
        if _stamp_ns_max(store) > desk.horizon_ns(moment):
            counters.shared_skewed += 1
            return
        if (why := misfit(held.kind, store)) is not None:
            counters.shared_misfits += 1
            desk.trouble(f"shared object '{held.name}': the state of node {sender} does not fit here: {why}")
            return
        counters.shared_states_taken += 1
        held.state = (store, state.store)
        desk.feed(held, moment)

    def _is_forged(self, held: Held, sender: str, key: bytes, store: Store, moment: Moment) -> bool:
        for local in held.locals.values():
            told, made = store.context.counter(local.replica), local.store.context.counter(local.replica)
            if told > made:
                why = (
                    f"node {sender} holds change {told} of '{local.address}', which has made {made}: it was forged, or "
                    "this disk was put back to an earlier state and must be restored as a copy"
                )
                self._desk.shut_out(Quarantined(key, sender, held.name, local.replica, why, moment.wall_ns))
                return True
        return False


def _contradict(one: Delta, other: Delta) -> bool:
    """Whether two changes are of one replica, overlap, and are not the same."""
    overlap = one.replica == other.replica and one.first <= other.last and other.first <= one.last
    return overlap and one != other


def _stamp_ns_max(store: Store) -> int:
    """The newest stamp that is alive in a store, or 0."""
    stamped = (payload for _, _, _, payload in entries_of(store.root) if payload and payload[0] == STAMPED)
    return max((stamp_of(payload) for payload in stamped), default=0)
