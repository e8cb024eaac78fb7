"""Two fleets that meet on a bus, for tests: drones that publish what they measure, and a monitor that listens."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.effects import Effects, Events, Publish
from stigmergy.agents.messages import Command, Event, within
from stigmergy.bus.cloudevents import CloudEvent, read_event
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage
from stigmergy.bus.presence import MemberJoined, MemberLeft, MembersReset
from stigmergy.bus.signatures import without_proof
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run


class StartMission(Command):
    mission: str


class MissionStarted(Event):
    mission: str


class Measured(Event, keep=within(seconds=1), category="sensor"):
    number: int


class Warned(Event, category="alert"):
    severity: str
    confidence: float = 1.0
    raw: bytes = b""


class Drone(Agent):
    count: int = 0
    mission: str = ""

    @decide
    def start(self, command: StartMission) -> Events:
        if not command.mission:
            reject("no mission without a name")
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @evolve
    def measured(self, event: Measured) -> None:
        self.count += 1

    @react
    def tell(self, event: Measured) -> Effects:
        yield Publish(topic="battery", event=event)

    @evolve
    def warned(self, event: Warned) -> None:
        self.count += 1

    @react
    def warn(self, event: Warned) -> Effects:
        yield Publish(topic="alerts/low", event=event)


class Monitor(Agent):
    numbers: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    @evolve
    def measured(self, event: Measured) -> None:
        self.numbers = (*self.numbers, event.number)

    @evolve
    def warned(self, event: Warned) -> None:
        self.warnings = (*self.warnings, event.severity)


class Dispatcher(Agent):
    here: tuple[str, ...] = ()
    trail: tuple[str, ...] = ()

    @evolve
    def reset(self, event: MembersReset) -> None:
        self.here = ()
        self.trail = (*self.trail, "reset")

    @evolve
    def joined(self, event: MemberJoined) -> None:
        self.here = tuple(sorted({*self.here, event.node}))
        self.trail = (*self.trail, f"+{event.node}")

    @evolve
    def left(self, event: MemberLeft) -> None:
        self.here = tuple(node for node in self.here if node != event.node)
        self.trail = (*self.trail, f"-{event.node}")


def drones(_: SimNode | None = None, *, shards: int = 1) -> Declaration:
    return Declaration("delivery", agents=[Drone], shards=shards)


def monitors(_: SimNode | None = None, *, shards: int = 1) -> Declaration:
    fleet = Declaration("ground", agents=[Monitor, Dispatcher], shards=shards)
    fleet.listen("Drone/{id}/battery", to="Monitor/{id}", fleet="delivery")
    fleet.listen("Drone/{id}/alerts/low", to="Monitor/all", fleet="delivery")
    return fleet


class Stage:
    """A world with one broker, a node of drones and a node that listens."""

    def __init__(
        self,
        seed: int = 1,
        *,
        settings: Settings | None = None,
        deadline_s: float = 20_000.0,
        broker: MemoryBroker | None = None,
    ) -> None:
        self.world = Run(seed, deadline_s=deadline_s)
        self.broker = broker or MemoryBroker()
        self.sender = SimNode(self.world, drones, name="drone", settings=settings, in_memory=True, broker=self.broker)
        self.receiver = SimNode(
            self.world, monitors, name="ground", settings=settings, in_memory=True, broker=self.broker
        )

    def numbers(self, name: str = "1") -> tuple[int, ...]:
        live = self.receiver.live
        assert live is not None
        return live.query(f"Monitor/{name}", Monitor).numbers

    def check(self) -> None:
        assert not self.sender.logbook.findings
        assert not self.receiver.logbook.findings


class Outsider:
    """Somebody else on the same broker: sends what a test wants, and hears everything."""

    def __init__(self, broker: MemoryBroker, name: str = "outsider") -> None:
        self.bus = MemoryBus(broker, name)
        self.heard: list[BusMessage] = []

    async def start(self, pattern: str = "#") -> Outsider:
        await self.bus.subscribe(pattern, self._hear)
        await self.bus.open()
        await asyncio.sleep(0.01)
        return self

    async def _hear(self, message: BusMessage) -> None:
        self.heard.append(without_proof(message))

    async def send(self, topic: str, payload: bytes | dict[str, Any], **options: Any) -> None:
        """Publishes, and leaves the receivers time to deal with it."""
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        await self.bus.publish(BusMessage(topic, data, **options))
        await asyncio.sleep(1.5)

    def events(self, ending: str) -> list[CloudEvent]:
        """The CloudEvents heard on topics that end so."""
        return [
            read_event(message.payload, message.content_type, message.properties)
            for message in self.heard
            if message.topic.endswith(ending)
        ]


def cloud(kind: str, data: Any = None, **attributes: Any) -> dict[str, Any]:
    """A structured CloudEvent as a stranger might write it."""
    return {"specversion": "1.0", "id": "1", "source": "/test", "type": kind, "data": data, **attributes}
