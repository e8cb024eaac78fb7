"""Order and gaps of numbered messages: messages and moments in, decisions out. Pure.

- A stream is one incarnation of a source. It has reached a number: the highest that went on to the shard in this run,
  or what the shard's marks say. `forget` returns a stream to its marks when the shard did not keep what went on.
- A message covers numbers from `first` on and `follows` an earlier number. Between the two nothing will come: the
  sender declares it lost (envelopes, column batches), or it was never for this receiver (a bus). Ingress: `follows` is
  `first - 1 - lost`. Bus: `previous`.
- Repeated: `first` is reached. Next: what it follows is reached, or was refused for good. Early: it has to wait.
- Early messages wait within bounds of count, bytes and time. Beyond the first two they are refused, and the sender
  repeats them. When the time is over the gap is given up: it is counted, the mark moves past it, and the log says so.

Who holds an early message is the one difference that stays:

- Envelopes and column batches arrive with nobody to repeat them, so GapQueue holds them. Each waits from its own
  arrival, the lowest number decides for its stream, and a message that fills a gap brings those behind it along.
- Messages of a bus stay with the broker, unacknowledged, and the bus inbox offers them again. Gaps decides each time.
  It keeps one moment for the stream, from its first early message until the stream moves on. How long that wait lasts
  depends on the link, which `network.ordering` knows.

The uplink collector holds nothing and waits for nothing: the sender of an early batch goes back to what is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from stigmergy.base.errors import Overloaded

EARLY_BYTES_MAX = 32 * 1024 * 1024
"""What a GapQueue holds: beside the count, because envelopes and batches may be large."""
STREAMS_COUNT_MAX = 100_000
"""Streams that are remembered; the marks know the others, which then may have to wait for a gap."""
Key = tuple[str, int]
"""A source and its incarnation."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
WaiterT = TypeVar("WaiterT")


class NumberedBatch(Protocol):
    """Consecutive inputs of one source, in an envelope or a column batch."""

    @property
    def source(self) -> str:
        """Who counts."""

    @property
    def incarnation(self) -> int:
        """Which life of the source it is."""

    @property
    def sequence(self) -> int:
        """The number of the first input."""

    @property
    def lost(self) -> int:
        """So many numbers before it will never come."""

    @property
    def count(self) -> int:
        """How many inputs there are."""


NumberedBatchT = TypeVar("NumberedBatchT", bound=NumberedBatch)


class Turn(Enum):
    """Where a message stands in its stream."""

    REPEATED = "repeated"
    NEXT = "next"
    EARLY = "early"


class StreamPosition(NamedTuple):
    """How far a stream has come, and in which epoch."""

    number: int
    epoch: int = 0


class Gaps(Generic[K]):
    """How far each stream has come, and whose turn it is. `marked` reads the marks."""

    def __init__(self, marked: Callable[[K], StreamPosition]) -> None:
        self._marked = marked
        self._reached: dict[K, StreamPosition] = {}
        self._refused: dict[K, int] = {}
        """Per stream the highest number that was refused: nobody waits for it."""
        self._since_ns: dict[K, int] = {}
        """Per stream that waits with a message held elsewhere, since when."""

    def __contains__(self, key: K) -> bool:
        return key in self._reached

    def position(self, key: K) -> StreamPosition:
        """What has gone on to the shard in this run, or what the marks say."""
        reached = self._reached.get(key)
        return self._marked(key) if reached is None else reached

    def passed(self, key: K) -> int:
        """The highest number that nobody waits for."""
        return max(self.position(key).number, self._refused.get(key, 0))

    def turn(self, key: K, first: int, follows: int) -> Turn:
        """Whether a message may go on now."""
        reached = self.position(key).number
        if first <= reached:
            return Turn.REPEATED
        return Turn.NEXT if follows <= max(reached, self._refused.get(key, 0)) else Turn.EARLY

    def advance(self, key: K, last: int, epoch: int = 0) -> None:
        """A message that ends with this number goes on to the shard; the stream never goes back."""
        self._since_ns.pop(key, None)
        if self._refused.get(key, 0) <= last:
            self._refused.pop(key, None)
        remember(self._reached, key, StreamPosition(max(last, self.position(key).number), epoch))

    def refuse(self, key: K, first: int, follows: int) -> None:
        """A message was refused for good: the next one does not wait for it. One that came early says nothing yet."""
        if first > self.passed(key) and self.turn(key, first, follows) is Turn.NEXT:
            remember(self._refused, key, first)

    def still_waits(self, key: K, monotonic_ns: int, wait_ns: int, until_ns: int) -> bool:
        """An early message is held elsewhere and offered again: whether it is still too soon to give up the gap.

        Its stream waits so long from its first early message on, and until this moment in any case.
        """
        since_ns = self._since_ns.setdefault(key, monotonic_ns)
        remember(self._since_ns, key, since_ns)
        return monotonic_ns < max(since_ns + wait_ns, until_ns)

    def restart_waits(self) -> None:
        """What is missing may come again: all waits begin anew."""
        self._since_ns.clear()

    def forget(self, key: K) -> bool:
        """The shard did not keep what went on: the marks count again. Whether anything had gone on."""
        return self._reached.pop(key, None) is not None


class GapCounters(Struct):
    """What came in numbered."""

    envelopes: int = 0
    malformed: int = 0
    early: int = 0
    gaps: int = 0
    refused: int = 0


class Accept(Struct, Generic[NumberedBatchT, WaiterT]):
    """A batch that waits, or goes on to the shard with the end of a gap before it that nobody filled."""

    envelope: NumberedBatchT
    size_bytes: int
    tickets: tuple[WaiterT, ...]
    skip_to: int = 0
    """When set, sequences before it are given up first."""
    declared: bool = False
    """Whether their sender said that they are lost; otherwise they did not come in time."""
    since_ns: int = 0
    follows: int = 0


class GapQueue(Gaps[Key], Generic[NumberedBatchT, WaiterT]):
    """Holds early batches until their turn, and with them their waiters. `consumed` reads the marks."""

    def __init__(self, consumed: Callable[[str, int], int], *, gap_wait_ns: int, gap_deliveries_max: int) -> None:
        super().__init__(lambda key: StreamPosition(consumed(*key)))
        self.counters = GapCounters()
        self._gap_wait_ns = gap_wait_ns
        self._gap_deliveries_max = gap_deliveries_max
        self._early: dict[Key, dict[int, Accept[NumberedBatchT, WaiterT]]] = {}
        self._early_count = 0
        self._early_bytes = 0

    def admit(
        self, envelope: NumberedBatchT, size_bytes: int, tickets: tuple[WaiterT, ...], monotonic_ns: int
    ) -> list[Accept[NumberedBatchT, WaiterT]]:
        """What may go on now: nothing yet for one that came early; more than one when it fills a gap."""
        key = (envelope.source, envelope.incarnation)
        follows = envelope.sequence - 1 - envelope.lost
        one = Accept(envelope, size_bytes, tickets, since_ns=monotonic_ns, follows=follows)
        if self.turn(key, envelope.sequence, follows) is Turn.EARLY:
            self._hold(key, one)
            return []
        return [self._let_through(key, one), *self._release(key)]

    def overdue(self, monotonic_ns: int) -> list[Accept[NumberedBatchT, WaiterT]]:
        """Early ones that have waited long enough, all of them: the gap before each is given up."""
        accepted: list[Accept[NumberedBatchT, WaiterT]] = []
        for key in list(self._early):
            while waiting := self._early.get(key):
                lowest = min(waiting)
                if monotonic_ns - waiting[lowest].since_ns < self._gap_wait_ns:
                    break
                accepted += [self._let_through(key, self._pop(key, lowest)), *self._release(key)]
        return accepted

    @property
    def next_ns(self) -> int | None:
        """When the oldest early one will have waited long enough."""
        waiting = [early[min(early)].since_ns for early in self._early.values()]
        return min(waiting) + self._gap_wait_ns if waiting else None

    def clear(self) -> list[WaiterT]:
        """Gives up everything that waits; returns the tickets."""
        tickets = [ticket for waiting in self._early.values() for early in waiting.values() for ticket in early.tickets]
        self._early.clear()
        self._early_count = self._early_bytes = 0
        return tickets

    def _hold(self, key: Key, early: Accept[NumberedBatchT, WaiterT]) -> None:
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
            before.follows = min(before.follows, early.follows)
            if early.envelope.count > before.envelope.count:
                self._early_bytes += growth_bytes
                before.envelope, before.size_bytes = early.envelope, early.size_bytes
            return
        self.counters.early += 1
        self._early_count += 1
        self._early_bytes += early.size_bytes
        self._early.setdefault(key, waiting)[early.envelope.sequence] = early
        # From now on the stream has come through here, so `forget` must answer for it.
        self.advance(key, 0)

    def _release(self, key: Key) -> list[Accept[NumberedBatchT, WaiterT]]:
        """Early ones whose turn has come."""
        accepted: list[Accept[NumberedBatchT, WaiterT]] = []
        while waiting := self._early.get(key):
            lowest = min(waiting)
            if self.turn(key, lowest, waiting[lowest].follows) is Turn.EARLY:
                break
            accepted.append(self._let_through(key, self._pop(key, lowest)))
        return accepted

    def _let_through(self, key: Key, one: Accept[NumberedBatchT, WaiterT]) -> Accept[NumberedBatchT, WaiterT]:
        """One whose turn has come, or whose time is over. A repetition goes on too: the step passes over what it has
        consumed, and the waiter hears when that is durable."""
        first, reached = one.envelope.sequence, self.position(key).number
        self.advance(key, first + one.envelope.count - 1)
        if first > reached + 1:
            self.counters.gaps += 1
            one.skip_to, one.declared = first, one.follows <= reached
        return one

    def _pop(self, key: Key, sequence: int) -> Accept[NumberedBatchT, WaiterT]:
        waiting = self._early[key]
        early = waiting.pop(sequence)
        self._early_count -= 1
        self._early_bytes -= early.size_bytes
        if not waiting:
            del self._early[key]
        return early


def remember(noted: dict[K, V], key: K, value: V) -> None:
    """The newest note comes last; of too many the oldest is forgotten."""
    noted.pop(key, None)
    noted[key] = value
    if len(noted) > STREAMS_COUNT_MAX:
        del noted[next(iter(noted))]
