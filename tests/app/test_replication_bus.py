"""Shared fields over a real broker: with a bus, and nothing else, nodes share what their agents share."""

from __future__ import annotations

from pathlib import Path

from stigmergy.app.fleet import Running
from stigmergy.control import protocol
from stigmergy.control.replication_service import ReplicationService
from stigmergy.testing.brokers import Broker
from tests.app.test_replication import ONE, TWO, Arrived, fleet, vehicles, wait_until


def node(folder: Path, broker: Broker, name: str) -> Running:
    ledger = f"memory:{folder.name}"  # its agents claim, too
    return fleet.running(journal=f"sqlite:{folder / f'{name}.db'}", bus=broker.url, node=name, ledger=ledger)


async def test_a_bus_is_all_that_is_needed(tmp_path: Path, mosquitto: Broker) -> None:
    async with node(tmp_path, mosquitto, "n0") as north, node(tmp_path, mosquitto, "n1") as south:
        await north.observe(ONE, Arrived(vehicle="V-1"))
        await south.observe(TWO, Arrived(vehicle="V-2"))
        await wait_until(lambda: vehicles(north, ONE) == vehicles(south, TWO) == ["V-1", "V-2"])
        desk = ReplicationService(north.replication)
        await wait_until(lambda: next(desk.shared(protocol.SharedRequest())).in_step == ["n1"])
        standing = north.standing().company.shared
        assert standing is not None
        assert (standing.objects, standing.peers, standing.quarantined) == (1, 1, ())
    async with node(tmp_path, mosquitto, "n0") as north:
        await north.observe(ONE, Arrived(vehicle="V-3"))
        async with node(tmp_path, mosquitto, "n1") as south:
            await wait_until(lambda: vehicles(south, TWO) == ["V-1", "V-2", "V-3"])
