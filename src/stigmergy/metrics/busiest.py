"""Who has most of something, found in bounded memory: the space-saving sketch. Pure.

Whenever there are many names, only the `size` with most are kept. A new one begins with the largest count that was
dropped, so a count may be too high by at most the total divided by `size`, and never too low: whoever has more than
that share is in it. Counts fade, so that it shows who is busy now.
"""

from __future__ import annotations

from msgspec import Struct

HALVED_NS = 60 * 1_000_000_000
"""What was counted a minute ago counts half."""
MANY = 8
"""So many times as many names as are kept are collected before the rest is dropped: to drop one by one costs more."""
FORGOTTEN_MINUTES = 20
"""After so long without a look nothing is left of a count."""


class Share(Struct, frozen=True):
    """A name and its share of all."""

    name: str
    share: float


class Busiest:
    """Counts by name."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._counts: dict[str, float] = {}
        self._dropped = 0.0
        """The largest count that was dropped."""
        self._total = 0.0
        self._since_ns = 0

    def add(self, name: str, count: float) -> None:
        """So much of it is this one's."""
        self._total += count
        counts = self._counts
        counts[name] = counts.get(name, self._dropped) + count
        if len(counts) > MANY * self._size:
            kept = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
            self._dropped = max(self._dropped, kept[self._size][1])
            self._counts = dict(kept[: self._size])

    def fade(self, now_ns: int) -> None:
        """Lets older counts count less; call it now and then."""
        minutes, rest_ns = divmod(now_ns - self._since_ns, HALVED_NS)
        if minutes < 1:
            return
        self._since_ns = now_ns - rest_ns
        kept = 0.5 ** min(minutes, FORGOTTEN_MINUTES)
        self._total *= kept
        self._dropped *= kept
        self._counts = {name: count * kept for name, count in self._counts.items() if count * kept >= 0.5}

    def top(self, limit: int) -> list[Share]:
        """Those with most, the first the most, with their shares of all."""
        if not self._total:
            return []
        first = sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))[:limit]
        return [Share(name, min(1.0, count / self._total)) for name, count in first]
