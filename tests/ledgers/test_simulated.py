"""A ledger of incidents in simulated fleets: one order, each incident once, whatever dies or is cut off."""

from itertools import pairwise

from stigmergy import Ledger
from stigmergy.sim import World, simulate
from tests.ledgers.incident_desk import Desk, Incident, Report, Sensor, city

DESKS = ("Desk/1", "Desk/2", "Desk/3")
incidents = Ledger("incidents", Incident, to=DESKS)
SENSORS = ("Sensor/1", "Sensor/2", "Sensor/3", "Sensor/4")
FLEET = city(ledger=incidents)
INCIDENTS = 12
"""Fewer than reports: several sensors propose the same one."""


def in_order(world: World) -> None:
    """What one desk has seen is the beginning of what another has seen."""
    seen = sorted((desk.seen for desk in world.states(Desk)), key=len)
    for one in seen:
        assert all(before[1] < after[1] for before, after in pairwise(one)), "positions only grow"
        assert len({incident for incident, _ in one}) == len(one), "each incident comes once"
        assert seen[-1][: len(one)] == one, "everybody sees the same order"


def all_known(world: World) -> None:
    """Every desk has everything, and every proposal its outcome."""
    seen = [desk.seen for desk in world.states(Desk)]
    assert seen[0] == seen[1] == seen[2]
    positions, entered = dict(seen[0]), list[str]()
    for sensor in world.states(Sensor):
        assert len(sensor.outcomes) == sensor.asked
        for incident, position, duplicate, reason in sensor.outcomes:
            assert (positions[incident], reason) == (position, "")
            entered += [] if duplicate else [incident]
    assert len(set(entered)) == len(entered), "two were told that theirs is the entry"
    if not world.replaced():
        assert sorted(entered) == sorted(positions)


@simulate(FLEET, agents=(*DESKS, *SENSORS), nodes=4, seeds=6, for_s=20.0, heal_s=60.0)
def test_one_order_and_no_incident_twice(world: World) -> None:
    def report(address: str) -> None:
        if address in SENSORS:
            world.ask(address, Report(incident=f"I-{world.chance.randrange(INCIDENTS)}"))

    world.each(every_s=1.0, do=report)
    world.always(lambda: in_order(world))
    world.eventually(lambda: all_known(world), within_s=60)
