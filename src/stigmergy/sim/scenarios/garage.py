"""A garage with several doors: all doors share the set of cars inside; one door at a time holds the gate behind them.

It uses all three kinds of state: each door counts its cars, the set of cars and their total converge, the gate is
claimed, held for a moment and released.
"""

from __future__ import annotations

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, WakeMe, Woken
from stigmergy.agents.messages import Command, Event
from stigmergy.agents.ordered import Claim, Granted, Ordered, ordered
from stigmergy.agents.shared import Shared, shared
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.orset import ORSet
from stigmergy.node.declaration import Declaration
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import Scenario
from stigmergy.sim.world import World


class Arrived(Event):
    car: str


class Left(Event):
    car: str


class Pass(Command):
    pass


class Asked(Event):
    pass


class GateOpened(Event):
    token: int


class Door(Agent):
    arrived: int = 0
    tokens: int = 0
    inside: Shared[ORSet[str]] = shared(by="garage")
    total: Shared[GCounter] = shared(by="garage")
    gate: Ordered[Claim] = ordered(of="gate")

    @decide
    def arrive(self, event: Arrived) -> Events:
        yield event
        yield self.inside.add(event.car)
        yield self.total.add(1)

    @evolve
    def count(self, event: Arrived) -> None:
        self.arrived += 1

    @decide
    def leave(self, event: Left) -> Events:
        yield event
        yield self.inside.remove(event.car)

    @decide
    def ask(self, command: Pass) -> Events:
        yield Asked()

    @react
    def claim(self, event: Asked) -> Effects:
        yield self.gate.claim(for_s=3)

    @decide
    def granted(self, verdict: Granted) -> Events:
        if self.gate.held:
            yield GateOpened(token=verdict.token)

    @evolve
    def opened(self, event: GateOpened) -> None:
        self.tokens += 1

    @react
    def keep_open(self, event: GateOpened) -> Effects:
        yield WakeMe(name="close", after_s=1)

    @react
    def close(self, event: Woken) -> Effects:
        yield self.gate.release()


fleet = Declaration("sim-garage", agents=[Door])


def drive(world: World) -> None:
    """The work, and what must hold."""
    cars: list[str] = []

    def arrive(door: str) -> None:
        cars.append(f"car-{len(cars)}")
        world.observe(door, Arrived(car=cars[-1]))

    def leave() -> None:
        if cars:
            world.observe(world.chance.choice(world.agents), Left(car=world.chance.choice(cars)))

    world.each(1.5, arrive)
    world.every(2.0, leave)
    world.every(1.0, lambda: world.ask(world.chance.choice(world.agents), Pass()))
    world.eventually(world.converged, 110)


scenario = Scenario(
    setup=Setup(fleet=fleet, agents=4, nodes=4, for_s=20.0),
    test=drive,
    about="a garage whose doors share who is inside, and claim one gate",
)
