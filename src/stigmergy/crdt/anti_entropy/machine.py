"""One node's part in anti-entropy: messages, merges and time in, one Ready out. Pure; see the package.

    machine.hold(name, replica, address, store, moment)     an agent here has the object
    machine.members(names, moment)                          who else is there
    machine.written(name, replica, delta, store)            an own change is durable
    machine.merged(name, replica, store, moment)            what was handed over is durable
    machine.step(sender, data, moment)                      a datagram came
    machine.tick(moment)                                    it is `next_ns`
    machine.ready(moment)                                   what to send and to hand over, after any of these

The caller reports only what is on disk, and each Hand exactly once: as `merged`, or as `declined`.
"""

from __future__ import annotations

from typing import assert_never

from stigmergy.crdt.anti_entropy.admission import Admission, EquivocationCheck, Repair
from stigmergy.crdt.anti_entropy.authorship import NodeIdentity, Quarantined, Trust, delta_statement, gossip_statement
from stigmergy.crdt.anti_entropy.context import AntiEntropyContext, AntiEntropyCounters, AntiEntropyReady
from stigmergy.crdt.anti_entropy.held_object import HeldObject, Local
from stigmergy.crdt.anti_entropy.messages import (
    Acknowledged,
    AntiEntropyMessage,
    BadMessage,
    BodyOffer,
    BodyPart,
    Caught,
    Change,
    Digests,
    FetchParts,
    FullState,
    Interests,
    Proof,
    Shown,
    SignedMessage,
    Vectors,
    read_frame,
    read_message,
    write_frame,
)
from stigmergy.crdt.anti_entropy.peers import Choose, Peer, Way
from stigmergy.crdt.anti_entropy.pool import SignedChange
from stigmergy.crdt.anti_entropy.rules import OBJECTS_COUNT_MAX, ClockReading, Rules
from stigmergy.crdt.anti_entropy.transfers import ReceivedBody
from stigmergy.crdt.delta import Delta, join_deltas
from stigmergy.crdt.errors import LimitReached, NotContiguous
from stigmergy.crdt.store import ReplicaStore
from stigmergy.crdt.value import SharedValue


class AntiEntropy:
    """Anti-entropy of one node, for all objects that it holds."""

    def __init__(
        self, node: NodeIdentity, trust: Trust, choose: Choose, bytes_max: int, rules: Rules | None = None
    ) -> None:
        self._context = AntiEntropyContext(node, trust, rules or Rules(), choose, bytes_max)
        self._proving = EquivocationCheck(self._context)
        self._repairing = Repair(self._context, self._proving)
        self._judging = Admission(self._context, self._repairing, self._proving)
        self._again_ns: int | None = None
        """When what was declined last is tried again."""
        self._names: dict[str, HeldObject] = {}
        self._unsigned: dict[str, HeldObject] = {}

    # ------------------------------------------------------------------ what is here

    def hold(
        self,
        name: str,
        replica: bytes,
        address: str,
        store: ReplicaStore,
        moment: ClockReading,
        kind: SharedValue | None = None,
    ) -> None:
        """An agent here has a replica of this object, with this store on disk. Raises LimitReached.

        `kind` is an empty value of the declared types: what peers send has to fit them.
        """
        context = self._context
        held = self._names.get(name)
        if held is None:
            if len(self._names) >= OBJECTS_COUNT_MAX:
                raise LimitReached(f"{len(self._names)} shared objects at one node, at most {OBJECTS_COUNT_MAX}")
            held = self._names[name] = HeldObject(name, context.rules, kind)
            context.held[held.id] = held
            context.change_interests()
            self._hurry(moment)
        local = held.locals[replica] = Local(replica, address, store)
        held.put_store(local, store)
        held.silence.note(held.store.context, moment.monotonic_ns)
        context.feed(held, moment)

    def release(self, name: str, replica: bytes, moment: ClockReading) -> None:
        """That agent does not have it any more."""
        held = self._names.get(name)
        if held is None or held.locals.pop(replica, None) is None or held.locals:
            return
        del self._names[name], self._context.held[held.id]
        self._unsigned.pop(name, None)
        self._context.change_interests()
        self._hurry(moment)

    def members(self, names: list[str], moment: ClockReading) -> None:
        """The other members from now on. A node that is not named is forgotten, until it comes back."""
        context = self._context
        for gone in context.peers.set([name for name in names if name != context.node.name], moment.monotonic_ns):
            context.outstanding.drop_peer(gone)
            context.incoming.drop_peer(gone)
            context.keys.forget_name(gone)
            for held in self._names.values():
                for table in (held.owed, held.asked_ns, held.whole_ns, held.diverged_ns, held.shown, held.told):
                    table.pop(gone, None)

    def _hurry(self, moment: ClockReading) -> None:
        """What we hold has changed: everybody is told soon."""
        for peer in self._context.peers.all():
            self._context.peers.hurry(peer, moment.monotonic_ns)

    # ------------------------------------------------------------------ what is durable

    def written(self, name: str, replica: bytes, delta: Delta, store: ReplicaStore) -> None:
        """An own change is on disk; `store` is what the replica has on disk with it."""
        held, local = self._find(name, replica)
        self._context.counters.shared_written += 1
        held.unsigned.setdefault(replica, []).append(delta)
        self._unsigned[name] = held
        held.put_store(local, store)

    def merged(self, name: str, replica: bytes, store: ReplicaStore, moment: ClockReading) -> None:
        """What was handed over for this replica is on disk. If it is not in the store, it counts as declined."""
        held, local = self._find(name, replica)
        held.put_store(local, store)
        if not held.merged(local):
            self.declined(name, replica, moment)
            return
        self._acknowledge(held, moment)
        self._context.feed(held, moment)

    def declined(self, name: str, replica: bytes, moment: ClockReading) -> None:
        """The host will not have what was handed over. It is left alone for a while."""
        held, local = self._find(name, replica)
        self._context.counters.shared_declined += 1
        held.declined(local, moment.monotonic_ns)
        self._again_ns = local.paused_until_ns

    def _find(self, name: str, replica: bytes) -> tuple[HeldObject, Local]:
        held = self._names[name]
        return held, held.locals[replica]

    def _acknowledge(self, held: HeldObject, moment: ClockReading) -> None:
        """Tells those who sent it that it is on disk."""
        for name, owed in list(held.owed.items()):
            done = sorted(replica for replica, counter in owed.items() if held.knows(replica) >= counter)
            if not done:
                continue
            for replica in done:
                del owed[replica]
            if not owed:
                del held.owed[name]
            vector = tuple((replica, held.knows(replica)) for replica in done)
            self._context.send([name], write_frame(Acknowledged(held.id, vector)), moment.monotonic_ns)

    # ------------------------------------------------------------------ what others say

    def step(self, sender: str, data: bytes, moment: ClockReading) -> None:
        """Takes in a datagram. Whatever is wrong with it is counted, and nothing else."""
        context = self._context
        if sender not in context.peers:
            context.counters.shared_strange += 1
            return
        try:
            frame = read_frame(data)
            if isinstance(frame, BodyPart):
                self._part(frame, moment)
            elif isinstance(frame, Acknowledged):
                self._repairing.acknowledged(sender, frame)
            else:
                self._frame(sender, frame, data, moment)
        except BadMessage:
            context.counters.shared_refused += 1

    def _frame(
        self, sender: str, frame: Change | SignedMessage, data: bytes, moment: ClockReading, *, fetched: bool = False
    ) -> None:
        if isinstance(frame, Change):
            self._judging.change(sender, frame, data, moment)
            return
        context = self._context
        peer = context.peers.get(sender)
        if frame.key in context.quarantine:
            context.counters.shared_shut_out += 1
            return
        statement = gossip_statement(context.node.fleet, frame.node, frame.body)
        if (
            peer is None
            or frame.node != sender
            # A node without changes repeats itself: that was examined already.
            or (
                data != peer.digests
                and not context.keys.signed_by(frame.algorithm, frame.key, statement, frame.signature)
            )
            or not context.keys.is_whose(sender, frame.key)
        ):
            context.counters.shared_refused += 1
            return
        peer.key, peer.heard_ns = frame.key, moment.monotonic_ns
        message = read_message(frame.body)
        if isinstance(message, Digests):
            peer.digests = data
        if fetched and isinstance(message, BodyOffer | FetchParts):
            raise BadMessage("an offer within a body that was offered")
        self._message(peer, message, moment)

    def _message(self, peer: Peer, message: AntiEntropyMessage, moment: ClockReading) -> None:
        context, repairing, now_ns = self._context, self._repairing, moment.monotonic_ns
        match message:
            case Digests():
                repairing.digests(peer, message, moment)
            case Vectors():
                repairing.vectors(peer, message, moment)
            case Interests():
                repairing.interests(peer, message, moment)
            case FullState():
                assert peer.key is not None
                self._judging.state(peer.name, peer.key, message, moment)
            case BodyOffer():
                ask = context.incoming.offered(peer.name, message, now_ns)
                if ask is not None:
                    context.say([peer.name], ask, now_ns)
            case FetchParts():
                for part in context.outgoing.parts(message, now_ns):
                    context.send([peer.name], write_frame(part), now_ns)
            case Shown():
                self._proving.shown(peer, message, moment)
            case Proof():
                self._judging.proof(message, moment)
            case Caught():
                self._proving.caught(peer, message, moment)
            case _:
                assert_never(message)

    def _part(self, part: BodyPart, moment: ClockReading) -> None:
        context = self._context
        taken = context.incoming.take(part, moment.monotonic_ns)
        if taken is None:
            return
        if not isinstance(taken, ReceivedBody):
            context.say([taken[0]], taken[1], moment.monotonic_ns)
            return
        frame = read_frame(taken.body)
        if isinstance(frame, BodyPart | Acknowledged):
            raise BadMessage("a part or an acknowledgement within a body that was offered")
        self._frame(taken.peer, frame, taken.body, moment, fetched=True)

    # ------------------------------------------------------------------ time

    def tick(self, moment: ClockReading) -> None:
        """Does what is due: digests, what was not acknowledged, parts that did not come, stamps that are past."""
        context, now_ns = self._context, moment.monotonic_ns
        for peer in context.peers.due(now_ns):
            if not context.is_out(peer):
                self._repairing.send_digests(peer, moment)
                self._proving.tell(peer, moment)
        for way, sent in context.outstanding.tick(now_ns):
            self._send_again(way, sent.acknowledged, moment)
        for name, ask in context.incoming.tick(now_ns):
            context.say([name], ask, now_ns)
        context.outgoing.tick(now_ns)
        if self._again_ns is not None and self._again_ns <= now_ns:
            self._again_ns = None
        for held in self._names.values():
            if held.waiting or held.state is not None or len(held.locals) > 1:
                context.feed(held, moment)

    def _send_again(self, way: Way, after: int, moment: ClockReading) -> None:
        context = self._context
        name, object_id, replica = way
        held = context.held.get(object_id)
        if held is None or name not in context.peers.holders(object_id):
            context.outstanding.drop(way)
            return
        size_bytes = 0
        while size_bytes < context.rules.repair_bytes_max and (kept := held.pool.find(replica, after + 1)) is not None:
            context.counters.shared_resent += 1
            context.send([name], kept.data, moment.monotonic_ns)
            size_bytes += len(kept.data)
            after = kept.delta.last

    @property
    def next_ns(self) -> int | None:
        """When `tick` is due, by the monotonic clock; None if nothing waits for time."""
        context = self._context
        found = (
            context.peers.next_ns,
            context.outstanding.next_ns,
            context.incoming.next_ns,
            context.outgoing.next_ns,
            self._again_ns,
        )
        return min((at_ns for at_ns in found if at_ns is not None), default=None)

    # ------------------------------------------------------------------ what goes out

    def ready(self, moment: ClockReading) -> AntiEntropyReady:
        """What to send and to hand over now. Adjacent own changes are joined and signed here."""
        for held in self._unsigned.values():
            for replica, deltas in held.unsigned.items():
                for delta in self._joined(deltas):
                    self._send_own(held, held.locals[replica], delta, moment)
            held.unsigned = {}
            if len(held.locals) > 1:
                self._context.feed(held, moment)
        self._unsigned = {}
        return self._context.ready()

    def _joined(self, deltas: list[Delta]) -> list[Delta]:
        """Changes of one replica, joined where that is possible and not too long."""
        found: list[tuple[Delta, int]] = []
        for delta in deltas:
            size_bytes = len(delta.to_bytes())
            if found and found[-1][1] + size_bytes <= self._context.rules.batch_bytes_max:
                try:
                    found[-1] = (join_deltas(found[-1][0], delta), found[-1][1] + size_bytes)
                    continue
                except (NotContiguous, LimitReached):
                    pass
            found.append((delta, size_bytes))
        return [delta for delta, _ in found]

    def _send_own(self, held: HeldObject, local: Local, delta: Delta, moment: ClockReading) -> None:
        context, node = self._context, self._context.node
        body = delta.to_bytes()
        statement = delta_statement(node.fleet, held.name, local.address, node.incarnation, delta, body)
        change = Change(
            node.algorithm, node.key, node.incarnation, local.address, held.id, body, context.trust.sign(statement)
        )
        kept = SignedChange(write_frame(change), delta, node.key, "")
        context.counters.shared_signed += 1
        context.counters.shared_dropped += held.add(kept)
        names = context.peers.some(context.believable(context.peers.holders(held.id)))
        context.send(names, kept.data, moment.monotonic_ns)
        for name in names:
            way = (name, held.id, local.replica)
            context.outstanding.sent(way, delta.first, delta.last, moment.monotonic_ns)

    # ------------------------------------------------------------------ for people

    @property
    def counters(self) -> AntiEntropyCounters:
        """What became of changes and messages."""
        return self._context.counters

    @property
    def objects(self) -> list[HeldObject]:
        """What is held here, by name."""
        return [self._names[name] for name in sorted(self._names)]

    @property
    def peers_count(self) -> int:
        """How many others are there."""
        return len(self._context.peers)

    @property
    def unacknowledged_count(self) -> int:
        """Own changes that are on their way to a peer; several of one replica to one peer count once."""
        return len(self._context.outstanding)

    def find(self, name: str) -> HeldObject | None:
        """An object that is held here."""
        return self._names.get(name)

    def author(self, name: str, replica: bytes) -> tuple[str, str]:
        """The agent that writes to an object under an id, and its node: our own, or as the signed changes say that are
        still kept here; empty where nothing says it."""
        held = self._names.get(name)
        if held is None:
            return "", ""
        if replica in held.locals:
            return held.locals[replica].address, self._context.node.name
        kept = held.pool.find(replica, held.knows(replica))
        change = None if kept is None else read_frame(kept.data)
        if kept is None or not isinstance(change, Change):
            return "", ""
        return change.address, next((peer.name for peer in self._context.peers.all() if peer.key == kept.key), "")

    def holders(self, name: str) -> dict[str, bool]:
        """Which peers hold an object of ours, and whether all that is here was there when they last told."""
        held = self._names[name]
        digest = held.store.digest()
        return {peer: held.told.get(peer) == digest for peer in self._context.peers.holders(held.id)}

    def unheard(self, name: str, moment: ClockReading) -> list[str]:
        """Members that may hold an object of ours, and have said nothing for a while."""
        return self._context.peers.unheard(self._names[name].id, moment.monotonic_ns)

    def retired(self, name: str, moment: ClockReading) -> tuple[bytes, ...]:
        """Which replicas of an object of ours are left out of the vectors, because they are silent or were retired."""
        held = self._names[name]
        context, rules = held.store.context, self._context.rules
        _, found = held.silence.split(context, held.locals, moment.monotonic_ns, rules.retire_ns)
        return tuple(replica for replica, _ in found)

    def known_interests(self, name: str) -> tuple[bytes, ...]:
        """Which objects a peer has said it holds, by their ids."""
        peer = self._context.peers.get(name)
        return () if peer is None else tuple(sorted(peer.objects))

    def troubles(self) -> list[str]:
        """What does not mend itself."""
        return list(self._context.troubles)

    def quarantined(self) -> list[Quarantined]:
        """Who is shut out, and why."""
        return self._context.quarantine.all()

    def lift(self, key: bytes) -> bool:
        """Lets somebody take part again that was shut out; False if it was not."""
        if not self._context.quarantine.lift(key):
            return False
        self._proving.lift(key)
        self._context.troubles.clear()
        for held in self._names.values():
            held.liars.pop(key, None)
            held.diverged_ns.clear()
        return True

    def retire(self, name: str, replica: bytes, moment: ClockReading) -> bool:
        """Leaves a dead replica out of the vectors from now on; False if nothing is known of it here."""
        held = self._names.get(name)
        if held is None or replica in held.locals:
            return False
        held.silence.note(held.store.context, moment.monotonic_ns)
        if not held.silence.retire(replica):
            return False
        held.pool.drop_replica(replica)
        return True
