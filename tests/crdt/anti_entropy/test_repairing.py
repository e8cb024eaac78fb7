"""What was lost is found by digests: changes while they are kept, else the whole state; and nobody is ever revived."""

import pytest

from stigmergy.crdt.anti_entropy.held_object import NO_EPOCH
from stigmergy.crdt.anti_entropy.messages import PART, SignedMessage, Vectors, read_frame, read_message
from stigmergy.crdt.anti_entropy.rules import SECOND_NS, Rules
from tests.crdt.anti_entropy.fleet import OBJECT, Fleet, LWWRegister


def cut_off(name: str) -> object:
    return lambda sender, to: name in {sender, to}


def test_changes_that_are_kept_are_sent_to_who_lacks_them() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    fleet["c"].crash()
    fleet["a"].add("x", "y")
    fleet["b"].add("z")
    fleet.run(20)
    fleet["c"].start()
    fleet.run(3)
    assert fleet.converged()
    assert fleet.total("shared_repaired") > 0
    assert fleet.total("shared_states_sent") == 0


def test_without_the_changes_the_state_goes_over_in_parts() -> None:
    fleet = Fleet("a b", rules=Rules(buffer_count_max=4, parts_asked_max=3)).start()
    fleet.run(1)
    fleet["b"].crash()
    fleet["a"].add(*(f"element {number}" for number in range(400)))
    fleet["b"].add("unseen")
    fleet["b"].start()
    fleet.loss = 0.3
    fleet.run_until_converged(60)
    assert len(fleet["b"].value()) == 401
    assert fleet["a"].machine.counters.shared_states_sent > 0
    assert fleet["b"].machine.counters.shared_states_taken > 0


def test_after_a_crash_of_all_nothing_is_needed_but_the_stores() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    fleet.cut = lambda sender, to: True
    for member in fleet.members.values():
        member.add(f"from {member.name}")
    fleet.run(1)
    for member in fleet.members.values():
        member.crash()
    fleet.run(1)
    fleet.cut = lambda sender, to: False
    for member in fleet.members.values():
        member.start()
    fleet.run_until_converged(20)
    assert sorted(fleet["a"].value()) == ["from a", "from b", "from c"]


def test_a_large_change_travels_in_parts() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1.5)
    parts = [0]

    def watch(sender: str, to: str, data: bytes) -> None:
        parts[0] += data[0] == PART

    fleet.watch = watch
    fleet["a"].add("long " * 700)
    fleet.run(0.5)
    assert fleet.converged()
    assert parts[0] == 4


def test_parts_that_are_lost_are_asked_for_again() -> None:
    fleet = Fleet("a b", rules=Rules(resend_ns=3600 * SECOND_NS, interval_ns=3600 * SECOND_NS)).start()
    fleet.run(1.5)
    lost = [0]
    send = fleet.send

    def send_some(sender: str, to: str, data: bytes) -> None:
        lost[0] += data[0] == PART
        if data[0] != PART or lost[0] > 2:
            send(sender, to, data)

    fleet.send = send_some  # type: ignore[method-assign]
    fleet["a"].add("long " * 700)
    fleet.run(1)
    assert fleet.converged()


def test_what_is_too_large_for_parts_is_a_trouble() -> None:
    fleet = Fleet("a b", rules=Rules(body_bytes_max=2000)).start()
    fleet.run(1)
    fleet["a"].add("long " * 700)
    fleet.run(1)
    assert not fleet.converged()
    assert fleet["a"].machine.counters.shared_too_large > 0
    assert "divide it into groups" in fleet["a"].machine.troubles()[0]


def test_long_repairs_take_turns() -> None:
    fleet = Fleet("a b", rules=Rules(repair_bytes_max=2000)).start()
    fleet.run(1)
    fleet["b"].crash()
    fleet["a"].add(*(f"element {number}" for number in range(40)))
    fleet.run(10)  # by then it is not sent again by itself
    fleet["b"].start()
    fleet.run(1)
    assert 0 < len(fleet["b"].value()) < 40
    fleet.run(10)
    assert fleet.converged()


def test_a_change_waits_for_those_before_it_and_asks_for_them() -> None:
    fleet = Fleet("a b", rules=Rules(interval_ns=3600 * SECOND_NS, resend_ns=3600 * SECOND_NS)).start()
    fleet.run(1)
    fleet.cut = lambda sender, to: True
    fleet["a"].add("x")
    fleet.run(0.1)
    fleet.cut = lambda sender, to: False
    fleet["a"].add("y")
    fleet.run(0.1)
    assert fleet.converged()


def test_a_change_waits_for_what_its_author_had_seen() -> None:
    """Node c hears of b's removal before it hears of a's addition: the removal has to wait."""
    fleet = Fleet("a b c", rules=Rules(interval_ns=3600 * SECOND_NS, resend_ns=3600 * SECOND_NS)).start()
    fleet.run(1)
    fleet.cut = lambda sender, to: (sender, to) == ("a", "c") or (sender, to) == ("c", "b")
    fleet["a"].add("x")
    fleet.run(0.1)
    fleet["b"].remove("x")
    fleet["b"].add("y")
    fleet.run(0.2)
    assert list(fleet["c"].value()) == []
    assert len(fleet["c"].machine.objects[0].waiting) == 2
    fleet.cut = lambda sender, to: False
    fleet["b"].add("z")
    fleet.run(0.2)
    assert fleet.converged()
    assert sorted(fleet["c"].value()) == ["y", "z"]


def test_what_waits_is_bounded_and_comes_again() -> None:
    rules = Rules(waiting_count_max=5, ask_ns=3600 * SECOND_NS, resend_ns=3600 * SECOND_NS)
    fleet = Fleet("a b", rules=rules).start()
    fleet.run(1.5)
    fleet.cut = lambda sender, to: True
    fleet["a"].add("lost")
    fleet.run(0.01)
    fleet.cut = lambda sender, to: (sender, to) == ("b", "a")
    fleet["a"].add(*(f"element {number}" for number in range(20)))
    fleet.run(0.1)
    assert len(fleet["b"].machine.objects[0].waiting) <= 5
    assert fleet["b"].machine.counters.shared_dropped >= 15
    fleet.cut = lambda sender, to: False
    fleet.run_until_converged(20)


def test_the_buffer_is_bounded() -> None:
    rules = Rules(buffer_bytes_max=3000, buffer_count_max=50)
    fleet = Fleet("a b", rules=rules).start()
    fleet.run(1)
    for number in range(100):
        fleet["a"].add(f"element {number}")
        fleet.run(0.01)
    for member in fleet.members.values():
        pool = member.machine.objects[0].pool
        assert 0 < len(pool) <= 50
        assert pool.size_bytes <= 3000
        assert pool.size_bytes == sum(len(kept.data) for kept in pool.all())
    assert fleet.converged()


def test_many_objects_take_turns_in_digests() -> None:
    fleet = Fleet("a b", rules=Rules(digests_count_max=10)).start()
    names = [f"Thing.seen/{number}" for number in range(100)]
    for name in names:
        fleet["a"].hold(name)
        fleet["b"].hold(name)
    fleet.run(2)
    fleet.cut = lambda sender, to: True
    for name in names:
        fleet["a"].add("x", name=name)
    fleet.run(20)
    fleet.cut = lambda sender, to: False
    fleet.run(15)
    assert all(fleet.converged(name) for name in names)


def test_a_stamp_far_ahead_waits_until_our_clock_is_there() -> None:
    fleet = Fleet("a b", rules=Rules(skew_ns_max=5 * SECOND_NS)).start(LWWRegister[str])
    fleet.run(1)
    fleet["a"].clock_off_ns = 20 * SECOND_NS
    fleet["a"].write(lambda value: value.set("from the future"))
    fleet["a"].write(lambda value: value.set("and more"))
    fleet.run(5)
    assert fleet["b"].value().value is None
    assert fleet["b"].machine.counters.shared_skewed > 0
    fleet.run(14)
    assert fleet["b"].value().value == "and more"


def test_a_state_with_a_stamp_far_ahead_is_not_taken_either() -> None:
    rules = Rules(skew_ns_max=5 * SECOND_NS, buffer_count_max=1)
    fleet = Fleet("a b", rules=rules).start(LWWRegister[str])
    fleet.run(1)
    fleet.cut = lambda sender, to: True
    fleet["a"].clock_off_ns = 20 * SECOND_NS
    fleet["a"].write(lambda value: value.set("from the future"))
    fleet["a"].write(lambda value: value.set("and more"))
    fleet.run(1)
    fleet.cut = lambda sender, to: False
    fleet.run(5)
    assert fleet["b"].value().value is None
    fleet.run(20)
    assert fleet["b"].value().value == "and more"


# Returns after any absence.


def absence(fleet: Fleet, away: str, *, crash: bool = True) -> None:
    """Somebody is cut off; the others remove and add, often enough that no buffer has it any more; then it is back."""
    others = [name for name in fleet.names if name != away]
    fleet[others[0]].add(*(f"old {number}" for number in range(10)))
    fleet.run_until_converged(20)
    fleet.cut = cut_off(away)  # type: ignore[assignment]
    fleet[away].add("unseen")
    fleet[away].remove("old 9")
    fleet.run(1)
    for number in range(9):
        fleet[others[number % len(others)]].remove(f"old {number}")
        fleet.run(0.1)
    if crash:
        fleet[away].crash()
    fleet.run(100)
    for number in range(20):
        fleet[others[0]].add(f"new {number}")
        fleet.run(0.1)
    if crash:
        fleet[away].start()
    fleet.cut = lambda sender, to: False
    fleet.run_until_converged(30)


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("kept", [4096, 3])
def test_who_returns_after_any_absence_revives_nothing_and_loses_nothing(kept: int, crash: bool) -> None:
    rules = Rules(buffer_count_max=kept, retire_ns=10 * SECOND_NS)
    fleet = Fleet("a b c", rules=rules).start()
    fleet.run(1)
    absence(fleet, "c", crash=crash)
    assert sorted(fleet["c"].value()) == sorted(["unseen", *(f"new {number}" for number in range(20))])
    fleet["c"].add("again")
    fleet.run(2)
    assert fleet.converged()


def vectors_of(fleet: Fleet, seconds: float) -> list[Vectors]:
    found: list[Vectors] = []

    def watch(sender: str, to: str, data: bytes) -> None:
        frame = read_frame(data)
        if isinstance(frame, SignedMessage):
            message = read_message(frame.body)
            if isinstance(message, Vectors):
                found.append(message)

    fleet.watch = watch
    fleet.run(seconds)
    return found


def test_the_silent_leave_the_vectors_and_come_back_when_they_write() -> None:
    fleet = Fleet("a b c", rules=Rules(retire_ns=30 * SECOND_NS)).start()
    fleet["c"].add("x")
    fleet.run_until_converged(10)
    fleet["c"].crash()
    fleet.run(40)
    fleet.loss = 0.5
    for number in range(10):
        fleet["a"].add(f"a {number}")
    told = vectors_of(fleet, 5)
    replica = fleet["c"].replica().id
    assert told
    assert all(replica not in dict(one.vector) for one in told if one.retired_count)
    assert any(one.retired_count == 1 and one.retired != NO_EPOCH for one in told)
    fleet.loss = 0
    fleet["c"].start()
    fleet["c"].add("y")
    fleet.run_until_converged(20)
    assert {"x", "y"} <= set(fleet["a"].value())


def test_two_halves_that_retire_different_replicas_find_together() -> None:
    rules = Rules(retire_ns=20 * SECOND_NS, buffer_count_max=2)
    fleet = Fleet("a b c d e f", seed=5, rules=rules).start()
    for name in fleet.names:
        fleet[name].add(f"{name} 1", f"{name} 2")
    fleet.run_until_converged(20)
    fleet["e"].crash()
    fleet["f"].crash()
    left = {"a", "b"}
    fleet.cut = lambda sender, to: (sender in left) != (to in left)
    assert fleet["a"].machine.retire(OBJECT, fleet["e"].replica().id, fleet["a"].moment)
    assert fleet["c"].machine.retire(OBJECT, fleet["f"].replica().id, fleet["c"].moment)
    assert not fleet["c"].machine.retire(OBJECT, b"no such.", fleet["c"].moment)
    assert not fleet["c"].machine.retire(OBJECT, fleet["c"].replica().id, fleet["c"].moment)
    assert not fleet["c"].machine.retire("no such object", fleet["f"].replica().id, fleet["c"].moment)
    fleet["a"].remove("e 1")
    fleet["a"].remove("f 1")
    fleet["c"].remove("e 2")
    fleet["c"].remove("f 2")
    fleet["c"].remove("a 1")
    fleet.run(60)
    fleet["b"].add("b 3")
    fleet["d"].add("d 3")
    fleet.run(10)
    fleet.cut = lambda sender, to: False
    fleet["e"].add("e 3")
    fleet.loss = 0.2
    fleet["e"].start()
    fleet["f"].start()
    fleet.run_until_converged(60)
    assert sorted(fleet["f"].value()) == ["a 2", "b 1", "b 2", "b 3", "c 1", "c 2", "d 1", "d 2", "d 3", "e 3"]


def test_interval_and_resends_need_no_busy_waiting() -> None:
    fleet = Fleet("a b").start()
    fleet["a"].add("x")
    fleet.run(5)
    before = fleet.sent
    fleet.run(100)
    assert fleet.sent - before <= 2 * 101
    next_ns = fleet["a"].machine.next_ns
    assert next_ns is not None
    assert next_ns > fleet.now_ns
