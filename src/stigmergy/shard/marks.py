"""Marks: per source and incarnation the highest contiguous sequence consumed, so that nothing is consumed twice.

A mark moves in the same commit as the results of the input. That makes consumption exactly-once, however late a source
repeats itself. A new incarnation of a source (restored from a copy) counts from 1 again.
"""

from __future__ import annotations

from msgspec import Struct

from stigmergy.base.errors import Overloaded, SequenceGap, StaleEpoch
from stigmergy.shard.commit import MarkMoved

SOURCES_COUNT_MAX = 100_000
SHARD_SOURCES = "shard/"
"""Names of sources that are our own shards. They are as few as a fleet has shards, and no stranger may take one."""


class Mark(Struct):
    """How far one incarnation of a source has been consumed, and the highest epoch its releaser had."""

    epoch: int
    sequence: int


class Marks:
    """The marks of a shard."""

    def __init__(self, sources_count_max: int = SOURCES_COUNT_MAX) -> None:
        self._marks: dict[tuple[str, int], Mark] = {}
        self._sources_count_max = sources_count_max

    def consumed(self, source: str, incarnation: int) -> int:
        """The highest contiguous sequence consumed; 0 for a source never heard of."""
        mark = self._marks.get((source, incarnation))
        return 0 if mark is None else mark.sequence

    def epoch(self, source: str, incarnation: int) -> int:
        """The highest epoch that this source has spoken in; 0 for a source never heard of."""
        mark = self._marks.get((source, incarnation))
        return 0 if mark is None else mark.epoch

    def has_room(self, source: str, incarnation: int) -> bool:
        """Whether this source is known, or one more may be."""
        return (source, incarnation) in self._marks or len(self._marks) < self._sources_count_max

    def knows(self, source: str, incarnation: int) -> bool:
        """Whether this source has been heard of."""
        return (source, incarnation) in self._marks

    def admit(self, source: str, incarnation: int, epoch: int, sequence: int) -> int:
        """How many items of a delivery that starts with `sequence` were consumed before; the rest is due now.

        Raises StaleEpoch for a releaser that has been replaced, SequenceGap for items that come too early (nothing
        of them may be consumed yet), Overloaded for one source too many. A shard is never one too many: what our own
        agents tell each other must arrive, however many strangers have spoken.
        """
        mark = self._marks.get((source, incarnation))
        if mark is None:
            if len(self._marks) >= self._sources_count_max and not source.startswith(SHARD_SOURCES):
                raise Overloaded(
                    f"source {source!r}: {self._sources_count_max} sources are known already; raise sources_count_max"
                )
            mark = Mark(epoch=epoch, sequence=0)
        if epoch < mark.epoch:
            raise StaleEpoch(
                f"source {source!r}: epoch {epoch} is over, {mark.epoch} has begun; stop, another owner has taken over"
            )
        if sequence > mark.sequence + 1:
            raise SequenceGap(
                f"source {source!r}: expected sequence {mark.sequence + 1}, got {sequence}; "
                "send what lies between, or declare it lost"
            )
        return mark.sequence + 1 - sequence

    def move(self, moved: MarkMoved) -> None:
        """Sets a mark; it never goes back."""
        key = (moved.source, moved.incarnation)
        mark = self._marks.get(key)
        if mark is None:
            self._marks[key] = Mark(epoch=moved.epoch, sequence=moved.sequence)
        else:
            mark.epoch = max(mark.epoch, moved.epoch)
            mark.sequence = max(mark.sequence, moved.sequence)

    def all(self) -> list[MarkMoved]:
        """Every mark, in a fixed order, for a snapshot."""
        return [
            MarkMoved(source=source, incarnation=incarnation, epoch=mark.epoch, sequence=mark.sequence)
            for (source, incarnation), mark in sorted(self._marks.items())
        ]
