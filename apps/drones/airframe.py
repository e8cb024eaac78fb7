"""What the airframe of a drone feels, hundreds of times a second: compiled, beside the `Drone` of the same name.

`Airframe/r1-0307-013` is told what the sensors of that drone measure: vibration, the current of each motor, tilt and
height. It acts on two things. An airframe that shakes is slowed down at once (`ReduceSpeed`, carried out in batches),
and has to be looked at if it does so again and again. A motor that draws far too much current for several samples in a
row is failing: that, and nothing else, is told to the `Drone`, which decides what becomes of its flight.

**What is kept.** Samples are transient: each is decided on, none is written. 5,000 drones at 420 Hz are 67 MB/s, and
the journal of a region is also that of its drones: a log that is cut by its size would lose their decisions within a
minute to make room for samples that say nothing. So `decide` lets through what changes anybody's mind: a sample
each second, strong vibration, hot motors; mostly one event a second of an airframe, never more than about a hundred.
These are durable before an action goes out, they are the whole of the state, and a replay gives the same peaks,
counters and windows. Samples that a killed node had not committed are still in the ring, and are decided on after its
start.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from apps.drones.messages import MotorWarned
from apps.drones.telemetry import Board
from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Tell,
    Window,
    decide,
    evolve,
    react,
    transient,
    within,
)
from stigmergy.columns import Orders

VIBRATION_MAX_CM_S2 = 3_000
"""Autopilots call more than 30 m/s² too much: estimates of height and speed begin to drift."""
MOTOR_MAX_CA = 3_500
"""Three times what a motor draws in level flight."""
HOT_SAMPLES, HOT_WITHIN_S = 8, 0.1
"""One high current is a gust, or a bad reading; so many within this time are a bearing or a coil."""
SHAKES, SHAKES_WITHIN_S = 16, 60.0
SHAKEN_EVERY_S = 0.05
SURVEY_EVERY_S = 1.0
SLOW_SHARE, SLOWEST_SHARE = 0.7, 0.4

Narrow = Annotated[int, Meta(ge=0, le=65_535)]
Signed = Annotated[int, Meta(ge=-32_768, le=32_767)]
Motor = Annotated[int, Meta(ge=0, le=4)]


class Sampled(Event, keep=transient):
    """One reading of all sensors: 22 bytes. Never stored."""

    t: float
    vibration_cm_s2: Narrow
    motor_1_ca: Narrow
    """In hundredths of an ampere."""
    motor_2_ca: Narrow
    motor_3_ca: Narrow
    motor_4_ca: Narrow
    tilt_cdeg: Signed
    height_dm: Signed


class Surveyed(Event, keep=within(seconds=1)):
    """The sample that is kept of each second."""

    t: float
    vibration_cm_s2: Narrow
    motor_ca: Narrow
    """Of the motor with the highest one."""
    tilt_cdeg: Signed
    height_dm: Signed


class Shaken(Event):
    """It vibrates too much: at most one each `SHAKEN_EVERY_S`."""

    t: float
    vibration_cm_s2: Narrow


class InspectionDue(Event):
    """It has shaken too often."""

    t: float


class MotorHot(Event):
    """A motor draws too much, in one sample."""

    t: float
    motor_ca: Narrow


class MotorFailing(Event):
    """A motor drew too much in so many samples that it is not the wind."""

    t: float
    motor: Motor
    motor_ca: Narrow


class ClearAirframe(Command):
    """Somebody has looked at it, and has mended what was broken."""


class AirframeCleared(Event):
    """It is as good as new."""


class ReduceSpeed(Action):
    """Turn slower, now: to this share of the full speed."""

    share: float
    sampled_t: float
    """When the vibration was measured: the controller knows how old the order is."""


class Inspect(Action):
    """Have somebody look at it before its next flight."""

    sampled_t: float


class Airframe(Agent):
    """The body of one drone: a row of an array. Its state is made of what is kept, and of nothing else."""

    surveyed_t: float = 0.0
    shaken_t: float = 0.0
    peak_cm_s2: Narrow = 0
    """Since it was cleared."""
    peak_ca: Narrow = 0
    shaken: int = 0
    surveys: int = 0
    due: bool = False
    failing: Motor = 0
    """The motor; 0 for none."""
    shakes: Window[Shaken] = Window.last(SHAKES - 1)
    hot: Window[MotorHot] = Window.last(HOT_SAMPLES - 1)

    @decide
    def sampled(self, event: Sampled) -> Events:
        highest = max(event.motor_1_ca, event.motor_2_ca, event.motor_3_ca, event.motor_4_ca)
        if highest > MOTOR_MAX_CA and self.failing == 0:
            yield MotorHot(t=event.t, motor_ca=highest)
            if len(self.hot) == HOT_SAMPLES - 1 and event.t - self.hot.oldest("t", 0.0) < HOT_WITHIN_S:
                motor = motor_with(highest, event.motor_1_ca, event.motor_2_ca, event.motor_3_ca)
                yield MotorFailing(t=event.t, motor=motor, motor_ca=highest)
        if event.vibration_cm_s2 > VIBRATION_MAX_CM_S2 and is_due(event.t, self.shaken_t, SHAKEN_EVERY_S):
            yield Shaken(t=event.t, vibration_cm_s2=event.vibration_cm_s2)
            often = len(self.shakes) == SHAKES - 1 and event.t - self.shakes.oldest("t", 0.0) < SHAKES_WITHIN_S
            if often and not self.due:
                yield InspectionDue(t=event.t)
        if is_due(event.t, self.surveyed_t, SURVEY_EVERY_S):
            yield Surveyed(
                t=event.t,
                vibration_cm_s2=event.vibration_cm_s2,
                motor_ca=highest,
                tilt_cdeg=event.tilt_cdeg,
                height_dm=event.height_dm,
            )

    @decide
    def clear(self, command: ClearAirframe) -> Events:
        yield AirframeCleared()

    @evolve
    def was_surveyed(self, event: Surveyed) -> None:
        self.surveyed_t = event.t
        self.surveys += 1
        self.peak_cm_s2 = max(self.peak_cm_s2, event.vibration_cm_s2)
        self.peak_ca = max(self.peak_ca, event.motor_ca)

    @evolve
    def was_shaken(self, event: Shaken) -> None:
        self.shaken_t = event.t
        self.shaken += 1
        self.peak_cm_s2 = max(self.peak_cm_s2, event.vibration_cm_s2)

    @evolve
    def must_be_seen(self, event: InspectionDue) -> None:
        self.due = True

    @evolve
    def was_hot(self, event: MotorHot) -> None:
        self.peak_ca = max(self.peak_ca, event.motor_ca)

    @evolve
    def fails(self, event: MotorFailing) -> None:
        self.failing = event.motor

    @evolve
    def cleared(self, event: AirframeCleared) -> None:
        self.due = False
        self.failing = 0
        self.peak_cm_s2 = 0
        self.peak_ca = 0

    @react
    def slow_down(self, event: Shaken) -> Effects:
        share = SLOWEST_SHARE if event.vibration_cm_s2 > 2 * VIBRATION_MAX_CM_S2 else SLOW_SHARE
        yield ReduceSpeed(share=share, sampled_t=event.t)

    @react
    def have_it_seen(self, event: InspectionDue) -> Effects:
        yield Inspect(sampled_t=event.t)

    @react
    def warn(self, event: MotorFailing) -> Effects:
        yield Tell(f"Drone/{self.id}", MotorWarned(motor=event.motor, current_a=float(event.motor_ca) / 100.0))


def is_due(t: float, last_t: float, every_s: float) -> bool:
    """Whether it is time again; also after a clock that was set back."""
    return t - last_t >= every_s or t < last_t - every_s


def motor_with(highest_ca: int, first_ca: int, second_ca: int, third_ca: int) -> int:
    """Which of the four draws that."""
    if first_ca == highest_ca:
        return 1
    if second_ca == highest_ca:
        return 2
    return 3 if third_ca == highest_ca else 4


def fit(fleet: Fleet, board: Path) -> None:
    """Carries out what the airframes of a node ask for: their controllers read it on this board, beside the ring.

    For a fleet with `agents=[…, Airframe], compiled=[Airframe]`, and a node with `rings=[ring]`, board_of(ring).
    """
    orders_to = Board(board)

    @fleet.batch_actuator(ReduceSpeed)
    def reduce_speed(orders: Orders[ReduceSpeed]) -> None:
        share, sampled_t = orders.column("share"), orders.column("sampled_t")
        orders_to.slow_down(orders.shard, orders.numbers, share, sampled_t, time.time())

    @fleet.batch_actuator(Inspect)
    def inspect(orders: Orders[Inspect]) -> None:
        orders_to.inspect(orders.shard, orders.numbers, orders.column("sampled_t"), time.time())
