"""Timers of agents: a durable table of names and due times. The host watches the clock; the table says what exists."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.agents.effects import CancelWake, WakeMe, WakeMeAt
from stigmergy.agents.messages import SECOND_NS, Effect
from stigmergy.base.errors import JournalCorrupt

MOMENT_S_END = 2**33
"""Moments lie before the year 2242."""
WINDOW_PREFIX = "window:"
"""Timers with this prefix belong to the framework: they close tumbling windows."""


class TimerSet(Struct, array_like=True, frozen=True):
    """The body of an effect for the timers' sink. Without a due time it cancels. `follows_wall` tells a moment from a
    duration: a duration is counted by the monotonic clock while the node runs."""

    name: str
    due_ns: int | None
    follows_wall: bool = False


class PendingTimer(Struct, array_like=True, frozen=True, order=True):
    """A timer that will go off. Ordered as timers fire: by due time, then agent, then name."""

    due_ns: int
    agent: str
    name: str
    follows_wall: bool = False


def timer_body(effect: Effect, now_ns: int) -> bytes:
    """The bytes kept for a timer effect; durations become due times here, at the time of the step."""
    match effect:
        case WakeMe(name=name) | WakeMeAt(name=name) | CancelWake(name=name) if not isinstance(name, str):
            raise TypeError(f"a timer's name is a text, not {name!r}")
        case WakeMe(name=name) | WakeMeAt(name=name) | CancelWake(name=name) if name.startswith(WINDOW_PREFIX):
            raise ValueError(f"timer {name!r}: names with {WINDOW_PREFIX!r} belong to windows; choose another")
        case WakeMe(name=name, after_s=after_s):
            if not 0 <= after_s <= 86_400 * 3660:
                raise ValueError(f"WakeMe(after_s={after_s}): give 0 seconds to ten years")
            return encode(TimerSet(name, now_ns + int(after_s * SECOND_NS)))
        case WakeMeAt(name=name, at_s=at_s):
            return encode(TimerSet(name, _moment_ns(at_s), follows_wall=True))
        case CancelWake(name=name):
            return encode(TimerSet(name, None))
        case _:
            raise TypeError(f"{type(effect).__name__} is no effect that anybody carries out; subclass Action or Work")


def _moment_ns(at_s: object) -> int:
    if not isinstance(at_s, int | float) or not abs(at_s) < MOMENT_S_END:
        raise ValueError(f"WakeMeAt(at_s={at_s!r:.50}): give seconds since 1970")
    return int(at_s * SECOND_NS)


_timer_decoder = msgspec.msgpack.Decoder(TimerSet)


def read_timer(body: bytes) -> TimerSet:
    """The bytes of a timer effect, decoded. Raises JournalCorrupt."""
    try:
        return _timer_decoder.decode(body)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a timer does not decode ({error}); restore from a copy") from None


class Timers:
    """The timers of a shard's agents."""

    def __init__(self) -> None:
        self._timers: dict[tuple[str, str], PendingTimer] = {}

    def put(self, agent: str, timer: TimerSet) -> PendingTimer | None:
        """Sets, replaces or cancels; returns the timer that now exists under this name."""
        if timer.due_ns is None:
            self._timers.pop((agent, timer.name), None)
            return None
        made = PendingTimer(timer.due_ns, agent, timer.name, timer.follows_wall)
        self._timers[agent, timer.name] = made
        return made

    def get(self, agent: str, name: str) -> PendingTimer | None:
        """The timer under this name, if there is one."""
        return self._timers.get((agent, name))

    def fire(self, agent: str, name: str) -> None:
        """Forgets a timer that went off."""
        self._timers.pop((agent, name), None)

    def all(self) -> list[PendingTimer]:
        """Every timer in the order in which they fire."""
        return sorted(self._timers.values())

    def restore(self, timers: list[PendingTimer]) -> None:
        """Takes over what a snapshot says."""
        self._timers = {(timer.agent, timer.name): timer for timer in timers}

    def __len__(self) -> int:
        return len(self._timers)
