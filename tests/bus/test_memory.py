"""The broker in memory: bad links, its bounds, and hours that pass in virtual time."""

import asyncio

import pytest

from stigmergy.base.errors import Bug, ConfigError, LinkDown, Overloaded
from stigmergy.bus.inbox import TRIES_MAX, UNHEARD_S_MAX
from stigmergy.bus.memory import MemoryBroker, MemoryBus, forget_broker, memory_broker, open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.sim.loop import SimEntropy, run
from stigmergy.testing.bus_rig import HandlerLog, Marking, publish_surely, wait_until

HOUR_S = 3600.0


async def linked(broker: MemoryBroker, client_id: str) -> MemoryBus:
    bus = MemoryBus(broker, client_id)
    await bus.open()
    await wait_until(lambda: bus.is_up)
    return bus


def test_url_names_a_broker_that_is_shared() -> None:
    forget_broker("shared")
    entropy = SimEntropy(1)
    assert open_bus("memory:shared", "a", entropy)._broker is memory_broker("shared")
    forget_broker("shared")
    assert open_bus("memory:shared", "a", entropy)._broker is memory_broker("shared")
    for url in ("memory:", "mqtt://host"):
        with pytest.raises(ConfigError):
            open_bus(url, "a", entropy)


@pytest.mark.parametrize(("seed", "shuffle"), [pytest.param(0, False, marks=pytest.mark.prove), (1, True)])
@pytest.mark.parametrize("redeliver_after_s", [pytest.param(None, marks=pytest.mark.prove), 30.0])
def test_an_hour_offline_loses_nothing(seed: int, redeliver_after_s: float | None, shuffle: bool) -> None:
    """The publisher keeps what it cannot send, the broker what it cannot give; one each second, for an hour."""

    async def live() -> tuple[list[int], int]:
        broker = MemoryBroker(redeliver_after_s=redeliver_after_s)
        sender, receiver, marking = await linked(broker, "sender"), await linked(broker, "receiver"), Marking()
        await receiver.subscribe("drones/7", marking)
        owed: list[int] = []
        for second in range(3 * 3600):
            if second == 3600:
                broker.drop_acknowledgements("sender")
                broker.drop_acknowledgements("receiver")
            if second == 3610:
                broker.cut("sender")
                broker.cut("receiver")
            if second == 3600 + 5400:
                broker.restore("receiver")
            if second == 7200:
                broker.restore("sender")
            owed.append(second + 1)
            while owed and sender.is_up:
                try:
                    async with asyncio.timeout(5):
                        await sender.publish(BusMessage("drones/7", b"%d" % owed[0]))
                except (LinkDown, TimeoutError):
                    break
                owed.pop(0)
            await asyncio.sleep(1)
        await wait_until(lambda: len(marking.taken) == 3 * 3600, within_s=HOUR_S)
        await sender.close()
        await receiver.close()
        return marking.taken, marking.repeated

    taken, repeated = run(live(), seed=seed, shuffle=shuffle)
    assert taken == [*range(1, 3 * 3600 + 1)]
    assert repeated > 0


def test_runs_repeat() -> None:
    async def live() -> list[tuple[str, bytes, float]]:
        broker, loop = MemoryBroker(redeliver_after_s=1.0), asyncio.get_running_loop()
        sender, receiver = await linked(broker, "sender"), await linked(broker, "receiver")
        seen: list[tuple[str, bytes, float]] = []

        async def see(message: BusMessage) -> None:
            await asyncio.sleep(0.01)
            seen.append((message.topic, message.payload, loop.time()))

        await receiver.subscribe("a/+", see)
        publishing = [asyncio.ensure_future(publish_surely(sender, f"a/{topic}", range(50))) for topic in range(4)]
        for client in ("sender", "receiver", "sender"):
            await asyncio.sleep(0.05)
            broker.cut(client)
            await asyncio.sleep(0.02)
            broker.restore(client)
        await asyncio.gather(*publishing)
        await asyncio.sleep(5)
        await sender.close()
        await receiver.close()
        return seen

    first = run(live(), seed=3, shuffle=True)
    assert len(first) >= 200
    assert first == run(live(), seed=3, shuffle=True)


async def test_session_holds_no_more_than_its_bound() -> None:
    broker = MemoryBroker(held_count_max=10)
    sender, receiver, heard = await linked(broker, "sender"), await linked(broker, "receiver"), HandlerLog()
    await receiver.subscribe("a", heard)
    broker.cut("receiver")
    for number in range(15):
        await sender.publish(BusMessage("a", b"%d" % number))
    assert (broker.held_count("receiver"), broker.dropped) == (10, 5)
    broker.restore("receiver")
    await wait_until(lambda: len(heard.payloads) == 10)
    assert heard.payloads[-1] == b"9"
    await sender.close()
    await receiver.close()


async def test_lost_acknowledgements_repeat_the_message_and_fail_the_publish() -> None:
    broker = MemoryBroker()
    sender, receiver, heard = await linked(broker, "sender"), await linked(broker, "receiver"), HandlerLog()
    await receiver.subscribe("a", heard)
    broker.drop_acknowledgements("sender")
    broker.drop_acknowledgements("receiver")
    publishing = asyncio.ensure_future(sender.publish(BusMessage("a", b"1")))
    await wait_until(lambda: heard.payloads == [b"1"])
    assert not publishing.done()
    broker.cut_all()
    with pytest.raises(LinkDown):
        await publishing
    broker.restore_all()
    await wait_until(lambda: heard.payloads == [b"1", b"1"])
    await wait_until(lambda: broker.held_count("receiver") == 0)
    await sender.close()
    await receiver.close()


async def test_second_client_of_an_id_throws_the_first_one_out() -> None:
    broker = MemoryBroker()
    first = await linked(broker, "node")
    second = await linked(broker, "node")
    assert (first.is_up, second.is_up) == (False, True)
    await first.close()
    assert second.is_up
    await second.close()
    with pytest.raises(Bug):
        await second.subscribe("a", HandlerLog())


async def test_listener_that_fails_harms_neither_the_link_nor_other_listeners() -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["message"])))
    bus, heard = MemoryBus(MemoryBroker(), "node"), list[bool]()

    def fail(_: bool) -> None:
        raise KeyError("bug")

    bus.on_link(fail)
    bus.on_link(heard.append)
    await bus.open()
    await wait_until(lambda: heard == [True])
    await bus.close()
    assert heard == [True, False]
    assert told == ["node: a listener for the link failed"] * 2


# What every bus does with what it has received: bus/inbox.py.


def test_handler_that_cannot_stand_a_message_gives_it_up_after_so_many_tries() -> None:
    async def live() -> tuple[int, list[bytes], str]:
        broker, calls = MemoryBroker(), []
        bus = await linked(broker, "node")

        async def handle(message: BusMessage) -> None:
            calls.append(message.payload)
            if message.payload == b"poison":
                raise KeyError("bug")

        await bus.subscribe("a", handle)
        await bus.publish(BusMessage("a", b"poison"))
        await asyncio.sleep(0.01)
        await bus.publish(BusMessage("a", b"good"))
        await wait_until(lambda: b"good" in calls, within_s=60)
        await bus.close()
        return bus.receipts.given_up, calls, bus.receipts.last_failure

    given_up, calls, failure = run(live(), seed=1)
    assert (given_up, calls) == (1, [b"poison"] * TRIES_MAX + [b"good"])
    assert "KeyError" in failure


def test_node_that_is_overloaded_for_an_hour_gives_nothing_up() -> None:
    async def live() -> tuple[int, int, float]:
        broker, loop, calls = MemoryBroker(), asyncio.get_running_loop(), 0
        bus, taken = await linked(broker, "node"), asyncio.Event()

        async def handle(_: BusMessage) -> None:
            nonlocal calls
            calls += 1
            if loop.time() < HOUR_S:
                raise Overloaded("later")
            taken.set()

        await bus.subscribe("a", handle)
        await bus.publish(BusMessage("a", b"1"))
        await taken.wait()
        at_s = loop.time()
        await bus.close()
        return bus.receipts.taken, calls, at_s

    taken, calls, at_s = run(live(), seed=1)
    assert taken == 1
    assert HOUR_S <= at_s < HOUR_S + 10
    assert calls < HOUR_S


def test_message_whose_predecessor_is_lost_is_refused_in_the_end() -> None:
    async def live() -> tuple[list[int], int]:
        broker, marking = MemoryBroker(), Marking()
        bus = await linked(broker, "node")
        await bus.subscribe("a", marking)
        for number in (1, 3):
            await bus.publish(BusMessage("a", b"%d" % number))
        await wait_until(lambda: broker.held_count("node") == 0, within_s=HOUR_S)
        await bus.close()
        return marking.taken, bus.receipts.refused

    assert run(live(), seed=1) == ([1], 1)


@pytest.mark.parametrize(("after_s", "heard_count", "unheard"), [(1.0, 1, 0), (UNHEARD_S_MAX + 1, 0, 1)])
def test_what_was_held_waits_a_while_for_its_subscription(after_s: float, heard_count: int, unheard: int) -> None:
    async def live() -> tuple[int, int]:
        broker, heard = MemoryBroker(), HandlerLog()
        bus = await linked(broker, "node")
        await bus.subscribe("a", heard)
        broker.cut("node")
        await bus.close()
        broker.restore("node")
        sender = await linked(broker, "sender")
        await sender.publish(BusMessage("a", b"held"))
        bus = await linked(broker, "node")
        await asyncio.sleep(after_s)
        await bus.subscribe("a", heard)
        await asyncio.sleep(1)
        await bus.close()
        await sender.close()
        return len(heard.messages), bus.receipts.unheard

    assert run(live(), seed=1) == (heard_count, unheard)
