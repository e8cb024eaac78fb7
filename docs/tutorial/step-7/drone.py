"""A drone that flies missions."""

import random
import time

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Order,
    Publish,
    SafeActionTaken,
    WakeMe,
    WhenStale,
    Woken,
    decide,
    evolve,
    react,
    reject,
    within,
)


class StartMission(Command):
    mission: str


class MissionStarted(Event):
    mission: str


class BatteryMeasured(Event, keep=within(seconds=1)):
    percent: float


class Land(Action):
    reason: str


class AbortMission(Command):
    reason: str


class MissionEnded(Event):
    mission: str
    because: str


class Drone(Agent):
    mission: str | None = None
    battery: float = 100.0
    landed_because: str | None = None

    blind = WhenStale(BatteryMeasured, after_s=3, then=Land(reason="no battery reading for 3 s"))

    @decide
    def start(self, command: StartMission) -> Events:
        if self.mission is not None:
            reject(f"on {self.mission}")
        if self.battery < 20:
            reject(f"battery at {self.battery:.0f} %, 20 % needed")
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @react
    def land_when_low(self, event: BatteryMeasured) -> Effects:
        yield Publish(topic="battery", event=event)
        if self.battery < 15 and self.mission is not None:
            yield Land(reason=f"battery at {self.battery:.0f} %")

    @evolve
    def made_safe(self, event: SafeActionTaken) -> None:
        self.mission = None
        self.landed_because = event.because

    @react
    def set_timer(self, event: MissionStarted) -> Effects:
        yield WakeMe(name=event.mission, after_s=600)
        yield Publish(topic="missions", event=event)

    @decide
    def abort(self, command: AbortMission) -> Events:
        if self.mission is None:
            reject("no mission to abort")
        yield MissionEnded(mission=self.mission, because=command.reason)

    @decide
    def time_is_up(self, event: Woken) -> Events:
        if event.name == self.mission:
            yield MissionEnded(mission=event.name, because="ten minutes are over")

    @evolve
    def ended(self, event: MissionEnded) -> None:
        self.mission = None


fleet = Fleet("drone", agents=[Drone])


BEGAN_S = time.monotonic()


@fleet.sensor(Drone, every_s=0.5, agents=["D-17"])
async def gauge(drone: str) -> BatteryMeasured:
    used = 0.5 * (time.monotonic() - BEGAN_S)
    return BatteryMeasured(percent=max(0.0, 100.0 - used + random.uniform(-0.3, 0.3)))


@fleet.actuator(Land)
async def land(order: Order[Land]) -> None:
    # A real one calls the autopilot. The key is the same at every repetition, so that it can drop a second one.
    print(f"{order.agent} lands: {order.effect.reason} (key {order.key})", flush=True)
