"""What every ring must do, as tests: inherit them to prove an adapter of your own. Needs pytest and nothing else.

    class TestMyRing(RingContract):
        @pytest.fixture
        def ring(self, tmp_path):
            return MyRing(tmp_path / "ring", capacity_bytes=CAPACITY_BYTES)

`ring` has `open_producer` and `open_consumer`, of the same ring each time within a test and of a fresh one for each
test, and holds CAPACITY_BYTES of this module. A side that is closed stands for one that crashed: a ring must not need
a farewell. Kills of real processes, damage and what a file may be are particular to a technology: test those there.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol

import pytest

from stigmergy.base.errors import Bug, Malformed, NotRunning, Overloaded, RingLocked, TooLarge
from stigmergy.ring.port import RingConsumer, RingProducer

CAPACITY_BYTES = 64 * 1024
LARGE_BYTES = 30_000
"""Two of them fit, three do not."""
SOON_S = 10.0
SHORT_S = 0.05
WOKEN_S_MAX = 3.0
"""Forty times woken takes less; forty times looking again now and then takes longer."""

P = ParamSpec("P")


class Ring(Protocol):
    """One ring, as the suite needs it."""

    def open_producer(self) -> RingProducer:
        """Its producer."""
        ...

    def open_consumer(self) -> RingConsumer:
        """Its consumer."""
        ...


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Lets an async test run under plain pytest."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def take_all(consumer: RingConsumer) -> list[tuple[int, bytes]]:
    """Everything that is there now, copied."""
    found: list[tuple[int, bytes]] = []
    while (message := consumer.take_nowait()) is not None:
        found.append((message.number, bytes(message.body)))
    return found


def numbered(*bodies: bytes, first: int = 1) -> list[tuple[int, bytes]]:
    """How these must come out."""
    return list(enumerate(bodies, start=first))


class RingContract:
    """Every sentence of the port's docstrings, one test or more each."""

    @pytest.fixture
    def ring(self) -> Ring:
        """The ring of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture ring: see the module's docstring")

    # Messages.

    def test_new_ring_is_empty(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        assert (producer.written, producer.durable(), producer.taken(), consumer.durable()) == (0, 0, 0, 0)
        assert consumer.take_nowait() is None
        consumer.mark_durable(0)
        producer.close()
        consumer.close()

    def test_messages_come_out_in_order_and_bit_for_bit(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        bodies = [b"", b"a", bytes(range(256)), b"x" * 4095, b"y" * 16, b"z" * 17]
        assert [producer.put_nowait(body) for body in bodies] == [1, 2, 3, 4, 5, 6]
        assert take_all(consumer) == numbered(*bodies)
        assert (producer.written, producer.taken(), producer.durable()) == (6, 6, 0)
        producer.close()
        consumer.close()

    def test_parts_become_one_message(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        wide = memoryview(bytearray(b"12345678")).cast("I")
        producer.put_nowait(b"head", bytearray(b"-"), wide, b"", memoryview(b"tail"))
        producer.put_nowait()
        assert take_all(consumer) == numbered(b"head-12345678tail", b"")
        producer.close()
        consumer.close()

    def test_body_is_read_only_aligned_and_where_it_lies(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        producer.put_nowait(b"odd")
        producer.put_nowait(bytes(8 * 100))
        first, second = consumer.take_nowait(), consumer.take_nowait()
        assert first is not None
        assert second is not None
        assert first.body.readonly
        assert second.body.contiguous
        assert len(second.body.cast("d")) == 100
        producer.close()
        consumer.close()

    def test_any_length_up_to_the_limit_any_number_of_times_around(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        limit = CAPACITY_BYTES // 2 - 16
        for round_number in range(60):
            size = (round_number * 7919) % limit if round_number % 5 else limit
            body = bytes([round_number]) * size
            number = producer.put_nowait(body)
            assert take_all(consumer) == [(number, body)]
            consumer.mark_durable(number)
        producer.close()
        consumer.close()

    def test_too_long_a_message_and_no_bytes_are_refused(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        with pytest.raises(TooLarge, match="at most"):
            producer.put_nowait(bytes(CAPACITY_BYTES // 2 - 15))
        with pytest.raises(TooLarge):
            producer.put_nowait(bytes(LARGE_BYTES), bytes(LARGE_BYTES))
        for wrong in ("text", 7, None, memoryview(b"123456")[::2]):
            with pytest.raises(Malformed, match="give bytes"):
                producer.put_nowait(wrong)  # type: ignore[arg-type]
        assert consumer.take_nowait() is None
        assert producer.put_nowait(b"fine") == 1
        producer.close()
        consumer.close()

    # Room and durability.

    def test_room_is_free_when_durable_and_not_when_read(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        for _ in range(2):
            producer.put_nowait(bytes(LARGE_BYTES))
        assert len(take_all(consumer)) == 2
        with pytest.raises(Overloaded, match="nothing was put; 2 messages are not durable yet, 0 of them not read"):
            producer.put_nowait(bytes(LARGE_BYTES))
        consumer.mark_durable(1)
        assert producer.durable() == 1
        assert producer.put_nowait(bytes(LARGE_BYTES)) == 3
        assert take_all(consumer) == [(3, bytes(LARGE_BYTES))]
        producer.close()
        consumer.close()

    def test_marking_is_for_all_before_and_marking_again_does_nothing(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        for _ in range(5):
            producer.put_nowait(b"x")
        take_all(consumer)
        for number, durable in ((3, 3), (3, 3), (1, 3), (5, 5), (0, 5)):
            consumer.mark_durable(number)
            assert (consumer.durable(), producer.durable()) == (durable, durable)
        producer.close()
        consumer.close()

    def test_what_was_not_taken_cannot_be_durable(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        producer.put_nowait(b"x")
        with pytest.raises(Bug, match="the last that was taken is 0"):
            consumer.mark_durable(1)
        producer.close()
        consumer.close()

    # Waiting.

    @in_a_loop
    async def test_sleeping_consumer_is_woken(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        assert not await consumer.wait_ready(0)
        assert not await consumer.wait_ready(SHORT_S)
        begin_s = asyncio.get_running_loop().time()
        for number in range(1, 40):
            waiting = asyncio.ensure_future(consumer.wait_ready(SOON_S))
            await asyncio.sleep(0.001 if number % 2 else 0)
            producer.put_nowait(b"x")
            assert await waiting
            assert await consumer.wait_ready()
            assert take_all(consumer) == [(number, b"x")]
        assert asyncio.get_running_loop().time() - begin_s < WOKEN_S_MAX
        producer.close()
        consumer.close()

    @in_a_loop
    async def test_sleeping_producer_is_woken(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        begin_s = asyncio.get_running_loop().time()
        for number in range(1, 40):
            producer.put_nowait(b"x")
            take_all(consumer)
            waiting = asyncio.ensure_future(producer.wait_durable(within_s=SOON_S))
            await asyncio.sleep(0.001 if number % 2 else 0)
            consumer.mark_durable(number)
            await waiting
        assert asyncio.get_running_loop().time() - begin_s < WOKEN_S_MAX
        producer.close()
        consumer.close()

    @in_a_loop
    async def test_producer_waits_for_room_and_then_gives_up(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        await producer.put(bytes(LARGE_BYTES))
        await producer.put(bytes(LARGE_BYTES))
        with pytest.raises(Overloaded, match="nothing was put"):
            await producer.put(bytes(LARGE_BYTES), within_s=SHORT_S)
        take_all(consumer)
        waiting = asyncio.ensure_future(producer.put(bytes(LARGE_BYTES), within_s=SOON_S))
        await asyncio.sleep(SHORT_S)
        assert not waiting.done()
        consumer.mark_durable(2)
        assert await waiting == 3
        assert take_all(consumer) == [(3, bytes(LARGE_BYTES))]
        producer.close()
        consumer.close()

    @in_a_loop
    async def test_producer_waits_until_durable(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        await producer.wait_durable()
        await producer.put(b"a")
        await producer.put(b"b")
        with pytest.raises(Overloaded, match="message 2 is not durable"):
            await producer.wait_durable(within_s=SHORT_S)
        with pytest.raises(Malformed, match="message 3 was not put yet"):
            await producer.wait_durable(3)
        take_all(consumer)
        first = asyncio.ensure_future(producer.wait_durable(1, within_s=SOON_S))
        both = asyncio.ensure_future(producer.wait_durable(within_s=SOON_S))
        await asyncio.sleep(SHORT_S)
        assert not first.done()
        consumer.mark_durable(1)
        await first
        assert not both.done()
        consumer.mark_durable(2)
        await both
        producer.close()
        consumer.close()

    @in_a_loop
    async def test_cancelled_wait_leaves_the_ring_usable(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        waiting = asyncio.ensure_future(consumer.wait_ready())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await producer.put(b"x")
        assert await consumer.wait_ready(SOON_S)
        producer.close()
        consumer.close()

    @in_a_loop
    async def test_both_run_side_by_side_on_one_loop(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        count = 500

        async def produce() -> None:
            for number in range(1, count + 1):
                await producer.put(number.to_bytes(8, "big") * (number * 37 % 3000), within_s=SOON_S)
            await producer.wait_durable(within_s=SOON_S)

        producing = asyncio.ensure_future(produce())
        expected = 1
        while expected <= count:
            assert await consumer.wait_ready(SOON_S)
            for number, body in take_all(consumer):
                assert (number, body) == (expected, expected.to_bytes(8, "big") * (expected * 37 % 3000))
                expected += 1
            consumer.mark_durable(expected - 1)
        await producing
        producer.close()
        consumer.close()

    # Ends and new beginnings.

    def test_new_consumer_gets_again_what_was_not_durable(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        for body in (b"a", b"b", b"c"):
            producer.put_nowait(body)
        take_all(consumer)
        consumer.mark_durable(1)
        consumer.close()
        producer.put_nowait(b"d")
        consumer = ring.open_consumer()
        assert consumer.durable() == 1
        assert producer.taken() == 1
        assert take_all(consumer) == numbered(b"b", b"c", b"d", first=2)
        producer.close()
        consumer.close()

    def test_new_producer_goes_on_behind_the_last_message(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        producer.put_nowait(b"a")
        producer.close()
        producer = ring.open_producer()
        assert (producer.written, producer.durable()) == (1, 0)
        assert producer.put_nowait(b"b") == 2
        assert take_all(consumer) == numbered(b"a", b"b")
        consumer.mark_durable(2)
        producer.close()
        producer = ring.open_producer()
        assert (producer.written, producer.durable()) == (2, 2)
        assert producer.put_nowait(b"c") == 3
        assert take_all(consumer) == [(3, b"c")]
        producer.close()
        consumer.close()

    def test_ring_outlives_both_and_counts_them(self, ring: Ring) -> None:
        producer = ring.open_producer()
        for body in (b"a", b"b"):
            producer.put_nowait(body)
        assert producer.incarnation == 1
        producer.close()
        consumer = ring.open_consumer()
        take_all(consumer)
        consumer.mark_durable(1)
        assert (consumer.incarnation, consumer.producer_incarnation) == (1, 1)
        consumer.close()
        consumer, producer = ring.open_consumer(), ring.open_producer()
        assert (consumer.incarnation, consumer.producer_incarnation, producer.incarnation) == (2, 2, 2)
        assert take_all(consumer) == [(2, b"b")]
        producer.close()
        consumer.close()

    def test_second_of_a_side_is_refused(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        with pytest.raises(RingLocked, match="has a producer already"):
            ring.open_producer()
        with pytest.raises(RingLocked, match="has a consumer already"):
            ring.open_consumer()
        producer.put_nowait(b"x")
        assert take_all(consumer) == numbered(b"x")
        producer.close()
        ring.open_producer().close()
        consumer.close()
        ring.open_consumer().close()

    def test_closed_side_says_so(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        producer.put_nowait(b"x")
        for _ in range(2):
            producer.close()
            consumer.close()
        for call in (
            lambda: producer.put_nowait(b"x"),
            producer.durable,
            consumer.take_nowait,
            lambda: consumer.mark_durable(1),
        ):
            with pytest.raises(NotRunning, match="was closed"):
                call()

    @in_a_loop
    async def test_close_ends_who_waits(self, ring: Ring) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        producer.put_nowait(b"x")
        take_all(consumer)
        waiting = [asyncio.ensure_future(consumer.wait_ready()), asyncio.ensure_future(producer.wait_durable())]
        await asyncio.sleep(SHORT_S)
        consumer.close()
        producer.close()
        for result in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), SOON_S):
            assert isinstance(result, NotRunning)
