"""Histograms of plain integers with buckets that double. Pure.

To observe costs a shift, a bit length and an addition, so it is done once for a turn or a group of events, never for
each event. All histograms of one `Scale` have the same buckets, so those of several shards and nodes can be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct


class Scale(Struct, frozen=True):
    """Buckets up to 2**shift, 2**(shift + 1) and so on, in whole units, of which `per` make the unit that is told."""

    shift: int
    buckets: int
    per: int

    @property
    def bounds(self) -> list[float]:
        """The upper bound of each bucket but the last, which has none."""
        return [2 ** (self.shift + number) / self.per for number in range(self.buckets - 1)]


SECONDS = Scale(shift=14, buckets=23, per=1_000_000_000)
"""Nanoseconds, told in seconds: from 16 us to 34 s."""
COUNTS = Scale(shift=0, buckets=19, per=1)
"""From 1 to 131,072."""


class HistogramValue(Struct, frozen=True):
    """What a histogram has counted: how many fell into each bucket, and their sum in units of the scale."""

    counts: list[int]
    sum: int = 0

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)


class Histogram:
    """Counts values by size. `observe` is for hot paths."""

    __slots__ = ("_last", "_shift", "counts", "sum")

    def __init__(self, scale: Scale = SECONDS) -> None:
        self._shift = scale.shift
        self._last = scale.buckets - 1
        self.counts = [0] * scale.buckets
        self.sum = 0

    def observe(self, value: int, count: int = 1) -> None:
        """So many had this value, in whole units of the scale. Below 0 counts as 0: clocks are read in any order."""
        if value > 0:
            number = (value - 1 >> self._shift).bit_length()
            self.counts[min(self._last, number)] += count
            self.sum += value * count
        else:
            self.counts[0] += count

    @property
    def value(self) -> HistogramValue:
        """What was counted up to now."""
        return HistogramValue(list(self.counts), self.sum)


def added(values: Iterable[HistogramValue]) -> HistogramValue:
    """All of them in one. Those of another version may have fewer or more buckets: what lies above goes to the last."""
    counts: list[int] = []
    total = 0
    for value in values:
        counts += [0] * (len(value.counts) - len(counts))
        for number, count in enumerate(value.counts):
            counts[number] += count
        total += value.sum
    return HistogramValue(counts, total)


def quantile(counts: Sequence[int], scale: Scale, share: float) -> float | None:
    """The value below which this share of all lies, estimated within its bucket; None where nothing was observed."""
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for number, count in enumerate(counts):
        if count and below + count >= rank:
            low = 0 if number == 0 else 2 ** (scale.shift + number - 1)
            # The last bucket has no end: its beginning is all that is known.
            high = low if number >= scale.buckets - 1 else 2 ** (scale.shift + number)
            return (low + (high - low) * max(0.0, rank - below) / count) / scale.per
        below += count
    raise AssertionError("the counts make up their sum")
