"""A ring against a list: random sizes, a slow consumer, either side gone and back at any point, any number of laps."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from stigmergy.base.errors import Overloaded, TooLarge
from stigmergy.ring import Consumer, MemoryRing, Producer, open_consumer, open_producer, remove_ring
from stigmergy.ring.layout import framed_bytes
from stigmergy.ring.port import RingMessage

CAPACITY_BYTES = 8192
LIMIT_BYTES = CAPACITY_BYTES // 2 - 16
SIZES = st.one_of(
    st.integers(0, 64), st.integers(0, LIMIT_BYTES), st.sampled_from([LIMIT_BYTES, LIMIT_BYTES + 1, 4000])
)


class RingMachine(RuleBasedStateMachine):
    """The ring does what a list with two marks does."""

    on_file = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory() if self.on_file else None
        self.bodies: list[bytes] = []
        self.taken = 0
        self.durable = 0
        self.held: dict[int, RingMessage] = {}
        """Messages that were taken and not marked: their bytes must stay as they are."""

    @initialize()
    def begin(self) -> None:
        self.open_producer: Callable[[], Producer]
        self.open_consumer: Callable[[], Consumer]
        if self.folder is not None:
            path = Path(self.folder.name) / "ring"
            self.open_producer = lambda: open_producer(path, capacity_bytes=CAPACITY_BYTES)
            self.open_consumer = lambda: open_consumer(path)
        else:
            ring = MemoryRing(capacity_bytes=CAPACITY_BYTES)
            self.open_producer, self.open_consumer = ring.open_producer, ring.open_consumer
        self.producer, self.consumer = self.open_producer(), self.open_consumer()

    @rule(size=SIZES)
    def put(self, size: int) -> None:
        number = len(self.bodies) + 1
        body = (number.to_bytes(3, "big") * (size // 3 + 1))[:size]
        try:
            assert self.producer.put_nowait(body[: size // 2], body[size // 2 :]) == number
        except TooLarge:
            assert size > LIMIT_BYTES
        except Overloaded:
            used = sum(framed_bytes(len(one)) for one in self.bodies[self.durable :])
            # What may be lost at the end, now and at the lap before, is less than a message each time.
            assert used + 3 * framed_bytes(LIMIT_BYTES) > CAPACITY_BYTES
            assert used > 0, "an empty ring takes every message"
        else:
            self.bodies.append(body)
            used = sum(framed_bytes(len(one)) for one in self.bodies[self.durable :])
            assert used <= CAPACITY_BYTES

    @rule(count=st.integers(1, 20))
    def take(self, count: int) -> None:
        for _ in range(count):
            message = self.consumer.take_nowait()
            if message is None:
                assert self.taken == len(self.bodies)
                return
            self.taken += 1
            assert message.number == self.taken
            self.held[message.number] = message

    @rule(share=st.floats(0, 1))
    def mark(self, share: float) -> None:
        number = self.durable + round(share * (self.taken - self.durable))
        self.consumer.mark_durable(number)
        self.durable = number
        for marked in [one for one in self.held if one <= number]:
            del self.held[marked]

    @rule()
    def lose_the_consumer(self) -> None:
        self.held.clear()
        self.consumer.close()
        self.consumer = self.open_consumer()
        self.taken = self.durable

    @rule()
    def lose_the_producer(self) -> None:
        self.producer.close()
        self.producer = self.open_producer()

    @rule()
    def lose_both(self) -> None:
        self.producer.close()
        self.lose_the_consumer()
        self.producer = self.open_producer()

    @invariant()
    def says_how_far_it_is(self) -> None:
        if hasattr(self, "producer"):
            assert self.producer.written == len(self.bodies)
            assert self.producer.durable() == self.consumer.durable() == self.durable
            assert self.producer.taken() == self.taken

    @invariant()
    def keeps_what_is_not_durable(self) -> None:
        for number, message in self.held.items():
            assert bytes(message.body) == self.bodies[number - 1]

    def teardown(self) -> None:
        if not hasattr(self, "producer"):
            return
        while self.taken < len(self.bodies):
            self.take(100)
        self.keeps_what_is_not_durable()
        self.held.clear()
        self.producer.close()
        self.consumer.close()
        if self.folder is not None:
            remove_ring(Path(self.folder.name) / "ring")
            assert list(Path(self.folder.name).iterdir()) == []
            self.folder.cleanup()


class FileRingMachine(RingMachine):
    on_file = True


@pytest.mark.parametrize(
    ("machine", "examples"),
    [(RingMachine, 50), (FileRingMachine, 20), pytest.param(RingMachine, 1_000, marks=pytest.mark.prove)],
)
def test_ring_is_a_list_with_two_marks(machine: type[RingMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=60))
