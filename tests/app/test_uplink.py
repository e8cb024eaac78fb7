"""An uplink on real brokers: two programs, their configuration in files, `kill -9` of both, a broker that restarts."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stigmergy.control.socket import ControlClient
from stigmergy.testing.brokers import Broker
from tests.warm import Warm

WAIT_S_MAX = 240.0

EVENTS = """
import time
from pathlib import Path

from stigmergy import Agent, Event, Fleet, Summary, evolve, within


class Moved(Event, keep=within(seconds=0.1)):
    number: int


class Measured(Event, keep=within(seconds=0.1)):
    percent: float


class Arrived(Event):
    number: int
"""

DEVICE = """
from events import *


class Drone(Agent):
    arrived: tuple[int, ...] = ()
    measured: int = 0

    @evolve
    def moving(self, event: Moved) -> None:
        pass

    @evolve
    def measuring(self, event: Measured) -> None:
        self.measured += 1

    @evolve
    def arriving(self, event: Arrived) -> None:
        self.arrived = (*self.arrived, event.number)


fleet = Fleet("delivery", agents=[Drone])


@fleet.sensor(Drone, every_s=0.02)
async def gauge(drone: str) -> Moved | Measured | Arrived | None:
    if Path("landed").exists():
        return None
    number = time.monotonic_ns()
    match number // 1_000_000 % 3:
        case 0:
            return Moved(number=number)
        case 1:
            return Measured(percent=number % 100)
        case _:
            return Arrived(number=number)
"""

GATEWAY = """
from events import *


class Twin(Agent):
    arrived: tuple[int, ...] = ()
    moved: int = 0
    measured: int = 0

    @evolve
    def moving(self, event: Moved) -> None:
        self.moved += 1

    @evolve
    def summed(self, event: Summary) -> None:
        self.measured += event.count

    @evolve
    def arriving(self, event: Arrived) -> None:
        self.arrived = (*self.arrived, event.number)


fleet = Fleet("ground", agents=[Twin])
fleet.collect("Drone/{id}", to="Twin/{id}", fleet="delivery", site="+")
"""

CONFIG = """
[fleet]
module = "{module}:fleet"
bus = "{bus}"
site = "{site}"
node = "{module}"
{more}

[settings.uplink]
linger_s = 0.1
pass_every_s = 0.5
answer_within_s = 2.0
pause_s = 0.2
pause_s_max = 1.0
"""
UPLINK = """agents = ["Drone/1"]
uplink = { only = ["Arrived"], sample = { Moved = "1s" }, aggregate = { Measured = { every = "1s" } } }"""


@pytest.fixture(params=[pytest.param("nats", marks=pytest.mark.prove), "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found


class Program:
    """A node as a process of its own, in a folder of its own."""

    def __init__(self, folder: Path, module: str, text: str, bus: str, site: str, more: str = "") -> None:
        self.folder = folder / module
        self.folder.mkdir()
        (self.folder / "events.py").write_text(EVENTS, encoding="utf-8")
        (self.folder / f"{module}.py").write_text(text, encoding="utf-8")
        config = CONFIG.format(module=module, bus=bus, site=site, more=more)
        (self.folder / "stigmergy.toml").write_text(config, encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = Warm("run", "--json", cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if json.loads(line)["event"] == "listening":
                return
        raise AssertionError("the node did not start")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        process.communicate(timeout=WAIT_S_MAX)
        return process.returncode

    def status(self) -> dict[str, Any]:
        """Asked directly, which is quicker than a process for each question."""
        (socket,) = self.folder.glob("*.sock")
        client = ControlClient(socket)
        try:
            found: dict[str, Any] = json.loads(next(client.lines(b'{"v": 1, "do": "status"}\n')))["ok"]
            return found
        finally:
            client.close()

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.shown(*arguments, "--json"))

    def shown(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "stigmergy", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=True,
        )
        return done.stdout


def wait_confirmed(device: Program) -> dict[str, Any]:
    """Until the gateway has confirmed the whole log of the device."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        uplink: dict[str, Any] = device.status()["link"]["uplink"]
        if uplink["to"] and not uplink["commits_behind"]:
            return uplink
        assert time.monotonic() < deadline_s, uplink
        time.sleep(0.1)


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_a_log_goes_up_once_and_in_order_through_kills_of_everybody(tmp_path: Path, broker: Broker) -> None:
    chance = random.Random(3)
    device = Program(tmp_path, "device", DEVICE, broker.url, "north", UPLINK)
    gateway = Program(tmp_path, "gateway", GATEWAY, broker.url, "hub")
    begin_s = time.monotonic()
    device.start()
    gateway.start()
    try:
        for victim in (device, gateway, broker, gateway, device):
            time.sleep(chance.uniform(0.3, 1.5))
            if isinstance(victim, Broker):
                victim.kill()
                time.sleep(0.5)
                victim.start()
            else:
                victim.end(signal.SIGKILL)
                victim.start()
        time.sleep(1)
        (device.folder / "landed").touch()
        lived_s = time.monotonic() - begin_s
        uplink = wait_confirmed(device)
        assert (uplink["to"], uplink["lost_commits"], uplink["trouble"]) == ("gateway", 0, "")
        # It was at nothing a moment ago; what it has written since may be on its way.
        assert re.search(r"to gateway, \d+ commits? \(\d+ s\) behind", device.shown("status"))
        here, there = device.ask("state", "Drone/1")["state"], gateway.ask("state", "Twin/1")["state"]
        assert there["arrived"] == here["arrived"]
        assert len(here["arrived"]) > 20
        # Moved was sampled once a second; the last second's measurements may still wait for their second to end.
        assert 3 <= there["moved"] <= lived_s + 2
        assert here["measured"] - 60 <= there["measured"] <= here["measured"]
        status = gateway.status()
        assert (status["dead_letters"], status["counters"]["skipped"]) == (0, 0)
        assert device.end() == 0
        assert gateway.end() == 0
    finally:
        device.end(signal.SIGKILL)
        gateway.end(signal.SIGKILL)
