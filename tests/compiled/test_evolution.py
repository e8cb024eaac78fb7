"""Snapshots of compiled agents whose class has changed since: carried over as those of interpreted ones are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Event
from stigmergy.agents.plans import plan_agent
from stigmergy.base.errors import FoldMismatch
from stigmergy.compiled.table import engine_of
from stigmergy.shard.inputs import Delivery
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import SnapshotWriter, load_agents, load_tables, read_header
from stigmergy.shard.state import ShardState


class Weighed(Event):
    grams: int


class Scale(Agent, kind="Scale"):
    total: int = 0

    @evolve
    def weighed(self, event: Weighed) -> None:
        self.total += event.grams


class Newer(Agent, kind="Scale", version=2):
    total: int = 0
    heavy: bool = False

    @evolve
    def weighed(self, event: Weighed) -> None:
        self.total += event.grams
        self.heavy = self.total > 100

    @classmethod
    def upcast_state(cls, version: int, fields: Any) -> Newer:
        return cls(id=fields["id"], total=fields["total"], heavy=fields["total"] > 100)


class Forgetful(Agent, kind="Scale", version=2):
    total: int = 0
    heavy: bool = False

    @evolve
    def weighed(self, event: Weighed) -> None:
        self.total += event.grams
        self.heavy = self.total > 100


class Unversioned(Agent, kind="Scale"):
    total: int = 0
    heavy: bool = False

    @evolve
    def weighed(self, event: Weighed) -> None:
        self.total += event.grams
        self.heavy = self.total > 100


def state_of(cls: type[Agent]) -> ShardState:
    plan = plan_agent(cls)
    engine = engine_of(cls)
    engine.prepare(lambda _: None)
    return ShardState(0, {plan.kind: structs.replace(plan, engine=engine)})


def parts_of(state: ShardState) -> list[bytes]:
    taking = SnapshotWriter(state)
    return list(iter(lambda: taking.next_part({}), None))


@pytest.fixture(scope="module")
def parts() -> list[bytes]:
    shard = Shard(state_of(Scale))
    items = [(f"Scale/{name}", encode(Weighed(grams=grams))) for name, grams in (("a", 90), ("b", 20), ("a", 20))]
    shard.step([Delivery(source="s", items=items, sequence=1, incarnation=1)], 1)
    assert shard.seal() is not None
    return parts_of(shard.state)


def loaded(cls: type[Agent], parts: list[bytes]) -> ShardState:
    state = state_of(cls)
    header = read_header(parts[0])
    for part in parts[1:]:
        load_agents(state, header, part)
    load_tables(state, header.tables)
    return state


def test_rows_of_an_older_version_are_carried_over(parts: list[bytes]) -> None:
    table = loaded(Newer, parts).tables["Scale"]
    assert [table.agent(number, ahead=True) for number in range(len(table))] == [
        Newer(id="a", total=110, heavy=True),
        Newer(id="b", total=20, heavy=False),
    ]


@pytest.mark.parametrize(("cls", "version"), [(Forgetful, 2), (Unversioned, 1)])
def test_where_the_class_does_not_say_how_the_log_is_needed(cls: type[Agent], version: int, parts: list[bytes]) -> None:
    with pytest.raises(FoldMismatch, match=f"was version 1 in the snapshot and is version {version} with another"):
        loaded(cls, parts)
