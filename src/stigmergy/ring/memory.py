"""A ring within one process and event loop: for tests and simulations in virtual time.

It is the same ring on plain memory: layout, sides and limits are those between processes; only bells and claims differ.
"""

from __future__ import annotations

from stigmergy.base.errors import RingLocked
from stigmergy.ring.bell import MemoryBell
from stigmergy.ring.consumer import Consumer
from stigmergy.ring.layout import BOOT_BYTES, HEADER_BYTES, Memory, check_capacity, new_header
from stigmergy.ring.port import CAPACITY_BYTES
from stigmergy.ring.producer import Producer


class MemoryRing:
    """The memory; it outlives both sides."""

    def __init__(self, name: str = "ring", *, capacity_bytes: int = CAPACITY_BYTES, salt: int = 1) -> None:
        check_capacity(capacity_bytes)
        self._name = name
        self._bytes = bytearray(HEADER_BYTES + capacity_bytes)
        self._bytes[:HEADER_BYTES] = new_header(capacity_bytes, salt, bytes(BOOT_BYTES))
        self._ready, self._room = MemoryBell(), MemoryBell()
        self._open: dict[str, bool] = {}

    def open_producer(self) -> Producer:
        """The one producer. Raises RingLocked while there is another."""
        self._claim("producer")
        return Producer(self._memory(), self._ready, self._room, lambda: self._leave("producer", self._room), _stays)

    def open_consumer(self) -> Consumer:
        """The one consumer. Raises RingLocked while there is another."""
        self._claim("consumer")
        return Consumer(self._memory(), self._ready, self._room, lambda: self._leave("consumer", self._ready))

    def _memory(self) -> Memory:
        return Memory(memoryview(self._bytes), self._name)

    def _claim(self, side: str) -> None:
        if self._open.get(side):
            raise RingLocked(f"{self._name}: has a {side} already; stop that one first")
        self._open[side] = True

    def _leave(self, side: str, bell: MemoryBell) -> None:
        self._open[side] = False
        bell.close()


def _stays() -> None:
    """Memory is not replaced by anybody."""
