"""Row 15: what others wrote is taken only as they signed it; changed, forged, replayed or misdirected, it is refused.

A node gets datagrams that were made from genuine ones: bytes changed, cut and added; fields exchanged between messages;
signed with another key, for another object, fleet, incarnation or address; of an older format or another algorithm;
or repeated. Nothing of it may change what the node holds, believes or hands to its host. In each round the genuine
datagram comes last, and must be taken: a node that refuses everything would pass otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec import structs

from proofs.report import Proof
from stigmergy.agents.shared import replica_id, replica_seed
from stigmergy.crdt.anti_entropy.authorship import NodeIdentity, Trust, delta_statement, gossip_statement, object_id
from stigmergy.crdt.anti_entropy.machine import AntiEntropy
from stigmergy.crdt.anti_entropy.messages import (
    AntiEntropyFrame,
    BodyPart,
    Change,
    FullState,
    Interests,
    SignedMessage,
    read_frame,
    write_frame,
    write_message,
)
from stigmergy.crdt.anti_entropy.rules import ClockReading
from stigmergy.crdt.delta import Delta, read_delta
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint, read_store
from stigmergy.crdt.value import SharedValue
from stigmergy.keys.ed25519 import SEED_BYTES, Ed25519Signer, Ed25519Verifier

MUTATIONS = 100_000
MUTATIONS_QUICK = 3_000
PER_ROUND = 50
FLEET, OTHER_FLEET = "fleet", "another fleet"
OBJECT, OTHER_OBJECT = "Light.seen/north", "Light.seen/south"
NODE, AUTHOR, STRANGER = "victim", "author", "stranger"
ADDRESS = "Light/7"
INCARNATION = 3
DATAGRAM_BYTES = 4_096
NOW = ClockReading(1_000_000_000, 1_800_000_000_000_000_000)


def id_of(fleet: str, key: bytes, incarnation: int, address: str) -> bytes:
    """The replica of an agent, as every node computes it."""
    return replica_id(replica_seed(fleet, key, incarnation), address)


class Writer:
    """Somebody with a key, who signs genuine datagrams or others."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.signer = Ed25519Signer(bytes([seed]) * SEED_BYTES)
        self.key = self.signer.public_key
        self.stores: dict[str, ReplicaStore] = {}

    def write(self, name: str, element: str, replica: bytes | None = None) -> Delta:
        """The next change of its replica."""
        replica = replica or id_of(FLEET, self.key, INCARNATION, ADDRESS)
        store = self.stores.get(name, EMPTY)
        value = SharedValue.empty(ORSet[str], "seen").with_store(store)
        assert isinstance(value, ORSet)
        delta = mint(value.add(element), store, replica, NOW.wall_ns)
        self.stores[name] = store.apply(delta)
        return delta

    def change(
        self,
        delta: Delta,
        name: str = OBJECT,
        fleet: str = FLEET,
        address: str = ADDRESS,
        incarnation: int = INCARNATION,
    ) -> Change:
        """A change, signed as such."""
        body = delta.to_bytes()
        signature = self.signer.sign(delta_statement(fleet, name, address, incarnation, delta, body))
        return Change(self.signer.algorithm, self.key, incarnation, address, object_id(name), body, signature)

    def message(self, body: bytes, fleet: str = FLEET, node: str = "") -> SignedMessage:
        """A message, signed as such."""
        name = node or self.name
        signature = self.signer.sign(gossip_statement(fleet, name, body))
        return SignedMessage(self.signer.algorithm, self.key, name, body, signature)


class Victim:
    """The node that must not be fooled."""

    def __init__(self, trusted: frozenset[bytes] | None) -> None:
        signer, verifier = Ed25519Signer(bytes([9]) * SEED_BYTES), Ed25519Verifier()
        self.key = signer.public_key
        trust = Trust(
            sign=signer.sign,
            verify=verifier.verify,
            acceptable=verifier.acceptable,
            id_of=lambda key, incarnation, address: id_of(FLEET, key, incarnation, address),
            trusted=trusted,
        )
        node = NodeIdentity(FLEET, NODE, signer.algorithm, self.key, INCARNATION)
        self.machine = AntiEntropy(node, trust, lambda count, of: list(range(min(count, of))), DATAGRAM_BYTES)
        self.machine.members([AUTHOR, STRANGER], NOW)
        self.stores: dict[tuple[str, bytes], ReplicaStore] = {}
        for name in (OBJECT, OTHER_OBJECT):
            replica = id_of(FLEET, self.key, INCARNATION, ADDRESS)
            self.stores[name, replica] = EMPTY
            self.machine.hold(name, replica, ADDRESS, EMPTY, NOW, SharedValue.empty(ORSet[str], "seen"))
        self.machine.ready(NOW)

    def step(self, sender: str, data: bytes) -> bool:
        """Takes in a datagram; whether anything came of it."""
        machine = self.machine
        before = self._standing()
        machine.step(sender, data, NOW)
        ready = machine.ready(NOW)
        for hand in ready.merges:
            store = self.stores[hand.object, hand.replica]
            for body in hand.deltas:
                store = store.apply(read_delta(body))
            if hand.state:
                store = store.join(read_store(hand.state))
            self.stores[hand.object, hand.replica] = store
            machine.merged(hand.object, hand.replica, store, NOW)
        machine.ready(NOW)
        return bool(ready.merges) or self._standing() != before

    def _standing(self) -> object:
        counters = self.machine.counters
        return (
            [(held.store.digest(), len(held.pool), len(held.waiting)) for held in self.machine.objects],
            (counters.shared_taken, counters.shared_states_taken),
            self.machine.quarantined(),
            self.machine.troubles(),
            self.machine.known_interests(AUTHOR),
        )


class Trial:
    """Rounds of bad datagrams, each with a good one at its end."""

    def __init__(self, seed: int, trusted: bool) -> None:
        self.chance = random.Random(seed)
        self.author = Writer(AUTHOR, 1)
        self.stranger = Writer(STRANGER, 2)
        self.victim = Victim(frozenset({self.author.key, self.stranger.key}) if trusted else None)
        self.kinds: dict[str, int] = {}
        self.violations: list[str] = []
        self.earlier: list[bytes] = []
        self.round = 0
        # A name belongs to who is heard first under it.
        self.victim.step(AUTHOR, write_frame(self.author.message(write_message(Interests(b"")))))

    def run(self, count: int) -> None:
        """So many bad datagrams."""
        left = count
        while left > 0:
            self.round += 1
            genuine = self._genuine()
            data = write_frame(genuine)
            for _ in range(min(PER_ROUND, left)):
                left -= 1
                kind, sender, bad = self._bad(genuine, data)
                self.kinds[kind] = self.kinds.get(kind, 0) + 1
                if bad != data and self.victim.step(sender, bad):
                    self.violations.append(f"round {self.round}: {kind} was taken: {bad[:80].hex()}")
            if not self.victim.step(AUTHOR, data):
                self.violations.append(f"round {self.round}: a genuine datagram was refused: {data[:80].hex()}")
            self.earlier = [*self.earlier[-20:], data]

    def _genuine(self) -> Change | SignedMessage:
        author, element = self.author, f"element {self.round}"
        match self.round % 4:
            case 0:
                delta = author.write(OBJECT, element)
                state = FullState(object_id(OBJECT), author.stores[OBJECT].to_bytes())
                assert delta.last == author.stores[OBJECT].context.counter(delta.replica)
                return author.message(write_message(state))
            case 1:
                objects = sorted([object_id(OBJECT), self.round.to_bytes(8)])
                return author.message(write_message(Interests(b"".join(objects))))
            case _:
                return author.change(author.write(OBJECT, element))

    def _bad(self, genuine: Change | SignedMessage, data: bytes) -> tuple[str, str, bytes]:
        kinds: list[tuple[str, Callable[[], AntiEntropyFrame | bytes]]] = [
            ("bytes changed", lambda: self._tampered(data)),
            ("bytes changed", lambda: self._tampered(data)),
            ("fields exchanged", lambda: self._exchanged(genuine)),
            ("forged with another key", lambda: self._forged(genuine)),
            ("for something else", lambda: self._misdirected(genuine)),
            ("downgraded", lambda: self._downgraded(genuine, data)),
            ("replayed", self._replayed),
        ]
        kind, make = self.chance.choice(kinds)
        made = make()
        sender = self.chance.choice([AUTHOR, AUTHOR, STRANGER])
        return kind, sender, made if isinstance(made, bytes) else write_frame(made)

    def _tampered(self, data: bytes) -> bytes:
        chance, changed = self.chance, bytearray(data)
        for _ in range(chance.choice([1, 1, 1, 2, 5])):
            at = chance.randrange(len(changed))
            match chance.randrange(5):
                case 0:
                    changed[at] ^= 1 << chance.randrange(8)
                case 1:
                    changed[at] = chance.randrange(256)
                case 2:
                    del changed[at : at + chance.randint(1, 4)]
                case 3:
                    changed[at:at] = chance.randbytes(chance.randint(1, 4))
                case _:
                    changed += chance.randbytes(chance.randint(1, 4))
            if not changed:
                return b""
        return bytes(changed)

    def _exchanged(self, genuine: Change | SignedMessage) -> AntiEntropyFrame:
        """A field of one datagram in another one of the same kind."""
        others = [frame for frame in map(read_frame, self.earlier) if type(frame) is type(genuine)]
        if not others:
            return structs.replace(genuine, signature=bytes(64))
        field = self.chance.choice(genuine.__struct_fields__)
        return structs.replace(genuine, **{field: getattr(self.chance.choice(others), field)})

    def _forged(self, genuine: Change | SignedMessage) -> AntiEntropyFrame:
        """The stranger, whose key is as good as any, signs in the name of the author."""
        stranger, chance = self.stranger, self.chance
        forged: Change | SignedMessage
        if isinstance(genuine, SignedMessage):
            forged = stranger.message(genuine.body, node=AUTHOR)
        else:
            delta = read_delta(genuine.delta)
            forged = stranger.change(chance.choice([delta, structs.replace(delta, added=())]))
        if chance.random() < 0.3:
            return structs.replace(forged, key=self.author.key)
        return forged

    def _misdirected(self, genuine: Change | SignedMessage) -> AntiEntropyFrame:
        """Signed by the author itself, for another object, fleet, agent or life; or passed off as such."""
        author, chance = self.author, self.chance
        if isinstance(genuine, SignedMessage):
            return author.message(genuine.body, fleet=OTHER_FLEET)
        delta = read_delta(genuine.delta)
        match chance.randrange(6):
            case 0:
                return author.change(delta, fleet=OTHER_FLEET)
            case 1:
                return author.change(delta, address="Light/8")
            case 2:
                return author.change(delta, incarnation=INCARNATION + 1)
            case 3:
                return structs.replace(genuine, object=object_id(OTHER_OBJECT))
            case 4:
                return structs.replace(author.change(delta, name=OTHER_OBJECT), object=object_id(OBJECT))
            case _:
                return structs.replace(author.change(delta, fleet=OTHER_FLEET), incarnation=INCARNATION)

    def _downgraded(self, genuine: Change | SignedMessage, data: bytes) -> AntiEntropyFrame | bytes:
        chance = self.chance
        match chance.randrange(5):
            case 0:
                return bytes([chance.choice([0, 1, 2, 0x10, 0x13, 0x14, 0x91])]) + data[1:]
            case 1:
                return structs.replace(genuine, algorithm=chance.choice([0, 2, 3, 255]))
            case 2:
                return structs.replace(genuine, signature=b"")
            case 3:
                return structs.replace(genuine, key=bytes(chance.choice([0, 31, 32, 33])))
            case _:
                return BodyPart(bytes(16), 0, data)

    def _replayed(self) -> bytes:
        """What was taken once is not taken again."""
        changes = [data for data in self.earlier if isinstance(read_frame(data), Change)]
        return self.chance.choice(changes) if changes else b""


def run_trials(count: int, seed: int = 1) -> tuple[dict[str, int], list[str]]:
    """Half of them with a list of trusted keys, half without: how many of which kind, and what was wrong."""
    kinds: dict[str, int] = {}
    violations: list[str] = []
    for number, trusted in enumerate((True, False)):
        trial = Trial(seed + number, trusted)
        trial.run(count // 2)
        violations += trial.violations
        for kind, done in trial.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + done
    return kinds, violations


def prove(*, quick: bool = False) -> Proof:
    """Row 15 for deltas and what nodes say about them."""
    kinds, violations = run_trials(MUTATIONS_QUICK if quick else MUTATIONS)
    return Proof(
        name="deltas",
        promise="of changed, forged, replayed and misdirected changes and messages all are refused",
        cases=sum(kinds.values()),
        violations=violations[:20],
        figures={"refused": f"{100 * (1 - len(violations) / sum(kinds.values())):.3f} %", **kinds},
    )
