"""Shared and ordered fields as part of a state: copied, compared, stored, restored, carried over to another version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stigmergy import (
    Agent,
    Claim,
    Command,
    Event,
    Events,
    GCounter,
    Granted,
    LWWRegister,
    Merged,
    Ordered,
    ORMap,
    ORSet,
    Shared,
    decide,
    evolve,
    field,
    latest,
    ordered,
    reject,
    shared,
)
from stigmergy.agents.codec import canonical_bytes, encode, state_decoder
from stigmergy.agents.plans import plan_agent
from stigmergy.agents.shared import SharedChanged, replica_seed
from stigmergy.base.errors import DefinitionError, FoldMismatch
from stigmergy.crdt.delta import read_delta
from stigmergy.crdt.value import SharedValue
from stigmergy.shard.commit import open_commit
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import Ask, Delivery, SharedReceived, VerdictCame
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import SnapshotWriter, digest_of_state, load_agents, load_tables, read_header
from stigmergy.shard.state import ShardState, plan_agents

NOW_NS = 1_000_000_000_000


class Do(Command):
    """What one decision yields, in order, and how it ends."""

    steps: tuple[str, ...]
    ending: str = ""


class Noted(Event):
    text: str


class Broke(Event):
    pass


class Position(Event, keep=latest):
    metres: int


class Smuggled(Event):
    pass


class _Box(Agent):
    names: Shared[ORSet[str]]
    count: Shared[GCounter] = shared(by="all")
    last: Shared[LWWRegister[str]]
    places: Shared[ORMap[str, ORSet[int]]]
    slot: Ordered[Claim] = ordered(of="slot-1")
    metres: int = 0
    merges: int = 0

    @decide
    def do(self, command: Do) -> Events:
        for number, step in enumerate(command.steps):
            what, _, value = step.partition(" ")
            match what:
                case "add":
                    yield self.names.add(value)
                case "remove":
                    yield self.names.remove(value)
                case "count":
                    yield self.count.add(1 + number)
                case "last":
                    yield self.last.set(value)
                case "place":
                    yield self.places[value].add(number)
                case "drop":
                    yield self.places.remove(value)
                case "break":
                    yield Broke()
                case _:
                    yield Noted(text=value)
        if command.ending == "reject":
            reject("no")
        if command.ending == "raise":
            raise RuntimeError("on purpose")

    @evolve
    def broke(self, event: Broke) -> None:
        raise RuntimeError("in the middle")

    @evolve
    def moved(self, event: Position) -> None:
        self.metres = event.metres

    @evolve
    def merged(self, event: Merged) -> None:
        self.merges += 1


class Box(_Box):
    """All fields are immutable: copied shallowly."""


class Chest(_Box):
    """One is not: copied deeply."""

    log: list[Any] = field(default_factory=list)

    @evolve
    def noted(self, event: Noted) -> None:
        self.log.append(event.text)

    @evolve
    def smuggled(self, event: Smuggled) -> None:
        self.log.append(lambda: None)


class Sly(Agent):
    names: Shared[ORSet[str]]

    @decide
    def do(self, command: Do) -> Events:
        yield self.names.add("a")

    @evolve
    def moved(self, event: Position) -> None:
        setattr(self, "names", self.names.with_store(self.names.store))  # noqa: B010 - behind our back

    @evolve
    def smuggled(self, event: Smuggled) -> None:
        setattr(self, "names", ["a"])  # noqa: B010 - behind our back


PLANS = plan_agents([Box, Chest, Sly])


class Node:
    """A shard, all that it has committed, and its snapshots."""

    def __init__(self, name: str = "node") -> None:
        self.state = ShardState(0, PLANS)
        self.state.replica_seed = replica_seed("fleet", name.encode().ljust(32), 1)
        self.shard = Shard(self.state)
        self.now_ns = NOW_NS
        self.readies: list[Ready] = []

    def step(self, *inputs: Any) -> None:
        self.now_ns += 1_000_000
        left = list(inputs)
        while left:
            left = self.shard.step(left, self.now_ns).left
            ready = self.shard.seal()
            if ready is not None:
                self.readies.append(ready)

    def ask(self, address: str, *steps: str, ending: str = "") -> None:
        command = encode(Do(steps=steps, ending=ending))
        self.step(Ask(agent=address, command_id=f"c{self.now_ns}", command=command))

    def observe(self, address: str, *events: Event) -> None:
        self.step(Delivery(source="test", items=[(address, encode(event)) for event in events]))

    def agent(self, address: str) -> Any:
        return self.state.agents[address]

    def deltas(self, address: str, name: str) -> tuple[bytes, ...]:
        return tuple(
            event.delta
            for ready in self.readies
            for whose, event in ready.shared
            if whose == address and isinstance(event, SharedChanged) and event.field == name
        )

    def replayed(self, start: ShardState | None = None) -> ShardState:
        again = start or ShardState(0, PLANS)
        for ready in self.readies:
            if ready.sealed.position > again.position:
                apply(again, open_commit(ready.sealed.body), ready.sealed.digest)
        return again

    def snapshot(self, base: int = 0, base_digest: bytes = b"", changed: Any = None) -> list[bytes]:
        writing = SnapshotWriter(self.state, base=base, base_digest=base_digest, changed=changed)
        parts: list[bytes] = []
        while (part := writing.next_part({})) is not None:
            parts.append(part)
        return parts


def loaded(*snapshots: list[bytes]) -> ShardState:
    state = ShardState(0, PLANS)
    for parts in snapshots:
        header = read_header(parts[0])
        for part in parts[1:]:
            load_agents(state, header, part)
        load_tables(state, header.tables)
    return state


STEP = st.one_of(
    st.sampled_from(["count", "break", "note x"]),
    st.builds("{} {}".format, st.sampled_from(["add", "remove", "last", "place", "drop"]), st.sampled_from("abc")),
)
ASKED = st.tuples(
    st.sampled_from(["Box/1", "Box/2", "Chest/1"]),
    st.lists(STEP, max_size=6),
    st.sampled_from(["", "", "", "reject", "raise"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ASKED, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_whatever_fails_dots_are_contiguous_and_every_way_back_leads_to_the_same_state(
    asked: list[tuple[str, list[str], str]], full_at: int, more_at: int
) -> None:
    node, peer = Node(), Node("peer")
    parts: list[list[bytes]] = []
    for number, (address, steps, ending) in enumerate(asked):
        if number == full_at:
            parts = [node.snapshot()]
        elif number == more_at and parts:
            parts.append(
                node.snapshot(read_header(parts[0][0]).tables.position, b"x", dict.fromkeys(node.state.agents))
            )
        node.ask(address, *steps, ending=ending)
        if number % 3 == 0:
            peer.ask(address, *steps)
            node.step(SharedReceived(address, "names", peer.deltas(address, "names")))
    for address in node.state.agents:
        for name in ("names", "count", "last", "places"):
            counters = [read_delta(body).first for body in node.deltas(address, name)]
            assert counters == list(range(1, len(counters) + 1)), (address, name)
    whole = digest_of_state(node.state)
    assert digest_of_state(node.replayed()) == whole
    if parts:
        assert digest_of_state(node.replayed(loaded(*parts))) == whole


def test_the_image_of_a_large_object_costs_nothing() -> None:
    node = Node()
    for kind in ("Box", "Chest"):
        node.ask(f"{kind}/1", "add a", "note b")
        agent = node.agent(f"{kind}/1")
        image = PLANS[kind].copy(agent)
        assert image == agent
        assert image.names is agent.names
        assert kind == "Box" or image.log is not agent.log


def test_an_image_of_a_state_that_has_no_bytes_keeps_what_is_shared() -> None:
    node = Node()
    node.ask("Chest/1", "add a")
    node.observe("Chest/1", Smuggled())
    node.ask("Chest/1", "add b", ending="raise")
    node.ask("Chest/1", "add c")
    assert list(node.agent("Chest/1").names) == ["a", "c"]
    with pytest.raises(DefinitionError, match="because its field log holds what it is not declared for"):
        digest_of_state(node.state)


def test_latest_events_beside_a_large_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one takes the place of another is tried out without writing the object."""
    node = Node()
    node.ask("Box/1", "add a")
    written: list[SharedValue] = []

    def to_plain(value: SharedValue) -> tuple[str, bytes]:
        written.append(value)
        return value.field, b""

    monkeypatch.setattr(SharedValue, "to_plain", to_plain)
    node.observe("Box/1", Position(metres=1), Position(metres=2))
    assert node.agent("Box/1").metres == 2
    assert not [value for value in written if value.store.live_count]
    assert len(node.readies[-1].commit.events) == 1


def test_an_evolve_handler_that_changes_a_shared_field_supersedes_nothing_unseen() -> None:
    node = Node()
    node.ask("Sly/1")
    node.observe("Sly/1", Position(metres=1), Position(metres=2))
    assert digest_of_state(node.replayed()) == digest_of_state(node.state)


def test_a_shared_field_that_holds_something_else_is_not_stored() -> None:
    node = Node()
    node.ask("Sly/1")
    node.observe("Sly/1", Smuggled())
    with pytest.raises(DefinitionError, match="because its field names holds what it is not declared for, a list"):
        digest_of_state(node.state)


def test_what_a_register_holds_may_be_mutable_and_is_copied_nowhere() -> None:
    class Lists(Agent):
        route: Shared[LWWRegister[list[int]]] = shared()

    plan = plan_agent(Lists)
    agent = Lists()
    assert plan.copy(agent).route is agent.route


# ---------------------------------------------------------------------- other versions


def carried(node: Node, cls: type[Agent]) -> Any:
    """The one agent of a node in a snapshot, as a newer class takes it."""
    parts = node.snapshot()
    state = ShardState(0, plan_agents([cls]))
    load_agents(state, read_header(parts[0]), parts[1])
    return state.agents["Box/1"]


def test_an_upcast_agent_has_its_replicas_and_goes_on_counting() -> None:
    class Newer(Agent, kind="Box", version=2):
        names: Shared[ORSet[str]] = shared()
        slot: Ordered[Claim] = ordered(of="slot-2")
        kilometres: float = 0.0

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return cls(kilometres=fields["metres"] / 1000)

    node = Node()
    node.ask("Box/1", "add a", "add b")
    node.observe("Box/1", Position(metres=1500))
    node.step(VerdictCame("Box/1", encode(Granted(claim="slot", resource="slot-1", token=7, for_s=5))))
    agent = carried(node, Newer)
    assert agent.kilometres == 1.5
    assert agent.names.store == node.agent("Box/1").names.store
    assert agent.slot == replace(node.agent("Box/1").slot, of="slot-2")


def test_a_renamed_shared_field_is_given_what_the_old_one_held() -> None:
    class Renamed(Agent, kind="Box", version=2):
        labels: Shared[ORSet[str]] = shared()
        berth: Ordered[Claim] = ordered()

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return cls(labels=fields["names"])

    node = Node()
    node.ask("Box/1", "add a")
    agent = carried(node, Renamed)
    assert list(agent.labels) == ["a"]
    assert agent.labels.add("b").field == "labels"
    assert agent.berth == Claim(field="berth")


def test_an_upcaster_says_what_is_new_and_cannot_change_types() -> None:
    class Added(Agent, kind="Box", version=2):
        fresh: Shared[GCounter] = shared()

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return cls(fresh=shared())

    class Retyped(Agent, kind="Box", version=2):
        names: Shared[ORSet[int]] = shared()

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return cls()

    class Muddled(Agent, kind="Box", version=2):
        names: Shared[ORSet[str]] = shared()

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return cls(names=fields["metres"])

    node = Node()
    node.ask("Box/1", "add a")
    assert carried(node, Added).fresh.value == 0
    for cls in (Retyped, Muddled):
        with pytest.raises(FoldMismatch, match=r"names is not what was shared before .*; give a field of another type"):
            carried(node, cls)


def test_states_that_cannot_be_compared_by_their_bytes_are_not_the_same() -> None:
    node = Node()
    node.ask("Box/1", "add a")
    assert canonical_bytes(PLANS["Box"].read_back(node.agent("Box/1"))) == canonical_bytes(node.agent("Box/1"))


@pytest.mark.parametrize("stored", [["names", b"nonsense"], 3])
def test_a_state_whose_shared_field_is_damaged_is_not_restored(stored: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        PLANS["Box"].restore(encode({"id": "1", "names": stored}))


class Engine:
    """Of which no bytes are known."""


class Driven(msgspec.Struct):
    engine: Engine | None = None


def test_what_has_no_bytes_is_not_restored_either() -> None:
    decode = state_decoder(Driven).decode
    assert decode(encode({})).engine is None
    with pytest.raises(msgspec.ValidationError, match="no Engine can be read from bytes"):
        decode(encode({"engine": 3}))
