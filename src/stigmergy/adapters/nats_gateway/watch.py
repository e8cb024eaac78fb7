"""When a source has to be woken up: what the hub has of a site's stream, looked at again and again. Pure.

A stream that sources another one over a leaf link often notices only after most of a minute that the link is back. To
take the source away and give it back wakes it at once. That costs nothing but must not be done all the time: a source
that is on its way would never arrive.
"""

from __future__ import annotations

import enum

STALL_S = 1.0
"""A source that is behind and has not moved for so long is woken up."""
AGAIN_S_MIN = 2.0
AGAIN_S_MAX = 30.0
"""How long it is then left alone; twice as long each time that it did not help."""


class Verdict(enum.Enum):
    """What to do about a source."""

    LEAVE = "leave it alone"
    WAKE = "take it away and give it back"
    RENEW = "begin anew: the site's stream is another one than it was"


class SourceWatch:
    """One site's source. `look` as often as something is known; `lost` when nothing is."""

    def __init__(self) -> None:
        self._arrived = -1
        self._moved_s = 0.0
        self._rests_until_s = 0.0
        self._rest_s = AGAIN_S_MIN
        self.is_suspect = False
        """It is behind, and did not move since the look before: look again soon."""
        self.wakes = 0
        self.renewals = 0

    def look(self, now_s: float, sent: int, arrived: int) -> Verdict:
        """`sent` is the last number of the site's stream, `arrived` the last one that the hub has of it."""
        self.is_suspect = arrived == self._arrived and arrived < sent
        if arrived > sent:
            # The site lost its stream and began a new one: the source would wait for numbers that are long past.
            self._arrived = -1
            self.renewals += 1
            return Verdict.RENEW
        if arrived != self._arrived:
            self._arrived, self._moved_s = arrived, now_s
            self._rests_until_s, self._rest_s = 0.0, AGAIN_S_MIN
            return Verdict.LEAVE
        if arrived == sent:
            self._moved_s = now_s
            return Verdict.LEAVE
        if now_s - self._moved_s < STALL_S or now_s < self._rests_until_s:
            return Verdict.LEAVE
        self._rests_until_s = now_s + self._rest_s
        self._rest_s = min(AGAIN_S_MAX, 2 * self._rest_s)
        self.wakes += 1
        return Verdict.WAKE

    def lost(self, now_s: float) -> None:
        """The hub is out of reach: when it is back, the source has STALL_S from then on."""
        self._moved_s = now_s
        self._rests_until_s = 0.0
        self._rest_s = AGAIN_S_MIN
