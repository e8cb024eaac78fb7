"""A drone that carries parcels. It decides on board: what it has decided survives a crash, and a silent radio too.

    stigmergy run apps.edge_agent.drone:fleet
    stigmergy send Drone/D-17 StartMission mission=M1 distance_m=60

Three speeds, from slow to fast. The agent decides, durably: missions, turning round, landing. Two sensors tell it what
the aircraft says, a few times a second. Beside it a control loop holds height and way, fifty times a second, without
the disk; what it is to hold it reads from the agent's state, so after a crash it goes on where it was.
"""

from __future__ import annotations

from typing import Literal

from apps.edge_agent.airframe import HOVER_THRUST
from apps.edge_agent.cockpit import Cockpit, find_cockpit
from apps.edge_agent.messages import (
    AbortMission,
    BatteryReported,
    Delivered,
    GroundHeard,
    Landed,
    MissionStarted,
    PositionReported,
    ReturnBegun,
    StartMission,
)
from stigmergy import (
    Action,
    Agent,
    Effects,
    Event,
    Events,
    Fleet,
    Order,
    Pid,
    Publish,
    SafeActionTaken,
    Tick,
    WhenStale,
    decide,
    evolve,
    latest,
    react,
    reject,
    within,
)

CRUISE_M = 10.0
NEAR_M = 1.0
"""So near to where it was to be, it is there."""
ON_GROUND_M = 0.05
RESERVE_PERCENT = 20.0
"""It plans to come home with so much."""
CRITICAL_PERCENT = 10.0
"""With so little it lands where it is."""
PERCENT_PER_M = 0.12
"""What a metre of flight takes, with wind to spare."""
SMOOTHING = 0.2
"""The share of a new reading: the gauge is noisy."""
REPORT_PERCENT = 0.5
REPORT_M = 5.0
"""Changes of so much are told to the ground; everything else is told to the journal only."""
SILENCE_S = 3.0
SPEED_PER_M = 1.2
Phase = Literal["parked", "flying", "returning", "landing"]


class BatteryMeasured(Event, keep=within(seconds=1)):
    """What the gauge reads, noise and all. It may wait a second for the disk: there will be another."""

    percent: float


class PositionMeasured(Event, keep=latest):
    """How far from home and how high. Of readings in one write only the newest is kept."""

    distance_m: float
    height_m: float


class LandingBegun(Event):
    """The drone comes down where it is."""

    because: str


class TakeOff(Action):
    """Let the aircraft be flown."""


class Land(Action):
    """Come down where you are. The aircraft does that alone, and being told twice does no harm: a safe action."""

    reason: str


class Drone(Agent):
    """One drone: what it is doing, and how much it may still do."""

    phase: Phase = "parked"
    mission: str | None = None
    goal_m: float = 0.0
    distance_m: float = 0.0
    height_m: float = 0.0
    battery: float | None = None
    reported: float | None = None
    reported_m: float = 0.0
    measured_s: float = 0.0
    heard_s: float = 0.0
    because: str = ""
    deliveries: int = 0

    # Without these it does not know enough to stay in the air. They go out even if the disk is dead.
    blind = WhenStale(BatteryMeasured, after_s=SILENCE_S, then=Land(reason="no battery reading"))
    alone = WhenStale(GroundHeard, after_s=SILENCE_S, then=Land(reason="the ground is not heard"))

    @decide
    def start(self, command: StartMission) -> Events:
        if self.phase != "parked":
            reject(f"{self.phase}, on {self.mission}")
        if self.battery is None or self.now - self.measured_s > SILENCE_S:
            reject("the battery is not known")
        if self.now - self.heard_s > SILENCE_S:
            reject("the ground is not heard")
        if not NEAR_M < command.distance_m < 10_000:
            reject(f"{command.distance_m:g} m is no distance to fly; give 1 to 10000")
        needed = RESERVE_PERCENT + 2 * command.distance_m * PERCENT_PER_M
        if self.battery < needed:
            reject(f"battery at {self.battery:.0f} %, {needed:.0f} % needed for {command.distance_m:g} m and back")
        yield MissionStarted(mission=command.mission, distance_m=command.distance_m)

    @decide
    def abort(self, command: AbortMission) -> Events:
        if self.phase != "flying" or self.mission is None:
            reject(f"nothing to abort: {self.phase}")
        yield ReturnBegun(mission=self.mission, because=command.reason)

    @decide
    def measure(self, event: BatteryMeasured) -> Events:
        yield event
        percent = smoothed(self.battery, event.percent)
        if self.reported is None or abs(percent - self.reported) >= REPORT_PERCENT:
            yield BatteryReported(percent=round(percent, 1))
        home = RESERVE_PERCENT + self.distance_m * PERCENT_PER_M
        if percent < CRITICAL_PERCENT and self.phase in ("flying", "returning"):
            yield LandingBegun(because=f"battery at {percent:.0f} %")
        elif percent < home and self.phase == "flying" and self.mission is not None:
            yield ReturnBegun(mission=self.mission, because=f"battery at {percent:.0f} %, {home:.0f} % needed for home")

    @decide
    def move(self, event: PositionMeasured) -> Events:
        yield event
        if abs(event.distance_m - self.reported_m) >= REPORT_M:
            yield PositionReported(distance_m=round(event.distance_m, 1))
        there = abs(event.distance_m - self.goal_m) < NEAR_M
        if self.phase == "flying" and there and self.mission is not None:
            yield Delivered(mission=self.mission)
        elif self.phase == "returning" and there:
            yield LandingBegun(because="home")
        elif self.phase == "landing" and event.height_m < ON_GROUND_M:
            yield Landed(mission=self.mission or "", at_m=round(event.distance_m, 1), because=self.because)

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = smoothed(self.battery, event.percent)
        self.measured_s = self.now

    @evolve
    def ground_heard(self, event: GroundHeard) -> None:
        self.heard_s = self.now

    @evolve
    def told(self, event: BatteryReported) -> None:
        self.reported = event.percent

    @evolve
    def told_where(self, event: PositionReported) -> None:
        self.reported_m = event.distance_m

    @evolve
    def moved(self, event: PositionMeasured) -> None:
        self.distance_m = event.distance_m
        self.height_m = event.height_m

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.phase = "flying"
        self.mission = event.mission
        self.goal_m = event.distance_m
        self.because = ""

    @evolve
    def delivered(self, event: Delivered) -> None:
        self.phase = "returning"
        self.goal_m = 0.0
        self.deliveries += 1

    @evolve
    def returns(self, event: ReturnBegun) -> None:
        self.phase = "returning"
        self.goal_m = 0.0
        self.because = event.because

    @evolve
    def lands(self, event: LandingBegun) -> None:
        self.phase = "landing"
        self.because = self.because or event.because

    @evolve
    def made_safe(self, event: SafeActionTaken) -> None:
        if self.phase in ("flying", "returning"):
            self.phase = "landing"
            self.because = event.because

    @evolve
    def landed(self, event: Landed) -> None:
        self.phase = "parked"
        self.mission = None

    @react
    def take_off(self, event: MissionStarted) -> Effects:
        yield TakeOff()
        yield Publish(topic="mission", event=event)

    @react
    def land(self, event: LandingBegun) -> Effects:
        yield Land(reason=event.because)

    @react
    def tell_battery(self, event: BatteryReported) -> Effects:
        yield Publish(topic="battery", event=event)

    @react
    def tell_position(self, event: PositionReported) -> Effects:
        yield Publish(topic="position", event=event)

    @react
    def tell_delivered(self, event: Delivered) -> Effects:
        yield Publish(topic="mission", event=event)

    @react
    def tell_return(self, event: ReturnBegun) -> Effects:
        yield Publish(topic="mission", event=event)

    @react
    def tell_landed(self, event: Landed) -> Effects:
        yield Publish(topic="mission", event=event)


def smoothed(before: float | None, reading: float) -> float:
    """The charge as it is believed after one more noisy reading."""
    return reading if before is None else before + SMOOTHING * (reading - before)


def make_height_pid() -> Pid:
    """Holds a height with the thrust. It begins at what keeps the aircraft where it is."""
    pid = Pid(kp=0.1, ki=0.002, kd=0.1, low=0.0, high=1.0, smooth_s=0.05)
    pid.reset(output=HOVER_THRUST)
    return pid


def make_fleet(cockpit: Cockpit) -> Fleet:
    """The fleet, fitted with this aircraft."""
    fleet = Fleet("delivery", agents=[Drone])
    fleet.attach(cockpit)
    fleet.map(Drone, at=lambda d: (d.distance_m, d.height_m), colour=lambda d: d.phase, plane="xy")
    fleet.listen("Pilot/{id}/hello", to="Drone/{id}", fleet="ground")
    pid = make_height_pid()

    @fleet.sensor(Drone, every_s=0.25)
    async def battery(_: str) -> BatteryMeasured | None:
        seen = cockpit.seen()
        return None if seen is None else BatteryMeasured(percent=seen.battery)

    @fleet.sensor(Drone, every_s=0.1)
    async def position(_: str) -> PositionMeasured | None:
        seen = cockpit.seen()
        return None if seen is None else PositionMeasured(distance_m=seen.distance_m, height_m=seen.height_m)

    @fleet.loop(Drone, every_s=0.02, safe=lambda _: cockpit.land())
    def fly(tick: Tick[Drone]) -> None:
        """Holds the height with a PID, and the way in proportion to what is left of it."""
        seen, drone = cockpit.seen(), tick.agent
        if seen is None or drone.phase not in ("flying", "returning"):
            pid.reset(output=HOVER_THRUST)
            return
        thrust = pid.step(CRUISE_M, seen.height_m, tick.dt_s)
        cockpit.drive(thrust, SPEED_PER_M * (drone.goal_m - seen.distance_m))

    @fleet.actuator(TakeOff, within_s=5, confirm=lambda _: cockpit.is_in("guided", "hovering"))
    async def take_off(order: Order[TakeOff]) -> None:
        cockpit.take_off(order.key)

    @fleet.actuator(Land, within_s=5, confirm=lambda _: cockpit.is_in("landing", "parked"))
    async def land(_: Order[Land]) -> None:
        cockpit.land()

    return fleet


fleet = make_fleet(find_cockpit())
