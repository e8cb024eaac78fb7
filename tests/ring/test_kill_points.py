"""Every point at which a kill can come between two stores, one after the other; and a ring under a flood of damage."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from stigmergy.base.errors import Overloaded, RingDamaged
from stigmergy.ring import Consumer, MemoryRing
from stigmergy.ring.layout import ALIGNMENT, DURABLE, HEADER_BYTES, WRITTEN, Memory
from stigmergy.ring.port import RingMessage

CAPACITY_BYTES = 4096
STORES_MAX = 40


class Killed(BaseException):
    """The process is gone."""


class Mortal:
    """Memory that lets so many stores pass and then ends the process; the last one may be half done."""

    def __init__(self, view: memoryview, life: list[int], half: bool) -> None:
        self._view = view
        self._life = life
        self._half = half

    def __getitem__(self, key: Any) -> Any:
        return self._view[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._life[0] == 0:
            if self._half and isinstance(key, slice):
                half = (key.stop - key.start) // 2
                self._view[key.start : key.start + half] = value[:half]
            raise Killed
        self._life[0] -= 1
        self._view[key] = value

    def toreadonly(self) -> memoryview:
        return self._view.toreadonly()


class TestableRing(MemoryRing):
    """A ring whose next side dies after so many stores."""

    __test__ = False
    life: list[int] | None = None
    half = False
    asked = 0
    promised = 0

    def _memory(self) -> Memory:
        memory = super()._memory()
        if self.life is not None:
            memory.words = Mortal(memory.words, self.life, False)  # type: ignore[assignment]
            memory.body = Mortal(memory.body, self.life, self.half)  # type: ignore[assignment]
        return memory

    def bury(self) -> None:
        """The dead have no claims; what they did stays."""
        self._open.clear()
        self.life = None


def bodies_of(consumer: Consumer) -> list[bytes]:
    found: list[bytes] = []
    while (message := consumer.take_nowait()) is not None:
        found.append(bytes(message.body))
    return found


def every_life(work: Callable[[TestableRing], None], check: Callable[[TestableRing, bool, int], None]) -> int:
    """Lets the same work die after 0, 1, 2, … stores, and looks at what each has left; how many lives it took."""
    for stores in range(STORES_MAX):
        survived = False
        for half in (False, True):
            ring = TestableRing(capacity_bytes=CAPACITY_BYTES)
            ring.half = half
            ring.life = [stores]
            try:
                work(ring)
                survived = True
            except Killed:
                survived = False
            ring.bury()
            check(ring, survived, stores)
        if survived:
            return stores
    raise AssertionError("the work never ended")


@pytest.mark.parametrize("laps", [0, 1, 3], ids=["at the start", "after a lap", "after three"])
def test_a_producer_killed_anywhere_leaves_whole_messages(laps: int) -> None:
    """Also where the end of the ring is skipped: the messages do not divide it."""
    new = [b"first" * 40, b"second" * 150, b"third" * 100]

    def prepare(ring: TestableRing) -> int:
        life, ring.life = ring.life, None
        producer, consumer = ring.open_producer(), ring.open_consumer()
        for _ in range(5 * laps):
            producer.put_nowait(b"old" * 290)
            bodies_of(consumer)
            consumer.mark_durable(producer.written)
        written = producer.written
        producer.close()
        consumer.close()
        ring.life = life
        return written

    def work(ring: TestableRing) -> None:
        prepare(ring)
        producer = ring.open_producer()
        for body in new:
            producer.put_nowait(body)

    def check(ring: TestableRing, survived: bool, stores: int) -> None:
        consumer = ring.open_consumer()
        seen = bodies_of(consumer)
        assert seen == new[: len(seen)], f"killed after {stores} stores"
        assert len(seen) == 3 or not survived
        producer = ring.open_producer()
        assert producer.written == consumer.durable() + len(seen)
        rest = [*new[len(seen) :], b"after the funeral"]
        for body in rest:
            producer.put_nowait(body)
        assert bodies_of(consumer) == rest, f"killed after {stores} stores"

    assert every_life(work, check) > 15


def test_a_consumer_killed_anywhere_frees_nothing_early_and_loses_nothing() -> None:
    def work(ring: TestableRing) -> None:
        life, ring.life = ring.life, None
        producer = ring.open_producer()
        for number in range(1, 7):
            producer.put_nowait(bytes([number]) * 500)
        producer.close()
        ring.life = life
        consumer = ring.open_consumer()
        taken = 0
        for number in (1, 3, 4, 6):
            while taken < number:
                taken += consumer.take_nowait() is not None
            ring.asked = number
            consumer.mark_durable(number)
            ring.promised = number

    def check(ring: TestableRing, survived: bool, stores: int) -> None:
        producer, consumer = ring.open_producer(), ring.open_consumer()
        durable = producer.durable()
        assert ring.promised <= durable <= ring.asked, f"{stores} stores"
        assert durable == 6 or not survived
        assert consumer.durable() == durable
        assert bodies_of(consumer) == [bytes([number]) * 500 for number in range(durable + 1, 7)], f"{stores} stores"

    assert every_life(work, check) > 15


def test_an_older_cursor_of_a_dead_producer_is_made_good_by_what_is_durable() -> None:
    ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
    producer, consumer = ring.open_producer(), ring.open_consumer()
    for body in (b"a", b"b", b"c"):
        producer.put_nowait(body)
    bodies_of(consumer)
    consumer.mark_durable(3)
    words = ring._memory().words
    newest = max((WRITTEN, WRITTEN + 4), key=lambda at: words[at + 1])
    words[newest + 2] ^= 1
    producer.close()
    consumer.close()
    producer, consumer = ring.open_producer(), ring.open_consumer()
    assert producer.put_nowait(b"d") == 4
    assert bodies_of(consumer) == [b"d"]


def test_interrupted_put_is_made_known_by_the_next() -> None:
    """A signal may come anywhere, in a script that goes on afterwards: what is whole stays in order."""
    for stores in range(STORES_MAX):
        ring = TestableRing(capacity_bytes=CAPACITY_BYTES)
        ring.life = [1000]
        producer, consumer = ring.open_producer(), ring.open_consumer()
        producer.put_nowait(b"before")
        ring.life[0] = stores
        try:
            producer.put_nowait(b"interrupted")
            interrupted = False
        except Killed:
            interrupted = True
        ring.life[0] = 1000
        producer.put_nowait(b"after")
        seen = bodies_of(consumer)
        assert seen in ([b"before", b"after"], [b"before", b"interrupted", b"after"])
        assert producer.written == len(seen)
        if not interrupted:
            return
    raise AssertionError("the put never ended")


# Damage.


def test_one_torn_slot_of_a_cursor_is_covered_by_the_other_and_two_are_damage() -> None:
    for at in (WRITTEN, DURABLE):
        ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
        words = ring._memory().words
        memory = ring._memory()
        memory.write_cursor(at, 16, 1)
        memory.write_cursor(at, 48, 2)
        assert memory.read_cursor(at) == (48, 2)
        newest = max((at, at + 4), key=lambda slot: words[slot + 1])
        words[newest] += ALIGNMENT
        assert memory.read_cursor(at) == (16, 1)
        words[at + 4 if newest == at else at] ^= 1
        with pytest.raises(RingDamaged, match="its header makes no sense; stop both sides and remove the ring"):
            memory.read_cursor(at)


def test_cursors_that_cannot_belong_together_are_damage() -> None:
    for written in ((CAPACITY_BYTES + 16, 1), (16, 2), (8, 1), (24, 1), (1 << 60, 1 << 40)):
        ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
        ring._memory().write_cursor(WRITTEN, *written)
        with pytest.raises(RingDamaged):
            ring.open_consumer()
        ring._open.clear()
        with pytest.raises(RingDamaged):
            ring.open_producer()


def test_cursor_that_runs_wild_under_way_is_damage_and_stays_so() -> None:
    ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
    producer, consumer = ring.open_producer(), ring.open_consumer()
    ring._memory().write_cursor(WRITTEN, 10 * CAPACITY_BYTES, 5)
    for _ in range(2):
        with pytest.raises(RingDamaged, match="it claims to hold 5 messages"):
            consumer.take_nowait()
    ring._memory().write_cursor(DURABLE, 10 * CAPACITY_BYTES, 5)
    with pytest.raises(RingDamaged):
        producer.durable()


@pytest.mark.parametrize("length", [1, 484, 500, 513, 600, 2033, 2500, CAPACITY_BYTES, 0xFFFFFFFF, 0xFFFFFFF0])
@pytest.mark.parametrize("others", [0, 4], ids=["alone", "with others behind"])
def test_a_length_that_lies_is_not_followed(length: int, others: int) -> None:
    """Even with a check that fits: it leads neither past what was written nor past the limit, nor to a message."""
    ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
    producer, consumer = ring.open_producer(), ring.open_consumer()
    for _ in range(1 + others):
        producer.put_nowait(bytes(500))
    ring._memory().write_header(0, 1, length)
    if length <= 512 or (others and length <= 2032):
        message = consumer.take_nowait()
        assert message is not None
        assert len(message.body) == length
    if others and not 497 <= length <= 512:
        with pytest.raises(RingDamaged, match="message 1 claims" if length > 2032 else "message 2 has no header"):
            bodies_of(consumer)
    elif length > 512:
        with pytest.raises(RingDamaged, match=r"message 1 "):
            consumer.take_nowait()


def test_a_length_that_leads_past_the_end_of_the_ring_is_not_followed() -> None:
    ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
    producer, consumer = ring.open_producer(), ring.open_consumer()
    for _ in range(2):
        producer.put_nowait(bytes(1500))
    bodies_of(consumer)
    consumer.mark_durable(2)
    producer.put_nowait(bytes(1000))
    producer.put_nowait(bytes(1000))
    ring._memory().write_header(2 * 1520, 3, 1050)
    with pytest.raises(RingDamaged, match="message 3 claims to have 1050 bytes"):
        consumer.take_nowait()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_bytes_say_nothing_outside_is_read(seed: int) -> None:
    """Random damage anywhere behind the fixed part of the header: messages in order, or RingDamaged; nothing else."""
    chance = random.Random(seed)
    ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
    producer, consumer = ring.open_producer(), ring.open_consumer()
    taken: list[RingMessage] = []

    def go_on() -> None:
        nonlocal producer
        for round_number in range(3000):
            with contextlib.suppress(Overloaded):
                producer.put_nowait(bytes(chance.randrange(CAPACITY_BYTES // 2 - 15)))
            if round_number > 20:
                start = 64 if chance.random() < 0.5 else HEADER_BYTES
                size = 1024 - 64 if start == 64 else CAPACITY_BYTES
                at = start + chance.randrange(size)
                ring._bytes[at] = chance.randrange(256)
            while (message := consumer.take_nowait()) is not None:
                assert message.number == len(taken) + 1
                assert len(message.body) <= CAPACITY_BYTES // 2 - 16
                assert len(bytes(message.body)) == len(message.body)
                taken.append(message)
            if chance.random() < 0.7:
                consumer.mark_durable(len(taken))
            if chance.random() < 0.1:
                producer.close()
                producer = ring.open_producer()

    with pytest.raises(RingDamaged):
        go_on()
    assert len(taken) > 10
