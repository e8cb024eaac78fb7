"""The drone workload: 5,000 drones that report where they are, how full their batteries are, what they have done.

Of the events 70 % are positions, 25 % batteries, 5 % acknowledgements. Above 100 m a drone is told to descend, below
15 % to land; a stated share of the events causes one of these actions. The same seed makes the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.codec import ENVELOPE_FORMAT, Envelope, encode
from stigmergy.agents.effects import Effects
from stigmergy.agents.messages import Action, Event

DRONES = 5_000
BATCH_EVENTS = 1_000
ALTITUDE_M_MAX = 100.0
BATTERY_PERCENT_MIN = 15.0
POSITIONS = 0.70
BATTERIES = 0.25
ACTING = 0.03
"""The share of events that cause an action, unless another one is asked for."""


class Positioned(Event):
    """Where a drone is, by its own account."""

    north_m: float
    east_m: float
    altitude_m: float


class BatteryMeasured(Event):
    """How full a drone's battery is."""

    percent: float


class OrderAcknowledged(Event):
    """A drone has carried out an order from the ground."""

    order: int


class Descend(Action):
    """Go down to this altitude."""

    altitude_m: float


class Land(Action):
    """Land where you are."""

    reason: str


class Drone(Agent):
    """What the ground knows of one drone, and what it asks of it."""

    north_m: float = 0.0
    east_m: float = 0.0
    altitude_m: float = 0.0
    battery_percent: float = 100.0
    order: int = 0

    @evolve
    def positioned(self, event: Positioned) -> None:
        self.north_m = event.north_m
        self.east_m = event.east_m
        self.altitude_m = event.altitude_m

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery_percent = event.percent

    @evolve
    def acknowledged(self, event: OrderAcknowledged) -> None:
        self.order = event.order

    @react
    def descend_when_high(self, event: Positioned) -> Effects:
        if event.altitude_m > ALTITUDE_M_MAX:
            yield Descend(altitude_m=ALTITUDE_M_MAX)

    @react
    def land_when_low(self, event: BatteryMeasured) -> Effects:
        if event.percent < BATTERY_PERCENT_MIN:
            yield Land(reason="battery")


class Report(Struct, frozen=True):
    """One event on its way: whose it is, its bytes, and whether it causes an action."""

    address: str
    body: bytes
    acts: bool


def address_of(drone: int) -> str:
    """The address of a drone by its number."""
    return f"Drone/D-{drone}"


def reports(seed: int, count: int, *, drones: int = DRONES, acting: float = ACTING) -> list[Report]:
    """So many events of random drones."""
    chance = random.Random(seed)
    return [_report(chance, chance.randrange(drones), acting) for _ in range(count)]


def roll_call(seed: int, drones: int, first: int = 0) -> list[Report]:
    """One event of each of these drones, in order."""
    chance = random.Random(seed)
    return [_report(chance, drone, ACTING) for drone in range(first, first + drones)]


class Feed:
    """The envelopes of one source: consecutive sequences, batch after batch, from a stock of events used in turn."""

    def __init__(self, source: str, stock: list[Report], batch_events: int = BATCH_EVENTS) -> None:
        items = [(report.address, report.body) for report in stock]
        self._source = source
        self._batches = [items[start : start + batch_events] for start in range(0, len(items), batch_events)]
        self._acting = [
            sum(report.acts for report in stock[start : start + batch_events])
            for start in range(0, len(stock), batch_events)
        ]
        self._next = 0
        self._sequence = 1
        self.acting = 0
        """How many of the events handed out cause an action."""

    def envelopes(self, count: int) -> list[bytes]:
        """The next envelopes, as bytes."""
        return list(self._take(count))

    def _take(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            number = self._next % len(self._batches)
            items = self._batches[number]
            yield encode(Envelope(ENVELOPE_FORMAT, self._source, 1, 0, self._sequence, items))
            self._sequence += len(items)
            self.acting += self._acting[number]
            self._next += 1


def _report(chance: random.Random, drone: int, acting: float) -> Report:
    kind = chance.random()
    acts = False
    event: Event
    if kind < POSITIONS:
        acts = chance.random() < acting / (POSITIONS + BATTERIES)
        low, high = (ALTITUDE_M_MAX + 1, ALTITUDE_M_MAX + 20) if acts else (0.0, ALTITUDE_M_MAX)
        north_m, east_m = chance.uniform(-5e3, 5e3), chance.uniform(-5e3, 5e3)
        event = Positioned(north_m=north_m, east_m=east_m, altitude_m=chance.uniform(low, high))
    elif kind < POSITIONS + BATTERIES:
        acts = chance.random() < acting / (POSITIONS + BATTERIES)
        low, high = (1.0, BATTERY_PERCENT_MIN - 1) if acts else (BATTERY_PERCENT_MIN, 100.0)
        event = BatteryMeasured(percent=chance.uniform(low, high))
    else:
        event = OrderAcknowledged(order=chance.randrange(1_000_000))
    return Report(address_of(drone), encode(event), acts)
