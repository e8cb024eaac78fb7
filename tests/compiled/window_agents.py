"""Agents with windows that can be compiled. Not a test; read them as examples."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from stigmergy import Action, Agent, Command, Effects, Event, Events, Window, decide, evolve, react, within


class Weather(enum.Enum):
    CALM = "calm"
    STORM = "storm"


Tag = Annotated[bytes, Meta(min_length=12, max_length=12)]
NO_TAG = bytes(12)


class Sampled(Event, keep=within(seconds=1)):
    """One measurement, with a field of each kind."""

    ppm: float
    count: int = 0
    level: Annotated[int, Meta(ge=0, le=255)] = 0
    on: bool = False
    weather: Weather = Weather.CALM
    tag: Tag = bytes(12)
    at_s: float = 0.0


class Heard(Event):
    """An event that only windows take."""

    second: int


class Calibrate(Command):
    steps: Annotated[int, Meta(ge=0, le=5)]
    ppm: float = 1.0


class Alarm(Action):
    mean: float
    count: int
    text: str = ""


class Gauge(Agent, kind="gauge"):
    """A few windows, for machine code: to compile all that the sensor does takes long."""

    recent: Window[Sampled] = Window.last(8)
    timed: Window[Sampled] = Window.sliding(seconds=5, by="at_s", count_max=4)
    mean: float = 0.0
    sums: int = 0
    weather: Weather = Weather.CALM

    @evolve
    def sampled(self, event: Sampled) -> None:
        self.mean = self.recent.mean("ppm") - self.timed.lowest("ppm", 0.0)
        self.weather = self.timed.oldest("weather", Weather.CALM)
        self.sums = len(self.timed)
        for one in self.timed.values:
            if not one.on:
                self.sums += one.level
        if event.level == 77:
            self.sums = self.recent.total("count")

    @react
    def alarm(self, event: Sampled) -> Effects:
        if self.recent.newest("on"):
            yield Alarm(mean=self.mean, count=self.sums)


class Sensor(Agent, kind="sensor"):
    """Asks windows for all that they tell."""

    recent: Window[Sampled] = Window.last(3)
    near: Window[Sampled] = Window.sliding(seconds=5, count_max=4)
    timed: Window[Sampled] = Window.sliding(seconds=5, by="at_s", count_max=4, ahead_s=10.0)
    heard: Window[Heard] = Window.sliding(seconds=60, by="second", count_max=2)
    one: Window[Heard] = Window.last(1)
    mean: float = 0.0
    lowest: int = 0
    spread: float = 0.0
    sums: int = 0
    weather: Weather = Weather.CALM
    tag: Tag = bytes(12)
    calibrated: int = 0

    @decide
    def calibrate(self, command: Calibrate) -> Events:
        for step in range(5):
            if step < command.steps:
                yield Sampled(ppm=command.ppm * step, count=len(self.recent), at_s=self.now - step)

    def typical(self) -> float:
        return self.timed.mean("ppm", 0.0)

    @evolve
    def sampled(self, event: Sampled) -> None:
        self.mean = self.recent.mean("ppm") + self.typical()
        self.lowest = self.near.lowest("level") + 1000 * len(self.timed) + self.timed.dropped + self.timed.ahead
        self.spread = self.timed.highest("ppm", 7.0) - self.timed.lowest("ppm", default=0.0)
        self.weather = self.recent.oldest("weather")
        self.tag = self.near.newest("tag", NO_TAG)
        sums = 0
        for one in self.timed.values:
            if one.on:
                continue
            sums += one.count
            if one.level == 255:
                break
        self.sums = sums
        if event.level == 77:
            self.sums = self.recent.total(field="count", closed=False)

    @react
    def alarm(self, event: Sampled) -> Effects:
        if self.near.oldest("on"):
            text = self.recent.total("level")
            yield Alarm(mean=self.recent.mean("count"), count=self.timed.total("count", 3), text=f"{text}")

    @react
    def repeat(self, event: Heard) -> Effects:
        if len(self.heard) == 2 and self.heard.newest("second") < self.heard.oldest("second"):
            yield Alarm(self.heard.mean("second"), self.one.total("second") + self.heard.dropped + self.heard.late)
