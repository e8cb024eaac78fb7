"""Shared fields: declared, written by decisions, merged from peers, and the same after a replay."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy import (
    Agent,
    Command,
    Effects,
    Event,
    Events,
    GCounter,
    LWWRegister,
    Merged,
    ORMap,
    ORSet,
    Publish,
    Shared,
    SharedChanged,
    decide,
    evolve,
    field,
    react,
    reject,
    shared,
)
from stigmergy.agents.codec import canonical_bytes, encode, tag_of
from stigmergy.agents.shared import (
    DELTAS_BYTES_MAX,
    OBJECT_BYTES_MAX,
    STATE_BYTES_MAX,
    SharedField,
    replica_id,
    replica_incarnation,
    replica_seed,
)
from stigmergy.base.errors import DefinitionError
from stigmergy.crdt.delta import read_delta
from stigmergy.shard.commit import open_commit
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import Accepted, Ask, Delivery, Refused, SharedReceived
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import ShardState, plan_agents

NOW_NS = 1_000_000_000_000


class VehicleArrived(Event):
    vehicle: str


class VehicleLeft(Event):
    vehicle: str


class ChangePhase(Command):
    phase: str


class CountTwice(Command):
    pass


class Counted(Event):
    total: int


class Seen(Event):
    vehicles: int


class FailNow(Command):
    after: bool = False


def street_of(name: str) -> str:
    """Intersections `A-1` and `A-2` are on street A."""
    return name.partition("-")[0]


class Intersection(Agent):
    phase: Shared[LWWRegister[str]]
    vehicles: Shared[ORSet[str]]
    street: Shared[ORMap[str, LWWRegister[str]]] = shared(by=street_of)
    passed: Shared[GCounter] = shared(by="city")
    merges: int = 0
    seen: int = 0

    @decide
    def arrived(self, event: VehicleArrived) -> Events:
        yield event
        yield self.vehicles.add(event.vehicle)

    @decide
    def left(self, event: VehicleLeft) -> Events:
        yield event
        yield self.vehicles.remove(event.vehicle)

    @decide
    def change(self, command: ChangePhase) -> Events:
        if not command.phase:
            yield self.phase.set("never")
            reject("name a phase")
        yield self.phase.set(command.phase)
        yield self.street[self.id].set(command.phase)

    @decide
    def count(self, command: CountTwice) -> Events:
        del command
        yield self.passed.add(1)
        yield self.passed.add(2)
        yield Counted(total=self.passed.value)

    @decide
    def fail(self, command: FailNow) -> Events:
        yield self.vehicles.add("lost")
        if command.after:
            raise RuntimeError("on purpose")

    @evolve
    def merged(self, event: Merged) -> None:
        if event.field == "vehicles" and "poison" in self.vehicles:
            raise RuntimeError("cannot stand this one")
        self.merges += 1

    @decide
    def look(self, event: Merged) -> Events:
        if event.field == "vehicles":
            yield Seen(vehicles=len(self.vehicles))
        if event.field == "phase" and self.phase.value == "reject":
            reject("no")

    @evolve
    def looked(self, event: Seen) -> None:
        self.seen = event.vehicles

    @react
    def tell(self, event: Merged) -> Effects:
        yield Publish(topic="merged", event=event)


PLANS = plan_agents([Intersection])


class Node:
    """A shard with a key of its own, and all that it has committed."""

    def __init__(self, name: str = "node") -> None:
        self.state = ShardState(0, PLANS)
        self.state.replica_seed = replica_seed("fleet", name.encode().ljust(32), 1)
        self.shard = Shard(self.state)
        self.now_ns = NOW_NS
        self.readies: list[Ready] = []
        self.untaken: list[Exception] = []

    def step(self, *inputs: Any) -> Ready | None:
        self.now_ns += 1_000_000
        stepped = self.shard.step(list(inputs), self.now_ns)
        assert not stepped.left
        self.untaken += [error for _, error in stepped.untaken]
        ready = self.shard.seal()
        if ready is not None:
            self.readies.append(ready)
        return ready

    def observe(self, address: str, event: Event) -> Ready | None:
        return self.step(Delivery(source="test", items=[(address, encode(event))]))

    def ask(self, address: str, command: Command) -> Any:
        ready = self.step(Ask(agent=address, command_id=f"c{len(self.readies)}", command=encode(command)))
        assert ready is not None
        return ready.verdicts[0][1]

    def agent(self, address: str) -> Any:
        return self.state.agents[address]

    def deltas(self, address: str, field_name: str, since: int = 0) -> tuple[bytes, ...]:
        """What this node's agent has written, for peers."""
        return tuple(
            event.delta
            for ready in self.readies[since:]
            for whose, event in ready.shared
            if whose == address and isinstance(event, SharedChanged) and event.field == field_name
        )

    def replayed(self) -> ShardState:
        again = ShardState(0, PLANS)
        for ready in self.readies:
            apply(again, open_commit(ready.sealed.body), ready.sealed.digest)
        return again

    def check_replay(self) -> None:
        assert digest_of_state(self.replayed()) == digest_of_state(self.state)


ONE = "Intersection/A-1"
TWO = "Intersection/A-2"


def test_a_write_is_applied_at_once_and_kept() -> None:
    node = Node()
    ready = node.observe(ONE, VehicleArrived(vehicle="V-1"))
    assert ready is not None
    assert [tag_of(body) for _, body in ready.commit.events] == ["VehicleArrived@1", "stigmergy.SharedChanged@1"]
    assert list(node.agent(ONE).vehicles) == ["V-1"]
    node.observe(ONE, VehicleLeft(vehicle="V-1"))
    assert list(node.agent(ONE).vehicles) == []
    node.check_replay()


def test_the_host_hears_of_new_holders_and_of_changes() -> None:
    node = Node()
    ready = node.observe(ONE, VehicleArrived(vehicle="V-1"))
    assert ready is not None
    assert [(address, type(event)) for address, event in ready.shared] == [(ONE, type(None)), (ONE, SharedChanged)]


def test_writes_of_one_decision_add_up() -> None:
    node = Node()
    assert isinstance(node.ask(ONE, CountTwice()), Accepted)
    assert node.agent(ONE).passed.value == 3
    deltas = [read_delta(body) for body in node.deltas(ONE, "passed")]
    assert [(delta.first, delta.last) for delta in deltas] == [(1, 1), (2, 2)]
    node.check_replay()


def test_a_refused_command_and_a_failing_handler_write_nothing() -> None:
    node = Node()
    node.observe(ONE, VehicleArrived(vehicle="V-1"))
    before = canonical_bytes(node.agent(ONE))
    assert node.ask(ONE, ChangePhase(phase="")) == Refused("name a phase")
    assert isinstance(node.ask(ONE, FailNow(after=True)), Refused)
    assert canonical_bytes(node.agent(ONE)) == before
    assert not node.deltas(ONE, "vehicles", since=1)
    # The counter that the failed write would have had is free: peers would wait for it for ever.
    node.observe(ONE, VehicleArrived(vehicle="V-2"))
    assert [read_delta(body).first for body in node.deltas(ONE, "vehicles")] == [1, 2]
    node.check_replay()


def test_peers_converge_and_say_so_once() -> None:
    left, right = Node("left"), Node("right")
    left.observe(ONE, VehicleArrived(vehicle="V-1"))
    right.observe(ONE, VehicleArrived(vehicle="V-2"))
    received = SharedReceived(agent=ONE, field="vehicles", deltas=left.deltas(ONE, "vehicles"))
    ready = right.step(received)
    assert ready is not None
    assert [tag_of(body) for _, body in ready.commit.events] == ["stigmergy.Merged@1", "Seen@1"]
    assert [owed.sink for owed in ready.commit.owed] == ["publish"]
    assert list(right.agent(ONE).vehicles) == ["V-1", "V-2"]
    assert (right.agent(ONE).merges, right.agent(ONE).seen) == (1, 2)
    assert right.step(received) is None
    left.step(SharedReceived(agent=ONE, field="vehicles", deltas=right.deltas(ONE, "vehicles")))
    assert left.agent(ONE).vehicles == right.agent(ONE).vehicles
    left.check_replay()
    right.check_replay()


def test_replicas_of_two_agents_of_one_node_are_two() -> None:
    node = Node()
    node.ask(ONE, ChangePhase(phase="green"))
    node.ask(TWO, ChangePhase(phase="red"))
    node.step(SharedReceived(agent=TWO, field="street", deltas=node.deltas(ONE, "street")))
    street = node.agent(TWO).street
    assert {name: street[name].value for name in street} == {"A-1": "green", "A-2": "red"}
    replicas = {read_delta(body).replica for address in (ONE, TWO) for body in node.deltas(address, "street")}
    assert len(replicas) == 2


def test_who_shares_a_field() -> None:
    fields: dict[str, Any] = PLANS["Intersection"].shared
    assert fields["phase"].object_of("Intersection", "A-1") == "Intersection.phase/A-1"
    assert fields["street"].object_of("Intersection", "A-1") == "Intersection.street/A"
    assert fields["passed"].object_of("Intersection", "A-1") == "Intersection.passed/city"
    wrong = SharedField(name="x", by=lambda name: f"{name} with a blank", initial=fields["phase"].initial)
    with pytest.raises(DefinitionError, match="it must return a text"):
        wrong.object_of("Intersection", "A-1")
    nothing: Any = lambda name: None  # noqa: E731
    with pytest.raises(DefinitionError, match="says None"):
        SharedField(name="x", by=nothing, initial=fields["phase"].initial).object_of("Intersection", "A-1")


def test_replica_ids_differ_by_key_incarnation_fleet_and_agent() -> None:
    seeds = {replica_seed(fleet, key, number) for fleet in "ab" for key in (b"k" * 32, b"l" * 32) for number in (1, 2)}
    assert len(seeds) == 8
    seed = replica_seed("fleet", b"k" * 32, 1)
    assert len({replica_id(seed, address) for seed in seeds for address in (ONE, TWO)}) == 16
    assert len(replica_id(seed, ONE)) == 8


def test_the_whole_state_of_an_object() -> None:
    left, right = Node("left"), Node("right")
    for number in range(3):
        left.observe(ONE, VehicleArrived(vehicle=f"V-{number}"))
    right.observe(ONE, VehicleArrived(vehicle="V-9"))
    state = left.agent(ONE).vehicles.store.to_bytes()
    right.step(SharedReceived(agent=ONE, field="vehicles", state=state))
    assert list(right.agent(ONE).vehicles) == ["V-0", "V-1", "V-2", "V-9"]
    assert right.step(SharedReceived(agent=ONE, field="vehicles", state=state)) is None
    right.check_replay()


def test_changes_with_a_gap_before_them_are_not_taken() -> None:
    left, right = Node("left"), Node("right")
    left.observe(ONE, VehicleArrived(vehicle="V-1"))
    left.observe(ONE, VehicleArrived(vehicle="V-2"))
    right.observe(ONE, VehicleArrived(vehicle="V-9"))
    assert right.step(SharedReceived(agent=ONE, field="vehicles", deltas=left.deltas(ONE, "vehicles")[1:])) is None
    assert type(right.untaken[0]).__name__ == "SequenceGap"
    assert list(right.agent(ONE).vehicles) == ["V-9"]


@pytest.mark.parametrize(
    ("received", "said"),
    [
        (SharedReceived(agent="Intersection/A-7", field="vehicles"), "is not here"),
        (SharedReceived(agent=ONE, field="seen"), "no shared field"),
        (SharedReceived(agent=ONE, field="vehicles", deltas=(b"nonsense",)), "vehicles"),
        (SharedReceived(agent=ONE, field="vehicles", state=b"nonsense"), "vehicles"),
        (SharedReceived(agent=ONE, field="vehicles", deltas=(bytes(DELTAS_BYTES_MAX + 1),)), "at most"),
        (SharedReceived(agent=ONE, field="vehicles", state=bytes(STATE_BYTES_MAX + 1)), "at most"),
    ],
)
def test_what_is_none_of_ours_changes_nothing(received: SharedReceived, said: str) -> None:
    node = Node()
    node.observe(ONE, VehicleArrived(vehicle="V-1"))
    before = digest_of_state(node.state)
    assert node.step(received) is None
    assert said in str(node.untaken[0])
    assert digest_of_state(node.state) == before


def test_a_handler_that_fails_on_a_merge_does_not_undo_it() -> None:
    left, right = Node("left"), Node("right")
    left.observe(ONE, VehicleArrived(vehicle="poison"))
    right.observe(ONE, VehicleArrived(vehicle="V-2"))
    ready = right.step(SharedReceived(agent=ONE, field="vehicles", deltas=left.deltas(ONE, "vehicles")))
    assert ready is not None
    assert [tag_of(body) for _, body in ready.commit.events] == ["stigmergy.Merged@1", "stigmergy.InputFailed@1"]
    assert "poison" in right.agent(ONE).vehicles
    assert right.agent(ONE).merges == 0
    right.check_replay()


def test_a_fact_cannot_be_refused() -> None:
    left, right = Node("left"), Node("right")
    left.ask(ONE, ChangePhase(phase="reject"))
    right.observe(ONE, VehicleArrived(vehicle="V-2"))
    right.step(SharedReceived(agent=ONE, field="phase", deltas=left.deltas(ONE, "phase")))
    assert right.agent(ONE).phase.value == "reject"
    assert "a fact cannot be refused" in right.state.letters.all()[0].error


def test_an_object_that_grows_too_large_refuses_the_write() -> None:
    node = Node()
    name = "x" * 900
    for number in range(OBJECT_BYTES_MAX // 900 + 2):
        node.observe(ONE, VehicleArrived(vehicle=f"{name}{number}"))
    assert node.agent(ONE).vehicles.store.size_bytes <= OBJECT_BYTES_MAX
    assert "spread it over several groups" in node.state.letters.all()[-1].error
    assert len(node.agent(ONE).vehicles.store.to_bytes()) <= OBJECT_BYTES_MAX


def test_what_others_have_made_too_large_can_be_made_smaller_again() -> None:
    left, right = Node("left"), Node("right")
    for number in range(180):
        left.observe(ONE, VehicleArrived(vehicle=f"{number}{'l' * 3_500}"))
    for number in range(20):
        right.observe(ONE, VehicleArrived(vehicle=f"{number}{'r' * 3_500}"))
    right.step(SharedReceived(agent=ONE, field="vehicles", state=left.agent(ONE).vehicles.store.to_bytes()))
    size_bytes = right.agent(ONE).vehicles.store.size_bytes
    assert size_bytes > OBJECT_BYTES_MAX
    right.observe(ONE, VehicleArrived(vehicle="one more"))
    assert "spread it over several groups" in right.state.letters.all()[-1].error
    right.observe(ONE, VehicleLeft(vehicle=f"7{'l' * 3_500}"))
    assert right.agent(ONE).vehicles.store.size_bytes < size_bytes
    assert "spread it" in right.state.letters.all()[-1].error
    right.check_replay()


def test_large_merges_wait_for_a_commit_of_their_own() -> None:
    left, right = Node("left"), Node("right")
    for number in range(150):
        left.observe(ONE, VehicleArrived(vehicle=f"{number}{'x' * 900}"))
    right.observe(ONE, VehicleArrived(vehicle="V-2"))
    state = left.agent(ONE).vehicles.store.to_bytes()
    assert len(state) > 120_000
    batch = Delivery(source="test", items=[(ONE, encode(VehicleArrived(vehicle=f"{n}{'y' * 700}"))) for n in range(80)])
    received = SharedReceived(agent=ONE, field="vehicles", state=state)
    stepped = right.shard.step([batch, received], NOW_NS * 2)
    assert stepped.left == [received]
    assert stepped.wait_ns == 0
    right.shard.seal()
    assert right.shard.step([received], NOW_NS * 2).left == []


def test_a_snapshot_holds_shared_fields() -> None:
    node = Node()
    node.observe(ONE, VehicleArrived(vehicle="V-1"))
    node.ask(ONE, ChangePhase(phase="green"))
    restored = PLANS["Intersection"].restore(canonical_bytes(node.agent(ONE)))
    assert restored == node.agent(ONE)
    assert restored.phase.value == "green"
    assert canonical_bytes(restored) == canonical_bytes(node.agent(ONE))


class Mixed(Agent):
    names: list[str] = field(default_factory=list)
    both: Shared[ORSet[str]]

    @decide
    def arrived(self, event: VehicleArrived) -> Events:
        yield event
        yield self.both.add(event.vehicle)

    @evolve
    def keep(self, event: VehicleArrived) -> None:
        self.names.append(event.vehicle)


class Lorry(Mixed):
    cargo: Shared[ORSet[str]]


def test_agents_with_mutable_fields_and_inherited_ones() -> None:
    plans = plan_agents([Lorry])
    assert list(plans["Lorry"].shared) == ["both", "cargo"]
    shard = Shard(ShardState(0, plans))
    shard.step([Delivery(source="t", items=[("Lorry/1", encode(VehicleArrived(vehicle="a")))])], NOW_NS)
    lorry = shard.state.agents["Lorry/1"]
    assert (lorry.names, list(lorry.both), list(lorry.cargo)) == (["a"], ["a"], [])


def test_declarations_that_cannot_be() -> None:
    with pytest.raises(DefinitionError, match=r"shared\(by='a b'\)"):
        shared(by="a b")
    with pytest.raises(DefinitionError, match="int does not converge"):

        class Plain(Agent):
            count: Shared[int]

    with pytest.raises(DefinitionError, match="begins empty"):

        class Given(Agent):
            count: Shared[GCounter] = 3  # type: ignore[assignment]

    with pytest.raises(DefinitionError, match=r"annotate it with Shared\[…\]"):

        class Bare(Agent):
            count: int = shared(by="x")

    with pytest.raises(DefinitionError, match="which the framework fills"):

        class Assigns(Agent):
            count: Shared[GCounter]

            @evolve
            def merged(self, event: Merged) -> None:
                self.count = event  # type: ignore[assignment]


def test_a_write_to_a_field_of_another_class() -> None:
    class Counting(Event):
        pass

    foreign: Any = PLANS["Intersection"].shared["vehicles"].initial

    class Careless(Agent):
        count: Shared[GCounter]

        @decide
        def counting(self, event: Counting) -> Events:
            yield event
            yield foreign.add("x")

    shard = Shard(ShardState(0, plan_agents([Careless])))
    shard.step([Delivery(source="t", items=[("Careless/1", encode(Counting()))])], NOW_NS)
    assert "no shared field of Careless" in shard.state.letters.all()[0].error


def test_a_message_carries_what_is_in_a_shared_field_and_not_the_field() -> None:
    class Listed(Event):
        vehicles: ORSet[str]

    class Asked(Event):
        pass

    class Careless(Agent):
        vehicles: Shared[ORSet[str]]

        @decide
        def asked(self, event: Asked) -> Events:
            yield Listed(vehicles=self.vehicles)

    shard = Shard(ShardState(0, plan_agents([Careless])))
    shard.step([Delivery(source="t", items=[("Careless/1", encode(Asked()))])], NOW_NS)
    assert "ORSet is shared, and no part of a message; put its value there" in shard.state.letters.all()[0].error


@pytest.mark.parametrize("name", ["nowhere", "to-"])
def test_an_agent_that_belongs_to_no_group_cannot_be(name: str) -> None:
    class Signal(Agent):
        seen: Shared[ORSet[str]] = shared(by=lambda name: name.split("-")[1])

        @decide
        def arrived(self, event: VehicleArrived) -> Events:
            yield self.seen.add(event.vehicle)

    shard = Shard(ShardState(0, plan_agents([Signal])))
    arrived = encode(VehicleArrived(vehicle="V-1"))
    shard.step([Delivery(source="t", items=[(f"Signal/{name}", arrived), ("Signal/a-b", arrived)])], NOW_NS)
    assert list(shard.state.agents) == ["Signal/a-b"]
    assert f"Signal/{name} cannot be: who shares its field seen is not known" in shard.state.letters.all()[0].error


def test_a_field_that_was_taken_out_of_the_class_is_passed_over() -> None:
    node = Node()
    node.observe(ONE, VehicleArrived(vehicle="V-1"))

    class Smaller(Agent, kind="Intersection"):
        phase: Shared[LWWRegister[str]]

    again = ShardState(0, plan_agents([Smaller]))
    for ready in node.readies:
        apply(again, open_commit(ready.sealed.body), ready.sealed.digest)
    assert again.agents[ONE].phase.value is None


def test_a_copy_of_a_journal_in_another_place_writes_under_other_ids() -> None:
    assert replica_incarnation(7, b"") == 7
    lives = {replica_incarnation(number, place) for number in (7, 8) for place in (b"here", b"there")}
    assert len(lives) == 4
    assert all(0 <= life < 2**63 for life in lives)


def test_a_counter_that_would_pass_its_bound_fails_the_input() -> None:
    class Overflow(Event):
        pass

    class Meter(Agent):
        total: Shared[GCounter]

        @decide
        def overflow(self, event: Overflow) -> Events:
            yield event
            yield self.total.add(2**62)
            yield self.total.add(2**62)

    shard = Shard(ShardState(0, plan_agents([Meter])))
    shard.step([Delivery(source="t", items=[("Meter/1", encode(Overflow()))])], NOW_NS)
    assert "63 bits" in shard.state.letters.all()[0].error
    assert "Meter/1" in shard.state.agents
    assert shard.state.agents["Meter/1"].total.value == 0
