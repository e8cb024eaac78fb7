"""A small aircraft, simulated: it climbs by its thrust, drifts by its speed, drains its battery, and reads it noisily.

Pure: `step` is told how much time has passed, and the noise has a seed. Left alone it is safe by itself, as autopilots
are: nobody flies it for half a second, and it hovers; for ten, and it lands.
"""

from __future__ import annotations

import random
from typing import Literal

from msgspec import Struct

Mode = Literal["parked", "guided", "hovering", "landing"]
GRAVITY_M_S2 = 9.81
HOVER_THRUST = 0.5
DRAG_PER_S = 0.8
SPEED_M_S_MAX = 8.0
SINK_M_S = 4.0
UNFLOWN_S = 0.5
UNFLOWN_S_MAX = 10.0
NOISE_PERCENT = 0.4
"""One sigma of the gauge."""
DRAIN_PERCENT_S = 0.7
"""At hover; it grows with the thrust."""
KEYS_COUNT_MAX = 1_000


class Seen(Struct, frozen=True):
    """What the aircraft says of itself."""

    mode: Mode
    distance_m: float
    height_m: float
    battery: float
    """In percent, with noise."""
    take_offs: int
    repeats: int
    """Orders that came again, known by their key, and were dropped."""


class Airframe:
    """One aircraft. `pace` lets it fly and drain so many times faster sideways, for demonstrations in a hurry."""

    def __init__(self, *, seed: int = 1, battery: float = 100.0, pace: float = 1.0) -> None:
        self._chance = random.Random(f"edge agent/airframe/{seed}")
        self._pace = pace
        self._thrust = 0.0
        self._speed_m_s = 0.0
        self._climb_m_s = 0.0
        self._unflown_s = 0.0
        self._keys: dict[str, None] = {}
        self._repeats = 0
        self.mode: Mode = "parked"
        self.battery = battery
        self.distance_m = 0.0
        self.height_m = 0.0
        self.take_offs = 0

    def take_off(self, key: str) -> None:
        """Lets itself be flown. The same key again does nothing: it was done."""
        if key in self._keys:
            self._repeats += 1
            return
        self._keys[key] = None
        if len(self._keys) > KEYS_COUNT_MAX:
            del self._keys[next(iter(self._keys))]
        self.take_offs += 1
        self.mode = "guided"
        self._thrust, self._unflown_s = HOVER_THRUST, 0.0

    def drive(self, thrust: float, speed_m_s: float) -> None:
        """Flies it, from now until told otherwise. Nothing happens while it is parked or landing."""
        if self.mode in ("guided", "hovering"):
            self.mode = "guided"
            self._thrust = min(max(thrust, 0.0), 1.0)
            self._speed_m_s = min(max(speed_m_s, -SPEED_M_S_MAX), SPEED_M_S_MAX)
            self._unflown_s = 0.0

    def land(self) -> None:
        """Comes down where it is."""
        if self.mode != "parked":
            self.mode = "landing"

    def step(self, dt_s: float) -> None:
        """Lets so much time pass."""
        self._unflown_s += dt_s
        if self.mode == "guided" and self._unflown_s > UNFLOWN_S:
            self.mode = "hovering"
        if self.mode == "hovering" and self._unflown_s > UNFLOWN_S_MAX:
            self.mode = "landing"
        match self.mode:
            case "guided":
                lift = (self._thrust / HOVER_THRUST - 1) * GRAVITY_M_S2
                self._climb_m_s += (lift - DRAG_PER_S * self._climb_m_s) * dt_s
                self.distance_m += self._speed_m_s * dt_s * self._pace
                self._drain(DRAIN_PERCENT_S * self._thrust / HOVER_THRUST * dt_s)
            case "hovering":
                self._climb_m_s = 0.0
                self._drain(DRAIN_PERCENT_S * dt_s)
            case "landing":
                self._climb_m_s = -SINK_M_S
                self._drain(DRAIN_PERCENT_S * dt_s)
            case "parked":
                self._climb_m_s = 0.0
        self.height_m = max(0.0, self.height_m + self._climb_m_s * dt_s)
        if self.height_m == 0.0:
            self._climb_m_s = max(0.0, self._climb_m_s)
            self.mode = "parked" if self.mode == "landing" else self.mode
        if self.battery == 0.0:
            self.land()

    def seen(self) -> Seen:
        """What it says now."""
        noisy = self.battery + self._chance.gauss(0.0, NOISE_PERCENT)
        return Seen(
            mode=self.mode,
            distance_m=round(self.distance_m, 3),
            height_m=round(self.height_m, 3),
            battery=round(min(max(noisy, 0.0), 100.0), 2),
            take_offs=self.take_offs,
            repeats=self._repeats,
        )

    def _drain(self, percent: float) -> None:
        self.battery = max(0.0, self.battery - percent)
