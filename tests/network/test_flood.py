"""One source that floods delays the others by less than 100 ms, and nobody who was held up pays for it."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, Order
from stigmergy.agents.messages import Action, Command, Event
from stigmergy.agents.supervision import WhenStale
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage, LinkHeard, tell_link
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.node.fleets import Measured, Stage, cloud

FLOOD = 40_000
LATE_S_MAX = 0.1
WRITE_S = 0.02
"""A disk like that of a small device."""
EVERY_S = 0.05
STALE_S = 0.5


class Seen(Event):
    number: int


class Checked(Event):
    pass


class Check(Command):
    pass


class Arrived(Action):
    number: int


class Land(Action):
    pass


class Gauge(Agent):
    count: int = 0
    silent = WhenStale(Seen, after_s=STALE_S, then=Land())

    @evolve
    def seen(self, event: Seen) -> None:
        self.count += 1

    @react
    def arrived(self, event: Seen) -> Effects:
        yield Arrived(number=event.number)

    @decide
    def check(self, command: Check) -> Events:
        yield Checked()


class Field:
    """A node on a broker, a quiet device, and others that flood."""

    def __init__(self, broker: MemoryBroker | None = None, agents: tuple[str, ...] = ()) -> None:
        self.world = Run(1)
        self.broker = broker or MemoryBroker()
        self.late_s: list[float] = []
        self.landed: list[str] = []
        self.sent_s: list[float] = []
        self.node = SimNode(self.world, self._declare, name="node", in_memory=True, broker=self.broker, agents=agents)
        self.node.latency.before_s = WRITE_S
        self.node.latency.jitter = False

    def _declare(self, _: SimNode) -> Declaration:
        fleet = Declaration("field", agents=[Gauge])
        fleet.device("devices/{id}/{about}", to="Gauge/{id}", event=Seen)

        @fleet.actuator(Arrived)
        def arrived(order: Order[Arrived]) -> None:
            if order.agent == "Gauge/quiet":
                self.late_s.append(asyncio.get_running_loop().time() - self.sent_s[order.effect.number])

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            self.landed.append(order.agent)

        return fleet

    def play(self, main: Callable[[Live], Awaitable[None]]) -> None:
        async def scene() -> None:
            live = await self.node.start()
            await asyncio.sleep(1)
            await main(live)
            if self.node.live is not None:
                await self.node.stop()

        self.world.run(scene())
        assert not self.node.logbook.findings

    async def client(self, name: str) -> MemoryBus:
        bus = MemoryBus(self.broker, name)
        await bus.open()
        await asyncio.sleep(0.01)
        return bus

    async def speak(self, topic: str, seconds: float) -> None:
        """A quiet device sends all the time."""
        bus = await self.client("quiet")
        for number in range(int(seconds / EVERY_S)):
            self.sent_s.append(asyncio.get_running_loop().time())
            await bus.publish(message(topic, number))
            await asyncio.sleep(EVERY_S)


def message(topic: str, number: int) -> BusMessage:
    plain = {"number": number}
    whole = plain if topic.startswith("devices") else cloud("Seen", plain, id=f"{topic} {number}")
    return BusMessage(topic, msgspec.json.encode(whole))


def inputs_of(agent: str) -> str:
    return f"field/local/agents/Gauge/{agent}/inputs"


async def flood(bus: MemoryBus, topics: list[str], count: int) -> None:
    await asyncio.gather(*(bus.publish(message(topics[number % len(topics)], number)) for number in range(count)))


@pytest.mark.parametrize("redeliver_after_s", [None, pytest.param(1.0, marks=pytest.mark.prove)])
@pytest.mark.parametrize(
    ("quiet", "flooded"),
    [
        (inputs_of("quiet"), [inputs_of("wild")]),
        pytest.param("devices/quiet/seen", ["devices/wild/seen"], marks=pytest.mark.prove),
        # Names under its own level get a device no larger share.
        ("devices/quiet/seen", [f"devices/wild/{name}" for name in range(1000)]),
        # And twenty at once are no worse.
        pytest.param(inputs_of("quiet"), [inputs_of(f"wild-{name}") for name in range(20)], marks=pytest.mark.prove),
    ],
)
def test_others_notice_less_than_100_ms_of_a_flood(
    quiet: str, flooded: list[str], redeliver_after_s: float | None
) -> None:
    field = Field(MemoryBroker(redeliver_after_s=redeliver_after_s))

    async def main(live: Live) -> None:
        speaking = asyncio.ensure_future(field.speak(quiet, 6.0))
        await asyncio.sleep(1)
        await flood(await field.client("wild"), flooded, FLOOD)
        await speaking
        await asyncio.sleep(EVERY_S)
        assert len(field.late_s) == len(field.sent_s), "some of the quiet one's messages are missing"
        assert max(field.late_s) < LATE_S_MAX
        assert "Gauge/quiet" not in field.landed
        counters = live.standing().counters
        assert counters["bus_shed"] + counters["bus_received"] >= FLOOD
        assert live.query(f"Gauge/{flooded[0].split('/')[1 if 'devices' in quiet else 4]}", Gauge).count > 0

    field.play(main)


def test_a_command_is_answered_while_its_agent_is_flooded() -> None:
    field = Field()

    async def main(live: Live) -> None:
        wild, boss = await field.client("wild"), await field.client("boss")
        answered = asyncio.Event()

        async def hear(_: BusMessage) -> None:
            answered.set()

        await boss.subscribe("field/local/agents/Gauge/wild/answers", hear)
        await flood(wild, [inputs_of("wild")], FLOOD)
        command = msgspec.json.encode(cloud("Check", {}))
        await boss.publish(BusMessage("field/local/agents/Gauge/wild/commands", command))
        async with asyncio.timeout(LATE_S_MAX):
            await answered.wait()

    field.play(main)


def test_what_came_while_the_disk_stood_still_is_not_shed() -> None:
    field = Field()

    async def main(live: Live) -> None:
        field.node.latency.before_s = 3.0
        bus, count = await field.client("steady"), 1800
        for number in range(count):  # 600 a second: within its rate, and all of it comes at once when the disk is back
            await bus.publish(message(inputs_of("steady"), number))
            await asyncio.sleep(3.0 / count)
        field.node.latency.before_s = WRITE_S
        await asyncio.sleep(10)
        assert live.query("Gauge/steady", Gauge).count == count
        assert live.standing().counters["bus_shed"] == 0

    field.play(main)


@pytest.mark.parametrize("killed", [False, True])
def test_what_the_broker_held_while_the_node_was_away_is_not_shed(killed: bool) -> None:
    field = Field()

    async def main(live: Live) -> None:
        bus, count = await field.client("steady"), 5000
        await bus.publish(message(inputs_of("steady"), 0))
        await asyncio.sleep(1)
        field.broker.cut("node")
        if killed:
            await field.node.kill()
        for number in range(1, count):
            await bus.publish(message(inputs_of("steady"), number))
            await asyncio.sleep(0.02)
        if killed:
            live = await field.node.start()
        field.broker.restore("node")
        await asyncio.sleep(20)
        assert live.query("Gauge/steady", Gauge).count == count
        assert live.standing().counters["bus_shed"] == 0

    field.play(main)


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_broker_delivers_before_the_link_counts_as_up_is_not_shed(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over MQTT held messages come after the connection, while the subscriptions are still made."""
    field, sensors, count = Field(), 24, 60

    def tell_late(listeners: list[LinkHeard], up: bool, name: str) -> None:
        asyncio.get_running_loop().call_later(0.2 if up else 0.0, tell_link, listeners, up, name)

    async def main(live: Live) -> None:
        bus = await field.client("sensors")
        monkeypatch.setattr("stigmergy.bus.memory.tell_link", tell_late)
        field.broker.cut("node")
        await asyncio.sleep(1)
        if killed:
            await field.node.kill()
        for number in range(count):
            for sensor in range(sensors):
                await bus.publish(message(f"devices/{sensor}/seen", number))
            await asyncio.sleep(2)
        if killed:
            live = await field.node.start()
        field.broker.restore("node")
        await asyncio.sleep(20)
        assert live.standing().counters["bus_shed"] == 0
        assert [live.query(f"Gauge/{sensor}", Gauge).count for sensor in range(sensors)] == [count] * sensors

    field.play(main)


def test_what_is_for_agents_of_other_nodes_takes_no_share() -> None:
    """Nodes of one fleet hear the devices of all: those of the others must not fill this node's queues."""
    field = Field(agents=("Gauge/quiet",))

    async def main(live: Live) -> None:
        bus = await field.client("wild")
        await flood(bus, [f"devices/{name}/seen" for name in range(100)], 10_000)
        await flood(bus, ["devices/quiet/seen"], 400)
        await asyncio.sleep(5)
        assert live.query("Gauge/quiet", Gauge).count == 400
        counters = live.standing().counters
        assert (counters["bus_shed"], counters["bus_received"]) == (0, 400)

    field.sent_s = [0.0] * 400
    field.play(main)


def test_what_a_publisher_has_kept_while_offline_is_not_shed_as_a_flood() -> None:
    """It sends no faster than others take it; everything arrives, and in order."""
    stage, count = Stage(), 5000

    async def scene() -> None:
        await stage.receiver.start()
        live = await stage.sender.start()
        await asyncio.sleep(1)
        stage.broker.cut("drone")
        await asyncio.gather(*(live.observe("Drone/1", Measured(number=number)) for number in range(count)))
        await asyncio.sleep(60)
        stage.broker.restore("drone")
        await asyncio.sleep(2 + count / 800)
        assert stage.numbers() == tuple(range(count))
        assert stage.receiver.live is not None
        assert stage.receiver.live.standing().counters["bus_shed"] == 0
        await stage.sender.stop()
        await stage.receiver.stop()

    stage.world.run(scene())
    stage.check()
