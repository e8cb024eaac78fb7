"""A fleet with views, for tests: drones that enter and leave zones. Not a test."""

from __future__ import annotations

from typing import Any

from stigmergy.agents.agent import Agent, decide, evolve, reject
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event
from stigmergy.agents.view import Key, Origin, View, project


class Enter(Command):
    zone: str


class Leave(Command):
    pass


class ZoneEntered(Event):
    zone: str


class ZoneLeft(Event):
    left: str


class Measured(Event):
    percent: float


class Drone(Agent):
    zone: str = ""
    battery: float = 100.0

    @decide
    def enter(self, command: Enter) -> Events:
        if self.zone:
            yield ZoneLeft(left=self.zone)
        yield ZoneEntered(zone=command.zone)

    @decide
    def leave(self, command: Leave) -> Events:
        if not self.zone:
            reject("in no zone")
        yield ZoneLeft(left=self.zone)

    @evolve
    def entered(self, event: ZoneEntered) -> None:
        self.zone = event.zone

    @evolve
    def went(self, event: ZoneLeft) -> None:
        self.zone = ""

    @evolve
    def measured(self, event: Measured) -> None:
        self.battery = event.percent


class ZoneLoad(View):
    """How many are where. A zone without anybody has no row."""

    zone: Key[str]
    active: int = 0

    @project
    def entered(self, event: ZoneEntered) -> None:
        self.active += 1
        if self.active == 0:
            self.delete()

    @project(key=lambda event: event.left)
    def left(self, event: ZoneLeft) -> None:
        self.active -= 1
        if self.active == 0:
            self.delete()


class Battery(View):
    """What each drone has said last."""

    agent: Key[str]
    percent: float = 100.0
    measured: int = 0
    at: float | None = None

    @project
    def said(self, event: Measured, origin: Origin) -> None:
        self.percent = event.percent
        self.measured += 1
        self.at = origin.time


VIEWS: list[Any] = [ZoneLoad, Battery]
