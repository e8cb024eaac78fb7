"""The mailbox of a host: bounded lanes between those who send and the step. It never waits and never does I/O.

Three lanes, served in this order: what comes from inside (timers, results, tells; bounded by what is owed), commands,
telemetry. So commands are never shed before telemetry, and nothing from outside can starve the inside. When the
telemetry lane is full, the stream's policy decides; what is shed is counted, and moves its source's mark.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from stigmergy.core.errors import Overloaded
from stigmergy.core.inputs import Delivery, Input, SequencesSkipped


class Overflow(enum.Enum):
    """What becomes of observed events that come faster than they can be taken."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    SAMPLE = "sample"


class StreamPolicy(Struct, frozen=True):
    """A stream's policy; `keep_every` is for sampling: of so many deliveries one stays once the lane is half full."""

    overflow: Overflow
    keep_every: int = 10


BLOCK = StreamPolicy(Overflow.BLOCK)
"""The sender waits. The default."""
DROP_OLDEST = StreamPolicy(Overflow.DROP_OLDEST)
"""The newest matters: the oldest waiting of this stream goes."""


def sample(keep_every: int) -> StreamPolicy:
    """Under load, of so many deliveries one is taken."""
    if keep_every < 2:
        raise ValueError(f"sample({keep_every}): give at least 2")
    return StreamPolicy(Overflow.SAMPLE, keep_every)


class Ticket(Protocol):
    """Somebody waits until what they sent is durable, or given up."""

    def resolve(self) -> None:
        """It is durable, or it was shed and counted."""
        ...

    def fail(self, error: Exception) -> None:
        """It was not taken, or its fate is unknown."""
        ...


class Letter(Struct):
    """One input on its way to its shard, and whoever waits for it."""

    shard: int
    input: Input
    tickets: tuple[Ticket, ...] = ()
    items: int = 1
    size_bytes: int = 0


class MailboxCounters(Struct):
    """What became of what was sent."""

    shed_items: int = 0
    sampled_items: int = 0
    overloads: int = 0
    blocked: int = 0


BLOCKED_COUNT_MAX = 1_000
"""Senders that may wait for room at the same time; one more is told Overloaded."""


class Mailbox:
    """The lanes. Putting never waits: a letter without room waits in line, and its sender with it, on its ticket."""

    def __init__(self, commands_count_max: int, telemetry_items_max: int, telemetry_bytes_max: int) -> None:
        self._commands_count_max = commands_count_max
        self._items_max = telemetry_items_max
        self._bytes_max = telemetry_bytes_max
        self._inside: deque[Letter] = deque()
        self._commands: deque[Letter] = deque()
        self._telemetry: deque[Letter] = deque()
        self._blocked: deque[Letter] = deque()
        self._items = 0
        self._bytes = 0
        self._sampled: dict[str, int] = {}
        self.counters = MailboxCounters()

    def put_inside(self, letter: Letter) -> None:
        """From a timer, a sink or another shard: what we owe bounds how many there can be."""
        self._inside.append(letter)

    def put_command(self, letter: Letter) -> None:
        """From somebody who waits for the answer."""
        if len(self._commands) >= self._commands_count_max:
            self.counters.overloads += 1
            raise Overloaded(f"{self._commands_count_max} commands are waiting; nothing was taken, try again later")
        self._commands.append(letter)

    def put_telemetry(self, letter: Letter, policy: StreamPolicy) -> None:
        """Observed events of one source. Without room the policy decides; to block is to wait in line."""
        if policy.overflow is Overflow.BLOCK:
            if self._blocked or not self._fits(letter):
                self._block(letter)
            else:
                self._add(letter)
        elif policy.overflow is Overflow.SAMPLE:
            if not self._fits(letter):
                self._shed_newest(letter)
            elif self._items <= self._items_max // 2 or not self._skip(letter, policy):
                self._add(letter)
        elif self._fits(letter):
            self._add(letter)
        else:
            self._drop_oldest(letter)

    def take(self, items_max: int, *, telemetry: bool) -> Iterator[Letter]:
        """Letters in the order in which they are to be stepped, until so many items are out."""
        taken = 0
        for lane in (self._inside, self._commands):
            while lane and taken < items_max:
                letter = lane.popleft()
                taken += letter.items
                yield letter
        while telemetry and self._telemetry and taken < items_max:
            letter = self._telemetry.popleft()
            self._items -= letter.items
            self._bytes -= letter.size_bytes
            taken += letter.items
            yield letter
        while self._blocked and self._fits(self._blocked[0]):
            self._add(self._blocked.popleft())

    def put_back(self, letters: list[Letter]) -> None:
        """Letters that found no room in the commit: they come first next time."""
        self._inside.extendleft(reversed(letters))

    @property
    def waiting(self) -> bool:
        """Whether anything is in the lanes."""
        return bool(self._inside or self._commands or self._telemetry)

    @property
    def pressing(self) -> bool:
        """Whether anything but telemetry is in the lanes."""
        return bool(self._inside or self._commands)

    @property
    def items(self) -> int:
        """How many observed events are waiting."""
        return self._items

    def clear(self) -> list[Letter]:
        """Empties the lanes; the host tells everybody who waits."""
        letters = [*self._inside, *self._commands, *self._telemetry, *self._blocked]
        self._blocked.clear()
        self._inside.clear()
        self._commands.clear()
        self._telemetry.clear()
        self._items = self._bytes = 0
        return letters

    def _fits(self, letter: Letter) -> bool:
        empty = not self._telemetry
        return empty or (
            self._items + letter.items <= self._items_max and self._bytes + letter.size_bytes <= self._bytes_max
        )

    def _block(self, letter: Letter) -> None:
        if len(self._blocked) >= BLOCKED_COUNT_MAX:
            self.counters.overloads += 1
            raise Overloaded(f"{BLOCKED_COUNT_MAX} senders wait for room already; nothing was taken, slow down")
        self.counters.blocked += 1
        self._blocked.append(letter)

    def _add(self, letter: Letter) -> None:
        self._telemetry.append(letter)
        self._items += letter.items
        self._bytes += letter.size_bytes

    def _skip(self, letter: Letter, policy: StreamPolicy) -> bool:
        """Whether sampling leaves this one out."""
        source = _source(letter)
        count = self._sampled.get(source, 0)
        self._sampled[source] = (count + 1) % policy.keep_every
        if count == 0:
            return False
        self.counters.sampled_items += letter.items
        self._shed_newest(letter)
        return True

    def _drop_oldest(self, letter: Letter) -> None:
        """Makes room by dropping the oldest deliveries of the same source; if that is not enough, this one goes."""
        source = _source(letter)
        kept: list[Letter] = []
        note: Letter | None = None
        while self._telemetry and not self._fits(letter):
            oldest = self._telemetry.popleft()
            if _source(oldest) != source:
                kept.append(oldest)
                continue
            self._items -= oldest.items
            self._bytes -= oldest.size_bytes
            shed = self._shed(oldest)
            if note is None:
                note = shed
                if shed is not None:
                    kept.append(shed)
            elif shed is not None:
                _merge(note, shed)
        self._telemetry.extendleft(reversed(kept))
        if self._fits(letter):
            self._add(letter)
        else:
            self._shed_newest(letter)

    def _shed_newest(self, letter: Letter) -> None:
        """Sheds what just came. Its note goes behind what waits of the same source, merged with one that is there."""
        shed = self._shed(letter)
        if shed is None:
            return
        if self._telemetry:
            last = self._telemetry[-1]
            if isinstance(last.input, SequencesSkipped) and _source(last) == _source(shed) and last.shard == shed.shard:
                _merge(last, shed)
                return
        self._telemetry.append(shed)

    def _shed(self, letter: Letter) -> Letter | None:
        """Counts what goes; a numbered delivery leaves a note, so that its source's mark moves past it."""
        self.counters.shed_items += letter.items
        gone = letter.input
        if isinstance(gone, SequencesSkipped):
            return letter
        if not isinstance(gone, Delivery) or not gone.sequence:
            for ticket in letter.tickets:
                ticket.resolve()
            return None
        skipped = SequencesSkipped(
            source=gone.source,
            incarnation=gone.incarnation,
            epoch=gone.epoch,
            last=gone.sequence + len(gone.items) - 1,
            because="shed: more came than could be taken",
        )
        return Letter(shard=letter.shard, input=skipped, tickets=letter.tickets, items=0)


def _source(letter: Letter) -> str:
    one = letter.input
    return one.source if isinstance(one, Delivery | SequencesSkipped) else ""


def _merge(note: Letter, later: Letter) -> None:
    """One note for both: the later one's end, and everybody who waits for either."""
    note.input = later.input
    note.tickets = (*note.tickets, *later.tickets)
