"""Drones that fly missions for a tower each: commands, sensors, actions, silence, and messages over the bus.

Each drone measures its battery once a second and must hear its beacon every two; otherwise it hovers. Missions start,
drones take photographs on the way, and the tower, perhaps on another node, counts their reports.
"""

from __future__ import annotations

from collections import Counter

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.effects import Effects, Events, Order, Publish, WakeMe, Woken
from stigmergy.agents.messages import Action, Command, Event, within
from stigmergy.agents.supervision import WhenStale
from stigmergy.node.declaration import Declaration
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import Scenario
from stigmergy.sim.world import World

SILENT_S = 2.0
LEG_S = 3.0
LEGS = 3


class StartMission(Command):
    mission: int


class MissionStarted(Event):
    mission: int


class LegFlown(Event):
    mission: int
    leg: int


class MissionEnded(Event):
    mission: int


class BatteryMeasured(Event, keep=within(seconds=1)):
    percent: int


class BeaconHeard(Event):
    number: int


class Photograph(Action):
    mission: int
    leg: int


class Hover(Action):
    because: str = "silence"


class Drone(Agent):
    battery: int = 100
    mission: int = 0
    leg: int = 0
    missions: int = 0
    beacons: int = 0

    silent = WhenStale(BeaconHeard, after_s=SILENT_S, then=Hover())

    @decide
    def start(self, command: StartMission) -> Events:
        if self.mission:
            reject(f"mission {self.mission} is under way")
        if self.battery < 20:
            reject(f"battery at {self.battery} %")
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission
        self.leg = 0

    @react
    def set_off(self, event: MissionStarted) -> Effects:
        yield WakeMe("leg", after_s=LEG_S)
        yield Publish("mission", event)

    @decide
    def fly_on(self, event: Woken) -> Events:
        if not self.mission:
            return
        yield LegFlown(mission=self.mission, leg=self.leg + 1)
        if self.leg + 1 == LEGS:
            yield MissionEnded(mission=self.mission)

    @evolve
    def flown(self, event: LegFlown) -> None:
        self.leg = event.leg

    @react
    def photograph(self, event: LegFlown) -> Effects:
        yield Photograph(mission=event.mission, leg=event.leg)
        if event.leg < LEGS:
            yield WakeMe("leg", after_s=LEG_S)

    @evolve
    def ended(self, event: MissionEnded) -> None:
        self.mission = 0
        self.missions += 1

    @react
    def report(self, event: MissionEnded) -> Effects:
        yield Publish("mission", event)

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @evolve
    def heard(self, event: BeaconHeard) -> None:
        self.beacons += 1


class Tower(Agent):
    started: int = 0
    ended: int = 0

    @evolve
    def one_more(self, event: MissionStarted) -> None:
        self.started += 1

    @evolve
    def one_less(self, event: MissionEnded) -> None:
        self.ended += 1


fleet = Declaration("sim-missions", agents=[Drone, Tower])
fleet.listen("Drone/{id}/mission", to="Tower/1")


@fleet.actuator(Photograph)
def photograph(order: Order[Photograph]) -> None:
    """Simulated devices stand in for this one."""


@fleet.actuator(Hover)
def hover(order: Order[Hover]) -> None:
    """And for this one."""


def name_agents(count: int) -> list[str]:
    """So many drones, and a tower."""
    return ["Tower/1", *(f"Drone/{number}" for number in range(1, count + 1))]


def fly(world: World) -> None:
    """The work, and what must hold."""
    drones = [address for address in world.agents if address.startswith("Drone/")]
    count = {"beacon": 0, "mission": 0}

    def beacon(address: str) -> None:
        count["beacon"] += 1
        world.observe(address, BeaconHeard(number=count["beacon"]))
        world.observe(address, BatteryMeasured(percent=100 - count["beacon"] % 80))

    def start() -> None:
        count["mission"] += 1
        world.ask(world.chance.choice(drones), StartMission(mission=count["mission"]))

    for address in drones:
        world.every(1.0, lambda address=address: beacon(address), after_s=world.chance.randrange(1000) / 1000)  # type: ignore[misc]
    world.every(1.5, start)
    world.always(lambda: photographs_are_taken_once(world), name="photographs are taken once")
    world.always(lambda: all(drone.leg <= LEGS for drone in world.states(Drone)), name="no drone flies too far")
    world.eventually(lambda: world.count("mission", 0) == len(drones), 120, name="all missions end")
    world.eventually(world.converged, 120)


def photographs_are_taken_once(world: World) -> bool:
    """Each leg of each mission is photographed once; two missions never have the same number. A fresh journal does not
    know what was in the one before, and a mission whose answer was lost is asked for again: once for each journal."""
    taken = Counter((order.agent, order.effect.mission, order.effect.leg) for order in world.orders(Photograph))
    return all(count <= 1 + len(world.replaced(agent)) for (agent, _, _), count in taken.items())


scenario = Scenario(
    setup=Setup(fleet=fleet, agents=tuple(name_agents(6)), nodes=3),
    test=fly,
    about="drones that fly missions, photograph, and hover when they hear nothing",
    names=name_agents,
)
