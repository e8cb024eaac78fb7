"""Agents that can be compiled, one for each thing that one would want to do. Not a test; read them as examples.

Every class here runs in both engines from the same source. docs/compiled.md lists what they may be made of.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated

from msgspec import Meta

from stigmergy import (
    Action,
    Agent,
    CancelWake,
    Command,
    Effects,
    Event,
    Events,
    Publish,
    Tell,
    WakeMe,
    Woken,
    Work,
    decide,
    evolve,
    react,
    reject,
    transient,
    within,
)

Percent = Annotated[float, Meta(ge=0.0, le=100.0)]
Byte = Annotated[int, Meta(ge=0, le=255)]
Small = Annotated[int, Meta(ge=-100, le=100)]
Digest = Annotated[bytes, Meta(min_length=12, max_length=12)]


# ---- telemetry: many measurements, few actions


class Located(Event, keep=within(seconds=1)):
    north_m: float
    east_m: float
    altitude_m: float


class Drained(Event, keep=within(seconds=1)):
    percent: Percent


class Land(Action):
    reason: str
    percent: float


class Descend(Action):
    to_m: float
    from_m: float = 0.0


class Telemetry(Agent, kind="telemetry"):
    """Watches one drone: where it is, how far it has come, when it has to land."""

    CEILING_M = 120.0

    north_m: float = 0.0
    east_m: float = 0.0
    altitude_m: float = 0.0
    flown_m: float = 0.0
    percent: Percent = 100.0
    located: int = 0
    low: bool = False
    seen_at: float = 0.0

    @evolve
    def moved(self, event: Located) -> None:
        north_m = event.north_m - self.north_m
        east_m = event.east_m - self.east_m
        self.flown_m += math.sqrt(north_m * north_m + east_m * east_m)
        self.north_m = event.north_m
        self.east_m = event.east_m
        self.altitude_m = max(event.altitude_m, 0.0)
        self.located += 1
        self.seen_at = self.now

    @react
    def keep_below(self, event: Located) -> Effects:
        if event.altitude_m > self.CEILING_M:
            yield Descend(self.CEILING_M, from_m=event.altitude_m)

    @evolve
    def drained(self, event: Drained) -> None:
        self.percent = event.percent
        self.low = self.low or event.percent < 15.0

    @react
    def land(self, event: Drained) -> Effects:
        if self.low:
            yield Land(reason=f"{self.id} has {event.percent:.1f} % left", percent=event.percent)


# ---- commands: some refused, some with several events


class SetTarget(Command):
    celsius: float


class Measure(Command):
    celsius: float


class TargetSet(Event):
    celsius: Annotated[float, Meta(gt=-20.0, lt=120.0)]


class Measured(Event):
    celsius: float
    above: float


class TurnedOn(Event):
    pass


class TurnedOff(Event):
    after_s: float


class Heat(Action):
    on: bool


class Thermostat(Agent):
    """Heats until it is warm enough. Refuses targets that nobody can want."""

    target: Annotated[float, Meta(gt=-20.0, lt=120.0)] = 20.0
    heating: bool = False
    since: float = 0.0
    heated_s: float = 0.0
    measured: int = 0

    @decide
    def set_target(self, command: SetTarget) -> Events:
        if not math.isfinite(command.celsius):
            reject("no temperature at all")
        if command.celsius > 30.0:
            reject(f"{command.celsius:.0f} degrees would be too warm; 30 at most")
        yield TargetSet(celsius=command.celsius)

    @evolve
    def target_set(self, event: TargetSet) -> None:
        self.target = event.celsius

    @decide
    def measure(self, command: Measure) -> Events:
        above = command.celsius - self.target
        yield Measured(celsius=command.celsius, above=above)
        if above < -0.5 and not self.heating:
            yield TurnedOn()
        elif above > 0.5 and self.heating:
            yield TurnedOff(self.now - self.since)

    @evolve
    def was_measured(self, event: Measured) -> None:
        self.measured += 1

    @evolve
    def turned_on(self, event: TurnedOn) -> None:
        self.heating = True
        self.since = self.now

    @evolve
    def turned_off(self, event: TurnedOff) -> None:
        self.heating = False
        self.heated_s += event.after_s

    @react
    def switch(self, event: TurnedOn | TurnedOff) -> Effects:
        yield Heat(on=self.heating)


# ---- timers


class Start(Command):
    rounds: int


class Stop(Command):
    pass


class Started(Event):
    rounds: Byte


class Stopped(Event):
    left: int


class Ring(Action):
    text: str


class Counter(Agent):
    """Counts down, one round every two seconds, and rings at the end."""

    left: Byte = 0
    rounds: int = 0

    @decide
    def start(self, command: Start) -> Events:
        if self.left != 0:
            reject(f"{self.left} rounds are left; stop first")
        if command.rounds <= 0:
            reject("give a number of rounds")
        yield Started(rounds=command.rounds)

    @evolve
    def started(self, event: Started) -> None:
        self.left = event.rounds

    @react
    def wake(self, event: Started) -> Effects:
        yield WakeMe(name="round", after_s=2.0)
        yield WakeMe("late", float(event.rounds) * 4.0)

    @evolve
    def woken(self, event: Woken) -> None:
        if event.name == "round" and self.left > 0:
            self.left -= 1
            self.rounds += 1

    @react
    def next(self, event: Woken) -> Effects:
        if event.name == "late":
            yield Ring(text=f"{self.address} is late by {self.left} of {self.rounds + self.left}")
        elif self.left > 0:
            yield WakeMe("round", 2.0)
        else:
            yield CancelWake("late")
            yield Ring("done")

    @decide
    def stop(self, command: Stop) -> Events:
        yield Stopped(left=self.left)

    @evolve
    def stopped(self, event: Stopped) -> None:
        self.left = 0

    @react
    def cancel(self, event: Stopped) -> Effects:
        yield CancelWake("round")
        yield CancelWake("late")


# ---- tells, publications, work; events that are filtered and that are not kept


class Sighted(Event):
    distance_m: float
    bearing: Small


class Glimpsed(Event, keep=transient):
    distance_m: float


class Warned(Event):
    distance_m: float
    times: int


class Plan(Work):
    around_m: float
    hint: str = "none"


class Relay(Agent):
    """Hears of obstacles, passes on what is near, and warns another agent of what is very near."""

    sighted: int = 0
    nearest_m: float = math.inf

    @decide
    def filter(self, event: Sighted) -> Events:
        if event.distance_m < 1000.0:
            yield event
        if event.distance_m < min(self.nearest_m, 10.0):
            yield Warned(event.distance_m, self.sighted + 1)

    @evolve
    def count(self, event: Sighted) -> None:
        self.sighted += 1
        self.nearest_m = min(self.nearest_m, event.distance_m)

    @react
    def pass_on(self, event: Sighted) -> Effects:
        yield Publish("sightings", event)
        if abs(event.bearing) < 10:
            yield Tell(to="Relay/next", message=event)

    @react
    def warn(self, event: Warned) -> Effects:
        yield Tell(to=self.address, message=Sighted(distance_m=event.distance_m * 2.0, bearing=0))
        yield Plan(around_m=event.distance_m, hint=f"{event.times}: {self.id}")

    @react
    def glance(self, event: Glimpsed) -> Effects:
        if event.distance_m < self.nearest_m:
            yield Tell(f"Relay/{self.id}", Warned(distance_m=event.distance_m, times=self.sighted))


# ---- enums and fixed bytes


class Mode(enum.Enum):
    IDLE = "idle"
    FLYING = "flying"
    LANDED = "landed"


class Level(enum.IntEnum):
    LOW = 10
    HIGH = 20


class Enter(Command):
    mode: Mode
    key: Digest


class Entered(Event):
    mode: Mode
    before: Mode
    key: Digest
    level: Level = Level.LOW


class Show(Action):
    mode: Mode
    level: Level
    key: Digest


class Lock(Agent):
    """Changes its mode for whoever has the key, and only as modes may follow each other."""

    MASTER = b"twelve bytes"

    mode: Mode = Mode.IDLE
    key: Digest = bytes(12)
    level: Level = Level.LOW
    changes: int = 0

    @decide
    def enter(self, command: Enter) -> Events:
        if command.key not in (self.MASTER, b"other twelve") and command.key != self.key:
            reject("a wrong key")
        if self.mode is Mode.LANDED:
            reject("landed for good")
        if command.mode == self.mode:
            return
        level = Level.HIGH if command.mode in (Mode.FLYING, Mode.LANDED) else Level.LOW
        yield Entered(command.mode, self.mode, command.key, level=level)

    @evolve
    def entered(self, event: Entered) -> None:
        self.mode = event.mode
        self.key = event.key
        self.level = event.level
        self.changes += 1

    @react
    def show(self, event: Entered) -> Effects:
        if event.before is not event.mode:
            yield Show(mode=self.mode, level=self.level, key=self.key)


# ---- narrow ints, tables, functions, loops


WEIGHTS = (1, 3, 7, 9, -4)
FACTORS = (0.5, 1.0, 2.0)


class Fed(Event):
    byte: Byte
    small: Small
    at: int


class Overflowing(Action):
    sum: Annotated[int, Meta(ge=-1000, le=1000)]
    mean: float


def clamped(value: int, low: int, high: int) -> int:
    """The value, or the end that it is beyond."""
    if value < low:
        return low
    return min(value, high)


class Narrow(Agent):
    """Calculates with ints that hardly fit: what does not is a fault, and changes nothing."""

    byte: Byte = 0
    small: Small = 0
    word: Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)] = 0
    half: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    wide: int = 1
    mean: float = 0.0

    def weight(self, at: int) -> int:
        return WEIGHTS[at] * self.small

    @evolve
    def fed(self, event: Fed) -> None:
        total = 0
        for i in range(4):
            if i == event.at:
                continue
            total += self.weight(i) + event.small
        self.byte = (self.byte + event.byte) % 251
        self.small = event.small
        self.word += total * event.byte
        self.half = self.half ^ (event.byte & 0x0F)
        self.wide = self.wide * (event.at + 1) - WEIGHTS[clamped(event.at, -5, 4)]
        self.mean = float(self.wide) / float(event.byte) * FACTORS[event.small % 3]

    @react
    def overflowing(self, event: Fed) -> Effects:
        if not -100 < self.word <= 100:
            yield Overflowing(sum=self.word // 4, mean=self.mean)
