"""Thins a stream of readings before it costs anything: a rate, every so many, one for each period. Pure.

    Thinning(at_most_hz=2)                  # the newest, at most twice a second
    Thinning(keep_every=10)                 # one of ten
    Thinning(over_s=5, take="mean")         # one for each five seconds: mean, min, max or last

What is left out is counted. Nothing here uses a clock: the caller passes the time, and calls again when it is due.
"""

from __future__ import annotations

import enum
import functools
import math
from typing import Any, Literal, assert_never, get_args

from msgspec import Struct, structs

from stigmergy.agents.messages import SECOND_NS, Event, resolve_hints
from stigmergy.base.errors import DefinitionError

Take = Literal["last", "mean", "min", "max"]
"""The one reading that represents a period. Each numeric field is aggregated by itself; the rest is the last one's."""


class Thinning(Struct, frozen=True):
    """What a sensor's readings are thinned by; the default lets everything through."""

    at_most_hz: float | None = None
    keep_every: int = 1
    over_s: float | None = None
    take: Take = "last"

    def check(self, what: str) -> None:
        """Raises DefinitionError if this cannot be meant."""
        if self.at_most_hz is not None and not 0 < self.at_most_hz <= 1_000:
            raise DefinitionError(f"{what}: at_most_hz={self.at_most_hz}; give more than 0 and at most 1000")
        if self.keep_every < 1:
            raise DefinitionError(f"{what}: keep_every={self.keep_every}; give 1 (all of them) or more")
        if self.over_s is not None and not 0 < self.over_s <= 86_400:
            raise DefinitionError(f"{what}: over_s={self.over_s}; give more than 0 and at most a day of seconds")
        if self.take not in get_args(Take):
            raise DefinitionError(f"{what}: take={self.take!r}; give one of {', '.join(get_args(Take))}")
        if self.take != "last" and self.over_s is None:
            raise DefinitionError(f"{what}: take={self.take!r} of what? Give over_s=… as well, the period in seconds")


class Thinner:
    """Thins the readings of one sensor for one agent. Offer what was read, take what is due.

    A period begins with its first reading. When one passes without any, nothing comes of it: silence stays silence.
    """

    def __init__(self, thinning: Thinning) -> None:
        self._thinning = thinning
        self._over_ns = None if thinning.over_s is None else int(thinning.over_s * SECOND_NS)
        self._gap_ns = 0 if thinning.at_most_hz is None else math.ceil(SECOND_NS / thinning.at_most_hz)
        self._count = 0
        self._period: _Period | None = None
        self._period_ends_ns = 0
        self._held: Event | None = None
        self._free_ns = 0
        self.left_out = 0
        """Readings of which nothing, or only a part of a mean, was passed on."""

    def offer(self, event: Event, now_ns: int) -> None:
        """A reading. What becomes of it, `take` says."""
        self._count += 1
        if (self._count - 1) % self._thinning.keep_every:
            self.left_out += 1
            return
        if self._over_ns is None:
            self._hold(event)
            return
        self._close(now_ns)
        if self._period is None:
            self._period = _Period(self._thinning.take, event)
            self._period_ends_ns = now_ns + self._over_ns
        else:
            self.left_out += 1
            self._period.add(event)

    def take(self, now_ns: int) -> Event | None:
        """What is to be passed on now, if anything."""
        self._close(now_ns)
        if self._held is None or now_ns < self._free_ns:
            return None
        event, self._held = self._held, None
        self._free_ns = now_ns + self._gap_ns
        return event

    @property
    def due_ns(self) -> int | None:
        """When there will be something to take, if nothing more is offered; None: never."""
        if self._held is not None:
            return self._free_ns
        return None if self._period is None else max(self._period_ends_ns, self._free_ns)

    def _close(self, now_ns: int) -> None:
        if self._period is not None and now_ns >= self._period_ends_ns:
            self._hold(self._period.result())
            self._period = None

    def _hold(self, event: Event) -> None:
        if self._held is not None:
            self.left_out += 1
        self._held = event


class _Period:
    """The readings of one period, folded; it holds one number for each field, however many come."""

    def __init__(self, take: Take, first: Event) -> None:
        self._take = take
        self._last = first
        self._folded: dict[str, tuple[float, int]] = {}
        self._fold(first)

    def add(self, event: Event) -> None:
        if type(event) is not type(self._last):
            self._folded = {}  # a mean over two kinds of events means nothing
        self._last = event
        self._fold(event)

    def _fold(self, event: Event) -> None:
        if self._take == "last":
            return
        for name, value in _numbers(event).items():
            if name not in self._folded:
                self._folded[name] = (value, 1)
                continue
            before, count = self._folded[name]
            match self._take:
                case "mean":
                    after = before + value
                case "min":
                    after = min(before, value)
                case "max":
                    after = max(before, value)
                case never:
                    assert_never(never)
            self._folded[name] = (after, count + 1)

    def result(self) -> Event:
        whole = _whole_fields(type(self._last))
        changes: dict[str, Any] = {}
        for name, (folded, count) in self._folded.items():
            value = folded / count if self._take == "mean" else folded
            if math.isfinite(value) and getattr(self._last, name) is not None:
                changes[name] = round(value) if name in whole else float(value)
        return structs.replace(self._last, **changes) if changes else self._last


def _numbers(event: Event) -> dict[str, float]:
    """The fields of a reading that are finite numbers; flags and numeric enums do not count."""
    found: dict[str, float] = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, int | float) and not isinstance(value, bool | enum.Enum) and math.isfinite(value):
            found[name] = value
    return found


@functools.lru_cache(maxsize=1_000)
def _whole_fields(cls: type[Event]) -> frozenset[str]:
    """The fields that take no fractions, as they are declared: a 50 in a field for floats is a float."""
    hints = resolve_hints(cls, cls.__qualname__)
    return frozenset(name for name, hint in hints.items() if float not in (hint, *get_args(hint)))
