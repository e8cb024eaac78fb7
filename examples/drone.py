"""A drone that flies missions, and lands before its battery is empty. `cd examples && stigmergy run drone:fleet`."""

from __future__ import annotations

import stigmergy as st


class StartMission(st.Command):
    """Fly this mission, if the battery allows."""

    mission: str


class MissionStarted(st.Event):
    """A mission has begun."""

    mission: str


class BatteryMeasured(st.Event, keep=st.within(seconds=1)):
    """The gauge's reading. Observed, so it is kept as it is; it may wait a second for the disk."""

    percent: float


class Land(st.Action):
    """Land where you are."""

    reason: str


class Drone(st.Agent):
    """One drone: what it does, and how much it may still do."""

    battery: float = 100.0
    mission: str | None = None
    landed_because: str | None = None

    silent_gauge = st.WhenStale(BatteryMeasured, after_s=5.0, then=Land(reason="no battery reading for 5 s"))

    @st.decide
    def start(self, command: StartMission) -> st.Events:
        if self.battery < 20:
            st.reject(f"battery at {self.battery:.0f} %, 20 % needed")
        yield MissionStarted(mission=command.mission)

    @st.evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission
        self.landed_because = None

    @st.evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @st.react
    def land_when_low(self, event: BatteryMeasured) -> st.Effects:
        if event.percent < 15:
            yield Land(reason=f"battery at {event.percent:.0f} %")

    @st.evolve
    def made_safe(self, event: st.SafeActionTaken) -> None:
        self.landed_because = event.because


fleet = st.Fleet("delivery", agents=[Drone])


@fleet.actuator(Land)
async def land(order: st.Order[Land]) -> None:
    """Here an autopilot would be asked, with `order.key`, so that it does nothing twice."""
    print(f"{order.agent}: landing, {order.effect.reason} (key {order.key})", flush=True)
