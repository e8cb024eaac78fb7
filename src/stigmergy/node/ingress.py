"""Entry point for bytes from outside: opens envelopes, keeps each source's order, waits for gaps within bounds.

It decodes no message: the step does that one by one, so that a bad one harms no other. It never touches the state; it
only reads how far each source has been consumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from msgspec import Struct

from stigmergy.base.errors import Overloaded, StaleEpoch, StigmergyError
from stigmergy.node.mailbox import Ticket

EARLY_BYTES_MAX = 32 * 1024 * 1024
"""The bytes that may wait for gaps to be filled: besides the count, because envelopes and batches may be large."""
SHARD_SOURCES = "shard/"
BUS_SOURCES = "bus/"
"""What came over a bus has its topic as source; nobody else may speak in its name."""
UPLINK_SOURCES = "uplink/"
"""What the uplinks of other nodes brought, alike."""
EXPECTED_COUNT_MAX = 100_000
"""Sources whose next number is remembered here; the marks know the others, which then may have to wait for a gap."""


class NumberedBatch(Protocol):
    """What is numbered: consecutive inputs of one source, in an envelope or a column batch."""

    @property
    def source(self) -> str:
        """Who counts."""
        ...

    @property
    def incarnation(self) -> int:
        """Which life of the source it is."""
        ...

    @property
    def sequence(self) -> int:
        """The number of the first input."""
        ...

    @property
    def lost(self) -> int:
        """So many numbers before it will never come."""
        ...

    @property
    def count(self) -> int:
        """How many inputs there are."""
        ...

    def with_lost(self, lost: int) -> Self:
        """The same with another number of lost ones."""
        ...


NumberedBatchT = TypeVar("NumberedBatchT", bound=NumberedBatch)


class IngressCounters(Struct):
    """Counts of what came through the ingress."""

    envelopes: int = 0
    malformed: int = 0
    early: int = 0
    gaps: int = 0
    refused: int = 0


class Early(Struct, Generic[NumberedBatchT]):
    """An envelope that came before those that should precede it."""

    envelope: NumberedBatchT
    size_bytes: int
    tickets: tuple[Ticket, ...]
    since_ns: int


class Accept(Struct, Generic[NumberedBatchT], frozen=True):
    """What the ingress lets through: an envelope in order, or the end of a gap that nobody filled."""

    envelope: NumberedBatchT
    size_bytes: int
    tickets: tuple[Ticket, ...]
    skip_to: int = 0
    """When set, sequences before it are given up first."""
    declared: bool = False
    """Whether their sender said that they are lost; otherwise they did not come in time."""


class Ingress(Generic[NumberedBatchT]):
    """Keeps the order of each source. `open_numbered` decodes, `consumed` tells how far the shards have consumed it."""

    def __init__(
        self,
        open_numbered: Callable[[Any], NumberedBatchT],
        consumed: Callable[[str, int], int],
        *,
        gap_wait_ns: int,
        gap_deliveries_max: int,
    ) -> None:
        self._open_numbered = open_numbered
        self._consumed = consumed
        self._gap_wait_ns = gap_wait_ns
        self._gap_deliveries_max = gap_deliveries_max
        self._expected: dict[tuple[str, int], int] = {}
        self._early: dict[tuple[str, int], dict[int, Early[NumberedBatchT]]] = {}
        self._early_count = 0
        self._early_bytes = 0
        self.counters = IngressCounters()

    def open(self, data: bytes | memoryview) -> NumberedBatchT:
        """Opens an envelope or a batch; raises Malformed or TooLarge and counts it."""
        try:
            envelope = self._open_numbered(data)
        except StigmergyError:
            self.counters.malformed += 1
            raise
        for reserved, whose in ((SHARD_SOURCES, "shards"), (BUS_SOURCES, "topics"), (UPLINK_SOURCES, "uplinks")):
            if envelope.source.startswith(reserved):
                self.counters.refused += 1
                raise StaleEpoch(f"source {envelope.source!r}: names of {whose} are for {whose}; choose another")
        self.counters.envelopes += 1
        return envelope

    def admit(
        self, envelope: NumberedBatchT, size_bytes: int, tickets: tuple[Ticket, ...], monotonic_ns: int
    ) -> list[Accept[NumberedBatchT]]:
        """What may go to the step now: nothing yet for one that came early; more than one when it fills a gap."""
        key = (envelope.source, envelope.incarnation)
        expected = self._expected.get(key)
        if expected is None:
            expected = self._consumed(*key) + 1
        if envelope.sequence - envelope.lost > expected:
            self._hold(key, Early(envelope, size_bytes, tickets, monotonic_ns))
            self._expect(key, expected)
            return []
        accepted = [self._in_order(envelope, size_bytes, tickets, expected)]
        self._expect(key, max(expected, envelope.sequence + envelope.count))
        accepted += self._release(key)
        return accepted

    def overdue(self, monotonic_ns: int) -> list[Accept[NumberedBatchT]]:
        """Early ones that have waited long enough, all of them: the gap before each is declared lost."""
        accepted: list[Accept[NumberedBatchT]] = []
        for key in list(self._early):
            while waiting := self._early.get(key):
                lowest = min(waiting)
                if monotonic_ns - waiting[lowest].since_ns < self._gap_wait_ns:
                    break
                early = self._pop(key, lowest)
                self.counters.gaps += 1
                accepted.append(Accept(early.envelope, early.size_bytes, early.tickets, skip_to=lowest))
                self._expect(key, max(self._expected.get(key, 0), lowest + early.envelope.count))
                accepted += self._release(key)
        return accepted

    @property
    def next_ns(self) -> int | None:
        """When the oldest early one will have waited long enough."""
        waiting = [early[min(early)].since_ns for early in self._early.values()]
        return min(waiting) + self._gap_wait_ns if waiting else None

    def forget(self, source: str, incarnation: int) -> bool:
        """The host could not take what was let through: the next one is measured against the marks again. Whether this
        source had come through here."""
        return self._expected.pop((source, incarnation), None) is not None

    def clear(self) -> list[Ticket]:
        """Gives up everything that waits; returns the tickets."""
        tickets = [ticket for waiting in self._early.values() for early in waiting.values() for ticket in early.tickets]
        self._early.clear()
        self._early_count = self._early_bytes = 0
        return tickets

    def _expect(self, key: tuple[str, int], sequence: int) -> None:
        self._expected[key] = sequence
        if len(self._expected) > EXPECTED_COUNT_MAX:
            del self._expected[next(iter(self._expected))]

    def _hold(self, key: tuple[str, int], early: Early[NumberedBatchT]) -> None:
        waiting = self._early.get(key, {})
        before = waiting.get(early.envelope.sequence)
        growth_bytes = early.size_bytes - (0 if before is None else before.size_bytes)
        room_bytes = EARLY_BYTES_MAX - self._early_bytes
        if growth_bytes > room_bytes or (before is None and self._early_count >= self._gap_deliveries_max):
            self.counters.refused += 1
            raise Overloaded(
                f"source {key[0]!r}: sequence {early.envelope.sequence} came early, and {self._early_count} such "
                f"envelopes of {self._early_bytes} bytes wait already; send what is missing first"
            )
        if before is not None:
            # A repetition. The longer one stays, so that everybody who waits gets what they wait for.
            before.tickets = (*before.tickets, *early.tickets)
            lost = max(before.envelope.lost, early.envelope.lost)
            if early.envelope.count > before.envelope.count:
                self._early_bytes += growth_bytes
                before.envelope, before.size_bytes = early.envelope, early.size_bytes
            before.envelope = before.envelope.with_lost(lost)
            return
        self.counters.early += 1
        self._early_count += 1
        self._early_bytes += early.size_bytes
        self._early.setdefault(key, waiting)[early.envelope.sequence] = early

    def _release(self, key: tuple[str, int]) -> list[Accept[NumberedBatchT]]:
        """Early ones whose turn has come."""
        accepted: list[Accept[NumberedBatchT]] = []
        while waiting := self._early.get(key):
            lowest, expected = min(waiting), self._expected[key]
            if lowest - waiting[lowest].envelope.lost > expected:
                break
            early = self._pop(key, lowest)
            self._expect(key, max(expected, lowest + early.envelope.count))
            accepted.append(self._in_order(early.envelope, early.size_bytes, early.tickets, expected))
        return accepted

    def _in_order(
        self, envelope: NumberedBatchT, size_bytes: int, tickets: tuple[Ticket, ...], expected: int
    ) -> Accept[NumberedBatchT]:
        """One whose turn has come. What is still missing before it is what its sender has declared lost."""
        if envelope.sequence <= expected:
            return Accept(envelope, size_bytes, tickets)
        self.counters.gaps += 1
        return Accept(envelope, size_bytes, tickets, skip_to=envelope.sequence, declared=True)

    def _pop(self, key: tuple[str, int], sequence: int) -> Early[NumberedBatchT]:
        waiting = self._early[key]
        early = waiting.pop(sequence)
        self._early_count -= 1
        self._early_bytes -= early.size_bytes
        if not waiting:
            del self._early[key]
        return early
