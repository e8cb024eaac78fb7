"""How drones fly: position, wind, battery, satellite receiver and radio of all of them, in arrays. Seeded, no clock.

`step` lets `STEP_S` pass. The same seed and the same orders at the same steps give the same flight. Drones do not feel
each other: whether two came too close is for whoever reads the witness.

Autopilot  flies by what its receiver says, not by where it is. Horizontally and vertically it goes to its target as
           fast as it may and brakes so that it stops there without passing it. It corrects for the wind as long as its
           airspeed allows. A target on the ground is flown over first, and then it goes straight down until it touches.
Wind       a sum of slow seeded waves, never more than `wind_m_s`.
Battery    hovering without load empties it in 25 minutes. Load counts by weight to the power 1.5 (induced power),
           airspeed by its cube (drag), climbing by its rate. A drone whose battery is empty comes down by parachute.
Receiver   the error is a first-order Gauss-Markov process with a time constant of 30 s: it wanders and does not jump.
Charging   0 to 80 % in 4 minutes, at a constant rate; from there on the rate falls linearly to 15 % of that at 100 %:
           another 2 minutes and 14 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Kind = Literal["motor", "radio", "computer"]
KINDS: tuple[Kind, ...] = ("motor", "radio", "computer")

STEP_S = 0.1
FIX_STEPS = 5
"""The receiver has a new fix every so many steps: twice a second."""
WIND_STEPS = 10
"""The wind is computed anew every so many steps: it changes over minutes."""

SPEED_M_S = 18.0
AIRSPEED_M_S = 23.0
CLIMB_M_S, SINK_M_S = 4.0, 3.0
ACCELERATION_M_S2 = 3.0
BRAKING_M_S2 = 2.5
"""What the autopilot counts on when it brakes: less than it can do, so that wind and noise do not carry it too far."""
GAIN_PER_S = 1.0
"""Close to the target the speed is so many times the distance."""
TOUCH_M_S = 0.7
"""So slowly it feels for the ground."""
ABOVE_M = 2.0
"""So close, seen from above, a drone must be to its place on the ground before it goes down."""
PARACHUTE_M_S = 5.0

HOVER_PERCENT_S = 100.0 / (25 * 60)
EMPTY_KG = 12.0
CLIMB_SHARE_PER_M_S = 0.15
SINK_SHARE_PER_M_S = 0.05
DRAG_SHARE, DRAG_AT_M_S = 0.3, 20.0
"""At this airspeed drag costs this share of what hovering does."""

CHARGE_PERCENT_S = 80.0 / (4 * 60)
CHARGE_FULL_SHARE = 0.15

NOISE_TAU_S = 30.0
NOISE_M = (0.5, 0.5, 0.7)
WAVES = 3

FIELDS = ("x", "y", "z", "vx", "vy", "vz", "battery", "link", "down")
"""The columns of `fixes`: as in the message Fix, without t."""


class Conditions(Struct, frozen=True):
    """How hard the world is."""

    wind_m_s: float = 6.0
    battery_low: float = 80.0
    """Drones begin with a charge between this and full."""
    link_lost_per_h: float = 3.0
    """How often a drone loses its link, wherever it is."""
    link_lost_s: float = 3.0
    """For so long, on average."""
    range_m: float = 5000.0
    """How far a mast reaches; there is one in the centre of each zone."""
    failures_per_h: float = 0.0
    """For each drone in the air, all kinds together."""


class Happening(Struct, frozen=True):
    """Something that a step has brought about."""

    what: Literal["took_off", "landed", "battery_empty", "failed"]
    drone: int
    kind: Kind | None = None


class Physics:
    """All drones. Arrays of positions and speeds are [axis][drone]; `names` gives the order."""

    def __init__(
        self,
        names: Sequence[str],
        homes: Sequence[tuple[float, float]],
        seed: int,
        conditions: Conditions | None = None,
        masts: Sequence[tuple[float, float]] = (),
    ) -> None:
        count = len(names)
        self.names = tuple(names)
        self.conditions = conditions or Conditions()
        if self.conditions.wind_m_s >= AIRSPEED_M_S:
            raise ValueError(f"no drone flies against {self.conditions.wind_m_s} m/s; give less than {AIRSPEED_M_S}")
        noise, link, failures, wind, start = np.random.SeedSequence(seed).spawn(5)
        self._noise_chance, self._link_chance = np.random.default_rng(noise), np.random.default_rng(link)
        self._failure_chance = np.random.default_rng(failures)
        self.steps = 0
        self.position: Floats = np.zeros((3, count))
        if count:
            self.position[:2] = np.asarray(homes, dtype=np.float64).T
        self.velocity: Floats = np.zeros((3, count))
        self.target: Floats = self.position.copy()
        self.speed: Floats = np.full(count, SPEED_M_S)
        self.payload_kg: Floats = np.zeros(count)
        chance = np.random.default_rng(start)
        self.battery: Floats = chance.uniform(self.conditions.battery_low, 100.0, count)
        self.down: Flags = np.ones(count, dtype=bool)
        self.failed: Flags = np.zeros(count, dtype=bool)
        """Its motors have failed: it hangs on its parachute or lies on the ground."""
        self.radio_failed: Flags = np.zeros(count, dtype=bool)
        self.computer_failed: Flags = np.zeros(count, dtype=bool)
        self.on_pad: Flags = np.zeros(count, dtype=bool)
        self.link: Flags = np.ones(count, dtype=bool)
        self._link_lost: Flags = np.zeros(count, dtype=bool)
        self.wind: Floats = np.zeros((2, count))
        self._waves = _Waves(np.random.default_rng(wind), self.conditions.wind_m_s)
        self._sigma = np.asarray(NOISE_M)[:, None]
        self.noise: Floats = self._noise_chance.standard_normal((3, count)) * self._sigma
        """What the receiver is off by."""
        places: Floats = np.asarray(masts, dtype=np.float64).reshape(-1, 2)
        self._mast_columns, self._mast_rows = np.unique(places[:, 0]), np.unique(places[:, 1])
        self.jammed: tuple[tuple[float, float, float, float], ...] = ()
        """Squares without radio: west, south, east, north."""
        self._happened: list[Happening] = []
        self._blow()
        self._hear()

    # ------------------------------------------------------------------ what it is told

    def set_target(self, i: int, x: float, y: float, z: float, speed: float) -> None:
        """Flies there, and starts the motors for it if it is on the ground."""
        self.target[:, i] = x, y, max(z, 0.0)
        self.speed[i] = min(speed, SPEED_M_S)
        if self.down[i] and z > 0.0 and not self.failed[i] and self.battery[i] > 0.0:
            self.down[i] = self.on_pad[i] = False
            self._happened.append(Happening("took_off", i))

    def land(self, i: int) -> None:
        """Comes down where it is: where it stands still after braking."""
        seen, velocity = self.position[:2, i] + self.noise[:2, i], self.velocity[:2, i]
        ahead_s = float(np.hypot(*velocity)) / (2 * BRAKING_M_S2)
        x, y = seen + velocity * ahead_s
        self.set_target(i, float(x), float(y), 0.0, SPEED_M_S)

    def fail(self, i: int, kind: Kind) -> None:
        """Breaks something of a drone, until `repair`."""
        self._part(kind)[i] = True
        if kind == "motor":
            self.on_pad[i] = False

    def repair(self, i: int, kind: Kind) -> None:
        """Makes it whole again; with new motors it stays where it is until it is steered."""
        self._part(kind)[i] = False
        if kind == "motor":
            self.target[:, i] = self.position[:, i]

    def _part(self, kind: Kind) -> Flags:
        return {"motor": self.failed, "radio": self.radio_failed, "computer": self.computer_failed}[kind]

    def is_silent(self, i: int) -> bool:
        """Whether nothing is heard of it on board: its computer, or all of it, is out of order."""
        return bool(self.failed[i] or self.computer_failed[i])

    def distance_m(self, i: int, x: float, y: float) -> float:
        """How far it really is from a place, seen from above."""
        return math.hypot(float(self.position[0, i]) - x, float(self.position[1, i]) - y)

    # ------------------------------------------------------------------ what it says

    def fixes(self) -> NDArray[np.float32]:
        """What the flight controllers say, [drone][FIELDS]. The row of a silent one is NaN."""
        seen = np.empty((len(self.names), len(FIELDS)), dtype=np.float32)
        seen[:, 0:3] = (self.position + self.noise).T
        seen[:, 3:6] = self.velocity.T
        seen[:, 6] = self.battery
        seen[:, 7] = self.link
        seen[:, 8] = self.down
        seen[self.failed | self.computer_failed] = np.nan
        return seen

    def take_happened(self) -> list[Happening]:
        """What has happened since this was asked for the last time."""
        happened, self._happened = self._happened, []
        return happened

    # ------------------------------------------------------------------ time

    def step(self) -> None:
        """Lets STEP_S pass for all."""
        self.steps += 1
        if self.steps % WIND_STEPS == 0:
            self._blow()
        flying = ~self.down
        dead = self.failed | (self.battery <= 0.0)
        wanted = self._wanted()
        if dead.any():
            wanted[:2, dead] = self.wind[:, dead]
            wanted[2, dead] = -PARACHUTE_M_S
        change = wanted - self.velocity
        limit = ACCELERATION_M_S2 * STEP_S
        across = np.sqrt(change[0] * change[0] + change[1] * change[1])
        change[:2] *= limit / np.maximum(across, limit)
        np.clip(change[2], -limit, limit, out=change[2])
        self.velocity += change
        self.velocity *= flying
        self.position += self.velocity * STEP_S
        self._drain(flying)
        self._touch(flying, dead)
        if self.steps % FIX_STEPS == 0:
            self._hear()

    def _wanted(self) -> Floats:
        """The velocity that the autopilot is after."""
        away = self.target - self.position
        away -= self.noise
        distance = np.sqrt(away[0] * away[0] + away[1] * away[1])
        wanted = np.empty_like(away)
        towards = away[:2] / np.maximum(distance, 1e-9)
        # Along the course the wind helps or not; across it, it costs airspeed.
        helps = towards[0] * self.wind[0] + towards[1] * self.wind[1]
        windy = self.wind[0] * self.wind[0] + self.wind[1] * self.wind[1]
        possible = helps + np.sqrt(AIRSPEED_M_S**2 - windy + helps * helps)
        wanted[:2] = towards * np.minimum(np.minimum(_braking(distance), self.speed), possible)
        height = away[2]
        np.clip(np.copysign(_braking(np.abs(height)), height), -SINK_M_S, CLIMB_M_S, out=wanted[2])
        lands = self.target[2] <= 0.0
        if lands.any():
            down = np.where(distance < ABOVE_M, np.minimum(wanted[2], -TOUCH_M_S), 0.0)
            wanted[2] = np.where(lands, down, wanted[2])
        return wanted

    def _drain(self, flying: Flags) -> None:
        air = self.velocity[:2] - self.wind
        squared = air[0] * air[0] + air[1] * air[1]
        loaded = 1.0 + self.payload_kg / EMPTY_KG
        share = loaded * np.sqrt(loaded)
        share += (DRAG_SHARE / DRAG_AT_M_S**3) * squared * np.sqrt(squared)
        climb = self.velocity[2]
        share += np.maximum(climb * CLIMB_SHARE_PER_M_S, climb * SINK_SHARE_PER_M_S)
        was = self.battery
        self.battery = np.maximum(was - share * flying * (HOVER_PERCENT_S * STEP_S), 0.0)
        emptied = (self.battery <= 0.0) & (was > 0.0)
        if emptied.any():
            self._happened += [Happening("battery_empty", int(i)) for i in np.flatnonzero(emptied)]
        if self.on_pad.any():
            rate = np.minimum(1.0, 1.0 - (1.0 - CHARGE_FULL_SHARE) * (self.battery - 80.0) / 20.0)
            self.battery += rate * self.on_pad * (CHARGE_PERCENT_S * STEP_S)
            np.minimum(self.battery, 100.0, out=self.battery)

    def _touch(self, flying: Flags, dead: Flags) -> None:
        """Who reaches the ground stays there: because it wants to, or because it cannot fly."""
        low = flying & (self.position[2] <= 0.0)
        if not low.any():
            return
        self.position[2, low] = 0.0
        touched = low & ((self.target[2] <= 0.0) | dead)
        self.velocity[:, touched] = 0.0
        self.velocity[2, low] = np.maximum(self.velocity[2, low], 0.0)
        self.down |= touched
        self._happened += [Happening("landed", int(i)) for i in np.flatnonzero(touched)]

    # ------------------------------------------------------------------ what changes slowly

    def _blow(self) -> None:
        self.wind = self._waves.at(self.position, self.steps * STEP_S)

    def _hear(self) -> None:
        """The receivers' errors wander, links come and go, and things break."""
        count, period_s = len(self.names), FIX_STEPS * STEP_S
        keep = math.exp(-period_s / NOISE_TAU_S)
        fresh = self._noise_chance.standard_normal((3, count))
        self.noise = keep * self.noise + (math.sqrt(1.0 - keep * keep) * self._sigma) * fresh
        lost, back = self.conditions.link_lost_per_h * period_s / 3600.0, period_s / self.conditions.link_lost_s
        drawn = self._link_chance.random(count)
        self._link_lost = np.where(self._link_lost, drawn >= back, drawn < lost)
        self.link = ~(self._link_lost | self.radio_failed) & self._in_range()
        if self.conditions.failures_per_h > 0.0:
            rate = self.conditions.failures_per_h * period_s / 3600.0
            struck = (self._failure_chance.random(count) < rate) & ~self.down
            which = self._failure_chance.integers(0, len(KINDS), count)
            for i in np.flatnonzero(struck).tolist():
                self._happened.append(Happening("failed", i, KINDS[which[i]]))

    def _in_range(self) -> Flags:
        """Who is near a mast, and not where the radio is jammed. Masts are in a grid: the nearest column and row do."""
        x, y = self.position[0], self.position[1]
        near: Flags = np.ones(len(self.names), dtype=bool)
        if len(self._mast_columns):
            dx, dy = x - _nearest(self._mast_columns, x), y - _nearest(self._mast_rows, y)
            near = dx * dx + dy * dy <= self.conditions.range_m**2
        for west, south, east, north in self.jammed:
            near = near & ~((west <= x) & (x < east) & (south <= y) & (y < north))
        return near


def _braking(distance: Floats) -> Floats:
    """The speed from which one still stops within this distance, as a curve without a kink."""
    linear = BRAKING_M_S2 / GAIN_PER_S**2
    return np.where(
        distance < linear,
        GAIN_PER_S * distance,
        np.sqrt(np.maximum(2.0 * BRAKING_M_S2 * (distance - linear / 2.0), 0.0)),
    )


def _nearest(places: Floats, to: Floats) -> Floats:
    """For each value the nearest of these sorted places."""
    if len(places) == 1:
        return np.broadcast_to(places, to.shape)
    after = np.clip(np.searchsorted(places, to), 1, len(places) - 1)
    left, right = places[after - 1], places[after]
    return np.where(to - left < right - to, left, right)


class _Waves:
    """The wind: waves kilometres long that take minutes to pass, each with a direction in which it blows."""

    def __init__(self, chance: np.random.Generator, most_m_s: float) -> None:
        shares = chance.uniform(0.5, 1.0, WAVES + 1)
        strengths = most_m_s * shares / shares.sum()
        blows, runs = chance.uniform(0.0, 2 * math.pi, WAVES + 1), chance.uniform(0.0, 2 * math.pi, WAVES)
        self._steady = strengths[-1] * np.array([[math.cos(blows[-1])], [math.sin(blows[-1])]])
        self._blows = strengths[:-1] * np.array([np.cos(blows[:-1]), np.sin(blows[:-1])])
        self._per_m = 2 * math.pi / chance.uniform(2000.0, 10000.0, WAVES) * np.array([np.cos(runs), np.sin(runs)])
        self._per_s = 2 * math.pi / chance.uniform(200.0, 900.0, WAVES)
        self._phase = chance.uniform(0.0, 2 * math.pi, WAVES)

    def at(self, position: Floats, t_s: float) -> Floats:
        """The wind at these places, [east, north][drone]."""
        phases = self._per_m.T @ position[:2] + (self._per_s * t_s + self._phase)[:, None]
        blown: Floats = self._steady + self._blows @ np.sin(phases)
        return blown
