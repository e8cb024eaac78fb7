"""The ring port: messages from one process to another on the same machine, through shared memory.

A ring has one producer and one consumer. It is a queue that remembers: space becomes free when the consumer has made a
message durable, not when it was read. So a consumer that crashes finds again what it had not yet kept, and a producer
that is too fast has to wait. A ring is no journal: it does not survive a power loss, by design.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

CAPACITY_BYTES = 16 * 1024 * 1024
"""What a ring holds if nobody says otherwise: with batches of 448 KiB, some 36 of them."""
CAPACITY_BYTES_MIN = 4096
CAPACITY_BYTES_MAX = 1024 * 1024 * 1024
MESSAGE_BYTES_MAX = 1024 * 1024
"""The longest message, as for an envelope. A small ring takes less: half of itself, less the 16 bytes of a header."""
PUT_S_MAX = 5.0
"""So long a `put` waits for room, if not told otherwise, before it raises Overloaded."""
DURABLE_S_MAX = 30.0
"""So long `wait_durable` waits, if not told otherwise."""

Part = bytes | bytearray | memoryview
"""What a message is made of: bytes in one piece. An array gives its own by `memoryview(array)`."""


class RingMessage(Struct, frozen=True):
    """A message where it lies in the ring: no copy. Valid until it is marked durable; then it may be overwritten."""

    number: int
    """From 1, without a gap, for the life of the ring, over all producers and consumers."""
    body: memoryview
    """Read only, in one piece, beginning at a multiple of 16 bytes."""


class RingProducer(Protocol):
    """The side that puts messages in.

    Ordering: messages come out in the order in which they were put, none left out, none in between.
    Durability: what was put survives the end of either process, or of both; not the loss of power. `durable` tells how
        far the consumer has made messages durable, and a producer that can send again keeps what lies behind that.
    Duplication: a message that was not durable when its consumer ended is given to the next consumer again. A new
        producer goes on behind the last whole message; what it repeats is for the receiver's marks to find.
    Concurrency: one producer, in one thread, on one event loop; a second one is refused with RingLocked. Several tasks
        may wait at once; in which order those get in that found no room is not said.
    Bounds: a fixed number of bytes. Without room `put` waits, and then raises Overloaded: nothing was put.
    Errors: Overloaded, TooLarge, Malformed (no bytes), NotRunning (it was closed), RingDamaged. No error of the
        operating system passes through unchanged, except when memory itself is gone (see the adapter).
    """

    @property
    def incarnation(self) -> int:
        """How many producers this ring has had, this one included."""
        ...

    @property
    def written(self) -> int:
        """The number of the last message that was put, by whomever; 0 if there was none."""
        ...

    def durable(self) -> int:
        """Up to which number everything is durable; 0 if nothing is. Asks nobody: reads a word."""
        ...

    def taken(self) -> int:
        """Up to which number the consumer has read; for people who look where it hangs."""
        ...

    def put_nowait(self, *parts: Part) -> int:
        """Puts the parts as one message; its number. Raises Overloaded when there is no room now."""
        ...

    async def put(self, *parts: Part, within_s: float = PUT_S_MAX) -> int:
        """The same, but waits for room; Overloaded when there was none within that time."""
        ...

    async def wait_durable(self, number: int | None = None, *, within_s: float = DURABLE_S_MAX) -> None:
        """Waits until this message is durable, or all that were put. Overloaded if it takes longer: it may still be."""
        ...

    def close(self) -> None:
        """Leaves; the messages stay. Closing twice does nothing."""
        ...


class RingConsumer(Protocol):
    """The side that takes messages out.

    Ordering: as they were put. The first one is the first that is not durable.
    Durability: `mark_durable` is a promise to the producer: it may forget them, and their room is used anew.
    Duplication: what an earlier consumer has taken and not marked comes again, once for each consumer.
    Concurrency: one consumer, in one thread, on one event loop; a second one is refused with RingLocked. The body of a
        message may be read in any thread, until the message is marked.
    Bounds: nothing is held beside the ring but where each message ends that was taken and not marked.
    Errors: NotRunning (it was closed), RingDamaged (and again at every later call: nothing behind can be trusted), Bug
        when a number is marked that was never taken.
    """

    @property
    def incarnation(self) -> int:
        """How many consumers this ring has had, this one included."""
        ...

    @property
    def producer_incarnation(self) -> int:
        """How many producers this ring has had; 0 if there was none yet."""
        ...

    def take_nowait(self) -> RingMessage | None:
        """The next message, or None if there is none now."""
        ...

    async def wait_ready(self, within_s: float | None = None) -> bool:
        """Waits until there is a next message; False if there was none within that time."""
        ...

    def mark_durable(self, number: int) -> None:
        """Everything up to this message is durable: its room is free. A number that was marked already does nothing."""
        ...

    def durable(self) -> int:
        """Up to which number everything was marked."""
        ...

    def close(self) -> None:
        """Leaves; what was not marked stays for the next consumer. Closing twice does nothing."""
        ...
