"""The log of a node with compiled agents: batches in, and then read, verified and looked back at like any other."""

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from bench.workload import BatteryMeasured, Descend, Drone, Land, Positioned
from stigmergy import Fleet, Settings, Snapshots
from stigmergy.audit.directories import begin_directory
from stigmergy.audit.history import History, Moment
from stigmergy.audit.listing import EntryFilter, list_log
from stigmergy.audit.verification import Verification
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.columns import Batcher, Orders
from stigmergy.compiled.arrow import EventBatches
from stigmergy.compiled.table import CompiledEngine
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.host import open_host
from stigmergy.shard.commit import open_commit

NAMES = [f"D-{number}" for number in range(300)]


@pytest.fixture
def fleet(drones: CompiledEngine) -> Fleet:
    often = Snapshots(every_events=1_000, tail_ratio=0.0, share_max=1000.0)
    fleet = Fleet("drones", agents=[Drone], shards=2, settings=Settings(snapshots=often))
    fleet.plans["Drone"] = structs.replace(fleet.plans["Drone"], engine=drones)

    @fleet.batch_actuator(Descend)
    def descend(orders: Orders[Descend]) -> None:
        assert len(orders.numbers)

    @fleet.batch_actuator(Land)
    def land(orders: Orders[Land]) -> None:
        assert len(orders.numbers)

    return fleet


async def a_store(fleet: Fleet) -> MemoryJournalStore:
    """Ten rounds of positions, and a battery that runs low; agents are enrolled in two parts."""
    store = MemoryJournalStore(JournalIdentity(fleet=fleet.name, shards=2, incarnation=1))
    host = open_host(fleet, MemoryJournal(store), Ed25519Signer(b"d" * 32), Ed25519Verifier(), SystemClock())
    await host.start()
    live = Live(host, SystemEntropy())
    batcher = Batcher(await live.enroll(Drone, NAMES[:100]), source="gateway", incarnation=1)
    for round_ in range(10):
        if round_ == 5:
            batcher.renew(await live.enroll(Drone, NAMES))
        count = 100 if round_ < 5 else 300
        high = np.where(np.arange(count) % 50 == 0, 150.0, 50.0)
        batcher.add(Positioned, np.arange(count), north_m=np.full(count, round_), east_m=0.0, altitude_m=high)
        batcher.add(BatteryMeasured, ["D-7"], percent=[14.0 - round_])
        for batch in batcher.take():
            await live.deliver(batch)
    await host.stop()
    store.owner = None
    return store


async def test_batches_in_and_everything_out(fleet: Fleet) -> None:
    journal = MemoryJournal(await a_store(fleet))
    verified = Verification(journal, Ed25519Verifier()).run()
    assert verified.problems == []
    shown = [
        one for one in list_log(journal, EntryFilter(agent="Drone/D-7", type="Land", limit=100)) if one is not None
    ]
    assert [one.fields["percent"] for one in shown] == [14.0 - round_ for round_ in range(10)]
    assert [effect.fields for one in shown for effect in one.effects] == [{"reason": "battery"}] * 10
    seen = History(journal, fleet.plans).look("Drone/D-7", Moment()).agent
    assert (seen.north_m, seen.battery_percent) == (9.0, 5.0)
    rows: Any = 0
    for shard in range(2):
        batches = EventBatches()
        directory, _ = begin_directory(journal, shard)
        for stored in journal.read(shard):
            commit = open_commit(stored.sealed.body)
            rows += sum(len(batch) for batch in batches.take(commit, directory))
        rows += sum(len(batch) for batch in batches.rest())
    assert rows == 5 * 100 + 5 * 300 + 10


async def test_names_are_read_out_of_the_snapshots_that_tables_write(fleet: Fleet) -> None:
    store = await a_store(fleet)
    journal = MemoryJournal(store)
    known: list[str] = []
    for shard in range(2):
        directory, position = begin_directory(journal, shard)
        assert position == journal.snapshots(shard)[-1]
        known += directory.names["Drone"]
        await journal.drop(shard, position - 2)
    assert sorted(known) == sorted(NAMES)
    assert [one.agent for one in list_log(journal, EntryFilter(agent="Drone/D-7", limit=1)) if one is not None] == [
        "Drone/D-7"
    ]
    assert Verification(journal, Ed25519Verifier()).run().problems == []
