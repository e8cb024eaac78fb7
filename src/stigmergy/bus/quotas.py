"""Quotas: how much each source may send, so that a flood of one does not hurt the others. Pure.

Each source has a token bucket: it holds at most `burst` tokens and is refilled at a rate; a message takes one and is
shed without one. Full buckets are forgotten; while too many are not full, new sources share one. Buckets are scanned at
most once a second, so that invented names do not make each message expensive.

Messages sent while nothing could be received arrive together later, and that is not a flood. `allow_for` therefore
gives every source what it might have sent in that time, for as long as that time was: a broker that has held messages
gives them as fast as they are taken.
"""

from __future__ import annotations

SECOND_NS = 1_000_000_000
SOURCES_COUNT_MAX = 100_000
STRANGERS = ""
"""The bucket of sources without their own."""
PACE_SHARE = 0.9
"""The share of a receiver's rate that a sender uses: clocks differ, and some messages are sent twice."""
PACE_LOOK_S = 0.05
"""How often lanes that have used their quota are checked again."""
ALLOWED_COUNT_MAX = 50_000
"""The most that a source may send for a time in which nothing was received: as much as a publisher keeps."""
ALLOWED_NS_MIN = 60 * SECOND_NS
ALLOWED_NS_MAX = 3600 * SECOND_NS
"""How long after such a time its messages may come: as long as that time was, within these bounds."""


class Quotas:
    """The buckets of all sources."""

    def __init__(self, per_s: float, burst: float, *, sources_count_max: int = SOURCES_COUNT_MAX) -> None:
        self._per_ns = per_s / SECOND_NS
        self._burst = float(burst)
        self._sources_count_max = sources_count_max
        self._buckets: dict[str, tuple[float, int]] = {}
        """Tokens, and when they were counted."""
        self._look_ns = 0
        """Buckets are not scanned again before this time."""
        self._allowed = 0
        """What each source may send beyond its bucket."""
        self._allowed_until_ns = 0
        self._used: dict[str, int] = {}
        """How much of that each source has sent."""

    def admit(self, source: str, now_ns: int, *, crowded: bool = False) -> bool:
        """Whether this source may send one more message now. A `crowded` source may only send what it might have sent
        while nothing could be received."""
        bucket = self._buckets.get(source)
        if bucket is None:
            if len(self._buckets) >= self._sources_count_max and not self._has_room(now_ns):
                source = STRANGERS
            bucket = self._buckets.get(source, (self._burst, now_ns))
        tokens = min(self._burst, bucket[0] + (now_ns - bucket[1]) * self._per_ns)
        admitted = tokens >= 1.0 and not crowded
        self._buckets[source] = (tokens - 1.0 if admitted else tokens, now_ns)
        return self._is_allowed(source, now_ns, admitted) if self._allowed else admitted

    def allow_for(self, missed_ns: int, now_ns: int, *, repeated: int = 0) -> None:
        """Nothing was received for this long, and now it is; `repeated` messages may come again too."""
        count = min(ALLOWED_COUNT_MAX, int(missed_ns * self._per_ns) + repeated)
        until_ns = now_ns + min(ALLOWED_NS_MAX, max(ALLOWED_NS_MIN, missed_ns))
        if now_ns <= self._allowed_until_ns:
            # The larger one counts, not both: a time that is reported twice must not count twice.
            self._allowed = max(self._allowed, count)
            self._allowed_until_ns = max(self._allowed_until_ns, until_ns)
        else:
            self._allowed, self._used = count, {}
            self._allowed_until_ns = until_ns

    def _is_allowed(self, source: str, now_ns: int, admitted: bool) -> bool:
        if now_ns > self._allowed_until_ns:
            self._allowed, self._used = 0, {}
            return admitted
        if admitted:
            return True
        used = self._used.get(source, 0)
        if used >= self._allowed:
            return False
        self._used[source] = used + 1
        return True

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


def pace(per_s: float, burst: int) -> Quotas:
    """The quotas of a sender, so that receivers with these quotas shed none of its messages."""
    return Quotas(PACE_SHARE * per_s, max(1, burst // 2))
