"""The three walks of docs/walks.md, done for real while every call of a function of ours is noted in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import stigmergy as st
from stigmergy.app.config import Config
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import LinkDown
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.testing.brokers import start_nats
from stigmergy.testing.nats import start_single

PACKAGE = Path(st.__file__).parent
WAIT_S_MAX = 120.0


class Measured(st.Event):
    """A tank's level."""

    level: float


class Valve(st.Action):
    """Opens or closes the valve."""

    open: bool


class Fill(st.Command):
    """Asks for a level."""

    level: float


class Tank(st.Agent):
    """Keeps its level, and counts what its valve has confirmed."""

    level: float = 0.0
    confirmed: int = 0

    @st.decide
    def fill(self, command: Fill) -> st.Events:
        yield Measured(level=command.level)

    @st.evolve
    def measured(self, event: Measured) -> None:
        self.level = event.level

    @st.react
    def steer(self, event: Measured) -> st.Effects:
        yield Valve(open=event.level < 1.0)

    @st.evolve
    def done(self, _: st.Done[Valve]) -> None:
        self.confirmed += 1


class Seen(st.Command):
    """Somebody saw this."""

    what: str


class Scout(st.Agent):
    """Shares what was seen with the scouts of other nodes."""

    seen: st.Shared[st.ORSet[str]] = st.shared()

    @st.decide
    def see(self, command: Seen) -> st.Events:
        yield self.seen.add(command.what)


class Calls:
    """Which functions of ours were called, as `folder/file.py function`, in order, in every thread."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self._noting = False

    def start(self) -> None:
        """Begins to note."""
        self._noting = True

    def stop(self) -> None:
        """What follows belongs to the end of the run."""
        self._noting = False

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._noting:
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            self.made.append(f"{path.relative_to(PACKAGE)} {frame.f_code.co_qualname}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Threads that start inside are watched too."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def fleet_of_tanks(shards: int = 1) -> st.Fleet:
    """Tanks with a valve each."""
    fleet = st.Fleet("tanks", agents=[Tank], shards=shards)
    fleet.actuator(Valve)(lambda _: None)
    return fleet


async def wait_until(reached: Callable[[], bool]) -> None:
    """Bounded."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not reached():  # noqa: ASYNC110 - a query has no event
            await asyncio.sleep(0.01)


def confirmed(live: Any) -> int:
    """How many actions Tank/a has seen confirmed."""
    try:
        return int(live.query("Tank/a", Tank).confirmed)
    except LookupError:
        return 0


async def sensor_to_action(folder: Path) -> list[str]:
    """A sensor's MQTT message becomes a durable commit, an action, and its confirmation."""
    calls = Calls()
    fleet = fleet_of_tanks()
    fleet.device("plant/{id}/level", event=Measured, to="Tank/{id}")
    with start_nats(folder) as broker, calls.watched():
        async with fleet.running(journal=f"sqlite:{folder}/tanks.db", bus=broker.url, node="n1") as live:
            sensor = open_bus(broker.url, "sensor", SystemEntropy())
            await sensor.open()

            async def say() -> None:
                await sensor.publish(BusMessage("plant/a/level", json.dumps({"level": 0.5}).encode()))

            async with asyncio.timeout(WAIT_S_MAX):
                while not confirmed(live):  # the links may not be up yet
                    with contextlib.suppress(LinkDown):
                        await say()
                    await asyncio.sleep(0.2)
            await asyncio.sleep(0.5)
            before = confirmed(live)
            calls.start()
            await say()
            await wait_until(lambda: confirmed(live) > before)
            calls.stop()
            await sensor.close()
    return calls.made


async def command_to_worker(folder: Path) -> list[str]:
    """A client's command reaches the worker that owns the agent's shard, and its answer comes back."""
    calls = Calls()
    with start_single(folder) as server, calls.watched():
        made = NatsWorker(fleet_of_tanks(2), server.url, Config(), key=folder / "key", tell=lambda *_: None)
        async with made as worker:
            task = asyncio.ensure_future(worker.run())
            await wait_until(lambda: len(worker.owned()) == 2)
            async with st.connect(server.url, fleet=fleet_of_tanks(2)) as client:
                await client.send("Tank/a", Fill(level=0.2))
                calls.start()
                await client.send("Tank/a", Fill(level=0.3))
                calls.stop()
            worker.stop()
            await task
    return calls.made


async def shared_write_to_merge(folder: Path) -> list[str]:
    """A write to a shared field is signed, sent to a peer, and merged there into its own log."""
    calls = Calls()

    def made() -> st.Fleet:
        return st.Fleet("scouts", agents=[Scout])

    with calls.watched():
        async with (
            made().running(journal=f"sqlite:{folder}/one.db", bus="memory:walk", node="one") as one,
            made().running(journal=f"sqlite:{folder}/two.db", bus="memory:walk", node="two") as two,
        ):

            def of(live: Any) -> frozenset[str]:
                try:
                    return frozenset(live.query("Scout/a", Scout).seen)
                except LookupError:
                    return frozenset()

            await one.send("Scout/a", Seen(what="a fire"))
            await two.send("Scout/a", Seen(what="a flood"))
            await wait_until(lambda: of(one) == of(two) == {"a fire", "a flood"})
            calls.start()
            await one.send("Scout/a", Seen(what="a storm"))
            await wait_until(lambda: "a storm" in of(two))
            calls.stop()
    return calls.made


WALKS = {
    "From a sensor's message to a confirmed action": (sensor_to_action, 22),
    "From a command to a worker and back": (command_to_worker, 20),
    "From a shared write to a peer's merge": (shared_write_to_merge, 20),
}
"""By the headings of docs/walks.md: how to do it, and how many files it may take."""


if __name__ == "__main__":
    import tempfile

    for heading, (walk, _) in WALKS.items():
        with tempfile.TemporaryDirectory() as place:
            found = asyncio.run(walk(Path(place)))
        print(f"\n## {heading}\n")
        firsts: dict[str, list[str]] = {}
        for call in found:
            file, function = call.split(" ", 1)
            if function not in firsts.setdefault(file, []):
                firsts[file].append(function)
        for file, functions in firsts.items():
            print(f"{file}: {', '.join(functions[:12])}")
