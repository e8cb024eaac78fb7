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


class Land(st.Action):
    reason: str


class Drone(st.Agent):
    mission: str | None = None
    battery: float = 100.0
    landed_because: str | None = None

    blind = st.WhenStale(BatteryMeasured, after_s=3, then=Land(reason="no battery reading for 3 s"))

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

    @st.react
    def land_when_low(self, event: BatteryMeasured) -> st.Effects:
        if self.battery < 15 and self.mission is not None:
            yield Land(reason=f"battery at {self.battery:.0f} %")

    @st.evolve
    def made_safe(self, event: st.SafeActionTaken) -> None:
        self.mission = None
        self.landed_because = event.because


fleet = st.Fleet("drone", agents=[Drone])


BEGAN_S = time.monotonic()


@fleet.sensor(Drone, every_s=0.5, agents=["D-17"])
async def gauge(drone: str) -> BatteryMeasured:
    used = 0.5 * (time.monotonic() - BEGAN_S)
    return BatteryMeasured(percent=max(0.0, 100.0 - used + random.uniform(-0.3, 0.3)))


@fleet.actuator(Land)
async def land(order: st.Order[Land]) -> None:
    # A real one calls the autopilot. The key is the same at every repetition, so that it can drop a second one.
    print(f"{order.agent} lands: {order.effect.reason} (key {order.key})", flush=True)
