"""Who lies is caught, shut out and named; and nobody else suffers for it."""

from typing import Any

from msgspec import structs

from stigmergy.crdt.anti_entropy.authorship import delta_statement, object_id
from stigmergy.crdt.anti_entropy.messages import Change, Digests, FullState, Vectors, read_frame, write_frame
from stigmergy.crdt.anti_entropy.rules import SECOND_NS, Rules
from stigmergy.crdt.causality import Dot
from stigmergy.crdt.delta import Delta
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint
from tests.crdt.anti_entropy.fleet import (
    FLEET,
    OBJECT,
    Fleet,
    LWWRegister,
    Member,
    ORSet,
    PNCounter,
    id_of,
    toy_signature,
)


def signed(member: Member, delta: Delta, name: str = OBJECT) -> bytes:
    """A change that this node signs, whatever it is."""
    body = delta.to_bytes()
    address = f"Thing/{member.name}"
    statement = delta_statement(FLEET, name, address, member.incarnation, delta, body)
    signature = toy_signature(member.key, statement)
    return write_frame(Change(1, member.key, member.incarnation, address, object_id(name), body, signature))


def said(member: Member, message: Any) -> bytes:
    return member.machine._context.signed(message)


def adds(member: Member, element: str, store: ReplicaStore = EMPTY) -> Delta:
    value = ORSet.empty(ORSet[str], "seen").with_store(store)
    assert isinstance(value, ORSet)
    return mint(value.add(element), store, member.replica().id, 0)


def test_two_different_changes_under_one_number_are_caught_by_all() -> None:
    """The liar tells b one thing and c another; b and c find out, and do not blame each other."""
    fleet = Fleet("a b c d").start()
    fleet.run(1)
    liar = fleet["a"]
    fleet.cut = lambda sender, to: "a" in {sender, to}
    fleet["b"].hear("a", signed(liar, adds(liar, "yes")))
    fleet["c"].hear("a", signed(liar, adds(liar, "no")))
    fleet["d"].hear("a", signed(liar, adds(liar, "no")))
    fleet.run(10)
    for name in "bcd":
        (out,) = fleet[name].machine.quarantined()
        assert (out.key, out.node, out.object, out.replica) == (liar.key, "a", OBJECT, liar.replica().id)
        assert "two different changes 1 to 1" in out.why
        assert fleet[name].machine.objects[0].diverged
        assert any("until an operator lifts the quarantine" in trouble for trouble in fleet[name].machine.troubles())
    # The honest go on, and hear nothing more from the liar.
    fleet.cut = lambda sender, to: False
    liar.add("yes", "more")
    fleet["b"].add("honest")
    fleet.run(3)
    for name in "bcd":
        assert "honest" in fleet[name].value()
        assert "more" not in fleet[name].value()
    assert fleet["c"].machine.counters.shared_shut_out > 0


def test_overlapping_changes_are_a_lie_too() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    one = adds(a, "one")
    b.hear("a", signed(a, structs.replace(one, last=3)))
    b.hear("a", signed(a, structs.replace(one, first=3, last=5, added=(), seen=())))
    assert len(b.machine.quarantined()) == 1


def test_a_quarantine_can_be_lifted() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    b.hear("a", signed(a, adds(a, "yes")))
    b.hear("a", signed(a, adds(a, "no")))
    assert not b.machine.lift(b"nobody")
    assert b.machine.lift(a.key)
    assert b.machine.quarantined() == []
    assert b.machine.troubles() == []
    a.write(lambda value: value.add("yes"))
    a.add("after")
    fleet.run(3)
    assert fleet.converged()


def test_a_state_with_a_change_of_ours_that_we_never_made_is_forged() -> None:
    fleet = Fleet("a b").start()
    fleet["b"].add("mine")
    fleet.run(1)
    b = fleet["b"]
    forged = b.replica().store.apply(adds(b, "not mine", b.replica().store))
    b.hear("a", said(fleet["a"], FullState(object_id(OBJECT), forged.to_bytes())))
    (out,) = b.machine.quarantined()
    assert out.node == "a"
    assert "which has made 1" in out.why
    assert list(b.value()) == ["mine"]
    assert b.machine.counters.shared_states_taken == 0


def test_somebody_who_writes_with_our_own_key_is_a_trouble() -> None:
    fleet = Fleet("a b").start()
    b = fleet["b"]
    b.add("x")
    fleet.run(1)
    b.hear("a", b.machine.objects[0].pool.all()[0].data)  # our own change, passed back
    assert b.machine.troubles() == []
    known = b.machine.counters.shared_known
    b.machine.objects[0].pool.drop_replica(b.replica().id)
    b.hear("a", signed(b, adds(b, "x")))
    assert b.machine.counters.shared_known == known + 1
    b.hear("a", signed(b, adds(b, "y", b.replica().store)))
    assert "a new incarnation" in b.machine.troubles()[0]
    assert list(b.value()) == ["x"]


def test_stores_that_differ_without_a_proof_shut_nobody_out() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    b.add("x")
    fleet.run(1)
    # The same changes are known to a, and something else is in its store.
    a.replica().store = EMPTY.apply(structs.replace(adds(b, "y")))
    a.machine.merged(OBJECT, a.replica().id, a.replica().store, a.moment)
    a.flush()
    a.machine.objects[0].pool.drop_replica(b.replica().id)
    fleet.run(60)
    assert b.machine.counters.shared_divergences == 1
    assert b.machine.objects[0].diverged
    assert "holds something else" in b.machine.troubles()[0]
    assert a.machine.quarantined() == b.machine.quarantined() == []
    a.add("and on")
    fleet.run(2)
    assert "and on" in b.value()


def test_a_divergence_that_goes_away_is_forgotten() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    b = fleet["b"]
    b.add("x")
    fleet.run(1)
    held = b.machine.objects[0]
    vector = held.store.context.vector()
    b.hear("a", said(fleet["a"], Vectors(held.id, bytes(16), vector, 0, bytes(8), 0)))
    assert list(held.diverged_ns) == ["a"]
    b.hear("a", said(fleet["a"], Vectors(held.id, held.store.digest(), vector, 0, bytes(8), 0)))
    assert list(held.diverged_ns) == []
    b.hear("a", said(fleet["a"], Vectors(held.id, bytes(16), vector, 0, bytes(8), 0)))
    b.hear("a", said(fleet["a"], Vectors(held.id, held.store.digest(), (), 0, bytes(8), 0)))
    assert list(held.diverged_ns) == []
    assert not held.diverged


def test_an_epoch_that_nobody_understands_is_asked_about() -> None:
    fleet = Fleet("a b").start()
    fleet["a"].add("x")
    fleet.run(1)
    b = fleet["b"]
    held = b.machine.objects[0]
    b.machine.step("a", said(fleet["a"], Vectors(held.id, bytes(16), (), 7, b"unknown.", 0)), b.moment)
    ready = b.machine.ready(b.moment)
    assert len(ready.datagrams) == 1
    b.machine.step("a", said(fleet["a"], Vectors(held.id, bytes(16), (), 7, b"unknown.", 0)), b.moment)
    assert b.machine.ready(b.moment).datagrams == ()  # not at once again


def test_what_does_not_fit_the_types_is_refused() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    counter = PNCounter.empty(PNCounter, "seen")
    assert isinstance(counter, PNCounter)
    wrong = mint(counter.add(1), EMPTY, a.replica().id, 0)
    b.hear("a", signed(a, wrong))
    b.hear("a", said(a, FullState(object_id(OBJECT), EMPTY.apply(wrong).to_bytes())))
    assert b.machine.counters.shared_misfits == 2
    assert len(b.machine.troubles()) == 2
    assert b.machine.quarantined() == []


def test_without_declared_types_everything_fits() -> None:
    fleet = Fleet("a b").start()
    b = fleet["b"]
    replica = id_of(b.key, b.incarnation, "Thing/other")
    b.machine.hold("Thing.seen/other", replica, "Thing/other", EMPTY, b.moment)
    delta = adds(fleet["a"], "x")
    b.machine.step("a", signed(fleet["a"], delta, "Thing.seen/other"), b.moment)
    assert len(b.machine.ready(b.moment).merges) == 1


def test_bad_bytes_in_good_envelopes_are_refused() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    change = read_frame(signed(a, adds(a, "x")))
    assert isinstance(change, Change)
    for bad in (
        write_frame(structs.replace(change, delta=b"no delta")),
        write_frame(structs.replace(change, address="Thing/other")),
        said(a, FullState(object_id(OBJECT), b"no store")),
        said(fleet["b"], FullState(object_id(OBJECT), EMPTY.to_bytes())),
        b"",
        b"\x12",
    ):
        before = b.machine.counters.shared_refused
        b.hear("a", bad)
        assert b.machine.counters.shared_refused == before + 1
    b.hear("a", said(a, FullState(object_id("nothing"), b"")))
    b.hear("a", said(a, Vectors(object_id("nothing"), bytes(16), (), 0, bytes(8), 0)))
    b.hear("a", write_frame(structs.replace(change, object=object_id("nothing"))))
    b.hear("a", said(a, Digests(bytes(8), bytes(8), ((object_id("nothing"), bytes(16)),))))
    assert b.machine.counters.shared_strange == 3
    known = b.machine.counters.shared_known
    b.hear("a", said(a, FullState(object_id(OBJECT), EMPTY.to_bytes())))
    assert b.machine.counters.shared_known == known + 1


def test_a_name_belongs_to_who_was_heard_first_until_it_leaves() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    b = fleet["b"]
    thief = Fleet("a b").start()["a"]
    thief.key = b"another key".ljust(32, b"\0")
    thief.start()
    refused = b.machine.counters.shared_refused
    b.hear("a", said(thief, FullState(object_id(OBJECT), EMPTY.to_bytes())))
    assert b.machine.counters.shared_refused == refused + 1
    b.machine.members([], b.moment)
    b.machine.members(["a"], b.moment)
    b.hear("a", said(thief, FullState(object_id(OBJECT), EMPTY.to_bytes())))
    assert b.machine.counters.shared_refused == refused + 1


def test_a_state_whose_stamps_are_ahead_waits_and_lww_is_checked() -> None:
    fleet = Fleet("a b", rules=Rules(skew_ns_max=SECOND_NS)).start(LWWRegister[str])
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    a.clock_off_ns = 10 * SECOND_NS
    register = a.value()
    delta = mint(register.set("ahead"), EMPTY, a.replica().id, a.moment.wall_ns)
    b.hear("a", said(a, FullState(object_id(OBJECT), EMPTY.apply(delta).to_bytes())))
    assert b.machine.counters.shared_skewed == 1
    assert b.value().value is None


def test_a_newer_state_takes_the_place_of_one_that_waits() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a, b = fleet["a"], fleet["b"]
    one = EMPTY.apply(adds(a, "x"))
    two = one.apply(adds(a, "y", one))
    for store in (two, one):
        b.machine.step("a", said(a, FullState(object_id(OBJECT), store.to_bytes())), b.moment)
    assert b.machine.counters.shared_states_taken == 1
    assert len(b.machine.ready(b.moment).merges) == 1


def test_a_change_that_builds_upon_a_forgotten_one_names_it() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    b = fleet["b"]
    waits = structs.replace(adds(fleet["a"], "x"), seen=(Dot(b"somebody", 3),))
    b.machine.step("a", signed(fleet["a"], waits), b.moment)
    ready = b.machine.ready(b.moment)
    assert ready.merges == ()
    assert len(ready.datagrams) == 1  # it asks
