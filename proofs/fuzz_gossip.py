"""Datagrams between nodes that share state, for the fuzzer: every signature passes, so that what is inside is reached.

A node that believes everything takes in a datagram, and its host what it is handed. Whatever comes, nothing is raised;
for what is handed over the host has its own errors.
"""

from __future__ import annotations

from stigmergy.crdt.anti_entropy.authorship import NodeIdentity, Trust, object_id
from stigmergy.crdt.anti_entropy.machine import AntiEntropy
from stigmergy.crdt.anti_entropy.messages import (
    Acknowledged,
    AntiEntropyFrame,
    AntiEntropyMessage,
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
    body_digest,
    write_frame,
    write_message,
)
from stigmergy.crdt.anti_entropy.rules import ClockReading
from stigmergy.crdt.delta import read_delta
from stigmergy.crdt.errors import BadDelta, BadStore, LimitReached, NotContiguous
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint, read_store
from stigmergy.crdt.value import SharedValue

REFUSED = (BadDelta, BadStore, NotContiguous, LimitReached)
NAME, PEER = "Light.seen/town", "peer"
OURS, THEIRS = b"\x11" * 8, b"\x22" * 8
KIND = SharedValue.empty(ORSet[str], "seen")
LONG = bytes(3000)
DIGEST = bytes(16)


class _Anybody(bytes):
    """Whichever id it is held against."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


def take(data: bytes) -> None:
    """A datagram comes, twice; then time passes."""
    trust = Trust(
        sign=lambda _: b"signature",
        verify=lambda *_: True,
        acceptable=lambda *_: None,
        id_of=lambda *_: _Anybody(),
    )
    machine = AntiEntropy(
        NodeIdentity("fleet", "us", 1, b"key", 1), trust, lambda count, of: list(range(min(count, of))), 1024
    )
    machine.members([PEER], ClockReading(0, 10**18))
    store = _written(OURS, "mine")
    machine.hold(NAME, OURS, "Light/us", store, ClockReading(0, 10**18), KIND)
    for now_ns in (1, 2):
        moment = ClockReading(now_ns, 10**18)
        machine.step(PEER, data, moment)
        for hand in machine.ready(moment).merges:
            if hand.state:
                store = store.join(read_store(hand.state))
            for body in hand.deltas:
                store = store.apply(read_delta(body))
            machine.merged(NAME, OURS, store, moment)
    later = ClockReading(10**11, 10**18 + 10**11)
    machine.tick(later)
    machine.ready(later)


def seeds() -> list[bytes]:
    """A valid datagram of each kind."""
    delta = mint(_set(EMPTY).add("theirs"), EMPTY, THEIRS, 0)
    other = mint(_set(EMPTY).add("something else"), EMPTY, THEIRS, 0)
    theirs = EMPTY.apply(delta)
    shared = object_id(NAME)
    said: list[AntiEntropyMessage] = [
        Interests(shared),
        Digests(bytes(8), bytes(8), ((shared, theirs.digest()),)),
        Vectors(shared, theirs.digest(), theirs.context.vector(), 0, bytes(8), 1),
        Vectors(shared, DIGEST, ((OURS, 1),), 1, b"retired.", 2),
        BodyOffer(body_digest(LONG), len(LONG), 1000, bytes(8)),
        FetchParts(DIGEST, (0, 1, 2)),
        FullState(shared, theirs.to_bytes()),
        Shown(shared, ((OURS, 1, 1, DIGEST), (THEIRS, 1, 2, DIGEST))),
        Proof(NAME, _change(delta.to_bytes()), _change(other.to_bytes())),
        Caught((b"somebody",)),
    ]
    frames: list[AntiEntropyFrame] = [
        *(SignedMessage(1, b"their key", PEER, write_message(message), b"signature") for message in said),
        BodyPart(body_digest(LONG), 0, LONG[:1000]),
        Acknowledged(shared, ((OURS, 1),)),
    ]
    return [_change(delta.to_bytes()), *(write_frame(frame) for frame in frames)]


def _change(delta: bytes) -> bytes:
    return write_frame(Change(1, b"their key", 1, "Light/them", object_id(NAME), delta, b"signature"))


def _written(replica: bytes, element: str) -> ReplicaStore:
    return EMPTY.apply(mint(_set(EMPTY).add(element), EMPTY, replica, 0))


def _set(store: ReplicaStore) -> ORSet[str]:
    value = KIND.with_store(store)
    assert isinstance(value, ORSet)
    return value
