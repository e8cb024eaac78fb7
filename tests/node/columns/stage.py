"""A node with meters, horns and a board, in virtual time, and a radio that sends batches to it. Not a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from stigmergy import Agent, Effects, Event, Fleet, Settings, evolve, react
from stigmergy.agents.messages import Message
from stigmergy.control.live import Live
from stigmergy.node.column_actuators import Orders
from stigmergy.shard.batches import BATCH_FORMAT, BatchHeader, pack_batch
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.agents.meters import Alarm, Beep, Board, Hush, Meter, meter_engine
from tests.agents.plain_table import PlainEngine, compiled

T = TypeVar("T")


class Honked(Event):
    count: int


class Horn(Agent):
    """Another compiled kind with the same action."""

    n: int = 0

    @evolve
    def honked(self, event: Honked) -> None:
        self.n += event.count

    @react
    def on_honked(self, event: Honked) -> Effects:
        yield Beep(count=event.count, loud=False)


class Hand:
    """A batched hand that remembers, and does what the test says first."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, Any, str, int, int, int]]] = []
        self.first: Callable[[int], None] = lambda _: None

    def __call__(self, orders: Orders[Any]) -> None:
        self.calls.append([(o.agent, o.effect, o.key, o.token, o.sequence, o.attempt) for o in orders])
        self.first(len(self.calls))

    @property
    def counts(self) -> list[list[int]]:
        """The beeps of each call."""
        return [[one[1].count for one in call] for call in self.calls]

    @property
    def sequences(self) -> list[list[int]]:
        return [[one[4] for one in call] for call in self.calls]


def declare(
    beep: Callable[[Any], Any] | None, alarm: Callable[[Any], Any] | None = None, *, shards: int = 1, **policies: Any
) -> Fleet:
    """Meters, horns and a board. Without a hand there is nobody for that action."""
    fleet = Fleet("meters", agents=[Meter, Horn, Board], shards=shards, streams=policies)
    fleet.plans["Meter"] = compiled(meter_engine())
    fleet.plans["Horn"] = compiled(PlainEngine(Horn, actions=(Beep,)))
    if beep is not None:
        fleet.batch_actuator(Beep, tries=3)(beep)
    if alarm is not None:
        fleet.batch_actuator(Alarm, tries=3)(alarm)
    fleet.actuator(Hush)(lambda _: None)
    return fleet


def play(fleet: Fleet, main: Callable[[SimNode], Awaitable[T]], **changed: Any) -> T:
    """Plays a scene. Afterwards the log must fold into what was in memory."""
    world = Run(1)
    settings = Settings(**{"effect_pause_s": 0.01, **changed})
    node = SimNode(world, lambda _: fleet, settings=settings)

    async def scene() -> T:
        result = await main(node)
        if node.live is not None:
            await node.stop()
        return result

    result = world.run(scene())
    assert not node.logbook.findings
    return result


class Radio:
    """A source of batches for one kind. It counts for each shard, and finds out itself where agents are."""

    def __init__(self, live: Live, source: str = "radio", kind: str = "Meter", incarnation: int = 1) -> None:
        self.live = live
        self.source = source
        self.kind = kind
        self.incarnation = incarnation
        self.next: dict[int, int] = {}

    def batch(self, *items: tuple[str, Message], shard: int = 0, **changed: Any) -> bytes:
        """The next batch for a shard, whose agents these are."""
        table = self.live.host.shards[shard].state.tables[self.kind]
        records = b"".join(table.record_of(table.find(name), message) for name, message in items)
        here = self.live.roster(self.kind).shards[shard]
        sequence = self.next.get(shard, 1)
        fields: dict[str, Any] = {
            "format": BATCH_FORMAT,
            "source": self.source,
            "incarnation": self.incarnation,
            "epoch": 0,
            "sequence": sequence,
            "lost": 0,
            "shard": shard,
            "kind": self.kind,
            "layout": here.layout,
            "generation": here.generation,
            "check": here.check,
            "count": len(items),
        }
        header = BatchHeader(**{**fields, **changed})
        self.next[shard] = header.sequence + len(items)
        return pack_batch(header, records)

    def send(self, *items: tuple[str, Message], shard: int = 0, **changed: Any) -> asyncio.Future[None]:
        return self.live.host.columns.deliver(self.batch(*items, shard=shard, **changed))


def shards_of(live: Live, names: Sequence[str], kind: str = "Meter") -> dict[int, list[str]]:
    """These agents by where they live."""
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(live.host.intake.shard_of(f"{kind}/{name}"), []).append(name)
    return found


class Told:
    """A ticket that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Exception | None] = []

    def resolve(self) -> None:
        self.told.append(None)

    def fail(self, error: Exception) -> None:
        self.told.append(error)
