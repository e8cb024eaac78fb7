"""The fleet of the proof `gateways`: a drone counts what it has heard, and what came too early, too late or twice."""

from __future__ import annotations

from stigmergy import Agent, Event, Fleet, evolve, within


class Arrived(Event, keep=within(seconds=0.02)):
    """Goes up."""

    number: int


class Moved(Event, keep=within(seconds=0.02)):
    """Stays."""

    number: int


class Drone(Agent):
    """The same on the device, at its site and at the region: the rule says what each of them hears."""

    heard: int = 0
    """As many as were expected, each in its turn."""
    doubled: int = 0
    skipped: int = 0
    moved: int = 0

    @evolve
    def arriving(self, event: Arrived) -> None:
        if event.number < self.heard:
            self.doubled += 1
        else:
            self.skipped += event.number - self.heard
            self.heard = event.number + 1

    @evolve
    def moving(self, event: Moved) -> None:
        self.moved += 1


fleet = Fleet("delivery", agents=[Drone])
