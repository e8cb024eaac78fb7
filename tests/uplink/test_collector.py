"""What a gateway takes from uplinks, what it refuses, and what it tells whoever sent it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.codec import encode, pack_envelope
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event
from stigmergy.base.errors import DefinitionError, Malformed, StaleEpoch
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage
from stigmergy.bus.presence import MemberLeft
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from stigmergy.uplink.collector import HOLE_MAX
from stigmergy.uplink.messages import Batch, Inquiry, Told, UplinkMark, read_told, write_message
from stigmergy.uplink.names import UplinkSource, sender_of, uplinks_pattern
from stigmergy.uplink.rules import number_of

ME = UplinkSource("delivery", "local", "drone-1")
SOURCE = "uplink/delivery/local/drone-1/0"


class Heard(Event):
    number: int


class Reset(Command):
    pass


class Twin(Agent):
    numbers: tuple[int, ...] = ()

    @evolve
    def heard(self, event: Heard) -> None:
        self.numbers = (*self.numbers, event.number)

    @decide
    def reset(self, command: Reset) -> Events:
        yield Heard(number=-1)


def declare(shards: int = 1) -> Declaration:
    fleet = Declaration("ground", agents=[Twin], shards=shards)
    fleet.collect("Drone/{id}", to="Twin/{id}", fleet="delivery")
    return fleet


class Device:
    """Somebody who speaks as an uplink does, well or badly."""

    def __init__(self, broker: MemoryBroker, sender: UplinkSource = ME) -> None:
        self._bus = MemoryBus(broker, f"device {sender.node}")
        self._sender = sender
        self.told: list[Told] = []

    async def start(self) -> "Device":
        await self._bus.subscribe(self._sender.marks_topic, self._hear)
        await self._bus.open()
        await asyncio.sleep(0.1)
        return self

    async def _hear(self, message: BusMessage) -> None:
        self.told.append(read_told(message.payload))

    async def say(self, *messages: Batch | Inquiry | bytes) -> Told:
        """Says all of it at once; returns the last that it was told."""
        before = len(self.told)
        for message in messages:
            payload = message if isinstance(message, bytes) else write_message(message)
            await self._bus.publish(BusMessage(self._sender.topic, payload))
        await asyncio.sleep(3)
        assert len(self.told) == before + len(messages)
        return self.told[-1]


def batch(
    after: int, numbers: list[int], upto: int | None = None, *, epoch: int = 1, address: str = "Drone/1"
) -> Batch:
    """Events that say their own numbers."""
    items = [(number, address, encode(Heard(number=number))) for number in numbers]
    return Batch(0, 7, epoch, after, upto or numbers[-1], items)


def play(scene: Callable[[SimNode, Live, Device], Awaitable[None]], shards: int = 1) -> None:
    world = Run(1)
    broker = MemoryBroker()
    node = SimNode(world, lambda _: declare(shards), name="gateway", in_memory=True, broker=broker)

    async def main() -> None:
        live = await node.start()
        await scene(node, live, await Device(broker).start())

    world.run(main())
    assert not node.logbook.findings


def numbers_of(live: Live, name: str = "1") -> tuple[int, ...]:
    return live.query(f"Twin/{name}", Twin).numbers


@pytest.mark.parametrize("shards", [1, 3])
def test_a_batch_is_taken_once_and_its_end_is_told(shards: int) -> None:
    async def scene(node: SimNode, live: Live, device: Device) -> None:
        one = batch(0, [3, 4, 90, 5000], 9000)
        assert await device.say(one) == Told("gateway", device.told[0].run, "", [UplinkMark(0, 7, 1, 9000)])
        await device.say(one, one)
        assert numbers_of(live) == (3, 4, 90, 5000)
        counters = live.standing().counters
        assert (counters["collected_batches"], counters["collected_repeated"]) == (1, 2)
        assert counters["skipped"] == 0
        # What overlaps is taken from where it is new.
        told = await device.say(batch(4, [90, 5000, 9500]))
        assert told.marks[0].number == 9500
        assert numbers_of(live) == (3, 4, 90, 5000, 9500)
        # All of it survives.
        await node.kill()
        again = await node.start()
        assert numbers_of(again) == (3, 4, 90, 5000, 9500)
        answer = await device.say(Inquiry("now"))
        assert (answer.nonce, answer.marks) == ("now", [UplinkMark(0, 7, 1, 9500)])

    play(scene, shards)


def test_nothing_is_told_before_it_is_durable() -> None:
    async def scene(node: SimNode, live: Live, device: Device) -> None:
        await device.say(Inquiry("first"))
        node.latency.before_s, node.latency.jitter = 4.0, False
        await device._bus.publish(BusMessage(ME.topic, write_message(batch(0, [1]))))
        await asyncio.sleep(3.5)
        await device._bus.publish(BusMessage(ME.topic, write_message(Inquiry("second"))))
        await asyncio.sleep(0.1)
        # It has been stepped, and an answer to an inquiry does not count it either.
        assert [(told.nonce, told.marks) for told in device.told[1:]] == [("second", [])]
        await asyncio.sleep(20)
        assert device.told[-1].marks == [UplinkMark(0, 7, 1, 1)]
        assert numbers_of(live) == (1,)

    play(scene)


def test_batches_at_once_are_taken_in_order() -> None:
    async def scene(_: SimNode, live: Live, device: Device) -> None:
        told = await device.say(*(batch(number, [number + 1]) for number in range(50)))
        assert told.marks[0].number == 50
        assert numbers_of(live) == tuple(range(1, 51))

    play(scene)


def test_a_batch_that_follows_what_is_not_here_is_not_taken() -> None:
    async def scene(_: SimNode, live: Live, device: Device) -> None:
        await device.say(batch(0, [1]))
        told = await device.say(batch(2, [3]))
        assert (told.marks[0].number, told.refused) == (1, "a batch before it is missing")
        await device.say(batch(1, [2]), batch(2, [3]))
        assert numbers_of(live) == (1, 2, 3)

    play(scene)


def test_an_owner_that_was_replaced_is_refused_and_the_next_begins_at_what_is_confirmed() -> None:
    async def scene(_: SimNode, live: Live, device: Device) -> None:
        await device.say(batch(0, [1], epoch=5))
        told = await device.say(batch(1, [2], epoch=4))
        assert "another owner has taken over" in told.refused
        assert told.marks == [UplinkMark(0, 7, 5, 1)]
        # The new owner cannot follow what the old one had under way, be it at the same moment.
        await device.say(batch(1, [2], epoch=5), batch(2, [3], epoch=6))
        assert "missing" in device.told[-1].refused or "missing" in device.told[-2].refused
        assert numbers_of(live) == (1, 2)

    play(scene)


def test_what_is_lost_is_in_the_log_once() -> None:
    async def scene(node: SimNode, live: Live, device: Device) -> None:
        await device.say(batch(0, [1]))
        await device.say(Batch(0, 7, 1, 1, number_of(900), [], "dropped"), batch(number_of(900), [number_of(901, 5)]))
        assert len(numbers_of(live)) == 2
        counters = live.standing().counters
        assert (counters["skipped"], counters["collected_lost"]) == (1, 1)
        told = [body for commit in node.logbook.commits[0] for _, body in commit.events if b"lost: dropped" in body]
        assert len(told) == 1

    play(scene)


def test_unknown_agents_and_types_are_dead_letters_and_hold_up_nothing() -> None:
    class Strange(Event):
        pass

    async def scene(_: SimNode, live: Live, device: Device) -> None:
        items = [
            (1, "Plane/1", encode(Heard(number=1))),
            (2, "Drone/1", encode(Strange())),
            (3, "Drone/1", b"\xff"),
            (4, "Drone/1", encode(Heard(number=4))),
            (5, "no address", b""),
        ]
        told = await device.say(Batch(0, 7, 1, 0, 5, items))
        assert (told.marks[0].number, told.refused) == (5, "")
        assert numbers_of(live) == (4,)
        assert [letter.agent for letter in live.dead_letters()] == ["Plane/1", "Twin/1", "Twin/1", "no address"]

    play(scene)


def test_commands_are_not_taken() -> None:
    async def scene(_: SimNode, live: Live, device: Device) -> None:
        items = [(1, "Drone/1", encode(Reset())), (2, "Drone/1", encode(Heard(number=2)))]
        told = await device.say(Batch(0, 7, 1, 0, 2, items))
        assert told.marks[0].number == 2
        assert numbers_of(live) == (2,)
        assert live.standing().counters["collected_refused"] == 1

    play(scene)


def test_what_is_no_message_is_refused_and_told() -> None:
    async def scene(_: SimNode, live: Live, device: Device) -> None:
        told = await device.say(b"\x01nonsense")
        assert "docs/uplink.md" in told.refused
        assert live.standing().counters["collected_refused"] == 1
        assert (await device.say(Inquiry("x"))).marks == []

    play(scene)


def test_nobody_else_may_speak_as_an_uplink() -> None:
    async def scene(_: SimNode, live: Live, device: Device) -> None:
        with pytest.raises(StaleEpoch, match="uplinks"):
            await live.deliver(pack_envelope(SOURCE, [("Twin/1", Heard(number=1))], sequence=1))
        assert numbers_of(live) == ()

    play(scene)


def test_a_flood_is_shed_before_it_is_looked_at() -> None:
    async def scene(_: SimNode, live: Live, device: Device) -> None:
        link = live.link
        assert link is not None
        assert link.relay.collector is not None
        link.relay.collector._quotas._burst = 2.0
        for _number in range(11):
            await device._bus.publish(BusMessage(ME.topic, b"\x01a"))
        await asyncio.sleep(1)
        assert live.standing().counters["collected_shed"] >= 8

    play(scene)


def test_names_of_topics() -> None:
    assert ME.topic == "delivery/local/uplink/drone-1"
    assert ME.marks_topic == "delivery/local/uplink/drone-1/marks"
    assert sender_of(UplinkSource("a", "b c", "d/e").topic) == UplinkSource("a", "b c", "d/e")
    assert uplinks_pattern("delivery", "+") == "delivery/+/uplink/+"
    for topic in ("a/b/uplink", "a/b/nodes/c", "a/b/uplink/c/marks", f"a/b/uplink/{'c' * 300}", "a/b/uplink/%zz"):
        with pytest.raises(Malformed):
            sender_of(topic)


@pytest.mark.parametrize(
    ("what", "to", "said"),
    [
        ("Drone", None, "write Kind/name"),
        ("Drone/{id}", "Ship/{id}", "is not an agent of fleet"),
        ("Drone/{id}", "Twin/{name}", "has a place"),
        ("Drone/{id}", "{kind}/{id}", "has a place"),
        ("Drone/+", None, "is not an address"),
        ("Drone/{id}", None, "is not an agent of fleet"),
    ],
)
def test_declarations_that_cannot_be_meant(what: str, to: str | None, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Declaration("ground", agents=[Twin]).collect(what, to=to)


def test_holes_between_events_cost_neither_commits_nor_time() -> None:
    """Some 950 bytes of them have taken 9,000 commits."""

    async def scene(node: SimNode, live: Live, device: Device) -> None:
        before = live.host.shards[0].state.position
        await device.say(batch(0, list(range(1, 200 * HOLE_MAX, HOLE_MAX))))
        assert len(numbers_of(live)) == 200
        assert live.host.shards[0].state.position - before < 10

    play(scene)


class Watcher(Agent):
    left: int = 0

    @evolve
    def gone(self, event: MemberLeft) -> None:
        self.left += 1


def test_what_the_framework_says_here_nobody_says_from_afar() -> None:
    world = Run(1)
    broker = MemoryBroker()
    node = SimNode(world, lambda _: _watching(), name="gateway", in_memory=True, broker=broker)

    async def main() -> None:
        live = await node.start()
        device = await Device(broker).start()
        told = await device.say(Batch(0, 7, 1, 0, 1, [(1, "Watcher/1", encode(MemberLeft(node="gateway")))]))
        assert told.marks[0].number == 1
        assert live.agents() == []
        assert live.standing().counters["collected_refused"] == 1

    world.run(main())


def _watching() -> Declaration:
    fleet = Declaration("ground", agents=[Watcher])
    fleet.collect("Drone/{id}", to="Watcher/{id}", fleet="delivery")
    return fleet
