"""Commands from the cloud to a device behind two gateways, as users run them: processes, of which each is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rigs.gateways import GatewayProcess
from stigmergy.base.errors import StigmergyError
from stigmergy.control.protocol import SendRequest, StateRequest, StatusRequest, answers_to
from stigmergy.control.socket import ControlClient
from stigmergy.nats.servers.server import LOOPBACK, free_ports
from tests.cli.test_gateway import WAIT_S_MAX
from tests.warm import Warm

MODULE = """
from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve


class Fly(Command):
    number: int


class Flown(Event):
    number: int


class Drone(Agent):
    flown: tuple[int, ...] = ()

    @decide
    def fly(self, command: Fly) -> Events:
        yield Flown(number=command.number)

    @evolve
    def was_flown(self, event: Flown) -> None:
        self.flown = (*self.flown, event.number)


class Office(Agent):
    flown: tuple[int, ...] = ()

    @decide
    def fly(self, command: Fly) -> Events:
        yield Flown(number=command.number)

    @evolve
    def was_flown(self, event: Flown) -> None:
        self.flown = (*self.flown, event.number)


fleet = Fleet("delivery", agents=[Drone, Office])
"""


def prepare(folder: Path, agents: str, more: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "fleets.py").write_text(MODULE, encoding="utf-8")
    text = f'[fleet]\nmodule = "fleets:fleet"\nagents = ["{agents}"]\n{more}'
    (folder / "stigmergy.toml").write_text(text, encoding="utf-8")
    return folder


class Device:
    """`stigmergy run` on a device, connected to its site by MQTT."""

    def __init__(self, folder: Path, mqtt: str) -> None:
        self.folder = prepare(folder, "Drone/7", f'bus = "{mqtt}?reconnect_s_max=1"\nsite = "north"\nnode = "device"\n')
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = ["run", "--json", "--journal", "sqlite:device.db"]
        self._process = Warm(*command, cwd=self.folder, stdout=subprocess.DEVNULL)
        wait_until(lambda: self.ask(StatusRequest()).link.state == "up")

    def ask(self, request: Any) -> Any:
        client = ControlClient(self.folder / "device.db.sock")
        try:
            (found,) = answers_to(client.ask(request))
            return found
        finally:
            client.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def wait_until(over: Callable[[], Any]) -> None:
    """Waits for it; a node that does not answer yet is waited for too."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            if over():
                return
        except (StigmergyError, OSError, ValueError) as error:
            last: Any = error
        else:
            last = "not so"
        assert time.monotonic() < deadline_s, str(last)
        time.sleep(0.1)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[dict[str, Any]]:
    upper, lower = free_ports(2)
    cloud = GatewayProcess(prepare(tmp_path / "cloud", "Office/cloud"), "--site", "cloud", "--leaf-port", str(upper))
    found: dict[str, Any] = {"cloud": cloud}
    try:
        cloud.start()
        hub = ("--hub", f"{LOOPBACK}:{upper}")
        region = prepare(tmp_path / "region", "Office/region")
        found["region"] = GatewayProcess(region, "--site", "west", "--leaf-port", str(lower), *hub, "--only", "Arrived")
        found["region"].start()
        hub = ("--hub", f"{LOOPBACK}:{lower}")
        found["site"] = GatewayProcess(prepare(tmp_path / "site", "Office/north"), "--site", "north", *hub)
        found["site"].start()
        found["device"] = Device(tmp_path / "device", found["site"].mqtt)
        found["device"].start()
        yield found
    finally:
        for one in found.values():
            one.kill()


def send(node: Any, number: int, agent: str = "Drone/7", command_id: str = "", wait_s: float = 50.0) -> Any:
    named = command_id or f"{agent}-{number}"
    request = SendRequest(agent=agent, command="Fly", fields={"number": number}, command_id=named, wait_s=wait_s)
    return node.ask(request)


def is_accepted(node: Any, number: int) -> bool:
    return bool(send(node, number).accepted)


def flown(device: Device) -> list[int]:
    return list(device.ask(StateRequest(agent="Drone/7")).state["flown"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "victims", [("region",), pytest.param(("region", "site", "device", "cloud"), marks=pytest.mark.prove)]
)
def test_a_command_from_the_cloud_is_done_once_whatever_is_killed_on_its_way(
    town: dict[str, Any], victims: tuple[str, ...]
) -> None:
    cloud, device = town["cloud"], town["device"]
    wait_until(lambda: send(cloud, 0, command_id="first").accepted)
    for number, killed in enumerate(victims, start=1):
        town[killed].kill()
        if killed != "cloud":
            # It is kept, and the caller stops waiting.
            assert send(cloud, number, wait_s=0.0).pending is True
            commands = json.loads(_listed(cloud))
            assert commands["agent"] == "Drone/7"
            assert commands["accepted"] is None
        town[killed].start()
        wait_until(partial(is_accepted, cloud, number))
    done = list(range(len(victims) + 1))
    assert flown(device) == done
    # All of them are known everywhere under their ids, and nobody on the way has an agent of that name.
    for number in done[1:]:
        assert send(cloud, number).accepted
    assert flown(device) == done
    for name in ("cloud", "region", "site"):
        assert town[name].ask(StatusRequest()).agents == 0
    # And up, from the device.
    wait_until(lambda: send(device, 9, "Office/cloud").accepted)
    assert cloud.ask(StateRequest(agent="Office/cloud")).state["flown"] == [9]


def _listed(gateway: GatewayProcess) -> str:
    """The first command that `stigmergy commands` lists."""
    command = [sys.executable, "-m", "stigmergy", "commands", "--json", "--journal", "sqlite:data/delivery.db"]
    said = subprocess.run(command, cwd=gateway.folder, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines()[0]
