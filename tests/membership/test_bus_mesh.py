"""A mesh over a bus, beyond the contract: topics, what is refused, what is dropped when, and that nothing leaks."""

import asyncio

import pytest

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage
from stigmergy.bus.topics import Topics
from stigmergy.membership.bus_mesh import (
    BYTES_MAX,
    FLIGHTS_COUNT_MAX,
    WAITING_COUNT_MAX,
    BusMesh,
    pattern_of,
    topic_of,
)
from stigmergy.sim.loop import run

TOPICS = Topics("delivery", "north")


async def opened(broker: MemoryBroker, client_id: str) -> MemoryBus:
    bus = MemoryBus(broker, client_id)
    await bus.open()
    await asyncio.sleep(0.1)
    assert bus.is_up
    return bus


async def hearing(broker: MemoryBroker, node: str) -> tuple[BusMesh, list[tuple[str, bytes]]]:
    heard: list[tuple[str, bytes]] = []
    mesh = BusMesh(await opened(broker, node), TOPICS, node)
    await mesh.open(lambda sender, body: heard.append((sender, body)))
    return mesh, heard


def test_topics_name_both_ends() -> None:
    assert topic_of(TOPICS, "gateway", "drone.7") == "delivery/north/mesh/gateway/drone%2E7"
    assert pattern_of(TOPICS, "gateway") == "delivery/north/mesh/gateway/+"


def test_bad_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="letters"):
        BusMesh(MemoryBus(MemoryBroker(), "x"), TOPICS, "a/b")


def test_what_is_no_datagram_is_refused_and_counted() -> None:
    async def main() -> None:
        broker = MemoryBroker()
        mesh, heard = await hearing(broker, "a")
        bus = await opened(broker, "somebody")
        for topic, body in (
            ("delivery/north/mesh/a/b c", b"not escaped"),
            ("delivery/north/mesh/a/" + "b" * 65, b"too long a name"),
            ("delivery/north/mesh/a/%C3%A9", b"no name for a node"),
            ("delivery/north/mesh/a/a", b"in our own name"),
            ("delivery/north/mesh/a/b", bytes(BYTES_MAX + 1)),
        ):
            await bus.publish(BusMessage(topic, body))
        await bus.publish(BusMessage("delivery/north/mesh/a/b", b"good"))
        await asyncio.sleep(1)
        assert heard == [("b", b"good")]
        assert mesh.counters.refused_count == 5

    run(main(), seed=1)


def test_while_the_link_is_down_everything_is_dropped_and_afterwards_it_goes_on() -> None:
    async def main() -> None:
        broker = MemoryBroker()
        (one, _), (_, heard) = await hearing(broker, "a"), await hearing(broker, "b")
        broker.cut("a")
        one.send_nowait("b", b"lost")
        assert one.counters.dropped_count == 1
        broker.restore("a")
        await asyncio.sleep(1)
        one.send_nowait("b", b"heard")
        await asyncio.sleep(1)
        assert heard == [("a", b"heard")]

    run(main(), seed=1)


class SlowBus(MemoryBus):
    """A bus whose broker confirms nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker(), "a")
        self.go = asyncio.Event()
        self.taken: list[bytes] = []
        self.error: Exception | None = None

    @property
    def is_up(self) -> bool:
        return True

    async def publish(self, message: BusMessage) -> None:
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.taken.append(message.payload)


def test_bus_that_is_slow_costs_the_oldest() -> None:
    async def main() -> None:
        bus = SlowBus()
        mesh = BusMesh(bus, TOPICS, "a")
        await mesh.open(lambda *_: None)
        more = 10
        count = FLIGHTS_COUNT_MAX + WAITING_COUNT_MAX + more
        for number in range(count):
            mesh.send_nowait("b", b"%d" % number)
        assert mesh.counters.overflowed_count == more
        bus.go.set()
        await asyncio.sleep(1)
        flown = [*range(FLIGHTS_COUNT_MAX), *range(FLIGHTS_COUNT_MAX + more, count)]
        assert bus.taken == [b"%d" % number for number in flown]
        assert mesh.counters.sent_count == len(flown)

    run(main(), seed=1)


def test_link_lost_under_way_is_a_loss_and_an_unknown_error_is_told_of() -> None:
    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        bus = SlowBus()
        mesh = BusMesh(bus, TOPICS, "a")
        await mesh.open(lambda *_: None)
        bus.error = LinkDown("it broke")
        mesh.send_nowait("b", b"1")
        bus.go.set()
        await asyncio.sleep(1)
        assert told == []
        bus.error = ZeroDivisionError()
        mesh.send_nowait("b", b"2")
        await asyncio.sleep(1)
        assert told == [bus.error]

    run(main(), seed=1)


def test_close_leaves_nothing_behind() -> None:
    async def main() -> None:
        bus = SlowBus()
        mesh = BusMesh(bus, TOPICS, "a")
        await mesh.open(lambda *_: None)
        for number in range(FLIGHTS_COUNT_MAX + 5):
            mesh.send_nowait("b", b"%d" % number)
        await mesh.close()
        assert mesh.counters.dropped_count == 5
        bus.go.set()
        await asyncio.sleep(1)
        assert bus.taken == []
        assert not [task for task in asyncio.all_tasks() if "_fly" in repr(task)]

    run(main(), seed=1)
