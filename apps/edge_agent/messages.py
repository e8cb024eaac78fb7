"""What a drone and its ground station say to each other, over a broker."""

from __future__ import annotations

from stigmergy import Command, Event, latest

SITE = "local"
"""Where both fleets are; part of all topics."""


class StartMission(Command):
    """Take a parcel so far out, and come back."""

    mission: str
    distance_m: float


class AbortMission(Command):
    """Come back at once."""

    reason: str = "the ground wants it"


class BatteryReported(Event, category="sensor"):
    """The charge, told whenever it has changed by half a percent."""

    percent: float


class PositionReported(Event, category="sensor"):
    """How far from home, told every few metres."""

    distance_m: float


class MissionStarted(Event, category="state"):
    """A mission has begun."""

    mission: str
    distance_m: float


class Delivered(Event, category="state"):
    """The parcel is where it was to go; the drone turns round."""

    mission: str


class ReturnBegun(Event, category="state"):
    """The drone turns round without having delivered."""

    mission: str
    because: str


class Landed(Event, category="state"):
    """The drone is on the ground, so far from home, and its mission is over."""

    mission: str
    at_m: float
    because: str


class GroundHeard(Event, keep=latest):
    """The ground station is there."""
