"""Devices, sites and a region, whose links are cut and whose processes are killed while everything is on its way up.

A region and two sites are `stigmergy gateway` processes, each with a NATS server of its own; the sites are linked to
the region through proxies. Each site has a device, a node with a log of its own, that speaks MQTT. The devices go on
all the time. Again and again, something breaks: a link is cut or hangs, a server or a whole gateway is killed with
`kill -9`. When all is well again, the region must have heard each number of each device once and in order, and nothing
that the rule keeps back.

    python -m proofs.gateways [--faults N] [--seed N] [--backlog N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from proofs import gateways_fleet
from proofs.gateways_fleet import Arrived, Moved
from proofs.report import Proof
from rigs.gateways import GatewayProcess
from stigmergy import Fleet, Settings, UplinkRule, UplinkSettings
from stigmergy.base.errors import NotRunning
from stigmergy.control.live import Live
from stigmergy.control.protocol import StateRequest, StatusRequest
from stigmergy.nats.servers.server import LOOPBACK, free_ports
from stigmergy.testing.proxy import LinkProxy

FAULTS = 100
FAULTS_QUICK = 8
BACKLOG = 50_000
BACKLOG_QUICK = 5_000
SITES = ("north", "south")
PACE_S = 0.02
"""Between two windows of a device."""
WINDOW = 4
DOWN_S_MAX = 2.0
BETWEEN_S_MAX = 0.5
CATCH_UP_S_MAX = 120.0
KINDS = ("cut", "cut", "hang", "kill site server", "kill site", "kill region server", "kill region")
"""Cuts are twice as likely as anything else."""
QUICK = UplinkSettings(linger_s=0.05, answer_within_s=3.0, pause_s=0.2, pause_s_max=2.0)
CONFIG = """
[fleet]
module = "gateways_fleet:fleet"

[settings.uplink]
linger_s = 0.05
answer_within_s = 3.0
pause_s = 0.2
pause_s_max = 2.0
"""


class Tally(Struct):
    """What was done, and how long it took to make good."""

    faults: dict[str, int] = {}
    catch_ups_s: list[float] = []
    """From the end of a fault until the region had all that the devices had decided by then."""
    sent: int = 0
    local_only: int = 0
    """Times that a site was seen to know that it was alone."""
    lost: int = 0
    """Numbers that were passed over, or are not there."""
    doubled: int = 0
    """Numbers that came although a later one was there."""
    wakes: int = 0
    """Sources that the sites had to wake up, since each of them was started last."""
    backlog: int = 0
    backlog_s: float = 0.0


class Device:
    """A drone with a node of its own, which counts."""

    def __init__(self, name: str, folder: Path, site: GatewayProcess) -> None:
        self.name = name
        self.sent = 0
        self._site = site
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._live: Live | None = None

    @property
    def address(self) -> str:
        return f"Drone/{self.name}"

    async def start(self) -> None:
        fleet = Fleet("delivery", agents=[gateways_fleet.Drone])
        running = fleet.running(
            journal=f"sqlite:{self._folder / self.name}.db",
            key=self._folder / f"{self.name}.key",
            bus=f"{self._site.mqtt}?reconnect_s_max=0.5",
            site=self.name,
            node=f"drone-{self.name}",
            settings=Settings(uplink=QUICK),
            uplink=UplinkRule(only=("Arrived",)),
        )
        self._live = await self._stack.enter_async_context(running)
        self._task = asyncio.ensure_future(self._fly())

    async def stop_flying(self) -> None:
        """No more is decided; what was is still sent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def observe(self, count: int) -> None:
        assert self._live is not None
        told = []
        for _ in range(count):
            told.append(asyncio.ensure_future(self._live.observe(self.address, Arrived(number=self.sent))))
            self.sent += 1
        await asyncio.gather(*told)

    async def close(self) -> None:
        await self.stop_flying()
        await self._stack.aclose()

    async def _fly(self) -> None:
        while True:
            assert self._live is not None
            await self._live.observe(self.address, Moved(number=self.sent))
            await self.observe(WINDOW)
            await asyncio.sleep(PACE_S)


class Town:
    """All of it, and whoever breaks it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.tally = Tally()
        self.violations: list[str] = []
        self._folder = folder
        self._chance = random.Random(seed)
        (self._leaf_port,) = free_ports(1)
        self._region = self._gateway("region", "--leaf-port", str(self._leaf_port))
        self._proxies: dict[str, LinkProxy] = {}
        self._sites: dict[str, GatewayProcess] = {}
        self._devices: dict[str, Device] = {}

    def _gateway(self, site: str, *arguments: str) -> GatewayProcess:
        folder = self._folder / site
        folder.mkdir()
        shutil.copy(gateways_fleet.__file__, folder / "gateways_fleet.py")
        (folder / "stigmergy.toml").write_text(CONFIG, encoding="utf-8")
        return GatewayProcess(folder, "--site", site, *arguments)

    async def run(self, faults: int, backlog: int) -> None:
        try:
            await self._start()
            for _ in range(faults):
                await asyncio.sleep(self._chance.random() * BETWEEN_S_MAX)
                await self._break_something()
                if self.violations:
                    return
            await self._pile_up(backlog)
            for device in self._devices.values():
                await device.stop_flying()
            await self._catch_up()
            await self._compare()
        finally:
            await self._end()

    async def _start(self) -> None:
        await asyncio.to_thread(self._region.start)
        for name in SITES:
            self._proxies[name] = proxy = LinkProxy(self._leaf_port)
            port = await proxy.start()
            self._sites[name] = site = self._gateway(name, "--hub", f"{LOOPBACK}:{port}", "--only", "Arrived")
            await asyncio.to_thread(site.start)
            self._devices[name] = Device(name, self._folder, site)
            await self._devices[name].start()
        await self._catch_up()

    async def _end(self) -> None:
        for device in self._devices.values():
            with contextlib.suppress(asyncio.TimeoutError):
                await device.close()
        for gateway in (*self._sites.values(), self._region):
            await asyncio.to_thread(gateway.kill)
        for proxy in self._proxies.values():
            await proxy.close()

    # ------------------------------------------------------------------ faults

    async def _break_something(self) -> None:
        kind, name = self._chance.choice(KINDS), self._chance.choice(SITES)
        down_s = self._chance.random() * DOWN_S_MAX
        self.tally.faults[kind] = self.tally.faults.get(kind, 0) + 1
        site, proxy = self._sites[name], self._proxies[name]
        match kind:
            case "cut":
                proxy.cut()
                await asyncio.sleep(down_s)
                self.tally.local_only += await self._is_alone(site)
                proxy.restore()
            case "hang":
                proxy.stall()
                await asyncio.sleep(down_s)
                proxy.drop()
                proxy.restore()
            case "kill site server":
                await asyncio.to_thread(site.kill_server)
            case "kill site":
                await asyncio.to_thread(site.kill)
                await asyncio.sleep(down_s)
                await asyncio.to_thread(site.start)
            case "kill region server":
                await asyncio.to_thread(self._region.kill_server)
            case _:
                await asyncio.to_thread(self._region.kill)
                await asyncio.sleep(down_s)
                await asyncio.to_thread(self._region.start)
        self.tally.catch_ups_s.append(await self._catch_up())

    async def _is_alone(self, site: GatewayProcess) -> bool:
        try:
            return bool((await asyncio.to_thread(site.ask, StatusRequest())).link.state == "local-only")
        except NotRunning:
            return False

    async def _pile_up(self, backlog: int) -> None:
        """One site is cut off while its device decides a lot; how long its way up takes when the link is back."""
        name = SITES[0]
        device, site = self._devices[name], self._sites[name]
        await device.stop_flying()
        self._proxies[name].cut()
        for _ in range(backlog // 500):
            await device.observe(500)
        await self._wait(lambda: self._heard(site, device) == device.sent, "the site has not heard its device")
        self._proxies[name].restore()
        self.tally.backlog = device.sent - self._heard(self._region, device)
        self.tally.backlog_s = await self._catch_up()

    # ------------------------------------------------------------------ what has arrived

    async def _catch_up(self) -> float:
        """Until the region has heard all that was decided up to now; how long that took."""
        wanted = {name: device.sent for name, device in self._devices.items()}
        began_s = time.monotonic()
        await self._wait(
            lambda: all(self._heard(self._region, self._devices[name]) >= sent for name, sent in wanted.items()),
            f"the region has not heard {wanted}",
        )
        return time.monotonic() - began_s

    async def _wait(self, over: Callable[[], bool], why: str) -> None:
        deadline_s = time.monotonic() + CATCH_UP_S_MAX
        while not await asyncio.to_thread(over):
            if time.monotonic() > deadline_s:
                self.violations.append(f"{why} {CATCH_UP_S_MAX:g} s after all was well again")
                return
            await asyncio.sleep(0.05)

    def _heard(self, gateway: GatewayProcess, device: Device) -> int:
        return int(self._state(gateway, device).get("heard", 0))

    def _state(self, gateway: GatewayProcess, device: Device) -> dict[str, Any]:
        try:
            found: dict[str, Any] = gateway.ask(StateRequest(agent=device.address)).state
        except NotRunning:
            return {}
        return found

    async def _compare(self) -> None:
        for site in self._sites.values():
            self.tally.wakes += (await asyncio.to_thread(site.ask, StatusRequest())).counters.get("crossing_wakes", 0)
        for device in self._devices.values():
            self.tally.sent += device.sent
            state = await asyncio.to_thread(self._state, self._region, device)
            self.tally.lost += state.get("skipped", 0) + device.sent - state.get("heard", 0)
            self.tally.doubled += state.get("doubled", 0)
            self.violations += compare(device.name, device.sent, state)


def compare(name: str, sent: int, state: dict[str, Any]) -> list[str]:
    """What is wrong with what the region has heard of a device."""
    found = []
    if state.get("heard") != sent or state.get("skipped"):
        found.append(
            f"{name}: {sent} were sent, {state.get('heard')} heard, {state.get('skipped')} lost or out of order"
        )
    if state.get("doubled"):
        found.append(f"{name}: {state['doubled']} doubled or out of order")
    if state.get("moved"):
        found.append(f"{name}: {state['moved']} went up that the rule keeps back")
    return found


def run(faults: int, backlog: int, seed: int) -> Town:
    """Lives through so many faults."""
    with tempfile.TemporaryDirectory(prefix="gateways-") as folder:
        town = Town(Path(folder), seed)
        asyncio.run(town.run(faults, backlog))
    return town


def prove(*, quick: bool = False, faults: int = 0, backlog: int = 0, seed: int = 1) -> Proof:
    """Faults at all levels, then one long absence."""
    began_s = time.monotonic()
    town = run(faults or (FAULTS_QUICK if quick else FAULTS), backlog or (BACKLOG_QUICK if quick else BACKLOG), seed)
    tally = town.tally
    took_s = sorted(tally.catch_ups_s) or [0.0]
    return Proof(
        name="gateways",
        promise="device, site, region: through cut links and kill -9 at every level nothing is lost, doubled or out of "
        "order, and the region catches up in seconds",
        cases=sum(tally.faults.values()),
        violations=town.violations,
        figures={
            **dict(sorted(tally.faults.items())),
            "messages": tally.sent,
            "lost": tally.lost,
            "doubled or out of order": tally.doubled,
            "catch-up s, median": round(took_s[len(took_s) // 2], 2),
            "catch-up s, largest": round(took_s[-1], 2),
            "seen to be local-only": tally.local_only,
            "sources woken": tally.wakes,
            "backlog messages": tally.backlog,
            "backlog messages/s": round(tally.backlog / tally.backlog_s) if tally.backlog_s else 0,
        },
        seconds=round(time.monotonic() - began_s, 1),
    )


def main() -> int:
    """By hand."""
    parser = argparse.ArgumentParser(description="Gateways through faults.")
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--backlog", type=int, default=BACKLOG)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    proof = prove(faults=given.faults, backlog=given.backlog, seed=given.seed)
    for name, value in proof.figures.items():
        print(f"{name}: {value}")
    for violation in proof.violations:
        print(f"VIOLATION {violation}")
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
