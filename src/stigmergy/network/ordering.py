"""Keeps the order of numbered messages of a bus: hands over each once, after the one that it follows.

`shard.gaps` has the rules of the order. This module adds how long a gap on a bus waits, and checks on senders.

A message names the one before it on its topic (`previous`). If that one is missing, it may still come: after a broken
link a broker may repeat unacknowledged messages late, behind newer ones. So the message waits, for a while after each
new link. On a link that has been up for longer, the missing one was dropped, and waiting would only delay others.

A repetition changes nothing, but it is acknowledged to the broker only when the first one is durable. Anybody who may
publish on a topic can send a number far ahead, and then the messages of its owner look repeated. Only signatures could
prevent that; but it is detected, because no source repeats itself for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from msgspec import Struct

from stigmergy.base.errors import SequenceGap, StaleEpoch, StigmergyError, TooLarge
from stigmergy.bus.cloudevents import CloudEvent
from stigmergy.bus.port import Bus
from stigmergy.node.ingress import BUS_SOURCES
from stigmergy.node.intake import Intake, Stream
from stigmergy.shard.gaps import Gaps, StreamPosition, Turn, remember
from stigmergy.shard.inputs import SequencesSkipped
from stigmergy.shard.marks import Marks
from stigmergy.shard.shard import Shards
from stigmergy.shard.tracing import TraceContext

SECOND_NS = 1_000_000_000
GAP_WAIT_NS_MIN = 2 * SECOND_NS
"""So long at least a message waits for one before it; within `gap_wait_s` of a new link as long as that lasts."""
STREAMS_PER_SENDER_MAX = 10_000
"""New streams that one sender may begin in one run: each takes a mark, which is never forgotten."""
REPEATED_NS_MAX = 120 * SECOND_NS
REPEATED_COUNT_MIN = 3
"""A stream of which so many numbers in a row, each higher than the last, are behind what has come, for so long, does
not repeat itself: its numbers were used by somebody else."""
TROUBLES_COUNT_MAX = 10
Key = tuple[str, int, int]
"""A source, its incarnation, and the shard of the agent that its messages are for."""


class OrderingCounters(Struct):
    """What became of numbered messages."""

    bus_repeated: int = 0
    bus_early: int = 0
    """Times that a message waited for one before it."""
    bus_gaps: int = 0
    """Messages that were taken although one before them never came."""
    bus_stale: int = 0
    """Of an owner that was replaced: the new one sends it again, or a stray one never should have."""


class Numbers(Struct, frozen=True):
    """The numbers of a message on its topic."""

    sequence: int
    incarnation: int
    epoch: int
    previous: int | None


def numbers_of(event: CloudEvent) -> Numbers | None:
    """The numbers that an event carries; None for one without."""
    sequence = event.number("sequence")
    if not sequence:
        return None
    incarnation, epoch = event.number("incarnation") or 0, event.number("epoch") or 0
    return Numbers(sequence, incarnation, epoch, event.number("previous"))


class Ordering:
    """Hands messages over in order. A stream is for one agent only."""

    def __init__(
        self, intake: Intake, shards: Shards, bus: Bus, monotonic_ns: Callable[[], int], gap_wait_s: float
    ) -> None:
        self._intake = intake
        self._shards = shards
        self._bus = bus
        self._monotonic_ns = monotonic_ns
        self._gap_wait_ns = int(gap_wait_s * SECOND_NS)
        self._gaps = Gaps[Key](self._marked)
        self._begun: dict[str, int] = {}
        """How many streams each sender has begun in this run."""
        self._repeats: dict[Key, tuple[int, int, int]] = {}
        """Per stream that repeats itself, since when, the highest such number, and how many."""
        self._passed: dict[str, str] = {}
        """Sources whose numbers were used by somebody else, and what to say of each."""
        self._crowded = ""
        self._lossy: dict[str, None] = {}
        """Sources that left a gap on this link, by their fault or ours: their messages are not awaited again."""
        self._links = 0
        """How often the link came or went; once more if it did in an earlier run."""
        self._link_ns = monotonic_ns()
        self.counters = OrderingCounters()

    def start(self) -> None:
        """Finds out whether an earlier run has listened already, and remembers that this one has."""
        first = self._shards.first.state
        if first.marks.consumed(BUS_SOURCES, 0):
            self._links += 1
        else:
            self._intake.put_inside(first.shard, SequencesSkipped(BUS_SOURCES, 0, 0, 1, ""))

    def link(self, up: bool) -> None:
        """The link came or went: what was under way on the last one may come again, and late.

        To lose it counts as well: what a session has kept may come on the next link before we hear that it is up.
        """
        self._links += 1
        self._link_ns = self._monotonic_ns()
        if up:
            self._lossy.clear()
            self._gaps.restart_waits()

    def note_lossy(self, sender: str) -> None:
        """Something of this sender will never come."""
        remember(self._lossy, sender, None)

    def note_refused(self, source: str, numbers: Numbers, to: str) -> None:
        """A message was refused: the next one does not wait for it."""
        self._gaps.refuse(self._key(source, numbers, to), numbers.sequence, numbers.previous or 0)

    def passed_over(self, source: str, numbers: Numbers, to: str) -> int:
        """How many numbers lie between a message and the last one of its stream that was handed over."""
        return max(0, numbers.sequence - self._gaps.position(self._key(source, numbers, to)).number - 1)

    @property
    def troubles(self) -> list[str]:
        """What does not mend itself."""
        return [*self._passed.values(), *([self._crowded] if self._crowded else [])]

    async def take(
        self, sender: str, source: str, numbers: Numbers, to: str, body: bytes, trace: TraceContext | None = None
    ) -> bool:
        """Hands a message over, and returns when it is durable; False for a repetition, or one of an old owner.

        Up to its first wait calls are in order. Raises SequenceGap while one before it may still come, Overloaded
        without room, TooLarge for a stream too many.
        """
        key = self._key(source, numbers, to)
        turn = self._gaps.turn(key, numbers.sequence, numbers.previous or 0)
        if turn is Turn.REPEATED:
            self.counters.bus_repeated += 1
            self._note_repeated(key, numbers.sequence)
            await self._pass_over(key, numbers.sequence, to, body)
            return False
        if numbers.epoch < self._gaps.position(key).epoch:
            self.counters.bus_stale += 1
            return False
        missing = turn is Turn.EARLY and self._may_come(key) and self._gives_up(key, sender, numbers)
        self._check_room(sender, key)
        stream = Stream(source, numbers.incarnation, numbers.epoch)
        taken = self._intake.take_numbered(stream, numbers.sequence, to, body, missing=missing, trace=trace)
        self._gaps.advance(key, numbers.sequence, numbers.epoch)
        self._repeats.pop(key, None)
        self._passed.pop(source, None)
        try:
            await taken
        except (StigmergyError, asyncio.CancelledError):
            # It was not kept: what the marks say counts again.
            self._gaps.forget(key)
            raise
        return True

    def _check_room(self, sender: str, key: Key) -> None:
        """Raises TooLarge for a stream too many. It must not wait for room: that would hold up all who are known."""
        marks = self._marks(key)
        if key in self._gaps or marks.knows(*key[:2]):
            return
        if not marks.has_room(*key[:2]):
            self._crowded = "there are as many sources as are remembered; what new ones send over the bus is refused"
            raise TooLarge(f"{key[0]}: {self._crowded}")
        begun = self._begun.get(sender, 0)
        if begun >= STREAMS_PER_SENDER_MAX:
            raise TooLarge(f"{sender}: {begun} sources or incarnations have begun to send there; no more are taken")
        remember(self._begun, sender, begun + 1)

    def _note_repeated(self, key: Key, sequence: int) -> None:
        now_ns = self._monotonic_ns()
        since_ns, highest, count = self._repeats.get(key, (now_ns, 0, 0))
        if sequence <= highest:  # it begins anew, as senders do that were killed
            since_ns, count = now_ns, 0
        remember(self._repeats, key, (since_ns, sequence, count + 1))
        lasts = count + 1 >= REPEATED_COUNT_MIN and now_ns - since_ns > REPEATED_NS_MAX
        if lasts and (key[0] in self._passed or len(self._passed) < TROUBLES_COUNT_MAX):
            self._passed[key[0]] = (
                f"{key[0]}: {sequence} and more are behind {self._gaps.position(key).number}, which has come: somebody "
                "else uses its numbers, and it is not taken; see who may publish there"
            )

    async def _pass_over(self, key: Key, sequence: int, to: str, body: bytes) -> None:
        """Waits until the first one is durable.

        A repetition may be of a later run than what is still to come, so it says nothing about who is the owner.
        """
        stream = Stream(*key[:2], epoch=self._marks(key).epoch(*key[:2]))
        with contextlib.suppress(StaleEpoch):
            await self._intake.take_numbered(stream, sequence, to, body, missing=False)

    def _may_come(self, key: Key) -> bool:
        """Whether what a message follows may still come, on a stream of which we know nothing yet.

        We may have listened to it before and been killed too early; or it was there long before us.
        """
        recent = self._monotonic_ns() - self._link_ns < self._gap_wait_ns
        return bool(self._gaps.passed(key)) or (self._links > 1 and recent)

    def _gives_up(self, key: Key, sender: str, numbers: Numbers) -> bool:
        """True when the wait for the one before is over, else SequenceGap."""
        now_ns = self._monotonic_ns()
        waits = self._gaps.still_waits(key, now_ns, GAP_WAIT_NS_MIN, self._link_ns + self._gap_wait_ns)
        # While the link is down nothing can come, so nobody's time is up.
        if not self._bus.is_up or (sender not in self._lossy and waits):
            self.counters.bus_early += 1
            raise SequenceGap(
                f"{key[0]}: {numbers.sequence} came before {numbers.previous}, which it follows",
                source=f"{key[0]} {key[1]}",
                sequence=numbers.sequence,
            )
        self.counters.bus_gaps += 1
        self.note_lossy(sender)
        return True

    def _key(self, source: str, numbers: Numbers, to: str) -> Key:
        return source, numbers.incarnation, self._intake.shard_of(to)

    def _marked(self, key: Key) -> StreamPosition:
        marks = self._marks(key)
        return StreamPosition(marks.consumed(*key[:2]), marks.epoch(*key[:2]))

    def _marks(self, key: Key) -> Marks:
        return self._shards[key[2]].state.marks
