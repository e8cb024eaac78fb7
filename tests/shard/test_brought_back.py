"""A shared field that was taken out of a class and comes back must not give the same numbers out a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stigmergy import Agent, Event, Events, GCounter, ORSet, Shared, SharedChanged, decide, shared
from stigmergy.agents.codec import encode
from stigmergy.agents.shared import replica_seed
from stigmergy.base.errors import FoldMismatch
from stigmergy.crdt.delta import Delta, read_delta
from stigmergy.shard.commit import open_commit
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import Delivery
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import SnapshotWriter, load_agents, load_tables, read_header
from stigmergy.shard.state import ShardState, plan_agents

NOW_NS = 1_000_000_000_000
GATE = "Gate/1"


class Arrived(Event):
    vehicle: str


class First(Agent, kind="Gate", version=1):
    seen: Shared[ORSet[str]] = shared()

    @decide
    def arrived(self, event: Arrived) -> Events:
        yield event
        yield self.seen.add(event.vehicle)


class Without(Agent, kind="Gate", version=2):
    total: int = 0

    @classmethod
    def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
        return cls()


def back(**given: Any) -> type[Agent]:
    class Back(Agent, kind="Gate", version=3):
        seen: Shared[ORSet[str]] = shared()

        @decide
        def arrived(self, event: Arrived) -> Events:
            yield event
            yield self.seen.add(event.vehicle)

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return cls(**given)

    return Back


class Log:
    """The commits of one shard, and the versions of a class that make and read them."""

    def __init__(self) -> None:
        self.readies: list[Ready] = []

    def replayed(self, cls: type[Agent]) -> ShardState:
        state = ShardState(0, plan_agents([cls]))
        state.replica_seed = replica_seed("fleet", bytes(32), 1)
        for ready in self.readies:
            apply(state, open_commit(ready.sealed.body), ready.sealed.digest)
        return state

    def written(self, state: ShardState, vehicle: str) -> list[Delta]:
        """What an agent writes because of this vehicle."""
        shard = Shard(state)
        shard.step([Delivery(source="test", items=[(GATE, encode(Arrived(vehicle=vehicle)))])], NOW_NS)
        ready = shard.seal()
        assert ready is not None
        self.readies.append(ready)
        return [read_delta(event.delta) for _, event in ready.shared if isinstance(event, SharedChanged)]


def carried(state: ShardState, cls: type[Agent]) -> ShardState:
    """The state of another version, by way of a snapshot."""
    taking = SnapshotWriter(state)
    parts: list[bytes] = []
    while (part := taking.next_part({})) is not None:
        parts.append(part)
    header = read_header(parts[0])
    newer = ShardState(0, plan_agents([cls]))
    newer.replica_seed = replica_seed("fleet", bytes(32), 1)
    for body in parts[1:]:
        load_agents(newer, header, body)
    load_tables(newer, header.tables)
    return newer


def test_after_a_snapshot_without_it_the_log_is_read_and_numbers_go_on() -> None:
    log = Log()
    (first,) = log.written(log.replayed(First), "V-1")
    without = carried(log.replayed(First), Without)
    with pytest.raises(
        FoldMismatch,
        match=r"seen is shared and was not there; if Gate never had .* say so with seen=shared\(\), and otherwise take "
        "another name; or keep the whole log",
    ):
        carried(without, back())
    again = log.replayed(back())
    (second,) = log.written(again, "V-2")
    assert (first.first, second.first) == (1, 2)
    assert first.replica == second.replica
    assert list(again.agents[GATE].seen) == ["V-1", "V-2"]


def test_a_field_that_is_new_begins_empty_where_the_upcaster_says_so() -> None:
    log = Log()
    log.written(log.replayed(First), "V-1")
    newer = carried(carried(log.replayed(First), Without), back(seen=shared()))
    assert list(newer.agents[GATE].seen) == []
    assert newer.agents[GATE].seen.add("x").field == "seen"


def test_one_that_was_there_all_along_needs_no_word() -> None:
    class Wider(Agent, kind="Gate", version=2):
        seen: Shared[ORSet[str]] = shared()
        passed: Shared[GCounter] = shared()

        @classmethod
        def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
            return cls(passed=shared())

    log = Log()
    log.written(log.replayed(First), "V-1")
    gate = carried(log.replayed(First), Wider).agents[GATE]
    assert (list(gate.seen), gate.passed.value) == (["V-1"], 0)
