"""The mailbox of a host: bounded lanes between senders and the step. It never waits and never does I/O.

There are three lanes, served in this order: internal inputs (timers, results, tells; bounded by what is owed),
commands, telemetry. So commands are never shed before telemetry, and nothing from outside can starve internal inputs.
In the telemetry lane sources take turns, and so do those that wait for room: a source that sends thousands, over a bus
or in envelopes, delays the others by one of its entries. When the lane is full, the stream's policy decides; a shed
input is counted and moves its source's mark.

Records for compiled agents share the bounds of the telemetry lane, but not its turns: they cost a hundredth of what
interpreted agents take for an input. Where inputs take long, `take` gives out fewer at a time, and parts of envelopes,
and each time some records with them: what waits behind an input never waits for thousands of others.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Protocol

from msgspec import Struct, structs

from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.errors import Bug, Overloaded
from stigmergy.base.fair_queue import FairQueue
from stigmergy.shard.inputs import ColumnDelivery, Delivery, Input, ResultsCame, SequencesSkipped


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


UNTIMED_NS = 2**62
"""Later than everything: of inputs whose wait is not measured."""


class Queued(Struct):
    """One input on its way to its shard, and its waiter."""

    shard: int
    input: Input
    tickets: tuple[Ticket, ...] = ()
    items: int = 1
    size_bytes: int = 0
    first: bool = False
    """It is stepped before everything else that waits: an agent must not act on what it holds no longer."""
    since_ns: int = UNTIMED_NS
    """When it was put here, for metrics."""
    columns: bool = False
    """Records, or a note among those of their source."""


class MailboxCounters(Struct):
    """What became of what was sent."""

    shed_items: int = 0
    sampled_items: int = 0
    overloads: int = 0
    blocked: int = 0


BLOCKED_COUNT_MAX = 1_000
"""Senders that may wait for room at the same time; one more is told Overloaded. Their bytes have the lane's limit. A
source of which nobody waits finds a place up to twice of both: one that floods must not keep others from waiting."""
NOTE_TICKETS_MAX = 1_000
"""Senders that may wait for one note of what was shed; one more is told Overloaded."""
SAMPLED_COUNT_MAX = 100_000
"""Streams whose place in the sampling is remembered; past it all begin anew."""

TRICKLE_ITEMS_MAX = 64
"""Fewer observed events than this are a trickle."""

TURN_COST = 16 * 1024
"""What a source may send in one turn: some fifty small inputs, so that small column batches can still be joined."""
ITEM_COST = 256
"""What an item costs beside its bytes, where sources take turns."""

STEP_NS = SECOND_NS // 200
"""So long the inputs that are taken together may take at most. Everything else waits meanwhile: the disk that has
answered, records, timers, sockets."""
STEPPED_ITEMS_MIN, STEPPED_ITEMS_MAX = 16, 500
"""So many inputs are taken together, however long they take; and where so many take half of `STEP_NS`, all are."""

GONE = -1
"""The shard of an input that has left the queue."""

Stream = tuple[int, str, int]
"""What is numbered together: shard, source, incarnation. A mark belongs to one of these."""


class Mailbox:
    """The lanes. Putting never waits: an input without room waits in line, and its sender with it, on its ticket."""

    def __init__(self, commands_count_max: int, telemetry_items_max: int, telemetry_bytes_max: int) -> None:
        self._commands_count_max = commands_count_max
        self._items_max = telemetry_items_max
        self._bytes_max = telemetry_bytes_max
        self._first: deque[Queued] = deque()
        self._inside: deque[Queued] = deque()
        self._commands: deque[Queued] = deque()
        self._left: deque[Queued] = deque()
        """What found no room in a commit: before all that their sources have sent since."""
        self._telemetry: FairQueue[Queued] = FairQueue(TURN_COST)
        self._columns: FairQueue[Queued] = FairQueue(TURN_COST)
        self._blocked: FairQueue[Queued] = FairQueue(TURN_COST)
        self._items = 0
        self._bytes = 0
        self._blocked_bytes = 0
        self._sampled: dict[Stream, int] = {}
        self._streams: dict[Stream, deque[Queued]] = {}
        """What waits of each stream from which something may be shed, in order. Notes of what was shed among it."""
        self._gone = 0
        """Inputs in the telemetry lane that were merged into later ones; they are skipped."""
        self._step_items_max = UNTIMED_NS
        """So many inputs take about `STEP_NS`; at first as many as there are."""
        self._taken_items = 0
        self.counters = MailboxCounters()
        self._monotonic_ns: Callable[[], int] | None = None
        self._stamp_ns = UNTIMED_NS
        """When the first input since the last turn was put; 0: none was. The clock is read once for all of a turn."""
        self.taken_since_ns = UNTIMED_NS
        """When the oldest input was put that `take` has last taken."""

    def measure(self, monotonic_ns: Callable[[], int]) -> None:
        """Measures waits by this clock from now on."""
        self._monotonic_ns = monotonic_ns
        self._stamp_ns = 0

    def turned(self) -> None:
        """A turn of the host is over: what is put from now on gets another time."""
        if self._monotonic_ns is not None:
            self._stamp_ns = 0

    def _read_clock(self) -> int:
        if self._monotonic_ns is not None:
            self._stamp_ns = self._monotonic_ns()
        return self._stamp_ns

    def waiting_by_shard(self, inputs_max: int) -> dict[int, tuple[int, int]]:
        """By shard how many items wait for it, and when the oldest was put. Looks at so many inputs at most, the lanes
        in the order of stepping: what waits behind those is not counted."""
        found: dict[int, tuple[int, int]] = {}
        lanes = (self._first, self._left, self._inside, self._commands, self._telemetry, self._columns, self._blocked)
        for queued in islice(chain(*lanes), inputs_max):
            if queued.shard != GONE:
                items, since_ns = found.get(queued.shard, (0, UNTIMED_NS))
                found[queued.shard] = items + queued.items, min(since_ns, queued.since_ns)
        return found

    def has_room(self, size_bytes: int) -> bool:
        """Whether observed events of so many bytes would be taken at once, by whichever policy."""
        return not self._blocked and self._items < self._items_max and self._bytes + size_bytes <= self._bytes_max

    def put_inside(self, queued: Queued) -> None:
        """From a timer, a sink or another shard: what we owe bounds how many there can be."""
        queued.since_ns = self._stamp_ns or self._read_clock()
        (self._first if queued.first else self._inside).append(queued)

    def put_command(self, queued: Queued) -> None:
        """From somebody who waits for the answer."""
        if len(self._commands) >= self._commands_count_max:
            self.counters.overloads += 1
            raise Overloaded(f"{self._commands_count_max} commands are waiting; nothing was taken, try again later")
        queued.since_ns = self._stamp_ns or self._read_clock()
        self._commands.append(queued)

    def put_telemetry(self, queued: Queued, policy: StreamPolicy) -> None:
        """Observed events of one source. Without room the policy decides; to block is to wait in line."""
        queued.since_ns = self._stamp_ns or self._read_clock()
        if policy.overflow is Overflow.BLOCK:
            if self._blocked.count_of(_source(queued)) or not self._fits(queued):
                self._block(queued)
            else:
                self._add(queued)
        elif policy.overflow is Overflow.SAMPLE:
            if not self._fits(queued):
                self._shed_newest(queued)
            elif self._items <= self._items_max // 2 or not self._skip(queued, policy):
                self._add_shedding(queued)
        else:
            if not self._fits(queued):
                self._drop_oldest(queued)
            if self._fits(queued):
                self._add_shedding(queued)
            else:
                self._shed_newest(queued)

    def put_note(self, note: Queued, policy: StreamPolicy) -> None:
        """A stream's numbers that will not come. It keeps its place among what the same stream has sent."""
        if policy.overflow is Overflow.BLOCK:
            self.put_telemetry(note, policy)
        else:
            self._add_shedding(note)

    def take(self, items_max: int, *, telemetry: bool) -> Iterator[Queued]:
        """Inputs in the order of stepping, until this many items are out, or as many as may be stepped together.
        Records have the rest of `items_max`, and some are always taken. Take all of them, then call `stepped`."""
        taken, since_ns = 0, UNTIMED_NS
        self._taken_items, step_items_max = 0, min(items_max, self._step_items_max)
        for lane in (self._first, self._left, self._inside, self._commands):
            while lane and taken < items_max and self._taken_items < step_items_max:
                queued = self._part(lane.popleft(), lane.appendleft)
                taken += queued.items
                since_ns = min(queued.since_ns, since_ns)
                yield queued
        # What was left comes before all that its source has sent since.
        while telemetry and not self._left and self._telemetry and self._taken_items < step_items_max:
            source, queued = self._telemetry.pop()
            if queued.shard == GONE:
                self._gone -= 1
                continue
            queued = self._part(queued, partial(self._stay, source))
            self._leave(queued)
            taken += queued.items
            since_ns = min(queued.since_ns, since_ns)
            yield queued
        limit = max(items_max, taken + 1)
        while telemetry and not self._left and self._columns and taken < limit:
            _, queued = self._columns.pop()
            if queued.shard == GONE:
                self._gone -= 1
                continue
            self._leave(queued)
            taken += queued.items
            since_ns = min(queued.since_ns, since_ns)
            yield queued
        self.taken_since_ns = since_ns
        while self._blocked:
            source, queued = self._blocked.pop()
            if not self._fits(queued):
                self._blocked.put_first(source, queued, _cost(queued))
                break
            self._blocked_bytes -= queued.size_bytes
            self._add(queued)

    def _part(self, queued: Queued, stay: Callable[[Queued], None]) -> Queued:
        """What is taken of it at once: all of it, or its first items; then the rest stays where it was."""
        one, count = queued.input, self._step_items_max
        if isinstance(one, Delivery | ResultsCame) and one.length > count:
            part = Queued(queued.shard, one.until(count), (), count, queued.size_bytes * count // one.length)
            part.since_ns = queued.since_ns
            # Who waits is told when the rest is over: a source's inputs are durable in their order.
            queued.input = one.behind(count)
            queued.items -= count
            queued.size_bytes -= part.size_bytes
            stay(queued)
            queued = part
        self._taken_items += 0 if queued.columns else queued.items
        return queued

    def _stay(self, source: str, rest: Queued) -> None:
        self._telemetry.put_rest(source, rest, _cost(rest))

    def stepped(self, took_ns: int) -> None:
        """What was taken last has taken so long: says how much may be taken together from now on."""
        taken = self._taken_items
        if took_ns > STEP_NS and taken > STEPPED_ITEMS_MIN:
            self._step_items_max = max(STEPPED_ITEMS_MIN, taken * STEP_NS // took_ns)
        elif took_ns < STEP_NS // 2 and taken >= self._step_items_max:
            self._step_items_max = 2 * taken if taken < STEPPED_ITEMS_MAX else UNTIMED_NS

    def put_back(self, queued_inputs: list[Queued]) -> None:
        """Inputs that found no room in the commit: they come first next time."""
        for queued in reversed(queued_inputs):
            (self._first if queued.first else self._left).appendleft(queued)

    @property
    def is_slow(self) -> bool:
        """Whether inputs take so long that not all that wait are taken together."""
        return self._step_items_max < UNTIMED_NS

    @property
    def waiting(self) -> bool:
        """Whether anything is in the lanes."""
        return self.pressing or bool(self._telemetry or self._columns)

    @property
    def pressing(self) -> bool:
        """Whether anything but telemetry is in the lanes."""
        return bool(self._first or self._left or self._inside or self._commands)

    @property
    def trickles(self) -> bool:
        """Whether only a few observed events wait, and nobody who asked for something."""
        return self._items < TRICKLE_ITEMS_MAX and not self._commands

    @property
    def items(self) -> int:
        """How many observed events are waiting."""
        return self._items

    def clear(self) -> list[Queued]:
        """Empties the lanes; the caller tells everybody who waits."""
        lanes: tuple[deque[Queued], ...] = (self._first, self._left, self._inside, self._commands)
        queued_inputs = [queued for lane in lanes for queued in lane]
        queued_inputs += [*self._telemetry.clear(), *self._columns.clear(), *self._blocked.clear()]
        for lane in lanes:
            lane.clear()
        self._streams.clear()
        self._items = self._bytes = self._blocked_bytes = self._gone = 0
        return queued_inputs

    def _fits(self, queued: Queued) -> bool:
        empty = self._items == 0 and self._bytes == 0
        return empty or (
            self._items + queued.items <= self._items_max and self._bytes + queued.size_bytes <= self._bytes_max
        )

    def _block(self, queued: Queued) -> None:
        times = 1 if self._blocked.count_of(_source(queued)) else 2
        full = self._blocked and self._blocked_bytes + queued.size_bytes > times * self._bytes_max
        if full or len(self._blocked) >= times * BLOCKED_COUNT_MAX:
            self.counters.overloads += 1
            raise Overloaded(f"{len(self._blocked)} senders wait for room already; nothing was taken, slow down")
        self.counters.blocked += 1
        self._blocked.put(_source(queued), queued, _cost(queued))
        self._blocked_bytes += queued.size_bytes

    def _add(self, queued: Queued) -> None:
        (self._columns if queued.columns else self._telemetry).put(_source(queued), queued, _cost(queued))
        self._items += queued.items
        self._bytes += queued.size_bytes

    def _add_shedding(self, queued: Queued) -> None:
        self._add(queued)
        self._streams.setdefault(_stream(queued), deque()).append(queued)

    def _leave(self, queued: Queued) -> None:
        self._items -= queued.items
        self._bytes -= queued.size_bytes
        if self._streams:
            stream = _stream(queued)
            mine = self._streams.get(stream)
            if mine is not None and mine[0] is queued:
                mine.popleft()
                if not mine:
                    del self._streams[stream]

    def _skip(self, queued: Queued, policy: StreamPolicy) -> bool:
        """Whether sampling leaves this one out."""
        stream = _stream(queued)
        if stream not in self._sampled and len(self._sampled) >= SAMPLED_COUNT_MAX:
            self._sampled.clear()
        count = self._sampled.get(stream, 0)
        self._sampled[stream] = (count + 1) % policy.keep_every
        if count == 0:
            return False
        before = self.counters.shed_items
        self._shed_newest(queued)
        self.counters.sampled_items += self.counters.shed_items - before
        return True

    def _drop_oldest(self, queued: Queued) -> None:
        """Makes room by dropping the oldest deliveries of the same stream, as far as there are any."""
        mine = self._streams.get(_stream(queued))
        while mine and not self._fits(queued):
            oldest = mine[0]
            if not isinstance(oldest.input, SequencesSkipped):
                self._check_room_to_wait(oldest, queued)
                self._become_note(oldest)
            elif len(mine) == 1:
                return
            else:
                self._check_room_to_wait(oldest, queued)
                mine.popleft()
                self._become_note(mine[0])
                _merge(oldest, into=mine[0])
                self._forget(oldest)

    def _shed_newest(self, queued: Queued) -> None:
        """Sheds what just came. Its note goes behind what waits of the same stream, merged with one that is there."""
        mine = self._streams.get(_stream(queued))
        if mine and isinstance(mine[-1].input, SequencesSkipped):
            self._check_room_to_wait(mine[-1], queued)
            self._become_note(queued, waiting=False)
            _merge(queued, into=mine[-1])
        else:
            self._become_note(queued, waiting=False)
            self._add_shedding(queued)

    def _check_room_to_wait(self, note: Queued, queued: Queued) -> None:
        if len(note.tickets) + len(queued.tickets) > NOTE_TICKETS_MAX:
            self.counters.overloads += 1
            raise Overloaded(f"{len(note.tickets)} senders wait for what was shed; nothing was taken, slow down")

    def _become_note(self, queued: Queued, *, waiting: bool = True) -> None:
        """Counts what is shed and leaves a note in its place, so that its source's mark moves past it."""
        shed = queued.input
        if not isinstance(shed, Delivery | ColumnDelivery):
            return
        self.counters.shed_items += shed.length
        if waiting:
            self._items -= queued.items
            self._bytes -= queued.size_bytes
        queued.items = queued.size_bytes = 0
        queued.input = SequencesSkipped(
            source=shed.source,
            incarnation=shed.incarnation,
            epoch=shed.epoch,
            last=shed.sequence and shed.sequence + shed.length - 1,
            because="shed: more came than could be taken",
        )

    def _forget(self, queued: Queued) -> None:
        """Its place in the lane is empty from now on; when most places are, the lane is made anew."""
        queued.shard = GONE
        queued.tickets = ()
        self._gone += 1
        if 2 * self._gone > len(self._telemetry) + len(self._columns):
            for fair in (self._telemetry, self._columns):
                for waiting in fair.clear():
                    if waiting.shard != GONE:
                        fair.put(_source(waiting), waiting, _cost(waiting))
            self._gone = 0


def _stream(queued: Queued) -> Stream:
    one = queued.input
    if isinstance(one, Delivery | ColumnDelivery | SequencesSkipped):
        return (queued.shard, one.source, one.incarnation)
    return (queued.shard, "", 0)


def _source(queued: Queued) -> str:
    """The source with which an input takes turns. Shards and incarnations of a source share one turn."""
    return _stream(queued)[1]


def _cost(queued: Queued) -> int:
    """By bytes and by the work of each item; a note costs next to nothing."""
    return ITEM_COST * queued.items + queued.size_bytes + 1


def _merge(note: Queued, into: Queued) -> None:
    """One note for both, up to the later of their ends: either may be of a repetition. A reason is never lost."""
    one, other = into.input, note.input
    if isinstance(one, SequencesSkipped) and isinstance(other, SequencesSkipped):
        later, earlier = (other, one) if other.last > one.last else (one, other)
        into.input = later if later.because else structs.replace(later, because=earlier.because)
    into.tickets = (*into.tickets, *note.tickets)


def fail_untaken(queued_inputs: Sequence[Queued], error: BaseException) -> None:
    """The step itself has failed, and with it the host: the senders of these inputs must not wait forever."""
    failed = Bug(f"the step failed ({type(error).__name__}: {error}); what was sent is not kept")
    for ticket in (ticket for queued in queued_inputs for ticket in queued.tickets):
        ticket.fail(failed)
