"""The fleet of the trials: drones and towers that use everything an agent can use, and count what they see.

Every message carries a number, so that checkers can tell what was lost, doubled or overtaken.
"""

from __future__ import annotations

from msgspec import field

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.effects import (
    ActionDone,
    ActionFailed,
    CancelWake,
    Effects,
    Events,
    Order,
    Tell,
    WakeMe,
    WakeMeAt,
    WindowClosed,
    Woken,
    WorkFailed,
)
from stigmergy.agents.messages import Action, Command, Event, Work, latest, transient, within
from stigmergy.agents.supervision import Supervise, WhenStale
from stigmergy.agents.windows import Window
from stigmergy.node.declaration import Declaration
from stigmergy.node.mailbox import StreamPolicy
from stigmergy.node.settings import Settings
from stigmergy.sim.devices import Receiver

STALE_S = 2.0


class Measured(Event, keep=within(seconds=0.5)):
    source: str
    number: int


class Spotted(Event):
    source: str
    number: int


class Positioned(Event, keep=latest):
    source: str
    number: int


class Glimpsed(Event, keep=transient):
    source: str
    number: int


class Beaten(Event, keep=within(seconds=1)):
    source: str
    number: int


class Garbled(Event):
    source: str
    number: int


class StartMission(Command):
    mission: int


class EndMission(Command):
    mission: int


class Explode(Command):
    mission: int


class MissionStarted(Event):
    mission: int


class MissionEnded(Event):
    mission: int


class RoutePlanned(Event):
    mission: int


class Passed(Event):
    by: str
    number: int


class Cleared(Event):
    number: int


class Nudged(Event):
    number: int


class Photograph(Action):
    number: int


class Blink(Action):
    number: int


class Hover(Action):
    because: str = "silence"


class PlanRoute(Work):
    mission: int


class Drone(Agent):
    measured: int = 0
    spotted: int = 0
    position: int = 0
    mission: int = 0
    routes: int = 0
    route_failures: int = 0
    done: int = 0
    not_done: int = 0
    woken: int = 0
    told: int = 0
    cleared: int = 0
    nudged: int = 0
    closings: int = 0
    in_closed: int = 0
    recent: Window[Measured] = Window.last(4)
    buckets: Window[Spotted] = Window.tumbling(seconds=2)

    stale = WhenStale(Beaten, after_s=STALE_S, then=Hover())
    supervision = Supervise(stop_after=6, within_s=5)

    @evolve
    def on_measured(self, event: Measured) -> None:
        self.measured += 1

    @evolve
    def on_spotted(self, event: Spotted) -> None:
        self.spotted += 1
        if self.spotted % 2 == 0:
            self.told += 1

    @react
    def after_spotted(self, event: Spotted) -> Effects:
        yield Photograph(number=self.spotted)
        if self.spotted % 2 == 0:
            yield Tell(f"Tower/{self.spotted % 3}", Passed(by=self.address, number=self.told))
        if self.spotted % 3 == 0:
            yield Blink(number=self.spotted)

    @evolve
    def on_positioned(self, event: Positioned) -> None:
        self.position = event.number

    @decide
    def filter_glimpse(self, event: Glimpsed) -> Events:
        if event.number % 5 == 0:
            yield Nudged(number=event.number)

    @evolve
    def on_nudged(self, event: Nudged) -> None:
        self.nudged += 1

    @evolve
    def on_beaten(self, event: Beaten) -> None:
        self.measured += 1

    @evolve
    def on_garbled(self, event: Garbled) -> None:
        self.measured += 1
        raise ValueError(f"garbled {event.number}")

    @decide
    def start(self, command: StartMission) -> Events:
        if self.mission:
            reject(f"mission {self.mission} is under way")
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @react
    def after_start(self, event: MissionStarted) -> Effects:
        yield PlanRoute(mission=event.mission)
        yield WakeMe("mission", after_s=1.5)
        yield WakeMeAt("morning", at_s=self.now + 2.0)

    @decide
    def end(self, command: EndMission) -> Events:
        if not self.mission:
            reject("no mission is under way")
        yield MissionEnded(mission=self.mission)

    @evolve
    def ended(self, event: MissionEnded) -> None:
        self.mission = 0

    @react
    def after_end(self, event: MissionEnded) -> Effects:
        yield CancelWake("mission")

    @decide
    def explode(self, command: Explode) -> Events:
        yield MissionEnded(mission=-1)
        raise RuntimeError(f"exploded in mission {command.mission}")

    @evolve
    def planned(self, event: RoutePlanned) -> None:
        self.routes += 1

    @evolve
    def not_planned(self, event: WorkFailed) -> None:
        self.route_failures += 1

    @evolve
    def action_done(self, event: ActionDone) -> None:
        self.done += 1

    @evolve
    def action_failed(self, event: ActionFailed) -> None:
        self.not_done += 1

    @evolve
    def on_woken(self, event: Woken) -> None:
        self.woken += 1

    @react
    def after_woken(self, event: Woken) -> Effects:
        yield Tell(self.address, Nudged(number=self.woken))

    @evolve
    def on_cleared(self, event: Cleared) -> None:
        self.cleared += 1

    @evolve
    def on_closed(self, event: WindowClosed) -> None:
        self.closings += 1
        self.in_closed += len(self.buckets.closed)


class Tower(Agent):
    seen: dict[str, int] = field(default_factory=dict)
    heard: list[int] = field(default_factory=list)

    @evolve
    def passed(self, event: Passed) -> None:
        self.seen[event.by] = event.number
        self.heard = [*self.heard, event.number][-5:]

    @react
    def after_passed(self, event: Passed) -> Effects:
        if event.number % 2:
            yield Tell(event.by, Cleared(number=event.number))


def declare_drones(
    receiver: Receiver,
    *,
    shards: int = 1,
    settings: Settings | None = None,
    streams: dict[str, StreamPolicy] | None = None,
) -> Declaration:
    """The fleet, with its hands at this receiver."""
    fleet = Declaration("trial", agents=[Drone, Tower], shards=shards, settings=settings, streams=streams)

    @fleet.actuator(Photograph)
    async def photograph(order: Order[Photograph]) -> None:
        await receiver.act_slowly(order)

    @fleet.actuator(Blink)
    def blink(order: Order[Blink]) -> None:
        receiver.act(order)

    @fleet.actuator(Hover)
    def hover(order: Order[Hover]) -> None:
        receiver.act(order)

    @fleet.worker(PlanRoute)
    async def plan_route(order: Order[PlanRoute]) -> RoutePlanned:
        await receiver.act_slowly(order)
        return RoutePlanned(mission=order.effect.mission)

    return fleet
