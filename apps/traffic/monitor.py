"""Watches what is ordered of the lamps, and turns everything red when it is ever wrong. Knows nothing of phases.

It stands between the controller and the lamps, as in every signal cabinet, and has its own idea of what is safe: which
groups conflict, how long a yellow and a clearance last at least. It trusts nobody's clock but its own and believes no
one's good reasons. Red is always allowed. A controller that is silent for too long has its lamps turned red, too.
"""

from __future__ import annotations

from msgspec import Struct

from apps.traffic.phases import Aspect, Lamps

RED = Lamps()
SILENCE_S_MAX = 2.0
"""A controller that is not heard for so long has failed."""
TOLERANCE_S = 0.02
"""What two honest clocks may differ by over a phase."""


class Limits(Struct, frozen=True):
    """What a technician has set with screws, once."""

    yellow_s: float = 3.0
    clearing_s: float = 1.5
    flashing_s: float = 10.0
    unwarned_s: float = 10.0
    """How long everything stays red after a green that ended without a warning, before anybody goes."""


class _Group:
    """The lamps of one signal group, and since when they show it."""

    def __init__(self, now_s: float) -> None:
        self.aspect: Aspect = "red"
        self.since_s = now_s


class Monitor:
    """The conflict monitor of one intersection. Ask it what to show; show that and nothing else."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self._groups = {name: _Group(now_s) for name in ("street", "avenue", "walk")}
        self._red_until_s = now_s + limits.unwarned_s
        """It does not know what was shown before it was there."""
        self._heard_s = now_s
        self.lamps = RED
        self.tripped = ""
        """Why everything is red; empty when nothing is wrong, and again once red has lasted long enough."""
        self.latched = False
        """Whether only a technician may end that: two groups had the way at once."""
        self.trips = 0

    def alive(self, now_s: float) -> None:
        """The controller is there."""
        self._heard_s = now_s

    def silent_s(self, now_s: float) -> float:
        """How long the controller was not heard."""
        return now_s - self._heard_s

    def show(self, wanted: Lamps, now_s: float) -> Lamps:
        """What to show when this is wanted: the same, or red."""
        self._heard_s = now_s
        if wanted == RED:
            if not self.latched and now_s + TOLERANCE_S >= self._red_until_s:
                self.tripped = ""
            return self._turn(RED, now_s)
        conflict = self._conflict(wanted)
        if conflict:
            self.latched = True
        reason = self.tripped if self.latched and not conflict else conflict or self._mistake(wanted, now_s)
        if reason:
            return self._trip(reason, now_s)
        self.tripped = ""
        return self._turn(wanted, now_s)

    def tick(self, now_s: float) -> Lamps:
        """Call it often. Turns everything red when the controller is silent."""
        if self.lamps != RED and self.silent_s(now_s) > SILENCE_S_MAX:
            return self._trip(f"the controller is silent for {SILENCE_S_MAX:g} s", now_s)
        return self.lamps

    def reset(self, now_s: float) -> None:
        """A technician has looked at it. Everything stays red for as long as after any fault."""
        self._turn(RED, now_s)
        self.latched = False
        self.tripped = ""
        self._red_until_s = now_s + self._limits.unwarned_s

    def _conflict(self, wanted: Lamps) -> str:
        going = [name for name in self._groups if getattr(wanted, name) != "red"]
        return f"{' and '.join(going)} at once" if len(going) > 1 else ""

    def _mistake(self, wanted: Lamps, now_s: float) -> str:
        """What is wrong with this order at this moment, though it conflicts with nothing."""
        if now_s + TOLERANCE_S < self._red_until_s:
            return "red for too short a time after a fault"
        for name, group in self._groups.items():
            new: Aspect = getattr(wanted, name)
            old, lasted_s = group.aspect, now_s - group.since_s + TOLERANCE_S
            ending: Aspect = "flashing" if name == "walk" else "yellow"
            if new == old:
                continue
            if new == ending and old != "green":
                return f"{name}: {new} without a green before it"
            if new not in ("red", "green", ending):
                return f"{name} has no {new}"
            if new == "red" and old == "green":
                return f"{name}: green ended without {ending}"
            if new == "red" and lasted_s < self._ending_s(name):
                return f"{name}: {ending} for {lasted_s:.1f} s, {self._ending_s(name):g} s at least"
            if new == "green" and old != "red":
                return f"{name}: green again from {old}"
            if new == "green":
                mistake = self._not_clear(name, now_s)
                if mistake:
                    return mistake
        return ""

    def _not_clear(self, going: str, now_s: float) -> str:
        for name, group in self._groups.items():
            red_s = now_s - group.since_s + TOLERANCE_S
            if name == going:
                continue
            if group.aspect != "red":
                return f"{going} goes while {name} is {group.aspect}"
            if red_s < self._limits.clearing_s:
                return f"{going} goes {red_s:.1f} s after {name}, {self._limits.clearing_s:g} s at least"
        return ""

    def _ending_s(self, name: str) -> float:
        return self._limits.flashing_s if name == "walk" else self._limits.yellow_s

    def _turn(self, lamps: Lamps, now_s: float) -> Lamps:
        for name, group in self._groups.items():
            new: Aspect = getattr(lamps, name)
            if new == group.aspect:
                continue
            if new == "red":
                lasted_s = now_s - group.since_s + TOLERANCE_S
                if group.aspect == "green" or lasted_s < self._ending_s(name):
                    self._red_until_s = max(self._red_until_s, now_s + self._limits.unwarned_s)
            group.aspect, group.since_s = new, now_s
        self.lamps = lamps
        return lamps

    def _trip(self, reason: str, now_s: float) -> Lamps:
        self.trips += 1
        self.tripped = reason
        self._turn(RED, now_s)
        self._red_until_s = max(self._red_until_s, now_s + self._limits.unwarned_s)
        return RED
