"""A drone that flies missions."""

import random
import time

import stigmergy as st


class StartMission(st.Command):
    mission: str


class MissionStarted(st.Event):
    mission: str


class BatteryMeasured(st.Event, keep=st.within(seconds=1)):
    percent: float


class Drone(st.Agent):
    mission: str | None = None
    battery: float = 100.0

    @st.decide
    def start(self, command: StartMission) -> st.Events:
        if self.mission is not None:
            st.reject(f"on {self.mission}")
        if self.battery < 20:
            st.reject(f"battery at {self.battery:.0f} %, 20 % needed")
        yield MissionStarted(mission=command.mission)

    @st.evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @st.evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent


fleet = st.Fleet("drone", agents=[Drone])


BEGAN_S = time.monotonic()


@fleet.sensor(Drone, every_s=0.5, agents=["D-17"])
async def gauge(drone: str) -> BatteryMeasured:
    used = 0.5 * (time.monotonic() - BEGAN_S)
    return BatteryMeasured(percent=max(0.0, 100.0 - used + random.uniform(-0.3, 0.3)))
