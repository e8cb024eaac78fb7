"""A fleet whose views go by time, for tests: parcels depart and arrive, meters measure late. Not a test."""

from __future__ import annotations

from typing import Any

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event
from stigmergy.agents.view import Key, Origin, View, project
from stigmergy.agents.view_time import tumbling


class Departed(Event):
    parcel: int
    weight: int = 1


class Arrived(Event):
    parcel: int
    depot: str = "north"


class Measured(Event):
    at: float
    zone: str = "A"


class Carrier(Agent):
    seen: int = 0

    @evolve
    def departed(self, event: Departed) -> None:
        self.seen += 1

    @evolve
    def arrived(self, event: Arrived) -> None:
        self.seen += 1

    @evolve
    def measured(self, event: Measured) -> None:
        self.seen += 1


class Deliveries(View):
    """Of each depot, what came within a minute of its departure."""

    depot: Key[str]
    count: int = 0
    weight: int = 0
    micros: int = 0

    @project(join="parcel", within_s=60)
    def delivered(self, departed: Departed, arrived: Arrived, left: Origin, came: Origin) -> None:
        self.count += 1
        self.weight += departed.weight
        self.micros += (came.time_ns - left.time_ns) // 1000


class PerMinute(View, window=tumbling(seconds=60), lateness_s=30):
    zone: Key[str]
    window: Key[int]
    count: int = 0

    @project(at=lambda event: event.at)
    def measured(self, event: Measured) -> None:
        self.count += 1


class ArrivedPerMinute(View, window=tumbling(seconds=60)):
    window: Key[int]
    count: int = 0
    pairs: int = 0

    @project(join="parcel", within_s=600)
    def delivered(self, departed: Departed, arrived: Arrived) -> None:
        self.pairs += departed.weight

    @project
    def measured(self, event: Measured) -> None:
        self.count += 1


VIEWS: list[Any] = [Deliveries, PerMinute, ArrivedPerMinute]
