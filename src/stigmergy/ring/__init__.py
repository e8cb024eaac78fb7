"""The ring on memory that two processes share: a file, mapped, best on /dev/shm. One producer, one consumer.

    with open_blocking_producer("/dev/shm/fleet.ring") as ring:      # a plain script
        ring.wait_durable(ring.put(batch))

    ring = open_consumer("/dev/shm/fleet.ring")                      # on an event loop
    while await ring.wait_ready():
        message = ring.take_nowait()

Whichever side comes first makes the ring. `layout` has its contents and the memory order it relies on, `mapped_ring`
makes, claims and finds it, `bell` wakes a sleeping side, `memory` is for simulations.
"""

from __future__ import annotations

from pathlib import Path

from stigmergy.ring.consumer import BlockingConsumer, Consumer
from stigmergy.ring.mapped_ring import MappedRing, remove_ring
from stigmergy.ring.memory import MemoryRing
from stigmergy.ring.producer import BlockingProducer, Producer

__all__ = [
    "BlockingConsumer",
    "BlockingProducer",
    "Consumer",
    "MemoryRing",
    "Producer",
    "open_blocking_consumer",
    "open_blocking_producer",
    "open_consumer",
    "open_producer",
    "remove_ring",
]


def open_producer(path: str | Path, *, capacity_bytes: int | None = None) -> Producer:
    """The one producer of the ring at this path, for an event loop; the ring is made if it is missing.

    Without a capacity the ring is taken as it is, and a new one has CAPACITY_BYTES. Raises RingLocked, RingForeign,
    RingDamaged, and ConfigError where no ring can be.
    """
    place = MappedRing(str(path), capacity_bytes, claims="room")
    try:
        return Producer(place.memory, place.ready, place.room, place.leave, place.check_in_place)
    except BaseException:
        place.leave()
        raise


def open_blocking_producer(path: str | Path, *, capacity_bytes: int | None = None) -> BlockingProducer:
    """The same for a plain script or thread."""
    place = MappedRing(str(path), capacity_bytes, claims="room")
    try:
        return BlockingProducer(place.memory, place.ready, place.room, place.leave, place.check_in_place)
    except BaseException:
        place.leave()
        raise


def open_consumer(path: str | Path, *, capacity_bytes: int | None = None) -> Consumer:
    """The one consumer of the ring at this path, for an event loop; the ring is made if it is missing."""
    place = MappedRing(str(path), capacity_bytes, claims="ready")
    try:
        return Consumer(place.memory, place.ready, place.room, place.leave)
    except BaseException:
        place.leave()
        raise


def open_blocking_consumer(path: str | Path, *, capacity_bytes: int | None = None) -> BlockingConsumer:
    """The same for a plain script or thread."""
    place = MappedRing(str(path), capacity_bytes, claims="ready")
    try:
        return BlockingConsumer(place.memory, place.ready, place.room, place.leave)
    except BaseException:
        place.leave()
        raise
