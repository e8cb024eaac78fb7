"""A device that holds no key of a ledger proposes and subscribes through gateways on a real broker, also after it was
cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stigmergy import Ledger, Live
from stigmergy.base.errors import ConfigError
from stigmergy.network import remote_ledger
from stigmergy.testing.brokers import Broker
from stigmergy.testing.proxy import LinkProxy
from tests.ledgers.incident_desk import Desk, Incident, Report, city
from tests.ledgers.test_ledger import outcomes, wait_until

FLEET = city(ledger=Ledger("incidents", Incident, to=("Desk/main", "Desk/d1")))


def node(folder: Path, name: str, bus: str, agents: list[str], ledger: str) -> Any:
    journal = f"sqlite:{folder / name}.db"
    return FLEET.running(journal=journal, bus=bus, node=name, agents=agents, ledger=ledger, key=folder / f"{name}.key")


def desk(live: Live, name: str) -> tuple[tuple[str, int], ...]:
    return live.query(name, Desk).seen


async def test_a_device_proposes_through_a_gateway_after_a_cut(
    tmp_path: Path, nats: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_ledger, "ASK_S", 2.0)
    proxy = LinkProxy(nats.port)
    port = await proxy.start()
    far = nats.url.replace(str(nats.port), str(port))
    here, there = ["Desk/main", "Sensor/main"], ["Desk/d1", "Sensor/d1"]
    async with node(tmp_path, "north", nats.url, here, f"sqlite:{tmp_path}/ledger.db") as gateway:
        async with node(tmp_path, "d1", far, there, "node:nobody,north") as device:
            await device.send("Sensor/d1", Report(incident="online"))
            await wait_until(lambda: outcomes(device, "Sensor/d1"))
            proxy.cut()
            await device.send("Sensor/d1", Report(incident="offline"))
            await device.send("Sensor/d1", Report(incident="both"))
            await gateway.send("Sensor/main", Report(incident="both"))
            await wait_until(lambda: outcomes(gateway, "Sensor/main"))
            assert len(outcomes(device, "Sensor/d1")) == 1, "what the ledger has not taken has no outcome"
        # It ends, offline, and is started when the link is back.
        proxy.restore()
        async with node(tmp_path, "d1", far, there, "node:nobody,north") as device:
            await wait_until(lambda: len(outcomes(device, "Sensor/d1")) == 3)
            await wait_until(lambda: len(desk(device, "Desk/d1")) == len(desk(gateway, "Desk/main")) == 3)
            assert desk(device, "Desk/d1") == desk(gateway, "Desk/main"), "one order here and there"
            positions = dict(desk(gateway, "Desk/main"))
            assert {id: (position, duplicate) for id, position, duplicate, _ in outcomes(device, "Sensor/d1")} == {
                "online": (positions["online"], False),
                "offline": (positions["offline"], False),
                "both": (positions["both"], True),
            }
            read = await device.ledger(FLEET.ledgers["incidents"]).entries(fresh=True)
            assert [one.proposer for one in read if one.entry.incident == "offline"] == ["Sensor/d1"]
            own = gateway.host.key[1].hex()
            assert {one.writer for one in read} == {own}, "the gateway signs"
    await proxy.close()


async def test_a_device_needs_the_bus_that_its_gateways_are_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the bus"):
        async with FLEET.running(journal=f"sqlite:{tmp_path}/d1.db", ledger="node:north"):
            pass
