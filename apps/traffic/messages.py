"""What an intersection is told, what it decides, and what it has its lamps do."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from apps.traffic.grid import Axis
from apps.traffic.phases import Phase
from stigmergy import Action, Command, Event, latest, within

Mode = Literal["local", "coordinated"]
"""Alone, with fixed times; or with its neighbours."""


class Beat(Struct, frozen=True):
    """What an intersection tells its neighbours of itself, each time that its phase changes and now and then."""

    phase: Phase
    number: int
    """Of the phase: one more with each."""
    at_s: float


# Commands.


class Survey(Command):
    """Tells an intersection how large it is. Only while everything is red."""

    width_m: float
    speed_m_s: float
    block_m: float


class StopAll(Command):
    """Everything red, until Resume: an accident, a fire engine, people at work."""

    reason: str


class Resume(Command):
    """Ends StopAll. What follows is the order of every recovery."""


class ResetMonitor(Command):
    """A technician has looked at a monitor that saw a conflict, and lets it go on."""

    by: str


# What devices say.


class DetectorsHeard(Event, keep=latest):
    """The detectors of all approaches are there, whether they work, and whether somebody stands at a stop line."""

    working: bool = True
    street: bool = False
    avenue: bool = False


class LampsSeen(Event, keep=latest):
    """What the lamps really show, and which order that was; said often, and at once when it changes."""

    phase: Phase
    number: int
    tripped: str = ""
    latched: bool = False
    first: bool = False
    """Whether this is the first report since the controller was started: nobody knows what was before."""


class VehicleArrived(Event, keep=within(seconds=1), category="sensor"):
    """A vehicle is at the stop line or behind it. `leg` counts the intersections of its trip."""

    vehicle: str
    leg: int
    axis: Axis
    entering: bool = False
    """Whether it comes from outside: then nobody has announced it."""


class VehicleLeft(Event, keep=within(seconds=1), category="sensor"):
    """A vehicle has crossed, and goes to this intersection; empty: it leaves the grid."""

    vehicle: str
    leg: int
    axis: Axis
    to: str = ""
    onto: Axis = "street"


class CrossingRequested(Event, category="sensor"):
    """Somebody has pressed the button and wants to walk."""


# What is decided.


class Surveyed(Event):
    """The intersection is of this size."""

    width_m: float
    speed_m_s: float
    block_m: float


class WokeUp(Event):
    """The controller begins: everything is red, and it starts to count."""


class PhaseChanged(Event, category="state"):
    """The lamps are to show another phase."""

    phase: Phase
    because: str = ""


class PhaseConfirmed(Event):
    """The lamps were seen to show it. Its time counts from here."""

    number: int


class PhaseExtended(Event):
    """The phase goes on for a moment."""

    by_s: float


class Ticked(Event, keep=within(seconds=1)):
    """The controller is alive: once a second."""

    told: bool = False
    """Whether neighbours were told so."""


class ModeChanged(Event, category="state"):
    """Neighbours are heard, or they are not."""

    mode: Mode


class AnnouncementsMet(Event):
    """Vehicles that had come before their announcement; it has come now."""

    vehicles: tuple[str, ...]


class Stopped(Event, category="state"):
    """Somebody wants everything red."""

    reason: str


class Resumed(Event, category="state"):
    """Nobody wants that any more."""


class MonitorResetAsked(Event):
    """A technician wants the monitor to go on."""

    by: str


# What the lamps are to do.


class ShowPhase(Action):
    """Show this."""

    phase: Phase
    number: int


class AllRed(Action):
    """Everything red, now. Being told twice does no harm: a safe action."""


class ClearMonitor(Action):
    """Let the monitor go on."""

    by: str
