"""Quotas: how much each source may send, so that one that floods does not hurt the others. Pure.

A bucket for each source holds so many tokens (`burst`) and is filled with so many a second; a message takes one.
Without a token it is shed. Buckets that are full again are forgotten; while too many are not, new sources share one.
They are looked through once a second at most: whoever invents names must not make each message dear.
"""

from __future__ import annotations

SECOND_NS = 1_000_000_000
SOURCES_COUNT_MAX = 100_000
STRANGERS = ""
"""The bucket of those for whom there is none."""


class Quotas:
    """The buckets of all sources."""

    def __init__(self, per_s: float, burst: float, *, sources_count_max: int = SOURCES_COUNT_MAX) -> None:
        self._per_ns = per_s / SECOND_NS
        self._burst = float(burst)
        self._sources_count_max = sources_count_max
        self._buckets: dict[str, tuple[float, int]] = {}
        """Tokens, and when they were counted."""
        self._look_ns = 0
        """Not before that time are the buckets looked through again."""

    def admit(self, source: str, now_ns: int) -> bool:
        """Whether this source may send one more message now."""
        bucket = self._buckets.get(source)
        if bucket is None:
            if len(self._buckets) >= self._sources_count_max and not self._has_room(now_ns):
                source = STRANGERS
            bucket = self._buckets.get(source, (self._burst, now_ns))
        tokens = min(self._burst, bucket[0] + (now_ns - bucket[1]) * self._per_ns)
        admitted = tokens >= 1.0
        self._buckets[source] = (tokens - 1.0 if admitted else tokens, now_ns)
        return admitted

    def _has_room(self, now_ns: int) -> bool:
        if now_ns < self._look_ns:
            return False
        self._look_ns = now_ns + SECOND_NS
        return self._make_room(now_ns)

    def _make_room(self, now_ns: int) -> bool:
        self._buckets = {
            source: (tokens, at_ns)
            for source, (tokens, at_ns) in self._buckets.items()
            if tokens + (now_ns - at_ns) * self._per_ns < self._burst
        }
        return len(self._buckets) < self._sources_count_max
