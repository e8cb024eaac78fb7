"""Who has signed two different changes is found, and proven to all; no honest key is ever shut out for it."""

import random

import pytest
from msgspec import structs

from stigmergy.crdt.anti_entropy import admission as proving
from stigmergy.crdt.anti_entropy.authorship import object_id
from stigmergy.crdt.anti_entropy.messages import (
    CHANGE,
    MESSAGE,
    Acknowledged,
    Caught,
    Change,
    Proof,
    Shown,
    SignedMessage,
    Vectors,
    body_digest,
    read_frame,
    read_message,
    write_frame,
)
from stigmergy.crdt.anti_entropy.rules import MILLISECOND_NS, Rules
from stigmergy.crdt.delta import Delta, join_deltas, read_delta
from stigmergy.crdt.store import EMPTY
from tests.crdt.anti_entropy.fleet import OBJECT, Fleet, Member
from tests.crdt.anti_entropy.test_judging import adds, said, signed

OTHER = "Thing.seen/other"
LIAR = "a"


def named(key: bytes) -> bytes:
    return body_digest(key)[:8]


def keys_out(member: Member) -> list[bytes]:
    return [one.key for one in member.machine.quarantined()]


def proof_of(liar: Member, name: str = OBJECT) -> Proof:
    return Proof(name, signed(liar, adds(liar, "yes"), name), signed(liar, adds(liar, "no"), name))


class Lies:
    """A liar in a fleet: it says one thing to half of the others, and another to the rest, by whatever way."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.liar = fleet[LIAR]
        self.chance = random.Random(seed)
        self.fooled = {name: number % 2 == 1 for number, name in enumerate(fleet.names)}
        self._deliver = fleet._deliver
        fleet._deliver = self.deliver  # type: ignore[method-assign]

    def deliver(self, sender: str, to: str, data: bytes) -> None:
        if sender == LIAR and data[0] == CHANGE and self.fooled[to]:
            change = read_frame(data)
            assert isinstance(change, Change)
            delta = read_delta(change.delta)
            if change.key == self.liar.key and change.object == object_id(OBJECT):
                data = signed(self.liar, structs.replace(delta, added=delta.added[:-1]))
        self._deliver(sender, to, data)


def signed_versions(fleet: Fleet, name: str) -> dict[tuple[int, int], Delta]:
    """What a node can show of the liar's changes."""
    pool = fleet[name].machine.objects[0].pool
    liar = fleet[LIAR].replica().id
    return {(one.delta.first, one.delta.last): one.delta for one in pool.all() if one.delta.replica == liar}


def provable(fleet: Fleet, honest: list[str]) -> bool:
    """Whether two honest nodes keep different signed versions of one change."""
    found: dict[tuple[int, int], Delta] = {}
    for name in honest:
        for numbers, delta in signed_versions(fleet, name).items():
            if found.setdefault(numbers, delta) != delta:
                return True
    return False


@pytest.mark.parametrize("seed", range(9))
def test_one_liar_is_caught_whenever_it_can_be_proven_and_splits_nobody(seed: int) -> None:
    chance = random.Random(seed)
    fleet = Fleet(list("abcdefg"[: chance.randrange(3, 8)]), seed, Rules(interval_ns=500 * MILLISECOND_NS))
    for member in fleet.members.values():
        member.hold(OTHER)
    fleet.start()
    fleet.run(2)
    honest = [name for name in fleet.names if name != LIAR]
    fleet.loss, fleet.doubling = chance.choice((0.0, 0.1, 0.3)), 0.2
    fleet.delay_ns_max = chance.choice((5, 200)) * MILLISECOND_NS
    Lies(fleet, seed)
    could = False
    for number in range(chance.randrange(4, 25)):
        name = chance.choice(fleet.names)
        replica = fleet[name].replica()
        if chance.random() < 0.3 and fleet[name].up:
            # Several at once: they are joined, and signed as one.
            fleet[name].add(f"{number}-one", f"{number}-two")
        elif fleet[name].up:
            fleet[name].write(lambda value, number=number: value.add(f"{number}"), replica)  # type: ignore[misc]
        if fleet[name].up:
            fleet[name].add(f"other {number}", name=OTHER)
        if seed % 3 == 0 and chance.random() < 0.15:
            fallen = fleet[chance.choice(fleet.names)]
            fallen.crash()
            fleet.run(chance.random())
            fallen.start()
        fleet.run(chance.random() / 2)
        could = could or provable(fleet, honest)
    fleet.loss = 0.0
    fleet.run(12)
    liar = fleet[LIAR].key
    for name in honest:
        assert keys_out(fleet[name]) in ([], [liar])
    if provable(fleet, honest) or (could and seed % 3):
        assert all(keys_out(fleet[name]) == [liar] for name in honest), "all honest nodes hold the proof"
    # What nobody lied about is the same at all the honest, and they go on.
    for name in honest:
        fleet[name].add(f"after {name}", name=OTHER)
        fleet[name].add(f"after {name}")
    fleet.run(6)
    others = [fleet[name].replica(OTHER).store for name in honest]
    assert all(store == others[0] for store in others)
    for name in honest:
        assert {f"after {other}" for other in honest} <= set(fleet[name].value())
    vectors = [fleet[name].replica().store.context.vector() for name in honest]
    assert all(vector == vectors[0] for vector in vectors)


def test_the_search_goes_through_all_that_is_kept() -> None:
    """The lie is old, and many changes came since: page after page is named until it is found."""
    fleet = Fleet("a b c").start()
    fleet.run(1)
    liar = fleet["a"]
    fleet.cut = lambda sender, to: True
    for name, element in (("b", "yes"), ("c", "no")):
        fleet[name].hear("a", signed(liar, adds(liar, element)))
    fleet.run(0.1)
    fleet.cut = lambda sender, to: "a" in {sender, to}
    for number in range(200):
        fleet["b"].add(f"{number}")
        fleet.run(0.01)
    fleet.run(8)
    assert keys_out(fleet["b"]) == keys_out(fleet["c"]) == [liar.key]
    # Nothing is left to be looked for, and both say the same: no more is said about it.
    heard: list[bytes] = []
    fleet.watch = lambda sender, to, data: heard.append(data)
    fleet.run(5)
    spoken = [read_frame(data) for data in heard if data[0] == MESSAGE]
    kinds = [type(read_message(frame.body)) for frame in spoken if isinstance(frame, SignedMessage)]
    assert kinds
    assert not {Shown, Proof, Caught} & set(kinds)


def test_a_page_begins_anew_when_all_were_named() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    b = fleet["b"]
    b.add("x")
    fleet.run(1)
    held = b.machine.objects[0]
    told = Vectors(held.id, bytes(16), held.store.context.vector(), 0, bytes(8), 0)
    for _ in range(3):
        b.machine.step("a", said(fleet["a"], told), b.moment)
        assert len(b.machine.ready(b.moment).datagrams) == 1
        assert held.shown == {"a": 1}


def test_a_change_that_another_keeps_differently_is_sent_and_only_so_many() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    a, b, c = (fleet[name] for name in "abc")
    store = EMPTY
    shown = []
    for number in range(12):
        delta = adds(a, f"{number}", store)
        store = store.apply(delta)
        b.machine.step("a", signed(a, delta), b.moment)
        shown.append((delta.replica, delta.first, delta.last, bytes(16)))
    same = body_digest(adds(a, "0").to_bytes())
    b.machine.ready(b.moment)
    b.machine.step("c", said(c, Shown(object_id(OBJECT), tuple(shown))), b.moment)
    assert len(b.machine.ready(b.moment).datagrams) == proving.CONTRADICTIONS_COUNT_MAX
    b.machine.step("c", said(c, Shown(object_id(OBJECT), ((a.replica().id, 1, 1, same),))), b.moment)
    b.machine.step("c", said(c, Shown(object_id(OBJECT), ((a.replica().id, 99, 100, same),))), b.moment)
    b.machine.step("c", said(c, Shown(object_id(OBJECT), ((c.replica().id, 1, 1, same),))), b.moment)
    assert b.machine.ready(b.moment).datagrams == ()
    strange = b.machine.counters.shared_strange
    b.hear("c", said(c, Shown(object_id("nothing"), ())))
    assert b.machine.counters.shared_strange == strange + 1
    # Of whom we know that it lies, nothing is sent or named any more.
    b.hear("c", said(c, proof_of(a)))
    b.machine.step("c", said(c, Shown(object_id(OBJECT), tuple(shown))), b.moment)
    assert b.machine.ready(b.moment).datagrams == ()


def test_a_proof_is_checked_and_not_believed() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    a, b, c = (fleet[name] for name in "abc")
    good = proof_of(a)
    one = adds(a, "yes")
    acknowledged = write_frame(Acknowledged(object_id(OBJECT), ()))
    forged = read_frame(good.other)
    assert isinstance(forged, Change)
    later = adds(a, "later", EMPTY.apply(one))
    for bad in (
        structs.replace(good, name=OTHER),
        structs.replace(good, other=good.one),
        structs.replace(good, other=acknowledged),
        structs.replace(good, other=b"no frame"),
        structs.replace(good, other=signed(c, adds(c, "mine"))),
        structs.replace(good, other=signed(a, later)),
        structs.replace(good, one=signed(a, later)),
        structs.replace(good, other=write_frame(structs.replace(forged, signature=b"wrong"))),
        structs.replace(good, other=write_frame(structs.replace(forged, delta=b"wrong"))),
    ):
        refused = b.machine.counters.shared_refused
        b.hear("c", said(c, bad))
        assert b.machine.counters.shared_refused == refused + 1
        assert b.machine.quarantined() == []
    # The same change signed once more, or overlapping and joined: the first is no lie, the second is.
    joined = join_deltas(one, later)
    b.hear("c", said(c, structs.replace(good, other=signed(a, joined))))
    assert keys_out(b) == [a.key]
    assert "two different changes 1 to 1" in b.machine.quarantined()[0].why
    assert b.machine.objects[0].diverged


def test_a_proof_about_an_object_that_we_do_not_hold_counts_as_well() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    a, b, c = (fleet[name] for name in "abc")
    fleet.cut = lambda sender, to: "a" in {sender, to}
    b.hear("c", said(c, proof_of(a, OTHER)))
    assert keys_out(b) == [a.key]
    assert not b.machine.objects[0].diverged
    fleet.run(1)
    assert keys_out(c) == [a.key]
    b.hear("c", said(c, proof_of(a)))  # known by now
    assert not b.machine.objects[0].diverged


def test_a_proof_about_ourselves_is_a_trouble() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    a = fleet["a"]
    a.hear("c", said(fleet["c"], proof_of(a)))
    assert a.machine.quarantined() == []
    assert "with our own key" in a.machine.troubles()[0]
    fleet.run(3)
    assert keys_out(fleet["b"]) == [a.key]


def test_who_was_away_or_starts_anew_is_shown_the_proof() -> None:
    fleet = Fleet("a b c d").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    fleet.cut = lambda sender, to: "a" in {sender, to} or "d" in {sender, to}
    b.hear("a", signed(a, adds(a, "yes")))
    b.hear("a", signed(a, adds(a, "no")))
    fleet.run(2)
    assert keys_out(fleet["c"]) == [a.key]
    assert keys_out(fleet["d"]) == []
    fleet.cut = lambda sender, to: "a" in {sender, to}
    fleet.run(2)
    assert keys_out(fleet["d"]) == [a.key]
    b.crash()
    b.start()
    assert keys_out(b) == []
    fleet.run(2)
    assert keys_out(b) == [a.key]


def test_a_lifted_quarantine_is_not_brought_back_by_old_proofs_and_by_new_lies_it_is() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    a, b, c = (fleet[name] for name in "abc")
    b.hear("a", signed(a, adds(a, "yes")))
    b.hear("a", signed(a, adds(a, "no")))
    fleet.run(1)
    assert b.machine.lift(a.key)
    fleet.cut = lambda sender, to: "a" in {sender, to}
    fleet.run(3)
    assert keys_out(b) == []
    assert keys_out(c) == [a.key]
    # It is not b who tells it to those who know nothing.
    assert c.machine.lift(a.key)
    c.crash()
    c.start()
    fleet.run(3)
    assert keys_out(c) == []
    b.hear("a", signed(a, adds(a, "no")))
    assert keys_out(b) == [a.key]


def test_who_is_shut_out_for_a_forged_state_has_no_proof_to_lift() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    machine = fleet["b"].machine
    machine._proving.lift(b"nobody")
    assert machine._proving._lifted == {}


def test_what_is_told_about_the_caught_is_answered_now_and_then_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "PROOFS_COUNT_MAX", 2)
    fleet = Fleet("a b c d e f").start()
    fleet.run(1)
    b = fleet["b"]
    b.machine.members(["f"], b.moment)
    for liar in "acd":
        b.hear("f", said(fleet["f"], proof_of(fleet[liar])))
    assert len(b.machine.quarantined()) == 3
    assert len(b.machine._proving._proofs) == 2
    stranger = said(fleet["f"], Caught((b"stranger",)))
    b.machine.step("f", stranger, b.moment)
    answer = [data for _, data in b.machine.ready(b.moment).datagrams]
    assert len(answer) == 3  # both proofs, and whom it knows
    b.machine.step("f", stranger, b.moment)
    assert b.machine.ready(b.moment).datagrams == ()
    fleet.now_ns += fleet.rules.ask_ns
    known = tuple(sorted((named(fleet["c"].key), named(fleet["d"].key))))
    b.machine.step("f", said(fleet["f"], Caught(known)), b.moment)
    assert b.machine.ready(b.moment).datagrams == ()


def test_what_waits_of_a_liar_is_let_go() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    store = EMPTY.apply(adds(a, "one"))
    b.machine.step("a", signed(a, adds(a, "two", store)), b.moment)
    held = b.machine.objects[0]
    assert len(held.waiting) == 1
    b.machine.step("a", signed(a, adds(a, "other", store)), b.moment)
    assert keys_out(b) == [a.key]
    assert held.waiting == {}
    assert len(held.pool) == 0


def test_what_was_taken_of_a_liar_comes_to_the_others_with_states() -> None:
    """One has taken more of them when both learn of the lie: the other gets them, and what builds upon them."""
    fleet = Fleet("a b c").start()
    fleet.run(1)
    a, b, c = (fleet[name] for name in "abc")
    fleet.cut = lambda sender, to: True
    b.hear("a", signed(a, adds(a, "one")))
    fleet.run(0.1)
    b.add("builds upon it")
    b.hear("a", signed(a, adds(a, "another")))
    assert keys_out(b) == [a.key]
    fleet.cut = lambda sender, to: "a" in {sender, to}
    fleet.run(4)
    assert keys_out(c) == [a.key]
    assert b.machine.counters.shared_states_sent > 0
    assert list(b.value()) == list(c.value()) == ["one", "builds upon it"]


def test_an_operator_mends_what_stays_different() -> None:
    """What is removed where it is seen is gone everywhere, and the stores are the same again."""
    fleet = Fleet("a b c").start()
    fleet.run(1)
    a, b, c = (fleet[name] for name in "abc")
    fleet.cut = lambda sender, to: "a" in {sender, to}
    b.hear("a", signed(a, adds(a, "yes")))
    c.hear("a", signed(a, structs.replace(adds(a, "yes"), added=())))
    fleet.run(3)
    assert keys_out(b) == keys_out(c) == [a.key]
    assert (list(b.value()), list(c.value())) == (["yes"], [])
    b.remove("yes")
    c.add("right")
    fleet.run(3)
    assert b.replica().store == c.replica().store
    for member in (b, c):
        assert member.machine.objects[0].diverged
        assert member.machine.lift(a.key)
        assert not member.machine.objects[0].diverged
