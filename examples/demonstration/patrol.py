"""The fleet of the demonstration: drones that carry parcels, make way for each other, and land when they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Order,
    SafeActionTaken,
    Settings,
    Snapshots,
    Tell,
    WhenStale,
    decide,
    evolve,
    react,
    reject,
)

DRONES = 12
CELL_PERCENT = 20.0
"""A route has five cells; whoever enters one tells its neighbour."""
BATTERY_PERCENT_MIN = 15.0
SILENCE_S = 2.0
SETTINGS = Settings(snapshots=Snapshots(every_events=500, every_s=5.0, tail_ratio=1.0))


class StartMission(Command):
    """Carry a parcel along the route."""

    mission: str


class MissionStarted(Event):
    """The drone has taken off."""

    mission: str


class ProgressMeasured(Event):
    """How far along its route a drone is, by its own account."""

    percent: float


class CellEntered(Event):
    """A drone has come into the next cell of its route."""

    cell: int


class NeighbourMoved(Event):
    """Told by the neighbour: it is in this cell now."""

    neighbour: str
    cell: int


class MissionCompleted(Event):
    """The drone is where the parcel goes."""

    mission: str


class BatteryMeasured(Event):
    """The gauge's reading."""

    percent: float


class LandingDecided(Event):
    """The battery will not last."""

    reason: str


class DropParcel(Action):
    """Let the parcel go."""

    mission: str


class Land(Action):
    """Land where you are."""

    reason: str


class Blink(Action):
    """Show with your lights that you have come into this cell."""

    cell: int


class Drone(Agent):
    """One drone of the patrol."""

    battery: float = 100.0
    mission: str | None = None
    progress: float = 0.0
    cell: int = 0
    neighbour_cell: int = 0
    delivered: int = 0
    landed_because: str | None = None

    silent_gauge = WhenStale(BatteryMeasured, after_s=SILENCE_S, then=Land(reason="its gauge is silent"))

    @decide
    def start(self, command: StartMission) -> Events:
        if self.landed_because is not None:
            reject(f"landed: {self.landed_because}")
        if self.mission is not None:
            reject(f"flies {self.mission} already")
        if self.battery < 20:
            reject(f"battery at {self.battery:.0f} %, 20 % needed")
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission, self.progress, self.cell = event.mission, 0.0, 0

    @decide
    def progressed(self, event: ProgressMeasured) -> Events:
        yield event
        cell = int(event.percent // CELL_PERCENT)
        if self.mission is not None and cell > self.cell:
            yield CellEntered(cell=cell)
        if self.mission is not None and event.percent >= 100:
            yield MissionCompleted(mission=self.mission)

    @evolve
    def moved(self, event: ProgressMeasured) -> None:
        self.progress = event.percent

    @evolve
    def entered(self, event: CellEntered) -> None:
        self.cell = event.cell

    @react
    def tell_neighbour(self, event: CellEntered) -> Effects:
        neighbour = int(self.id.removeprefix("D-")) % DRONES + 1
        yield Tell(f"Drone/D-{neighbour}", NeighbourMoved(neighbour=self.id, cell=event.cell))
        yield Blink(cell=event.cell)

    @evolve
    def heard(self, event: NeighbourMoved) -> None:
        self.neighbour_cell = event.cell

    @evolve
    def completed(self, event: MissionCompleted) -> None:
        self.mission = None
        self.delivered += 1

    @react
    def drop(self, event: MissionCompleted) -> Effects:
        yield DropParcel(mission=event.mission)

    @decide
    def measured(self, event: BatteryMeasured) -> Events:
        yield event
        if event.percent < BATTERY_PERCENT_MIN and self.landed_because is None:
            yield LandingDecided(reason=f"battery at {event.percent:.0f} %")

    @evolve
    def gauged(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @evolve
    def landing(self, event: LandingDecided) -> None:
        self.landed_because = event.reason

    @react
    def land(self, event: LandingDecided) -> Effects:
        yield Land(reason=event.reason)

    @evolve
    def made_safe(self, event: SafeActionTaken) -> None:
        self.landed_because = f"safe action, {event.because}"


def make_fleet(carry_out: Callable[[Order[Any]], Any]) -> Fleet:
    """The fleet, with whoever carries out its actions."""
    fleet = Fleet("patrol", agents=[Drone])
    fleet.actuator(DropParcel)(carry_out)
    fleet.actuator(Land)(carry_out)
    fleet.actuator(Blink)(carry_out)
    return fleet


def describe(action: DropParcel | Land | Blink) -> str:
    """What an action is about, for people."""
    match action:
        case DropParcel():
            return action.mission
        case Land():
            return action.reason
        case Blink():
            return f"cell {action.cell}"
