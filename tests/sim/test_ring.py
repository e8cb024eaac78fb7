"""The ring in memory runs in virtual time: waits cost nothing, runs repeat, and who waits for ever is found."""

import asyncio
import random

import pytest

from stigmergy.base.errors import Overloaded
from stigmergy.ring import MemoryRing
from stigmergy.ring.port import PUT_S_MAX
from stigmergy.sim.errors import Deadlock
from stigmergy.sim.loop import run

CAPACITY_BYTES = 8192


async def exchange(seed: int) -> list[tuple[float, int, int]]:
    """A fast producer and a slow consumer that dies now and then; when each message was kept, and its length."""
    ring, chance = MemoryRing(capacity_bytes=CAPACITY_BYTES), random.Random(seed)
    kept: list[tuple[float, int, int]] = []
    loop = asyncio.get_running_loop()

    async def produce() -> None:
        producer = ring.open_producer()
        for number in range(1, 201):
            await producer.put(number.to_bytes(2, "big") * chance.randrange(1, 1000), within_s=1000.0)
        await producer.wait_durable(within_s=1000.0)
        producer.close()

    producing = asyncio.ensure_future(produce())
    consumer = ring.open_consumer()
    while len(kept) < 200:
        assert await consumer.wait_ready(1000.0)
        message = consumer.take_nowait()
        assert message is not None
        await asyncio.sleep(chance.random())
        if chance.random() < 0.1:
            consumer.close()
            consumer = ring.open_consumer()
            continue
        assert bytes(message.body) == message.number.to_bytes(2, "big") * (len(message.body) // 2)
        kept.append((loop.time(), message.number, len(message.body)))
        consumer.mark_durable(message.number)
    await producing
    consumer.close()
    return kept


def test_same_seed_same_run() -> None:
    kept = run(exchange(7), seed=7)
    assert [number for _, number, _ in kept] == list(range(1, 201))
    assert kept == run(exchange(7), seed=7)
    assert kept != run(exchange(8), seed=8)


def test_waiting_for_room_takes_virtual_time_only() -> None:
    async def wait() -> float:
        producer = MemoryRing(capacity_bytes=CAPACITY_BYTES).open_producer()
        producer.put_nowait(bytes(4000))
        producer.put_nowait(bytes(4000))
        begin_s = asyncio.get_running_loop().time()
        with pytest.raises(Overloaded):
            await producer.put(bytes(4000))
        return asyncio.get_running_loop().time() - begin_s

    assert run(wait(), seed=1) == pytest.approx(PUT_S_MAX)


def test_consumer_that_nobody_feeds_is_a_deadlock() -> None:
    async def wait() -> None:
        await MemoryRing(capacity_bytes=CAPACITY_BYTES).open_consumer().wait_ready()

    with pytest.raises(Deadlock):
        run(wait(), seed=1)
