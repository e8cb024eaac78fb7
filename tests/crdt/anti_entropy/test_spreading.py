"""Changes reach everybody who holds the object, over any network, and nobody else."""

import random

import pytest

from stigmergy.crdt.anti_entropy.held_object import PendingMerge
from stigmergy.crdt.anti_entropy.messages import CHANGE, Change, read_frame
from stigmergy.crdt.anti_entropy.rules import MILLISECOND_NS, Rules
from tests.crdt.anti_entropy.fleet import OBJECT, Fleet, PNCounter


def test_a_change_is_everywhere_at_once() -> None:
    fleet = Fleet("a b c").start()
    fleet.run(1)
    fleet["a"].add("x")
    fleet.run(0.02)
    assert fleet.converged()
    assert sorted(fleet["c"].value()) == ["x"]
    assert fleet.total("shared_resent") == 0


def test_own_changes_are_joined_and_signed_together() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a = fleet["a"]
    flush, a.flush = a.flush, lambda: None  # type: ignore[method-assign]
    a.add("x", "y", "z")
    a.flush = flush  # type: ignore[method-assign]
    a.flush()
    fleet.run(0.1)
    assert fleet.converged()
    assert (a.machine.counters.shared_written, a.machine.counters.shared_signed) == (3, 1)


def test_what_builds_upon_more_is_signed_apart() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    a = fleet["a"]
    flush, a.flush = a.flush, lambda: None  # type: ignore[method-assign]
    a.add("x")
    fleet["b"].add("y")
    a.replica().store = a.replica().store.join(fleet["b"].replica().store)
    a.add("z")
    a.flush = flush  # type: ignore[method-assign]
    a.flush()
    fleet.run(0.1)
    assert fleet.converged()
    assert a.machine.counters.shared_signed == 2


def test_much_at_once_is_handed_over_in_portions() -> None:
    fleet = Fleet("a b", rules=Rules(merge_bytes_max=500)).start()
    fleet.run(1)
    fleet["b"].crash()
    for number in range(20):
        fleet["a"].add(f"element {number}")
    sizes: list[int] = []

    def measured(hand: PendingMerge) -> bool:
        sizes.append(sum(len(delta) for delta in hand.deltas))
        return False

    fleet["b"].declines = measured
    fleet["b"].start()
    fleet.run(3)
    assert fleet.converged()
    assert max(sizes) <= 500
    assert len(sizes) > 3


def test_too_long_batches_are_not_joined() -> None:
    fleet = Fleet("a b", rules=Rules(batch_bytes_max=60)).start()
    fleet.run(1)
    a = fleet["a"]
    flush, a.flush = a.flush, lambda: None  # type: ignore[method-assign]
    a.add("x" * 30, "y" * 30, "z" * 30)
    a.flush = flush  # type: ignore[method-assign]
    a.flush()
    fleet.run(0.1)
    assert fleet.converged()
    assert a.machine.counters.shared_signed == 3


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(2, 8))])
def test_replicas_converge_over_a_bad_network(seed: int) -> None:
    """Loss, doubles, reordering, cuts and crashes; then everybody has the union of what is left of all writes."""
    chance = random.Random(seed)
    fleet = Fleet("a b c d e", seed).start()
    fleet.loss, fleet.doubling, fleet.delay_ns_max = 0.3, 0.1, 300 * MILLISECOND_NS
    expected: dict[str, None] = {}
    for number in range(120):
        if number % 30 == 10:
            side = chance.sample(fleet.names, 2)
            fleet.cut = lambda sender, to, side=side: (sender in side) != (to in side)  # type: ignore[misc]
        if number % 30 == 25:
            fleet.cut = lambda sender, to: False
        if number % 40 == 20:
            crashed = fleet[chance.choice(fleet.names)]
            crashed.crash()
            fleet.run(chance.random())
            crashed.start()
        member = fleet[chance.choice(fleet.names)]
        member.add(f"{member.name}-{number}")
        expected[f"{member.name}-{number}"] = None
        if chance.random() < 0.2 and len(member.value()):
            # Only what nobody else can add again, so that the outcome is known.
            element = chance.choice(sorted(member.value()))
            member.remove(element)
            expected.pop(element, None)
        fleet.run(chance.random() * 0.2)
    fleet.cut = lambda sender, to: False
    fleet.run_until_converged(60)
    assert sorted(fleet["a"].value()) == sorted(expected)
    for member in fleet.members.values():
        assert member.machine.quarantined() == []
        assert member.machine.troubles() == []
        assert member.machine.counters.shared_divergences == 0


def test_counters_converge_to_the_sum() -> None:
    fleet = Fleet("a b c", seed=3).start(PNCounter)
    fleet.loss = 0.3
    for number in range(60):
        member = fleet[fleet.chance.choice(fleet.names)]
        member.write(lambda value, number=number: value.add(number))  # type: ignore[misc]
        fleet.run(0.05)
    fleet.run_until_converged(30)
    assert [member.value().value for member in fleet.members.values()] == [sum(range(60))] * 3


def test_what_is_not_acknowledged_is_sent_again_and_then_left_to_digests() -> None:
    rules = Rules(interval_ns=3600 * 1000 * MILLISECOND_NS)
    fleet = Fleet("a b", rules=rules).start()
    fleet.run(2)
    lost = [0]

    def cut(sender: str, to: str) -> bool:
        lost[0] += sender == "a"
        return lost[0] <= 3

    fleet.cut = cut
    fleet["a"].add("x")
    fleet.run(3)
    assert fleet.converged()
    assert fleet["a"].machine.counters.shared_resent == 3
    fleet.cut = lambda sender, to: sender == "a"
    fleet["a"].add("y")
    fleet.run(60)
    assert fleet["a"].machine.counters.shared_resent == 3 + rules.resend_tries
    fleet.cut = lambda sender, to: False
    fleet.run(60)
    assert not fleet.converged()
    fleet.run(3600)
    assert fleet.converged()


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    fleet["b"].declines = lambda hand: True
    fleet["a"].add("x")
    fleet.run(0.1)
    assert not fleet.converged()
    assert fleet["a"].machine.counters.shared_resent == 0
    fleet.run(1)
    assert fleet["a"].machine.counters.shared_resent > 0
    assert fleet["b"].machine.counters.shared_declined > 0
    fleet["b"].declines = lambda hand: False
    fleet.run_until_converged(10)


def test_a_host_that_says_merged_and_has_not_is_not_asked_again_and_again() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    b = fleet["b"]
    b.merges = False
    fleet["a"].add("x")
    fleet.run(5)
    assert 1 <= b.machine.counters.shared_declined <= 6
    b.merges = True
    fleet.run_until_converged(5)


def test_with_many_peers_each_sends_to_few_and_all_hear_of_it() -> None:
    names = [f"n{number:02}" for number in range(40)]
    fleet = Fleet(names, seed=2, rules=Rules(interval_ns=20_000 * MILLISECOND_NS)).start()
    fleet.run(200)
    senders: dict[str, int] = {}

    def watch(sender: str, to: str, data: bytes) -> None:
        if data[0] == CHANGE:
            senders[sender] = senders.get(sender, 0) + 1

    fleet.watch = watch
    fleet["n00"].add("x")
    fleet.run(0.15)
    reached = sum("x" in member.value() for member in fleet.members.values())
    assert reached > 30  # an epidemic reaches nearly all; digests find the rest
    repaired = fleet.total("shared_repaired")
    assert sum(senders.values()) - repaired <= fleet.rules.fan_out * len(names)
    fleet.run_until_converged(400)


def test_only_those_who_hold_an_object_hear_of_it() -> None:
    fleet = Fleet("a b c").start()
    for name in "ab":
        fleet[name].hold("Thing.seen/zone")
    fleet.run(2)
    heard: dict[str, None] = {}

    def watch(sender: str, to: str, data: bytes) -> None:
        frame = read_frame(data)
        if isinstance(frame, Change) and frame.object == fleet["a"].machine.objects[1].id:
            heard[to] = None

    fleet.watch = watch
    fleet["a"].add("x", name="Thing.seen/zone")
    fleet.run(5)
    assert fleet.converged("Thing.seen/zone")
    assert list(heard) == ["b"]
    assert fleet["c"].machine.counters.shared_strange == 0


def test_a_node_that_begins_to_hold_an_object_is_told_of_it() -> None:
    fleet = Fleet("a b").start()
    fleet["a"].hold("Thing.seen/zone")
    fleet["a"].add("x", name="Thing.seen/zone")
    fleet.run(2)
    fleet["b"].hold("Thing.seen/zone")
    fleet.run(2)
    assert fleet.converged("Thing.seen/zone")


def test_an_object_that_is_released_is_not_talked_about() -> None:
    fleet = Fleet("a b").start()
    fleet.run(2)
    b = fleet["b"]
    replica = b.replica()
    fleet["a"].add("x")
    b.machine.release(OBJECT, replica.id, b.moment)
    b.machine.release(OBJECT, replica.id, b.moment)
    fleet.run(1)
    assert b.machine.counters.shared_strange > 0
    fleet.run(2)
    strange = b.machine.counters.shared_strange
    fleet["a"].add("y")
    fleet.run(3)
    assert b.machine.counters.shared_strange == strange
    assert b.machine.objects == []


def test_two_agents_of_one_node_share_an_object() -> None:
    fleet = Fleet("a b").start()
    second = fleet["a"].hold(agent="2")
    fleet.run(1)
    fleet["a"].add("x")
    fleet["a"].write(lambda value: value.add("y"), second)
    fleet["b"].add("z")
    fleet.run(1)
    assert fleet.converged()
    assert sorted(fleet["a"].value(second)) == ["x", "y", "z"]


def test_a_neighbour_that_declines_is_fed_again_later() -> None:
    fleet = Fleet("a").start()
    a = fleet["a"]
    second = a.hold(agent="2")
    a.declines = lambda hand: True
    a.add("x")
    fleet.run(0.5)
    assert list(a.value(second)) == []
    assert a.machine.counters.shared_declined == 1
    a.declines = lambda hand: False
    fleet.run(1)
    assert sorted(a.value(second)) == ["x"]


def test_an_agent_that_comes_late_is_fed_from_its_neighbour_on_the_node() -> None:
    fleet = Fleet("a b", rules=Rules(buffer_count_max=2)).start()
    fleet.run(1)
    fleet["a"].add("w", "x", "y", "z")
    fleet.run(1)
    fleet.cut = lambda sender, to: True
    late = fleet["a"].hold(agent="2")
    fleet["a"].machine.release(OBJECT, b"nobody..", fleet["a"].moment)
    fleet.run(1)
    assert sorted(fleet["a"].value(late)) == ["w", "x", "y", "z"]
    fleet["a"].machine.release(OBJECT, late.id, fleet["a"].moment)
    fleet["a"].replicas.pop((OBJECT, late.id))
    fleet["a"].add("v")
    fleet.cut = lambda sender, to: False
    fleet.run(3)
    assert fleet.converged()


def test_a_link_with_its_own_interval_is_used_that_often() -> None:
    rules = Rules(interval_ns_by_peer={"c": 10_000 * MILLISECOND_NS})
    fleet = Fleet("a b c", rules=rules).start()
    fleet.run(5)
    counts = {"b": 0, "c": 0}

    def watch(sender: str, to: str, data: bytes) -> None:
        if sender == "a":
            counts[to] += 1

    fleet.watch = watch
    fleet.run(100)
    assert 90 <= counts["b"] <= 110
    assert 9 <= counts["c"] <= 11


def test_who_leaves_is_forgotten_and_welcome_again() -> None:
    fleet = Fleet("a b").start()
    fleet.run(1)
    fleet["b"].crash()
    fleet["a"].add("x")
    fleet.run(0.1)
    assert (fleet["a"].machine.peers_count, fleet["a"].machine.unacknowledged_count) == (1, 1)
    fleet["a"].machine.members([], fleet["a"].moment)
    assert (fleet["a"].machine.peers_count, fleet["a"].machine.unacknowledged_count) == (0, 0)
    fleet["a"].hear("b", b"\x12")
    assert fleet["a"].machine.counters.shared_strange == 1
    assert fleet["a"].machine.next_ns is None
    fleet.run(10)
    fleet["a"].machine.members(["a", "b"], fleet["a"].moment)
    fleet["b"].start()
    fleet.run(3)
    assert fleet.converged()


def test_thousands_of_objects_are_held_without_delay() -> None:
    """Counted in work, not in seconds: the list of interests is made once, however many come."""
    a = Fleet("a b").start()["a"]
    for number in range(3_000):
        a.machine.hold(f"Thing.seen/{number}", a.replica().id, "Thing/a", a.replica().store, a.moment)
        assert a.machine._context._interests is None
    assert len(a.machine._context.interests) == 8 * 3_001
    assert a.machine._context.interests is a.machine._context.interests
