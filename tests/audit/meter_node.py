"""A node with a board and with meters whose tables are in plain Python, and the journal it leaves. Not a test."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from stigmergy import Fleet, Settings, Snapshots
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.column_actuators import Orders
from stigmergy.node.host import open_host
from tests.agents.meters import (
    Alarm,
    Beep,
    Board,
    Counted,
    Glimpsed,
    Hush,
    Measured,
    Meter,
    Poked,
    SetLimit,
    meter_plans,
)

SIGNER = Ed25519Signer(b"m" * 32)
NAMES = ("a", "b", "c")


def a_fleet(plans: Mapping[str, AgentPlan] | None = None, *, every_events: int = 12) -> Fleet:
    """Meters and a board; beeps and alarms go to batched hands."""
    often = Snapshots(every_events=every_events, tail_ratio=0.0, share_max=1000.0)
    fleet = Fleet("meters", agents=[Meter, Board], settings=Settings(snapshots=often))
    fleet.plans["Meter"] = (meter_plans() if plans is None else plans)["Meter"]

    @fleet.batch_actuator(Beep)
    def beep(orders: Orders[Beep]) -> None:
        assert list(orders)

    @fleet.batch_actuator(Alarm)
    def alarm(orders: Orders[Alarm]) -> None:
        assert list(orders)

    @fleet.actuator(Hush)
    def hush(order: object) -> None:
        del order

    return fleet


async def run(store: MemoryJournalStore, fleet: Fleet, rounds: int = 10) -> None:
    """One life of a node: commands, events, failures, and agents that come later."""
    store.owner = None
    host = open_host(fleet, MemoryJournal(store), SIGNER, Ed25519Verifier(), SystemClock())
    await host.start()
    live = Live(host, SystemEntropy())
    for number in range(rounds):
        name = f"Meter/{NAMES[number % len(NAMES)]}"
        await live.observe(name, Measured(level=float(number * 60 % 1000)))
        await live.observe(name, Counted(by=number))
        await live.observe(name, Poked(how=8 if number == 3 else number % 3))
        await live.observe(name, Glimpsed(level=float(number)))
        await live.send(name, SetLimit(limit=float(number - 1)))
    await host.stop()
    store.owner = None


def a_store(fleet: Fleet) -> MemoryJournalStore:
    """An empty journal."""
    return MemoryJournalStore(JournalIdentity(fleet=fleet.name, shards=fleet.shards, incarnation=1))


def interpreted(fleet: Fleet) -> dict[str, AgentPlan]:
    """The same plans without tables."""
    return {kind: structs.replace(plan, engine=None) for kind, plan in fleet.plans.items()}
