"""A node that is fed from a ring: in order, no faster than it can, marked when durable, once after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stigmergy.agents.codec import pack_envelope
from stigmergy.base.errors import Overloaded, RingDamaged
from stigmergy.control.live import Live
from stigmergy.node import column_feeds as feeding
from stigmergy.node.column_feeds import FeedCounters, RingReader, RingReaders
from stigmergy.ring import MemoryRing
from stigmergy.sim.node import SimNode
from tests.agents.meters import Counted, Glimpsed, Seen
from tests.node.columns.stage import Hand, Radio, declare, play


def fed(live: Live, ring: MemoryRing) -> RingReaders:
    feedings = live.feedings = RingReaders(live.host, {"telemetry.ring": ring.open_consumer()})
    feedings.start()
    return feedings


async def left(feedings: RingReaders) -> None:
    await feedings.stop()
    feedings.close()


def test_batches_and_envelopes_are_taken_in_order_and_marked_when_durable() -> None:
    ring = MemoryRing()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        feedings = fed(live, ring)
        producer, radio = ring.open_producer(), Radio(live)
        seen = [("Board/main", Seen(level=3.0))]
        for number in range(10):
            await producer.put(radio.batch(("a", Counted(by=number)), ("a", Counted(by=100))))
            await producer.put(pack_envelope("boards", seen, sequence=number + 1))
        await producer.wait_durable()
        assert live.query("Meter/a").total == 1_045
        assert live.query("Board/main").levels == (3.0,) * 5
        counters = live.standing().counters
        assert counters["ring_messages"] == 20
        assert counters["ring_bytes"] > 20 * 48
        assert not live.standing().troubles
        await left(feedings)

    play(declare(Hand()), scene)


def test_nothing_is_marked_before_it_is_durable() -> None:
    ring = MemoryRing()
    kept: list[asyncio.Future[None]] = []

    def deliver(_: bytes) -> asyncio.Future[None]:
        kept.append(asyncio.get_running_loop().create_future())
        return kept[-1]

    async def scene(_: SimNode) -> None:
        producer = ring.open_producer()
        one = RingReader("r", ring.open_consumer(), lambda _: True, deliver, FeedCounters())
        running = asyncio.ensure_future(one.run())
        for number in range(4):
            await producer.put(b"%d" % number)
        await asyncio.sleep(0.1)
        assert len(kept) == 4
        kept[1].set_result(None)
        await asyncio.sleep(0.1)
        assert producer.durable() == 0, "the one before it is not durable"
        kept[0].set_result(None)
        await asyncio.sleep(0.1)
        assert producer.durable() == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        kept[2].set_result(None)
        one.close()
        assert producer.durable() == 3, "what was finished after the stop is marked"
        again = ring.open_consumer()
        message = again.take_nowait()
        assert message is not None
        assert (message.number, bytes(message.body)) == (4, b"3")

    play(declare(Hand()), scene)


def test_a_refusal_ends_the_ring_with_a_trouble_and_the_node_goes_on() -> None:
    ring = MemoryRing()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        feedings = fed(live, ring)
        producer, radio = ring.open_producer(), Radio(live)
        await producer.put(radio.batch(("a", Counted(by=1))))
        await producer.put(radio.batch(("a", Counted(by=2)), layout=b"x" * 16))
        radio.next[0] = 2
        await producer.put(radio.batch(("a", Counted(by=4))))
        await asyncio.sleep(3.0)
        assert producer.durable() == 1
        (trouble,) = live.standing().troubles
        assert trouble.startswith("ring telemetry.ring: nothing more is taken from it, because message 2 was refused: ")
        assert "request the roster again" in trouble
        assert trouble.endswith("remove the ring, and send again what was not durable")
        await producer.put(radio.batch(("a", Counted(by=8))))
        await asyncio.sleep(3.0)
        taken = live.query("Meter/a").total
        assert taken in (1, 5), "what was taken together with it may be kept; nothing after that"
        await live.observe("Meter/a", Counted(by=16))
        assert live.query("Meter/a").total == taken + 16
        assert producer.durable() == 1
        await left(feedings)

    play(declare(Hand()), scene)


@pytest.mark.parametrize(("nonsense", "what"), [(b"STGB??", "not a column batch"), (b"what?", "envelope")])
def test_what_is_no_message_ends_the_ring_but_what_came_before_is_marked(nonsense: bytes, what: str) -> None:
    ring = MemoryRing()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        feedings = fed(live, ring)
        producer, radio = ring.open_producer(), Radio(live)
        producer.put_nowait(radio.batch(("a", Counted(by=1))))
        producer.put_nowait(nonsense)
        await asyncio.sleep(2.0)
        assert producer.durable() == 1
        assert "message 2 was refused" in live.standing().troubles[0]
        assert what in live.standing().troubles[0]
        await left(feedings)

    play(declare(Hand()), scene)


def test_a_damaged_ring_is_a_trouble_too() -> None:
    class Damaged:
        def take_nowait(self) -> None:
            raise RingDamaged("it is damaged; remove it")

        def close(self) -> None:
            pass

    async def scene(_: SimNode) -> None:
        consumer: Any = Damaged()
        one = RingReader("r", consumer, lambda _: True, lambda _: asyncio.Future(), FeedCounters())
        await one.run()
        assert one.trouble == "ring r: nothing more is taken from it: it is damaged; remove it"
        one.close()

    play(declare(Hand()), scene)


def test_a_node_without_room_holds_up_the_producer_and_nothing_is_lost() -> None:
    """The mailbox takes 16 items, the ring 32 KiB: most of the 300 batches must wait with the producer."""
    ring = MemoryRing(capacity_bytes=32 * 1024)

    async def scene(node: SimNode) -> None:
        node.latency.after_s = 0.02
        live = await node.start()
        await live.enroll("Meter", ["a"])
        feedings = fed(live, ring)
        producer, radio = ring.open_producer(), Radio(live)
        most = 0
        for number in range(300):
            await producer.put(radio.batch(*(("a", Counted(by=2 * number, ok=True)) for _ in range(8))), within_s=60.0)
            most = max(most, live.host.mailbox.items)
        await producer.wait_durable()
        assert live.query("Meter/a").total == 8 * 2 * sum(range(300))
        assert most <= 17
        standing = live.standing()
        assert standing.counters["ring_waits"] > 0
        assert standing.counters["overloads"] == standing.counters["shed_items"] == 0
        assert not standing.troubles
        await left(feedings)

    play(declare(Hand()), scene, telemetry_items_max=16, batch_events_max=4)


def test_so_many_messages_are_in_flight_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "IN_FLIGHT_MAX", 5)
    ring = MemoryRing()
    kept: list[asyncio.Future[None]] = []

    def deliver(_: bytes) -> asyncio.Future[None]:
        kept.append(asyncio.get_running_loop().create_future())
        return kept[-1]

    async def scene(_: SimNode) -> None:
        producer = ring.open_producer()
        one = RingReader("r", ring.open_consumer(), lambda _: True, deliver, FeedCounters())
        running = asyncio.ensure_future(one.run())
        for _number in range(20):
            await producer.put(b"x")
        await asyncio.sleep(1.0)
        assert len(kept) == 5
        kept[0].set_result(None)
        await asyncio.sleep(1.0)
        assert len(kept) == 6
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        one.close()

    play(declare(Hand()), scene)


def test_what_found_no_room_after_all_is_delivered_again_in_order() -> None:
    ring = MemoryRing()
    taken: list[bytes] = []
    refusals = {b"1": 2, b"2": 1, b"3": 1}

    def deliver(body: bytes) -> asyncio.Future[None]:
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        name = bytes(body)
        if refusals.get(name):
            refusals[name] -= 1
            if name == b"3":
                raise Overloaded("too early")
            asyncio.get_running_loop().call_later(0.01, kept.set_exception, Overloaded("no room"))
        else:
            taken.append(name)
            asyncio.get_running_loop().call_later(0.01, kept.set_result, None)
        return kept

    async def scene(_: SimNode) -> None:
        producer = ring.open_producer()
        one = RingReader("r", ring.open_consumer(), lambda _: True, deliver, FeedCounters())
        running = asyncio.ensure_future(one.run())
        for number in range(5):
            await producer.put(b"%d" % number)
        await producer.wait_durable()
        assert sorted(taken) == [b"0", b"1", b"2", b"3", b"4"]
        assert not one.trouble
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        one.close()

    play(declare(Hand()), scene)


@pytest.mark.parametrize("cut", ["kill", "lose_power", "stop"])
def test_after_a_crash_of_the_node_the_rest_comes_again_exactly_once(cut: str) -> None:
    ring = MemoryRing()
    hand = Hand()

    async def scene(node: SimNode) -> None:
        node.latency.after_s = 0.01
        live = await node.start()
        await live.enroll("Meter", ["a"])
        feedings = fed(live, ring)
        producer, radio = ring.open_producer(), Radio(live)
        for number in range(1, 61):
            producer.put_nowait(radio.batch(("a", Counted(by=number * 1_000)), ("a", Glimpsed(level=float(number)))))
        await producer.wait_durable(5)
        if cut == "stop":
            await feedings.stop()
            await node.stop()
        else:
            await getattr(node, cut)()
            await feedings.stop()
        feedings.close()
        assert (producer.durable() == 60) == (cut == "stop")
        live = await node.start()
        feedings = fed(live, ring)
        await producer.wait_durable()
        assert live.query("Meter/a").total == sum(range(1, 61)) * 1_000
        await asyncio.sleep(5.0)
        orders = {one[4]: one[1].count for call in hand.calls for one in call}
        assert orders == {number: number for number in range(1, 61)}
        await left(feedings)

    play(declare(hand), scene, batch_events_max=4)


def test_a_stop_takes_nothing_more_and_finishes_what_was_taken() -> None:
    ring = MemoryRing()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        feedings = fed(live, ring)
        producer, radio = ring.open_producer(), Radio(live)
        for _ in range(50):
            producer.put_nowait(radio.batch(("a", Counted(by=1))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await feedings.stop()
        taken = producer.taken()
        producer.put_nowait(radio.batch(("a", Counted(by=1))))
        await node.stop()
        feedings.close()
        assert producer.durable() == taken <= 50
        assert not feedings.troubles()
        live = await node.start()
        assert (live.query("Meter/a").total if taken else 0) == taken

    play(declare(Hand()), scene)
