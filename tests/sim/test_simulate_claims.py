"""Claims in simulated fleets whose agents never rest: who waits in line is no finding, who waits too long is one."""

import pytest

from stigmergy import (
    Agent,
    Claim,
    Command,
    Denied,
    Effects,
    Event,
    Events,
    Fleet,
    Ordered,
    Settings,
    decide,
    ordered,
    react,
)
from stigmergy.claims.claimant import Claimant
from stigmergy.sim import NONE, World, simulate
from stigmergy.sim.simulation import SimulationFailed


class Stay(Command):
    pass


class StayWanted(Event):
    pass


class Guest(Agent):
    """Never gives back what it has, and asks again for what it does not get."""

    room: Ordered[Claim] = ordered(of="room")

    @decide
    def stay(self, command: Stay) -> Events:
        yield StayWanted()

    @react
    def ask(self, event: StayWanted | Denied) -> Effects:
        yield self.room.claim(for_s=3, wait_s=20, renew=True)


hotel = Fleet("hotel", agents=[Guest])


@simulate(hotel, agents=3, nodes=3, seeds=2, faults=NONE, for_s=10.0, heal_s=30.0)
async def test_who_stands_in_line_for_ever_keeps_no_fleet_from_its_end(world: World) -> None:
    for guest in world.agents:
        await world.send(guest, Stay())
    world.eventually(world.converged, within_s=10)


@simulate(hotel, agents=3, nodes=3, seeds=1, faults=NONE, for_s=22.0, heal_s=10.0)
async def everybody_stays(world: World) -> None:
    for guest in world.agents:
        await world.send(guest, Stay())


def test_a_question_that_is_never_denied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claimant, "_tick", lambda self, claim, now_ns: False)
    with pytest.raises(SimulationFailed, match="1 still owed"):
        everybody_stays()


class Seen(Event):
    pass


class Cart(Agent):
    """Asks for its dock again at everything it sees."""

    dock: Ordered[Claim] = ordered(of="dock")

    @react
    def ask(self, event: Seen) -> Effects:
        yield self.dock.claim(for_s=1)


yard = Fleet("yard", agents=[Cart], settings=Settings(batch_events_max=4))


@pytest.mark.timeout(60)
@simulate(yard, agents=1, nodes=1, seeds=6, faults="slow-disk")
def test_claims_that_are_due_while_the_disk_is_slow_let_time_go_on(world: World) -> None:
    """Three of these seeds never ended: the commit was full, a claim's time had come, and the node waited for zero."""
    world.each(every_s=0.3, do=lambda cart: world.observe(cart, Seen()))


@simulate(yard, agents=1, nodes=1, seeds=[3], faults=NONE, for_s=5.0)
def it_sees(world: World) -> None:
    world.each(every_s=0.3, do=lambda cart: world.observe(cart, Seen()))


def test_a_watch_that_no_turn_serves_ends_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claimant, "next_ns", 0)
    with pytest.raises(SimulationFailed, match=r"seed 3, at 0 virtual seconds: node-1 has taken 100 turns .* claims"):
        it_sees()
