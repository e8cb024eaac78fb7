"""A drone that flies missions."""

import random
import time

from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve, reject, within


class StartMission(Command):
    mission: str


class MissionStarted(Event):
    mission: str


class BatteryMeasured(Event, keep=within(seconds=1)):
    percent: float


class Drone(Agent):
    mission: str | None = None
    battery: float = 100.0

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


fleet = Fleet("drone", agents=[Drone])


BEGAN_S = time.monotonic()


@fleet.sensor(Drone, every_s=0.5, agents=["D-17"])
async def gauge(drone: str) -> BatteryMeasured:
    used = 0.5 * (time.monotonic() - BEGAN_S)
    return BatteryMeasured(percent=max(0.0, 100.0 - used + random.uniform(-0.3, 0.3)))
