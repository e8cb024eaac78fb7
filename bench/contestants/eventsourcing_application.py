"""The library `eventsourcing`: an aggregate for each drone, stored by its SQLite recorder, with its defaults.

It opens SQLite in WAL with synchronous=FULL, so what `save` has returned from is on disk, and the actions follow behind
it. We are generous: the aggregates stay in memory and are never fetched again, and in the batched run one `save`, which
is one transaction, has the events of many aggregates. Not offered and not counted: marks for what comes twice, a record
of the actions, a chain, a signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate

from bench.contestants import Acted, batch_events_of
from bench.contestants.plain_drone import DESCEND, LAND, Reading, decode
from bench.workload import (
    ALTITUDE_M_MAX,
    BATTERY_PERCENT_MIN,
    BatteryMeasured,
    OrderAcknowledged,
    Positioned,
    Report,
)

Row = tuple[str, bytes]


class DroneAggregate(Aggregate):
    """What the ground knows of one drone."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.north_m = 0.0
        self.east_m = 0.0
        self.altitude_m = 0.0
        self.battery_percent = 100.0
        self.order = 0

    @staticmethod
    def create_id(address: str) -> UUID:
        return uuid5(NAMESPACE_URL, address)

    class Positioned(Aggregate.Event):
        north_m: float
        east_m: float
        altitude_m: float

        def apply(self, aggregate: Any) -> None:
            aggregate.north_m = self.north_m
            aggregate.east_m = self.east_m
            aggregate.altitude_m = self.altitude_m

    class BatteryMeasured(Aggregate.Event):
        percent: float

        def apply(self, aggregate: Any) -> None:
            aggregate.battery_percent = self.percent

    class OrderAcknowledged(Aggregate.Event):
        order: int

        def apply(self, aggregate: Any) -> None:
            aggregate.order = self.order

    def observe(self, event: Reading) -> str | None:
        """Takes an event of the workload; the action that follows."""
        if type(event) is Positioned:
            kind, altitude_m = DroneAggregate.Positioned, event.altitude_m
            self.trigger_event(kind, north_m=event.north_m, east_m=event.east_m, altitude_m=altitude_m)
            return DESCEND if altitude_m > ALTITUDE_M_MAX else None
        if type(event) is BatteryMeasured:
            self.trigger_event(DroneAggregate.BatteryMeasured, percent=event.percent)
            return LAND if event.percent < BATTERY_PERCENT_MIN else None
        if type(event) is OrderAcknowledged:
            self.trigger_event(DroneAggregate.OrderAcknowledged, order=event.order)
        return None


class EventSourced:
    """The application and its aggregates."""

    def __init__(self, path: Path, batch_events: int) -> None:
        self._batch_events = batch_events
        self._drones: dict[str, DroneAggregate] = {}
        environment = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}
        self._application: Any = Application(env=environment)

    def prepare(self, reports: Sequence[Report]) -> list[list[Row]]:
        """Events in batches of one `save` each."""
        rows = [(report.address, report.body) for report in reports]
        return [rows[start : start + self._batch_events] for start in range(0, len(rows), self._batch_events)]

    def take(self, prepared: list[list[Row]]) -> list[Acted]:
        """Trigger, save, act."""
        save, drones = self._application.save, self._drones
        acted: list[Acted] = []
        for batch in prepared:
            touched: dict[str, DroneAggregate] = {}
            follows: list[Acted] = []
            for address, body in batch:
                drone = drones.get(address)
                if drone is None:
                    drone = drones[address] = DroneAggregate(address=address)
                action = drone.observe(decode(body))
                if action is not None:
                    follows.append((address, action))
                touched[address] = drone
            save(*touched.values())
            acted += follows
        return acted

    def close(self) -> None:
        """Closes the database."""
        self._application.close()


def enter(folder: Path, variant: str) -> EventSourced:
    """An application with an empty store."""
    return EventSourced(folder / "events.db", batch_events_of(variant))
