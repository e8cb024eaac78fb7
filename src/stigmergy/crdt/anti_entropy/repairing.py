"""Finds out what the other lacks, by digests and vectors, and sends it: changes, or the whole state. Pure.

    Digests   ->                 every interval; equal ones end it
              <-  Vectors        what is durable here of an object whose digest differs; asks for the same
    changes   ->                 what the other lacks
    Vectors   ->                 if we lack something, too
              <-  changes

Equal vectors with different digests are a divergence: the object is flagged, and both look for an author that has
signed two different changes (`proving.py`). Neither of the two is blamed for it.

Who lacks changes of an author that is shut out is sent the state instead: such changes are refused one by one, but what
honest nodes have taken of them before they knew must be the same everywhere, and other changes build upon it.
"""

from __future__ import annotations

from stigmergy.crdt.anti_entropy.desk import Desk
from stigmergy.crdt.anti_entropy.held import Held
from stigmergy.crdt.anti_entropy.messages import (
    DIGESTS_COUNT_MAX,
    Acknowledged,
    Digests,
    Interests,
    State,
    Vectors,
)
from stigmergy.crdt.anti_entropy.peers import NOTHING_KNOWN, Peer
from stigmergy.crdt.anti_entropy.proving import Proving
from stigmergy.crdt.anti_entropy.rules import Moment
from stigmergy.crdt.anti_entropy.vectors import epoch_of, understood

DIGEST_ENTRY_BYTES = 28
"""What one object takes in a message with digests."""
DIGEST_OVERHEAD_BYTES = 256
NO_ANSWER, ANSWER, ANSWER_WHOLE = 0, 1, 2


class Repairing:
    """What is compared with peers, and sent for it."""

    def __init__(self, desk: Desk, proving: Proving) -> None:
        self._desk = desk
        self._proving = proving

    # What is held.

    def send_digests(self, peer: Peer, moment: Moment) -> None:
        """Tells a peer what we hold of the objects that it holds, too; of many, some each time."""
        desk, rules = self._desk, self._desk.rules
        both = sorted(one for one in peer.objects if one in desk.held)
        count = min(len(both), rules.digests_count_max)
        start = peer.turn if peer.turn < len(both) else 0
        chosen = (both[start:] + both[:start])[:count]
        peer.turn = start + count
        for one in chosen:
            desk.held[one].silence.note(desk.held[one].store.context, moment.monotonic_ns)
        fits = max(1, min(DIGESTS_COUNT_MAX, (desk.bytes_max - DIGEST_OVERHEAD_BYTES) // DIGEST_ENTRY_BYTES))
        for at in range(0, max(1, len(chosen)), fits):
            stores = tuple((one, desk.held[one].store.digest()) for one in chosen[at : at + fits])
            message = Digests(desk.interests_digest, peer.interests, stores)
            if peer.said is None or peer.said[0] != message:
                peer.said = (message, desk.signed(message))
            desk.send([peer.name], peer.said[1], moment.monotonic_ns)

    def digests(self, peer: Peer, told: Digests, moment: Moment) -> None:
        """A peer says what it holds: asks about what differs, and tells it our interests if it has others in mind."""
        desk, now_ns = self._desk, moment.monotonic_ns
        if (told.yours, told.mine) != (desk.interests_digest, peer.interests) and self._may_answer(peer, now_ns):
            if told.yours != desk.interests_digest:
                desk.say([peer.name], Interests(desk.interests), now_ns)
            if told.mine != peer.interests:
                desk.say([peer.name], Digests(desk.interests_digest, peer.interests, ()), now_ns)
        if told.yours == NOTHING_KNOWN:
            peer.caught = ()  # it has just come, and knows of nobody
        for one, digest in told.stores:
            held = desk.held.get(one)
            if held is None:
                continue
            held.told[peer.name] = digest
            if held.store.digest() != digest:
                self.tell(peer.name, held, moment, ANSWER)

    def _may_answer(self, peer: Peer, now_ns: int) -> bool:
        if now_ns - peer.answered_ns < self._desk.rules.ask_ns:
            return False
        peer.answered_ns = now_ns
        return True

    def interests(self, peer: Peer, told: Interests, moment: Moment) -> None:
        """A peer says which objects it holds; it is compared with at once."""
        if peer.interests == NOTHING_KNOWN or told.objects != b"".join(sorted(peer.objects)):
            self._desk.peers.told_interests(peer, told.objects)
            self._desk.peers.hurry(peer, moment.monotonic_ns)

    # What is known.

    def tell(self, name: str, held: Held, moment: Moment, answer: int, *, whole: bool = False) -> None:
        """Tells a peer which changes of an object are on disk here."""
        desk = self._desk
        living, retired = held.silence.split(held.store.context, held.locals, moment.monotonic_ns, desk.rules.retire_ns)
        if whole:
            living, retired = held.store.context.vector(), ()
        epoch = epoch_of(retired)
        message = Vectors(held.id, held.store.digest(), living, epoch.count, epoch.digest, answer)
        desk.say([name], message, moment.monotonic_ns)

    def ask(self, name: str, held: Held, moment: Moment) -> None:
        """Lets a peer know what we have, so that it sends the rest; not too often."""
        if name in self._desk.peers and self._is_time(held.asked_ns, name, moment, self._desk.rules.ask_ns):
            self.tell(name, held, moment, NO_ANSWER)

    def vectors(self, peer: Peer, told: Vectors, moment: Moment) -> None:
        """A peer says which changes it has."""
        desk = self._desk
        held = desk.held.get(told.object)
        if held is None:
            desk.counters.shared_strange += 1
            return
        held.told[peer.name] = told.digest
        here = held.store.context
        _, retired = held.silence.split(here, held.locals, moment.monotonic_ns, desk.rules.retire_ns)
        there = understood(told, here, retired)
        if there is None:
            if self._is_time(held.asked_ns, peer.name, moment, desk.rules.ask_ns):
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

    def _acknowledge(self, peer: Peer, held: Held, there: dict[bytes, int]) -> None:
        for replica in held.locals:
            self._desk.outstanding.acknowledged((peer.name, held.id, replica), there.get(replica, 0))

    def acknowledged(self, name: str, told: Acknowledged) -> None:
        """A peer has changes of ours on disk."""
        for replica, counter in told.vector:
            self._desk.outstanding.acknowledged((name, told.object, replica), counter)

    # What is sent for it.

    def _send_missing(self, peer: Peer, held: Held, there: dict[bytes, int], moment: Moment) -> None:
        desk = self._desk
        missing = held.pool.lacking(held.store.context, lambda replica: there.get(replica, 0))
        if missing is None or any(kept.key in desk.quarantine for kept in missing):
            self._send_state(peer, held, moment)
            return
        size_bytes = 0
        for kept in missing:
            size_bytes += len(kept.data)
            if size_bytes > desk.rules.repair_bytes_max and size_bytes > len(kept.data):
                return
            desk.counters.shared_repaired += 1
            desk.send([peer.name], kept.data, moment.monotonic_ns)

    def _send_state(self, peer: Peer, held: Held, moment: Moment) -> None:
        """The whole state, which takes longer than an interval maybe: not more often than that."""
        desk = self._desk
        if not self._is_time(held.whole_ns, peer.name, moment, desk.rules.interval_ns_of(peer.name)):
            return
        digest = held.store.digest()
        if held.state_frame is None or held.state_frame[0] != digest:
            held.state_frame = (digest, desk.signed(State(held.id, held.store.to_bytes())))
        desk.counters.shared_states_sent += 1
        desk.send([peer.name], held.state_frame[1], moment.monotonic_ns, held.id)

    @staticmethod
    def _is_time(last_ns: dict[str, int], name: str, moment: Moment, pause_ns: int) -> bool:
        now_ns = moment.monotonic_ns
        if name in last_ns and now_ns - last_ns[name] < pause_ns:
            return False
        last_ns[name] = now_ns
        return True

    # What cannot be.

    def _compare(self, peer: Peer, held: Held, told: Vectors, moment: Moment) -> None:
        """Both know the same, so both must hold the same."""
        desk = self._desk
        if told.digest == held.store.digest():
            held.diverged_ns.pop(peer.name, None)
            return
        if held.liars:
            return  # it is known why, and no peer is to blame
        if peer.name not in held.diverged_ns:
            held.diverged_ns[peer.name] = moment.monotonic_ns
            desk.counters.shared_divergences += 1
            desk.trouble(
                f"shared object '{held.name}': node {peer.name} knows the same changes and holds something else; "
                "who has signed two different ones is looked for, and shut out if that can be proven"
            )
        self._proving.show(peer, held, moment)
