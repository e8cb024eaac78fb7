"""Raw events on a real node: nothing of them is on the wire, by no door, and what was kept back shows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stigmergy import (
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Live,
    Publish,
    Settings,
    Tell,
    UplinkRule,
    Window,
    decide,
    evolve,
    react,
)
from stigmergy.base.errors import ConfigError
from stigmergy.bus.memory import MemoryBus, forget_broker, memory_broker
from stigmergy.bus.port import BusMessage
from stigmergy.control.node_router import NodeAnswers
from stigmergy.control.protocol import (
    AgentsRequest,
    EventsRequest,
    ExplainRequest,
    LettersRequest,
    LogRequest,
    StateRequest,
    write_request,
)
from stigmergy.node.history import HistoryReader
from stigmergy.testing.bus_rig import wait_until

SECRET = "whispered-into-the-microphone"
BUS = "memory:raw"


class WhisperHeard(Event, raw=True):
    text: str


class WhisperCounted(Event):
    count: int


class PassOn(Command):
    text: str


class Microphone(Agent, kind="Microphone"):
    recent: Window[WhisperHeard] = Window.last(4)
    count: int = 0

    @decide
    def pass_on(self, command: PassOn) -> Events:
        yield WhisperHeard(text=command.text)

    @decide
    def hear(self, event: WhisperHeard) -> Events:
        yield event
        yield WhisperCounted(count=self.count + 1)

    @evolve
    def counted(self, event: WhisperCounted) -> None:
        self.count = event.count

    @react
    def send(self, event: WhisperHeard) -> Effects:
        if "poison" in event.text:
            raise ValueError(f"it cannot be sent: {event.text}")
        yield Publish("whispers", event)
        yield Tell(to="Archive/main", message=event)

    @react
    def tell(self, event: WhisperCounted) -> Effects:
        yield Publish("counts", event)


class Archive(Agent, kind="Archive"):
    texts: tuple[str, ...] = ()

    @evolve
    def keep(self, event: WhisperHeard) -> None:
        self.texts = (*self.texts, event.text)


def studio(*rules: str) -> Fleet:
    return Fleet("studio", agents=[Microphone, Archive], settings=Settings(raw_may_leave=rules))


class Wire:
    """Everything that clients of the broker could hear."""

    def __init__(self) -> None:
        self.heard: list[BusMessage] = []

    async def take(self, message: BusMessage) -> None:
        self.heard.append(message)

    @property
    def has_secret(self) -> bool:
        return any(SECRET.encode() in message.payload for message in self.heard)

    def of(self, about: str) -> list[BusMessage]:
        return [message for message in self.heard if message.topic.endswith(f"/{about}")]


@asynccontextmanager
async def both(fleet: Fleet, folder: Path, **options: Any) -> AsyncIterator[tuple[Live, Live, Wire]]:
    """The node of the microphone, that of the archive, and who listens to the wire."""
    forget_broker("raw")
    wire, spy = Wire(), MemoryBus(memory_broker("raw"), "spy")
    await spy.subscribe("#", wire.take)
    await spy.open()
    here = fleet.running(journal=f"sqlite:{folder}/here.db", bus=BUS, node="here", agents=["Microphone/*"], **options)
    there = fleet.running(journal=f"sqlite:{folder}/there.db", bus=BUS, node="there", agents=["Archive/*"])
    try:
        async with here as device, there as other:
            await wait_until(lambda: len(device.members()) == 2 and len(other.members()) == 2)
            yield device, other, wire
    finally:
        await spy.close()


async def test_nothing_of_a_raw_event_is_on_the_wire_and_that_shows(tmp_path: Path) -> None:
    async with both(studio(), tmp_path, uplink=UplinkRule()) as (device, other, wire):
        for _ in range(3):
            await device.observe("Microphone/m", WhisperHeard(text=SECRET))
        await wait_until(lambda: len(wire.of("counts")) == 3)
        await wait_until(lambda: device.standing().counters["raw_withheld"] == 6)
        await wait_until(lambda: device.standing().owed == 0)
        await wait_until(lambda: [letter.agent for letter in device.dead_letters()] == ["Archive/main"] * 3)
        troubles = "\n".join(device.standing().troubles)
        assert 'raw_may_leave = ["WhisperHeard to bus"]' in troubles
        assert 'raw_may_leave = ["WhisperHeard to tells"]' in troubles
        reader = HistoryReader(device.host, "Microphone/+/#")
        assert [one.topic for one in (await reader.read(0.0)).items] == ["counts"] * 3, "what other nodes ask for"
        await reader.close()
        assert not wire.has_secret
        assert other.query("Archive/main", Archive).texts == ()


async def test_other_nodes_get_answers_without_what_is_raw(tmp_path: Path) -> None:
    async with both(studio(), tmp_path) as (device, other, wire):
        await device.observe("Microphone/m", WhisperHeard(text=SECRET))
        await device.observe("Microphone/m", WhisperHeard(text=f"poison {SECRET}"))
        await wait_until(lambda: len(device.dead_letters()) >= 2)
        node = device.host
        service = _own_service(device)
        answers = NodeAnswers(service, node)
        for request in (
            StateRequest(agent="Microphone/m"),
            AgentsRequest(kind="Microphone"),
            ExplainRequest(agent="Microphone/m"),
            LogRequest(agent="Microphone/m"),
            EventsRequest(since_ns=0),
            LettersRequest(),
        ):
            line = await answers.answer(write_request(request))
            assert b'"kind":"' not in line.splitlines()[-1][:60], request
            assert SECRET.encode() not in line, request
            assert b"stays on its device" in line, request
        asked = await answers.answer(write_request(AgentsRequest(kind="Microphone", where=["recent.dropped=0"])))
        assert b"holds raw events" in asked, "a condition would tell what it is"
        own = [msgspec.json.encode(one) for one in await service.answer(LogRequest(agent="Microphone/m"))]
        assert any(SECRET.encode() in line for line in own), "who asks at the device gets all"
        del other, wire


def _own_service(live: Live) -> Any:
    from stigmergy.control.server import ControlService, NodeDescription

    return ControlService(live, live.host.verifier, NodeDescription("", "", live.host.key), lambda: None)


async def test_a_rule_that_names_kind_and_door_lets_it_out_there_alone(tmp_path: Path) -> None:
    async with both(studio("WhisperHeard to tells"), tmp_path) as (device, other, wire):
        await device.observe("Microphone/m", WhisperHeard(text=SECRET))
        await wait_until(lambda: other.query("Archive/main", Archive).texts == (SECRET,))
        await wait_until(lambda: device.standing().counters["raw_withheld"] == 1)
        assert wire.of("whispers") == []
    async with both(studio("WhisperHeard to bus"), tmp_path) as (device, other, wire):
        await device.observe("Microphone/m", WhisperHeard(text=SECRET))
        await wait_until(lambda: len(wire.of("whispers")) == 1)
        assert SECRET.encode() in wire.of("whispers")[0].payload
        assert other.query("Archive/main", Archive).texts == (SECRET,), "from before; no more was told"


async def test_a_receiver_waits_for_no_publication_that_was_kept_back_also_after_a_restart(tmp_path: Path) -> None:
    """The number before, which a message names, is that of the last one that was sent."""

    class Mixed(Agent, kind="Mixed"):
        @react
        def quiet(self, event: WhisperHeard) -> Effects:
            yield Publish("all", event)

        @react
        def loud(self, event: WhisperCounted) -> Effects:
            yield Publish("all", event)

    class Hearer(Agent, kind="Hearer"):
        counts: tuple[int, ...] = ()

        @evolve
        def heard(self, event: WhisperCounted) -> None:
            self.counts = (*self.counts, event.count)

    fleet = Fleet("mixed", agents=[Mixed, Hearer], settings=Settings(gap_wait_s=3_600.0))
    fleet.listen("Mixed/m/all", to="Hearer/h")
    forget_broker("raw")

    def mixed() -> Any:
        return fleet.running(journal=f"sqlite:{tmp_path}/m.db", bus=BUS, node="m", agents=["Mixed/*"])

    hearing = fleet.running(journal=f"sqlite:{tmp_path}/h.db", bus=BUS, node="h", agents=["Hearer/*"])
    async with hearing as hearer:
        for count in (1, 2):
            async with mixed() as live:
                await live.observe("Mixed/m", WhisperCounted(count=count))
                await live.observe("Mixed/m", WhisperHeard(text=SECRET))
        async with mixed() as live:
            await live.observe("Mixed/m", WhisperCounted(count=3))
            await wait_until(lambda: hearer.query("Hearer/h", Hearer).counts == (1, 2, 3))


async def test_an_uplink_that_names_a_raw_kind_is_refused_and_one_that_names_none_says_what_it_leaves_out(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"journal": f"sqlite:{tmp_path}/u.db", "bus": BUS, "node": "u"}
    for rule in (
        UplinkRule(only=("WhisperHeard",)),
        UplinkRule(sample={"WhisperHeard": "1s"}),
        msgspec.convert({"aggregate": {"WhisperHeard": {"every": "1s"}}}, UplinkRule),
    ):
        with pytest.raises(ConfigError, match='raw_may_leave = \\["WhisperHeard to uplink"\\]'):
            async with studio().running(**options, uplink=rule):
                pass
    said: list[str] = []
    running = studio().running(**options, uplink=UplinkRule())
    running.say = said.append
    async with running:
        await asyncio.sleep(0)
    assert any("the uplink leaves out what is raw: WhisperHeard" in sentence for sentence in said)
