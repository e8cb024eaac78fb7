"""The small parts of a machine, one by one: their bounds, and what they do at them."""

import pytest
from msgspec import structs

from stigmergy.crdt.anti_entropy.authorship import QUARANTINED_COUNT_MAX, KnownKeys, Quarantine, Quarantined, object_id
from stigmergy.crdt.anti_entropy.context import TROUBLES_COUNT_MAX
from stigmergy.crdt.anti_entropy.held_object import Retirements, Silence, epoch_of, joined, understood
from stigmergy.crdt.anti_entropy.messages import (
    Acknowledged,
    BadMessage,
    BodyOffer,
    BodyPart,
    Digests,
    FetchParts,
    FullState,
    Interests,
    SignedMessage,
    Vectors,
    body_digest,
    read_frame,
    read_message,
    write_frame,
    write_message,
)
from stigmergy.crdt.anti_entropy.peers import Outstanding, Peers
from stigmergy.crdt.anti_entropy.pool import ChangePool, SignedChange, ripe
from stigmergy.crdt.anti_entropy.rules import KEYS_COUNT_MAX, SECOND_NS, Rules
from stigmergy.crdt.anti_entropy.transfers import FETCHED_COUNT_MAX, Incoming, Outgoing, ReceivedBody
from stigmergy.crdt.causality import Context, Dot
from stigmergy.crdt.delta import Delta
from stigmergy.crdt.errors import LimitReached
from stigmergy.crdt.store import EMPTY
from tests.crdt.anti_entropy.fleet import OBJECT, Fleet, toy_signature, toy_trust

A, B, C = b"a" * 8, b"b" * 8, b"c" * 8
DIGEST = bytes(16)


def change(replica: bytes, first: int, last: int = 0, seen: tuple[tuple[bytes, int], ...] = ()) -> SignedChange:
    delta = Delta(replica, first, last or first, tuple(Dot(*one) for one in seen), (), ())
    return SignedChange(delta.to_bytes(), delta, b"key", "peer")


# Messages.


@pytest.mark.parametrize(
    "message",
    [
        Interests(b"12345678" * 2),
        Digests(bytes(8), b"12345678", ((b"12345678", DIGEST),)),
        Vectors(b"12345678", DIGEST, ((A, 1), (B, 2**63 - 1)), 3, b"retired.", 2),
        BodyOffer(DIGEST, 5000, 900, bytes(8)),
        FetchParts(DIGEST, (0, 5)),
        FullState(b"12345678", b"store"),
    ],
)
def test_what_is_written_is_read(message: object) -> None:
    body = write_message(message)  # type: ignore[arg-type]
    assert read_message(body) == message
    frame = SignedMessage(1, b"key", "node", body, b"signature")
    assert read_frame(write_frame(frame)) == frame


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        write_message(Interests(b"1234567")),
        write_message(Vectors(b"12345678", DIGEST, ((B, 1), (A, 1)), 0, bytes(8), 0)),
        write_message(Vectors(b"12345678", DIGEST, ((A, 0),), 0, bytes(8), 0)),
        write_message(FullState(b"short", b"")),
        b"\x91\x63",
    ],
)
def test_bad_messages_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read_message(body)


def test_frames_have_one_form_only() -> None:
    data = write_frame(BodyPart(DIGEST, 1, b"piece"))
    for bad in (b"", b"\x00", b"\x15" + data[1:], data[:-1], data + b"\0", b"\x12" + data[1:], data[:1] + b"\xdc\0\3"):
        with pytest.raises(BadMessage):
            read_frame(bad)
    acknowledged = write_frame(Acknowledged(b"12345678", ((A, 7),)))
    assert read_frame(acknowledged) == Acknowledged(b"12345678", ((A, 7),))
    with pytest.raises(BadMessage, match="sorted"):
        read_frame(write_frame(Acknowledged(b"12345678", ((B, 1), (A, 1)))))
    longer = data[:1] + b"\xdc\x00\x03" + data[2:]
    with pytest.raises(BadMessage, match="shortest"):
        read_frame(longer)


# Keys.


def test_only_trusted_keys_are_believed_and_memory_is_bounded() -> None:
    keys = KnownKeys(toy_trust(b"k", frozenset({b"good"})))
    assert keys.believes(1, b"good")
    assert not keys.believes(1, b"bad")
    assert keys.signed_by(1, b"good", b"said", toy_signature(b"good", b"said"))
    assert not keys.signed_by(1, b"bad", b"said", toy_signature(b"bad", b"said"))
    for number in range(KEYS_COUNT_MAX + 5):
        keys.believes(1, number.to_bytes(4))
        assert keys.is_whose(str(number), b"key")
    assert len(keys._good) == len(keys._names) == KEYS_COUNT_MAX
    assert keys.is_whose("0", b"another")  # forgotten by now


# Pools.


def test_a_pool_finds_what_somebody_lacks_while_it_is_kept() -> None:
    pool = ChangePool(Rules(buffer_count_max=3))
    kept = [change(A, 1, 2), change(A, 3), change(B, 1)]
    for one in kept:
        assert pool.add(one) == []
        assert pool.add(one) == []
    here = Context.of([(A, 3), (B, 1)])
    assert pool.lacking(here, lambda replica: 0) == kept
    assert pool.lacking(here, lambda replica: {A: 1}.get(replica, 1)) == kept[:2]
    assert pool.lacking(here, Context.of([(A, 3), (B, 1)]).counter) == []
    assert pool.find(A, 2) is kept[0]
    assert pool.find(A, 4) is None
    assert pool.find(C, 1) is None
    assert pool.add(change(B, 2)) == [kept[0]]
    assert pool.lacking(here, lambda replica: 0) is None
    assert pool.size_bytes == sum(len(one.data) for one in pool.all())


def test_what_overlaps_and_differs_contradicts() -> None:
    pool = ChangePool(Rules())
    pool.add(change(A, 5, 8))
    pool.add(change(A, 12, 12))
    for first, last in ((1, 4), (9, 11), (13, 20), (5, 8), (12, 12)):
        assert pool.contradicts(change(A, first, last)) is None
    for first, last in ((1, 5), (5, 7), (8, 9), (6, 7), (11, 12), (1, 20)):
        assert pool.contradicts(change(A, first, last)) is not None
    assert pool.contradicts(change(B, 5, 9)) is None
    pool.drop_replica(A)
    pool.drop_replica(A)
    assert len(pool) == pool.size_bytes == 0


def test_ripe_is_what_can_be_applied_in_some_order() -> None:
    waiting = [change(B, 1, seen=((A, 2),)), change(A, 2), change(A, 1), change(C, 2), change(A, 1)]
    assert [(one.delta.replica, one.delta.first) for one in ripe(waiting, lambda replica: 0, 0)] == [
        (A, 1), (A, 2), (B, 1),
    ]  # fmt: skip
    assert ripe([change(A, 1)], lambda replica: 1, 0) == []


def test_joined_deltas_say_the_same_in_fewer() -> None:
    deltas = [one.delta for one in (change(A, 1), change(A, 2), change(A, 3, seen=((B, 1),)), change(B, 2))]
    assert len(joined(deltas)) == 3


# Peers.


def test_peers_take_turns_when_they_are_many() -> None:
    peers = Peers(Rules(fan_out=2), lambda count, of: list(range(of - count, of)))
    assert [peers.next_ns] == [None]
    peers.set(["a", "b", "c", "d"], 0)
    assert [peer.name for peer in peers.due(0)] == ["c", "d"]
    assert peers.due(1) == []
    assert peers.next_ns == SECOND_NS
    assert len(peers.due(SECOND_NS)) == 2
    peers.set(["a", "b", "c"], 0)
    for peer in peers.all():
        peer.due_ns = 10 * SECOND_NS
    assert peers.due(5 * SECOND_NS) == []
    assert peers.due(5 * SECOND_NS) == []
    peers.hurry(peers.all()[0], 6 * SECOND_NS)
    assert len(peers.due(6 * SECOND_NS)) == 1
    assert len(peers) == 3
    assert "a" in peers


def test_interests_are_told_anew_and_forgotten() -> None:
    peers = Peers(Rules(), lambda count, of: list(range(count)))
    peers.set(["a", "b"], 0)
    a, b = peers.all()
    peers.told_interests(a, b"1" * 8 + b"2" * 8)
    peers.told_interests(b, b"2" * 8)
    assert peers.holders(b"2" * 8) == ["a", "b"]
    peers.told_interests(a, b"3" * 8)
    assert peers.holders(b"1" * 8) == []
    assert peers.holders(b"2" * 8) == ["b"]
    assert peers.set(["a"], 0) == ["b"]
    assert peers.holders(b"2" * 8) == []


def test_outstanding_is_bounded() -> None:
    outstanding = Outstanding(Rules(outstanding_count_max=2, resend_tries=1))
    ways = [("a", bytes(8), A), ("a", bytes(8), B), ("b", bytes(8), A)]
    for way in ways:
        outstanding.sent(way, 1, 1, 0)
    outstanding.sent(ways[0], 2, 4, 0)
    assert len(outstanding) == 2
    outstanding.acknowledged(ways[2], 1)
    outstanding.acknowledged(ways[0], 3)
    assert len(outstanding) == 2
    outstanding.acknowledged(ways[0], 4)
    assert len(outstanding) == 1
    due_ns = outstanding.next_ns
    assert due_ns is not None
    assert len(outstanding.tick(due_ns)) == 1
    assert outstanding.tick(due_ns) == []
    assert outstanding.tick(due_ns * 9) == []
    assert len(outstanding) == 0
    outstanding.sent(ways[0], 1, 1, 0)
    outstanding.sent(ways[2], 1, 1, 0)
    outstanding.drop(ways[2])
    outstanding.drop(ways[2])
    outstanding.drop_peer("a")
    assert len(outstanding) == 0


def test_a_way_that_ends_nowhere_is_given_up() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a = fleet["a"]
    fleet.cut = lambda sender, to: True
    a.add("x")
    a.machine.release(OBJECT, a.replica().id, a.moment)
    a.machine.release("no such object", a.replica().id, a.moment)
    fleet.run(1)
    assert len(a.machine._context.outstanding) == 0
    assert a.machine.known_interests("nobody") == ()


# Quarantine, troubles, bounds.


def test_a_quarantine_is_bounded() -> None:
    quarantine = Quarantine()
    for number in range(QUARANTINED_COUNT_MAX + 1):
        assert quarantine.put(Quarantined(number.to_bytes(4), "", "", b"", "", 0))
    assert not quarantine.put(Quarantined((5).to_bytes(4), "", "", b"", "", 0))
    assert len(quarantine) == QUARANTINED_COUNT_MAX
    assert (0).to_bytes(4) not in quarantine


def test_troubles_are_bounded() -> None:
    desk = Fleet("a").start()["a"].machine._context
    for number in range(TROUBLES_COUNT_MAX + 5):
        desk.trouble(f"trouble {number}")
        desk.trouble(f"trouble {number}")
    assert len(desk.troubles) == TROUBLES_COUNT_MAX


def test_a_node_holds_only_so_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.crdt.anti_entropy.machine.OBJECTS_COUNT_MAX", 1)
    a = Fleet("a").start()["a"]
    with pytest.raises(LimitReached):
        a.machine.hold("another", A, "Thing/a", EMPTY, a.moment)


# Vectors.


def test_silence_retires_and_a_new_change_brings_back() -> None:
    silence = Silence()
    context = Context.of([(A, 1), (B, 2), (C, 3)])
    silence.note(context, 0)
    assert silence.split(context, {A: None}, 9, 10) == (context.vector(), ())
    assert silence.split(context, {A: None}, 10, 10) == (((A, 1),), ((B, 2), (C, 3)))
    moved = context.add(B, 3, 3)
    assert silence.split(moved, {A: None}, 11, 10) == (((A, 1), (B, 3)), ((C, 3),))
    assert silence.retire(B)
    assert not silence.retire(b"nobody..")
    assert silence.split(moved, {A: None}, 12, 10)[1] == ((B, 3), (C, 3))


def test_an_epoch_is_understood_by_who_knows_the_same() -> None:
    here = Context.of([(A, 1), (B, 2), (C, 3)])
    epoch = epoch_of(((B, 2), (C, 3)))
    told = Vectors(bytes(8), DIGEST, ((A, 1),), epoch.count, epoch.digest, 0)
    assert understood(told, here, ()) == {A: 1, B: 2, C: 3}
    assert understood(structs.replace(told, vector=()), here, ((B, 2), (C, 3))) == {B: 2, C: 3}
    assert understood(structs.replace(told, vector=()), here, ()) is None
    assert understood(told, Context.of([(A, 1), (B, 2), (C, 4)]), ()) is None
    assert understood(structs.replace(told, retired_count=0), here, ()) == {A: 1}
    assert epoch_of(()) == Retirements()


# Transfers.


def fetch(incoming: Incoming, outgoing: Outgoing, offer: BodyOffer) -> ReceivedBody | None:
    ask = incoming.offered("peer", offer, 0)
    while ask is not None:
        parts = outgoing.parts(ask, 0)
        ask = None
        for part in parts:
            taken = incoming.take(part, 0)
            if isinstance(taken, ReceivedBody):
                return taken
            if taken is not None:
                ask = taken[1]
    return None


def test_a_body_goes_over_in_parts() -> None:
    rules = Rules(parts_asked_max=4)
    body = bytes(range(256)) * 30
    outgoing, incoming = Outgoing(rules, 1024), Incoming(rules)
    offer = outgoing.offer(body, bytes(8), 0)
    assert offer is not None
    assert outgoing.offer(body, bytes(8), 0) == offer
    assert outgoing.size_bytes == len(body)
    assert fetch(incoming, outgoing, offer) == ReceivedBody("peer", body)
    assert incoming.offered("peer", offer, 0) is None  # just fetched
    assert incoming.offered("peer", offer, rules.interval_ns) is not None
    assert len(incoming) == 1
    assert outgoing.parts(FetchParts(DIGEST, (0,)), 0) == []
    assert outgoing.parts(FetchParts(offer.body, (99,)), 0) == []
    assert incoming.take(BodyPart(DIGEST, 0, b""), 0) is None


def test_wrong_parts_spoil_a_body_and_nothing_else() -> None:
    rules = Rules()
    outgoing, incoming = Outgoing(rules, 1024), Incoming(rules)
    offer = outgoing.offer(bytes(1500), bytes(8), 0)
    assert offer is not None
    ask = incoming.offered("peer", offer, 0)
    assert ask is not None
    one, two = outgoing.parts(ask, 0)
    assert incoming.take(BodyPart(offer.body, 0, b"short"), 0) is None
    assert incoming.spoilt_count == 1
    assert incoming.take(BodyPart(offer.body, 0, b"x" * len(one.piece)), 0) is None
    assert incoming.take(one, 0) is None
    assert incoming.take(two, 0) is None
    assert incoming.spoilt_count == 2
    assert len(incoming) == 0


def test_parts_that_do_not_come_are_asked_for_again_and_given_up() -> None:
    rules = Rules(part_tries=2)
    incoming = Incoming(rules)
    assert [incoming.next_ns] == [None]
    assert incoming.offered("peer", BodyOffer(DIGEST, 3000, 1000, bytes(8)), 0) is not None
    assert incoming.next_ns == rules.part_ns
    assert incoming.tick(rules.part_ns - 1) == []
    for number in (1, 2):
        assert incoming.tick(number * rules.part_ns) == [("peer", FetchParts(DIGEST, (0, 1, 2)))]
    assert incoming.tick(3 * rules.part_ns) == []
    assert len(incoming) == 0
    incoming.offered("peer", BodyOffer(DIGEST, 3000, 1000, bytes(8)), 0)
    incoming.drop_peer("another")
    incoming.drop_peer("peer")
    assert len(incoming) == 0


def test_transfers_are_bounded() -> None:
    rules = Rules(incoming_count_max=3, body_bytes_max=2**31, outgoing_bytes_max=2500, outgoing_ns=10)
    incoming = Incoming(rules)

    def offered(peer: str, number: int, about: int = 0, size_bytes: int = 1000, part_bytes: int = 1000) -> bool:
        offer = BodyOffer(number.to_bytes(16), size_bytes, part_bytes, about.to_bytes(8))
        return incoming.offered(peer, offer, 0) is not None

    assert offered("a", 1, about=1)
    assert not offered("a", 1, about=1)
    assert not offered("b", 2, about=1)
    assert offered("a", 3, about=2)
    assert not offered("a", 4)
    assert offered("b", 5)
    assert not offered("c", 6)
    incoming.drop_peer("a")
    assert not offered("c", 7, size_bytes=2**31 + 1)
    assert not offered("c", 8, size_bytes=2**29, part_bytes=256)
    outgoing = Outgoing(rules, 70_000)
    assert [outgoing.next_ns] == [None]
    for number in range(3):
        assert outgoing.offer(bytes([number]) * 1000, bytes(8), number) is not None
    assert outgoing.size_bytes == 2000
    assert outgoing.next_ns == 11
    outgoing.tick(11)
    assert outgoing.size_bytes == 1000
    with pytest.raises(ValueError, match="too short"):
        Outgoing(rules, 100)
    assert Outgoing(Rules(body_bytes_max=5), 1024).offer(b"123456", bytes(8), 0) is None


def test_what_was_fetched_is_remembered_for_a_while_only() -> None:
    rules = Rules()
    incoming, outgoing = Incoming(rules), Outgoing(rules, 1024)
    for number in range(FETCHED_COUNT_MAX + 1):
        offer = outgoing.offer(number.to_bytes(2) * 600, bytes(8), 0)
        assert offer is not None
        assert fetch(incoming, outgoing, offer) is not None
    assert len(incoming._fetched) == FETCHED_COUNT_MAX


def test_what_is_fetched_is_no_offer_and_no_part() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    for inner in (
        write_frame(BodyPart(DIGEST, 0, bytes(1200))),
        a.machine._context.signed(FetchParts(DIGEST, tuple(range(200, 456)))),
    ):
        offer = BodyOffer(body_digest(inner), len(inner), 1000, bytes(8))
        b.hear("a", a.machine._context.signed(offer))
        refused = b.machine.counters.shared_refused
        for number in range(2):
            b.hear("a", write_frame(BodyPart(offer.body, number, inner[number * 1000 : (number + 1) * 1000])))
        assert b.machine.counters.shared_refused == refused + 1
    assert object_id(OBJECT) in a.machine.known_interests("b")


def test_nobody_is_told_nothing() -> None:
    desk = Fleet("a").start()["a"].machine._context
    desk.say([], Interests(b""), 0)
    assert desk.ready().datagrams == ()
    out = Quarantined(b"key", "", "", b"", "", 0)
    desk.shut_out(out)
    desk.shut_out(out)
    assert len(desk.troubles) == 1
