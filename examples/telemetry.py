"""A compiled fleet that keeps where its drones are, and tells those that fly too high to descend.

Run it from this folder, fed by the program in `producer.py`:

    stigmergy run telemetry:fleet --journal segments:telemetry --ring telemetry.ring
"""

from stigmergy import Action, Agent, Effects, Event, Fleet, evolve, react
from stigmergy.columns import Orders

CEILING_M = 120.0


class Positioned(Event):
    """Where a drone is."""

    north_m: float
    east_m: float
    altitude_m: float


class Descend(Action):
    """The drone should come down to here."""

    to_m: float


class Drone(Agent):
    """One drone: the state is a row of an array, the methods a loop over such rows."""

    north_m: float = 0.0
    east_m: float = 0.0
    altitude_m: float = 0.0
    positions: int = 0

    @evolve
    def moved(self, event: Positioned) -> None:
        self.north_m = event.north_m
        self.east_m = event.east_m
        self.altitude_m = event.altitude_m
        self.positions += 1

    @react
    def stay_low(self, event: Positioned) -> Effects:
        if event.altitude_m > CEILING_M:
            yield Descend(to_m=CEILING_M)


fleet = Fleet("telemetry", agents=[Drone], compiled=True, shards=4)


@fleet.batch_actuator(Descend)
def descend(orders: Orders[Descend]) -> None:
    """All orders of a commit at once: arrays, no object for each."""
    print(f"descend: {len(orders)} drones, down to {orders.column('to_m').max():.0f} m")
