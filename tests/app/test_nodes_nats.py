"""Whole nodes on a NATS server: by its own protocol, and beside devices that come by MQTT."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy import Fleet, UplinkRule
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.cloudevents import CloudEvent, read_event
from stigmergy.bus.mqtt import link, open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.control.live import Live
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster, start_single
from tests.node.fleets import Drone, Measured, Monitor, cloud


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsCluster]:
    with start_single(tmp_path / "server", mqtt=True, mqtt_ack_wait_s=1.0) as single:
        yield single


def mqtt_url(server: NatsCluster) -> str:
    return f"mqtt://127.0.0.1:{server.servers[0].plan.mqtt_port}?reconnect_s_max=0.2"


def drones() -> Fleet:
    return Fleet("delivery", agents=[Drone])


def ground() -> Fleet:
    fleet = Fleet("delivery", agents=[Monitor])
    fleet.listen("Drone/{id}/battery", to="Monitor/{id}")
    return fleet


def numbers(live: Live) -> tuple[int, ...]:
    return live.query("Monitor/1", Monitor).numbers if live.standing().link.members > 1 else ()


@pytest.mark.parametrize(
    "by_mqtt", ["drone", *(pytest.param(one, marks=pytest.mark.prove) for one in ("nobody", "ground"))]
)
async def test_events_go_from_node_to_node_and_local_only_is_said_meanwhile(
    server: NatsCluster, by_mqtt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed in between: agents go on, and what they published leaves when it is back."""
    # A server that has just started may leave the first publication unanswered; then this is waited for.
    monkeypatch.setattr(link, "ANSWER_S_MAX", 5.0)
    urls = {name: mqtt_url(server) if name == by_mqtt else server.url for name in ("drone", "ground")}
    async with (
        ground().running(journal="memory:", bus=urls["ground"], site="north", node="ground") as base,
        drones().running(journal="memory:", bus=urls["drone"], site="north", node="drone") as live,
    ):
        await wait_until(lambda: len(live.members()) == 2 and len(base.members()) == 2)
        await live.observe("Drone/1", Measured(number=0))
        await wait_until(lambda: numbers(base) == (0,))
        server.kill(0)
        await wait_until(lambda: {one.standing().link.link for one in (live, base)} == {"local-only"})
        assert live.standing().link.why
        for number in range(1, 50):
            await live.observe("Drone/1", Measured(number=number))
        assert (live.query("Drone/1", Drone).count, live.standing().link.owed) == (50, 49)
        server.start_again(0)
        await wait_until(lambda: live.standing().link.link == "up" and live.standing().link.owed == 0)
        await wait_until(lambda: numbers(base) == tuple(range(50)))
        assert base.standing().counters["skipped"] == 0


async def test_a_command_by_mqtt_is_answered_there_by_a_node_on_nats(server: NatsCluster) -> None:
    heard: list[CloudEvent] = []

    async def hear(message: BusMessage) -> None:
        heard.append(read_event(message.payload, message.content_type, message.properties))

    pilot = open_bus(mqtt_url(server), "pilot", SystemEntropy())
    await pilot.subscribe("delivery/north/agents/Drone/D-17/answers", hear)
    await pilot.open()
    try:
        async with drones().running(journal="memory:", bus=server.url, site="north", node="drone") as live:
            await wait_until(lambda: pilot.is_up and live.standing().link.link == "up")
            topic = "delivery/north/agents/Drone/D-17/commands"
            for mission, identity in (("M1", "c-1"), ("", "c-2"), ("M1", "c-1")):
                command = json.dumps(cloud("StartMission", {"mission": mission}, id=identity)).encode()
                await pilot.publish(BusMessage(topic, command))
            await wait_until(lambda: len(heard) >= 3)
            assert live.query("Drone/D-17", Drone).mission == "M1"
        verdicts = [(answer.data["command"], answer.data["accepted"]) for answer in heard]
        assert sorted(verdicts) == [("c-1", True), ("c-1", True), ("c-2", False)]
    finally:
        await pilot.close()


@pytest.mark.parametrize(
    "by_mqtt", ["device", *(pytest.param(one, marks=pytest.mark.prove) for one in ("nobody", "gateway"))]
)
async def test_an_uplink_goes_from_fleet_to_fleet(server: NatsCluster, by_mqtt: str) -> None:
    urls = {name: mqtt_url(server) if name == by_mqtt else server.url for name in ("device", "gateway")}
    gateway = Fleet("ground", agents=[Monitor])
    gateway.collect("Drone/{id}", to="Monitor/{id}", fleet="delivery", site="+")
    async with (
        drones().running(
            journal="memory:", bus=urls["device"], site="north", node="device", uplink=UplinkRule(only=("Measured",))
        ) as live,
        gateway.running(journal="memory:", bus=urls["gateway"], site="hub", node="gateway") as base,
    ):
        for number in range(30):
            await live.observe("Drone/1", Measured(number=number))
            await asyncio.sleep(0.01)

        def collected() -> tuple[int, ...]:
            try:
                return base.query("Monitor/1", Monitor).numbers
            except LookupError:
                return ()

        await wait_until(lambda: collected() == tuple(range(30)))


@pytest.mark.usefixtures("without_nats")
async def test_without_the_package_it_is_said_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r'pip install "stigmergy\[nats\]"'):
        async with drones().running(journal="memory:", bus="nats://127.0.0.1:4222", node="drone"):
            pass
