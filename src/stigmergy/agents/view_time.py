"""Time in views: windows, event time and lateness, and joins of two events. Pure declarations.

**Event time** is the time of the log, or what `@project(at=…)` says of an event. A tumbling window is a part of the
key: its row is there from its first event. **Lateness** is judged by each shard alone: an event is late if it is older
than the newest event of its own shard before it, by more than the allowed lateness. So the same events are late in
every run, in whatever order shards are read, and an idle shard makes nobody late.

A **join** gives a handler each pair of a first and a second event with the same value in a field, where the second
comes at most so long after the first, by the time of the log. It does not matter which of them is read first.
"""

from __future__ import annotations

import datetime
import math
import types
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS, is_number
from stigmergy.base.errors import DefinitionError

WITHIN_S_MAX = 366 * 24 * 3600
WINDOW_S_MAX = 366 * 24 * 3600
WINDOW = "window"
"""The key field with the beginning of a window, in seconds since 1970."""
Late = Literal["drop", "apply"]
"""What happens with an event that is late. It is counted either way."""
At = Callable[[Any, Any], int]
"""The time of an event, from the event and its origin, in ns since 1970."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Tumbling(Struct, frozen=True):
    """Windows of equal length, one after the other."""

    seconds: int

    def start(self, time_ns: int) -> int:
        """The beginning of the window of this time, in seconds."""
        return time_ns // (self.seconds * SECOND_NS) * self.seconds


def tumbling(*, seconds: int) -> Tumbling:
    """Windows of so many seconds; they begin at multiples of it since 1970, UTC."""
    if not is_number(seconds) or seconds != int(seconds) or not 1 <= seconds <= WINDOW_S_MAX:
        raise DefinitionError(f"tumbling(seconds={seconds!r}): give 1 to {WINDOW_S_MAX} whole seconds")
    return Tumbling(int(seconds))


class Lateness(Struct, frozen=True):
    """How late an event may be, and what happens if it is later."""

    allowed_ns: int
    late: Late
    at: At


class JoinSide(Struct, frozen=True):
    """One of the two events of a join."""

    join: str
    """The name of the handler: a view may have several joins."""
    is_second: bool
    value: Callable[[Any], Any]
    """What must be equal in both."""
    within_ns: int
    pair: Any
    """The Projection of a pair: its events and origins come as tuples of two."""


class ViewTime(Struct, frozen=True):
    """What the class statement of a view says about time."""

    window: Tumbling | None = None
    lateness_s: float | None = None
    late: Late = "drop"


class MarkedTime(Struct, frozen=True):
    """What the mark of a handler says about time."""

    at: Callable[..., Any] | None = None
    join: tuple[str, str] | None = None
    within_s: float | None = None


def check_view_time(where: str, window: object, lateness_s: object, late: object) -> ViewTime:
    """Refuses options of a view that cannot be."""
    if window is not None and not isinstance(window, Tumbling):
        raise DefinitionError(f"{where}: window={window!r}; give tumbling(seconds=60)")
    if lateness_s is not None and not (is_number(lateness_s) and 0 <= float(lateness_s) <= WITHIN_S_MAX):  # type: ignore[arg-type]
        raise DefinitionError(f"{where}: lateness_s={lateness_s!r}; give 0 to {WITHIN_S_MAX} seconds")
    if late not in ("drop", "apply"):
        raise DefinitionError(f"{where}: late={late!r}; give 'drop' or 'apply'")
    return ViewTime(window, lateness_s, late)  # type: ignore[arg-type]


def check_marked_time(at: object, join: object, within_s: object) -> MarkedTime:
    """Refuses options of a mark that cannot be."""
    if at is not None and not isinstance(at, types.FunctionType):
        raise DefinitionError(f"@project(at={at!r}): give a function, such as at=lambda event: event.measured_at")
    if join is None:
        if within_s is not None:
            raise DefinitionError("@project(within_s=…) is for a join; name its field too: join='parcel'")
        return MarkedTime(at=at)
    names = (join, join) if isinstance(join, str) else join
    if not isinstance(names, tuple) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise DefinitionError(
            f"@project(join={join!r}): give the field that must be equal in both events, join='parcel', or its two "
            "names, join=('parcel', 'shipment')"
        )
    if not is_number(within_s) or not 0 < float(within_s) <= WITHIN_S_MAX:  # type: ignore[arg-type]
        raise DefinitionError(f"@project(join=…, within_s={within_s!r}): give more than 0, at most {WITHIN_S_MAX} s")
    if at is not None:
        raise DefinitionError("@project(join=…, at=…): joins go by the time of the log; leave at= out")
    return MarkedTime(None, names, float(within_s))  # type: ignore[arg-type]


def at_function(given: Callable[..., Any] | None, wants_origin: bool, place: str) -> At:
    """The time of an event: what the user's function says, or the log."""
    if given is None:
        return lambda _, origin: int(origin.time_ns)

    def at(event: Any, origin: Any) -> int:
        value = given(event, origin) if wants_origin else given(event)
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            return (value - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
        if is_number(value) and math.isfinite(value):
            return int(value * SECOND_NS)
        raise TypeError(f"{place}: at= says {value!r}; it must be seconds since 1970, or a datetime with its zone")

    return at


def with_window(
    key: Callable[[Any, Any], Any] | None, names: tuple[str, ...], window: Tumbling, at: At
) -> Callable[[Any, Any], Any]:
    """The key of a row of a window: the other key fields, and where the window begins."""
    place, count = names.index(WINDOW), len(names)

    def windowed(event: Any, origin: Any) -> Any:
        start = window.start(at(event, origin))
        if key is None:
            return start
        found = key(event, origin)
        if found is None:
            return None
        others = (found,) if count == 2 else found
        return (*others[:place], start, *others[place:])

    return windowed
