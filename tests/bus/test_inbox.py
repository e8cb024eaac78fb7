"""What comes early waits for what is before it, but not for the disk."""

import asyncio
from collections.abc import Callable
from functools import partial

from stigmergy.base.errors import LinkDown, SequenceGap
from stigmergy.bus.inbox import Arrival, Reception
from stigmergy.bus.port import BusMessage, Handler

COUNT = 20


async def settle() -> None:
    for _ in range(20 * COUNT):
        await asyncio.sleep(0)


async def test_early_messages_follow_each_other_without_waiting_for_the_disk() -> None:
    """Found on a real broker: where a write may wait a fifth of a second, each early message took that long."""
    reception, durable = Reception(), asyncio.Event()
    begun: list[int] = []
    told: list[int] = []

    async def handle(message: BusMessage) -> None:
        number = int(message.payload)
        if number != len(begun) + 1:
            raise SequenceGap(f"{number} is early", source="s", sequence=number)
        begun.append(number)
        await durable.wait()

    def tell(number: int) -> Callable[[], None]:
        return lambda: told.append(number)

    reception.subscribe("a", handle)
    for number in range(COUNT, 0, -1):
        reception.take(Arrival(BusMessage("a", str(number).encode()), tell(number)))
    await settle()
    assert begun == list(range(1, COUNT + 1))
    assert not told, "nothing is durable yet"
    durable.set()
    await settle()
    assert sorted(told) == begun
    assert reception.receipts.taken == COUNT
    await reception.close(1.0)


async def test_many_sources_are_begun_in_one_turn_of_a_busy_loop_and_each_keeps_its_order() -> None:
    """A node that computes for 10 ms in each turn took a hundred messages a second when it began one a turn."""
    reception, durable = Reception(), asyncio.Event()
    begun: list[tuple[int, str, int]] = []
    turn = 0

    async def handle(message: BusMessage) -> None:
        begun.append((turn, message.topic, int(message.payload)))
        await durable.wait()

    reception.subscribe("cart/+/tells", handle)
    for number in range(2):
        for cart in range(COUNT):
            reception.take(Arrival(BusMessage(f"cart/{cart}/tells", str(number).encode()), lambda: None))
    for _ in range(5):
        turn += 1
        await asyncio.sleep(0)
    assert len(begun) == 2 * COUNT
    assert begun[-1][0] - begun[0][0] <= 2
    assert [(topic, number) for _, topic, number in begun] == [
        (f"cart/{cart}/tells", number) for number in range(2) for cart in range(COUNT)
    ]
    durable.set()
    await settle()
    assert reception.receipts.taken == 2 * COUNT
    await reception.close(1.0)


async def test_a_message_that_fails_holds_those_begun_with_it_that_are_newer() -> None:
    reception, complete = Reception(), asyncio.Event()
    taken: list[str] = []
    told: list[str] = []
    fails = 2

    async def handle(message: BusMessage) -> None:
        nonlocal fails
        if message.payload == b"a2" and fails:
            fails -= 1
            raise LinkDown("not now")
        taken.append(message.payload.decode())
        if len(taken) == 7:
            complete.set()

    reception.subscribe("+", handle)
    for what in ("a1", "a2", "a3", "b1", "a4", "a5", "b2"):
        reception.take(Arrival(BusMessage(what[0], what.encode()), partial(told.append, what)))
    await settle()
    assert [one for one in taken if one[0] == "b"] == ["b1", "b2"]
    assert [one for one in taken if one[0] == "a"] == ["a1"]
    async with asyncio.timeout(240):
        await complete.wait()
    await settle()
    assert [one for one in taken if one[0] == "a"] == ["a1", "a2", "a3", "a4", "a5"]
    assert told == ["a1", "a2", "a3", "b1", "a4", "a5", "b2"]
    assert (reception.receipts.taken, reception.receipts.again) == (7, 2)
    await reception.close(1.0)


async def test_all_that_subscribed_to_a_topic_by_name_or_wildcard_get_its_messages() -> None:
    reception = Reception()
    heard: list[str] = []

    def listener(name: str) -> Handler:
        async def hear(message: BusMessage) -> None:
            heard.append(f"{name} {message.topic}")

        return hear

    for name, pattern in (("all", "#"), ("one", "a/b"), ("some", "a/+"), ("other", "a/c"), ("again", "a/b")):
        reception.subscribe(pattern, listener(name))
    for topic in ("a/b", "a/c", "d"):
        reception.take(Arrival(BusMessage(topic, b""), lambda: None))
        await settle()
    assert sorted(heard) == sorted(
        ["all a/b", "one a/b", "some a/b", "again a/b", "all a/c", "some a/c", "other a/c", "all d"]
    )
    reception.subscribe("d", listener("late"))
    reception.take(Arrival(BusMessage("d", b""), lambda: None))
    await settle()
    assert sorted(heard[8:]) == ["all d", "late d"]
    await reception.close(1.0)
