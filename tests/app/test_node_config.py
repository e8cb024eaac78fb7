"""Where a node is: which bus, site and name it takes, from where, and what is said when that is wrong."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stigmergy import BusSettings, Fleet, Settings, StigmergyError
from stigmergy.app.config import Config, FleetConfig, find_config
from stigmergy.app.fleet import NodeConfig, find_node_config
from stigmergy.app.fleet import open_bus as find_bus
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.memory import MemoryBroker, MemoryBus, memory_broker
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.testing.brokers import Broker
from tests.app.test_nodes import wait_until
from tests.node.fleets import Drone, Measured, Monitor


def test_what_is_given_goes_before_the_file_and_that_before_the_machine(tmp_path: Path) -> None:
    file = Config(fleet=FleetConfig(bus="memory:file", site="north", node="file"))
    assert find_node_config(NodeConfig(bus="memory:given"), file) == NodeConfig("memory:given", "north", "file")
    found = find_node_config(NodeConfig(), Config())
    assert (found.bus, found.site) == (None, "local")
    assert found.node
    (tmp_path / "stigmergy.toml").write_text('[fleet]\nbus = "mqtt://x"\nsite = "a"\nnode = "b"\n', encoding="utf-8")
    assert find_node_config(NodeConfig(), find_config(tmp_path)) == NodeConfig("mqtt://x", "a", "b")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bus": "pigeon://roof"}, "no adapter for 'pigeon'"),
        ({"bus": "nothing"}, "no adapter"),
        ({"bus": "memory:x", "site": "a/b"}, "site 'a/b'"),
        ({"bus": "memory:x", "node": "+"}, "node"),
    ],
)
async def test_wrong_bearings_are_told_before_anything_runs(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    fleet = Fleet("delivery", agents=[Drone])
    journal = f"sqlite:{tmp_path / 'd.db'}"
    with pytest.raises(StigmergyError, match=why):
        async with fleet.running(journal=journal, key=tmp_path / "d.key", **options):
            pass
    # Nothing is left open: the next start has the journal.
    async with fleet.running(journal=journal, key=tmp_path / "d.key") as live:
        assert live.standing().link.link == "none"
        assert live.members() == []


async def test_a_fleet_without_a_bus_publishes_to_nobody_and_says_so_once() -> None:
    fleet = Fleet("delivery", agents=[Drone])
    running, said = fleet.running(journal="memory:"), list[str]()
    running.say = said.append
    async with running as live:
        assert len(said) == 1
        assert said[0].startswith("this node has no bus (Drone publishes): nothing published leaves it")
        await live.observe("Drone/1", Measured(number=1))
        await asyncio.sleep(0.05)
        assert live.standing().counters["unheard"] == 1


async def test_a_subscription_that_fails_ends_the_start_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: MemoryBus, pattern: str, handler: object) -> None:
        raise StigmergyError("not today")

    fleet = Fleet("delivery", agents=[Drone])
    options: dict[str, Any] = {"journal": f"sqlite:{tmp_path / 'd.db'}", "key": str(tmp_path / "d.key")}
    with monkeypatch.context() as patched:
        patched.setattr(MemoryBus, "subscribe", refuse)
        with pytest.raises(StigmergyError, match="not today"):
            async with fleet.running(**options, bus="memory:refusing"):
                pass
    async with fleet.running(**options, bus="memory:refusing") as live:
        assert isinstance(memory_broker("refusing"), MemoryBroker)
        await wait_until(lambda: live.standing().link.link == "up", "the link")


async def test_binary_form_over_a_real_broker(mosquitto: Broker) -> None:
    settings = Settings(bus=BusSettings(binary=True))
    url = f"{mosquitto.url}?version=5"
    drones = Fleet("delivery", agents=[Drone], settings=settings)
    ground = Fleet("delivery", agents=[Monitor])
    ground.listen("Drone/{id}/battery", to="Monitor/{id}")
    heard: list[BusMessage] = []

    async def hear(message: BusMessage) -> None:
        heard.append(message)

    spy = open_bus(url, "spy", SystemEntropy())
    await spy.subscribe("delivery/local/agents/#", hear)
    await spy.open()
    async with (
        ground.running(journal="memory:", bus=url, node="ground") as base,
        drones.running(journal="memory:", bus=url, node="drone") as live,
    ):
        await wait_until(lambda: spy.is_up and len(live.members()) == 2, "both nodes")
        for number in range(3):
            await live.observe("Drone/1", Measured(number=number))
        await wait_until(lambda: len(base.query("Monitor/1", Monitor).numbers) == 3, "what was published")
        await wait_until(lambda: len(heard) == 3, "the spy")
        assert base.query("Monitor/1", Monitor).numbers == (0, 1, 2)
        assert heard[0].payload == b'{"number":0}'
        assert dict(heard[0].properties)["type"] == "Measured@1"
    await spy.close()


def test_nodes_of_different_names_have_different_ids_at_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one id they would throw each other out, and take each other's messages."""
    ids: list[str] = []
    monkeypatch.setattr(
        "stigmergy.bus.memory.open_bus", lambda url, client_id, entropy: ids.append(client_id), raising=True
    )
    for fleet, site, node in (("a", "b", "c-d"), ("a", "b-c", "d"), ("a-b", "c", "d")):
        find_bus(NodeConfig("memory:x", site, node), fleet, SystemEntropy())
    assert len(dict.fromkeys(ids)) == 3
