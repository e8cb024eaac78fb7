"""Whole nodes on real brokers: programs of their own, real files, `kill -9`."""

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stigmergy import Fleet
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.cloudevents import CloudEvent, read_event
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.control.live import Live
from stigmergy.control.socket import ControlClient
from stigmergy.testing.brokers import Broker
from stigmergy.testing.proxy import LinkProxy
from tests.node.fleets import Drone, Measured, Monitor, cloud
from tests.warm import Warm

WAIT_S_MAX = 240.0

GROUND = """
from stigmergy import Agent, Event, Fleet, evolve, within


class Measured(Event, keep=within(seconds=0.2)):
    number: int


class Monitor(Agent):
    numbers: tuple[int, ...] = ()

    @evolve
    def measured(self, event: Measured) -> None:
        self.numbers = (*self.numbers, event.number)


fleet = Fleet("delivery", agents=[Monitor])
fleet.listen("Drone/{id}/battery", to="Monitor/{id}")
"""


@pytest.fixture(params=[pytest.param("nats", marks=pytest.mark.prove), "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found


class Ground:
    """A receiving node, as a process of its own."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self._folder = folder
        self._broker = broker
        folder.mkdir()
        (folder / "ground.py").write_text(GROUND, encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = ["run", "ground:fleet", "--bus", self._broker.url, "--site", "north", "--node", "ground", "--json"]
        self._process = Warm(*command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if json.loads(line)["event"] == "listening":
                return
        raise AssertionError("the receiving node did not start")

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        process.communicate(timeout=WAIT_S_MAX)
        return process.returncode

    def ask(self, **request: str) -> Any:
        """Asks the node directly, which is quicker than a process for each question."""
        (socket,) = self._folder.glob("*.sock")
        client = ControlClient(socket)
        try:
            return json.loads(next(client.lines(json.dumps({"v": 1, **request}).encode() + b"\n")))["ok"]
        finally:
            client.close()

    def numbers(self) -> list[int]:
        found: list[int] = self.ask(do="state", agent="Monitor/1")["state"]["numbers"]
        return found


async def wait_until(true: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S_MAX
    while True:
        found = true()
        if found if isinstance(found, bool) else await found:
            return
        assert asyncio.get_running_loop().time() < deadline, f"waited for {what}"
        await asyncio.sleep(0.1)


@asynccontextmanager
async def drone(folder: Path, broker: Broker) -> AsyncIterator[Live]:
    fleet = Fleet("delivery", agents=[Drone])
    running = fleet.running(
        bus=broker.url,
        site="north",
        node="drone",
        journal=f"sqlite:{folder / 'drone.db'}",
        key=folder / "drone.key",
    )
    async with running as live:
        yield live


@pytest.mark.timeout(1200)
async def test_what_is_published_arrives_once_although_the_receiver_is_killed(tmp_path: Path, broker: Broker) -> None:
    ground = Ground(tmp_path / "ground", broker)
    await asyncio.to_thread(ground.start)
    try:
        async with drone(tmp_path, broker) as live:
            await wait_until(lambda: len(live.members()) == 2, "the other node")
            for number in range(150):
                await live.observe("Drone/1", Measured(number=number))
                if number in (40, 80):
                    await asyncio.to_thread(ground.kill)
                if number in (60, 100):
                    await asyncio.to_thread(ground.start)
            await wait_until(lambda: live.standing().owed == 0, "the broker to take all of it")

        async def all_there() -> bool:
            return len(await asyncio.to_thread(ground.numbers)) >= 150

        await wait_until(all_there, "all of it at the other node")
        assert await asyncio.to_thread(ground.numbers) == list(range(150))
        status = await asyncio.to_thread(ground.ask, do="status")
        assert status["counters"]["skipped"] == 0
        assert status["dead_letters"] == 0
        assert await asyncio.to_thread(ground.end) == 0
    finally:
        await asyncio.to_thread(ground.end)


@pytest.mark.timeout(1200)
async def test_what_was_published_offline_leaves_when_the_broker_is_back(tmp_path: Path, broker: Broker) -> None:
    ground = Ground(tmp_path / "ground", broker)
    await asyncio.to_thread(ground.start)
    try:
        async with drone(tmp_path, broker) as live:
            await wait_until(lambda: len(live.members()) == 2, "the other node")
            await live.observe("Drone/1", Measured(number=0))
            await wait_until(lambda: live.standing().owed == 0, "the first")
            broker.stop()
            await wait_until(lambda: live.standing().link.link == "local-only", "the link to be lost")
            for number in range(1, 100):
                await live.observe("Drone/1", Measured(number=number))
            assert live.standing().link.owed == 99
        # The node ends meanwhile and begins anew: what it owes is in its journal.
        async with drone(tmp_path, broker) as live:
            assert live.standing().owed == 99
            broker.start()
            await wait_until(lambda: live.standing().owed == 0, "the rest")

        async def all_there() -> bool:
            return len(await asyncio.to_thread(ground.numbers)) >= 100

        await wait_until(all_there, "all of it at the other node")
        assert await asyncio.to_thread(ground.numbers) == list(range(100))
    finally:
        await asyncio.to_thread(ground.end)


async def test_a_command_over_the_broker_is_answered_there(tmp_path: Path, broker: Broker) -> None:
    heard: list[CloudEvent] = []

    async def hear(message: BusMessage) -> None:
        heard.append(read_event(message.payload, message.content_type, message.properties))

    pilot = open_bus(broker.url, "pilot", SystemEntropy())
    await pilot.subscribe("delivery/north/agents/Drone/D-17/answers", hear)
    await pilot.open()
    try:
        async with drone(tmp_path, broker) as live:
            await wait_until(lambda: pilot.is_up and live.standing().link.link == "up", "the links")
            topic = "delivery/north/agents/Drone/D-17/commands"
            for mission, identity in (("M1", "c-1"), ("", "c-2"), ("M1", "c-1"), ("M2", "c-1")):
                command = json.dumps(cloud("StartMission", {"mission": mission}, id=identity)).encode()
                await pilot.publish(BusMessage(topic, command))
            await wait_until(lambda: len(heard) >= 4, "the answers")
            assert live.query("Drone/D-17", Drone).mission == "M1"
        verdicts = [(answer.data["command"], answer.data["accepted"]) for answer in heard]
        assert sorted(verdicts) == [("c-1", False), ("c-1", True), ("c-1", True), ("c-2", False)]
    finally:
        await pilot.close()


@pytest.mark.timeout(1200)
async def test_links_that_are_cut_again_and_again_lose_nothing(tmp_path: Path, broker: Broker) -> None:
    chance = random.Random(7)
    proxies = (LinkProxy(broker.port), LinkProxy(broker.port))
    urls = [f"mqtt://127.0.0.1:{await proxy.start()}" for proxy in proxies]
    drones, ground = Fleet("delivery", agents=[Drone]), Fleet("delivery", agents=[Monitor])
    ground.listen("Drone/{id}/battery", to="Monitor/{id}")
    count = 0

    async def publish(live: Live) -> None:
        nonlocal count
        for name in ("1", "2", "3"):
            await live.observe(f"Drone/{name}", Measured(number=count))
        count += 1

    def heard(live: Live) -> list[tuple[int, ...]]:
        return [live.query(f"Monitor/{name}", Monitor).numbers for name in ("1", "2", "3")]

    async with (
        ground.running(journal="memory:", bus=urls[0], node="ground") as base,
        drones.running(journal="memory:", bus=urls[1], node="drone") as live,
    ):
        await wait_until(lambda: len(live.members()) == 2, "the other node")
        for _ in range(12):
            proxy = chance.choice(proxies)
            proxy.cut()
            for _ in range(5):
                await publish(live)
                await asyncio.sleep(0.01)
            proxy.restore()
            for _ in range(chance.randrange(20)):
                await publish(live)
                await asyncio.sleep(0.01)
        await wait_until(lambda: all(len(numbers) >= count for numbers in heard(base)), "all of it")
        assert heard(base) == [tuple(range(count))] * 3
        assert base.standing().counters["skipped"] == 0
    for proxy in proxies:
        await proxy.close()
