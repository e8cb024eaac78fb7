"""A small vehicle that speaks real MAVLink over UDP, for tests of flying fleets: it takes off, lands, and misbehaves.

    vehicle = SimulatedVehicle("127.0.0.1", port, pace=20)     # twenty seconds of flight in one of ours
    async with vehicle:
        ...
        vehicle.faults.drop = 0.3                              # three datagrams in ten are lost
        vehicle.refuse[Order.ARM] = Result.DENIED

It models no flight dynamics; only the conversation is realistic.
"""

from __future__ import annotations

import asyncio
import math
import random
from types import TracebackType

from msgspec import Struct

from stigmergy.base.tasks import end_tasks
from stigmergy.devices.mavlink.messages import (
    ACTIVE,
    ARMED_FLAG,
    Autopilot,
    BatteryStatus,
    CommandAck,
    CommandInt,
    CommandLong,
    ExtendedSysState,
    GlobalPosition,
    Heartbeat,
    Landed,
    MavCommand,
    MavFrame,
    MavMessage,
    MavParser,
    MavResult,
    MavWriter,
    StatusText,
    SysStatus,
)

TICK_S = 0.02
EARTH_M = 6_371_000.0
CLIMB_M_S = 3.0
SPEED_M_S = 10.0
QUADROTOR = 2
STANDBY = 3
LATE_S_MAX = 0.05


class Faults(Struct):
    """What the radio does to each datagram, both ways: chances from 0 to 1."""

    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    silent: bool = False
    """Nothing gets through at all."""


class SimulatedVehicle:
    """Speaks to one partner. All that it does follows from its seed and what it is told, but for the timing."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        pace: float = 1.0,
        system: int = 1,
        autopilot: Autopilot = Autopilot.PX4,
        drain_percent_s: float = 0.05,
        home: tuple[float, float, float] = (47.3977, 8.5456, 488.0),
        seed: int = 1,
        taciturn: bool = False,
    ) -> None:
        self._place = (host, port)
        self._pace = pace
        self._autopilot = autopilot
        self._drain_percent_s = drain_percent_s
        self._asked: set[int] | None = {Heartbeat.NUMBER} if taciturn else None
        """Messages that it was asked for; None: it tells all of them anyhow."""
        self._home = home
        self._writer = MavWriter(system, 1)
        self._chance = random.Random(f"stigmergy.testing.vehicle/{seed}")
        self._parser = MavParser()
        self._transport: asyncio.DatagramTransport | None = None
        self._flying: asyncio.Task[None] | None = None
        self._target: tuple[float, float, float] | None = None
        self._lands_there = False
        self._time_s = 0.0
        self.faults = Faults()
        self.refuse: dict[MavCommand, MavResult] = {}
        self.deaf_for: dict[MavCommand, int] = {}
        """So many commands of this kind are not heard."""
        self.armed = False
        self.mode = 0
        self.landed = Landed.ON_GROUND
        self.latitude, self.longitude, _ = home
        self.height_m = 0.0
        self.battery_percent = 100.0
        self.heard: list[MavMessage] = []
        """Commands, as they came; repetitions too."""
        self.acted: list[MavCommand] = []
        """Commands that were carried out."""
        self.partner_heartbeats = 0

    async def __aenter__(self) -> SimulatedVehicle:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: _Radio(self), remote_addr=self._place)
        self._flying = asyncio.ensure_future(self._fly())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._flying is not None:
            await end_tasks(self._flying)
        if self._transport is not None:
            self._transport.close()
            await asyncio.sleep(0)

    def say(self, text: str) -> None:
        """A line for people."""
        self._send(StatusText(severity=4, text=text))

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are: for tests of what is no MAVLink."""
        if self._transport is not None:
            self._transport.sendto(data)

    # The radio.

    def received(self, data: bytes) -> None:
        """A datagram of the partner."""
        if self._lost():
            return
        for frame in (*self._parser.feed(data), *self._parser.finish()):
            for _ in range(1 + (self._chance.random() < self.faults.double)):
                self._take(frame)

    def _send(self, message: MavMessage) -> None:
        data = self._writer.frame(message)
        for _ in range(1 + (self._chance.random() < self.faults.double)):
            if self._lost():
                continue
            if self._chance.random() < self.faults.delay:
                asyncio.get_running_loop().call_later(self._chance.random() * LATE_S_MAX, self.send_raw, data)
            else:
                self.send_raw(data)

    def _lost(self) -> bool:
        return self.faults.silent or self._chance.random() < self.faults.drop

    # What it is told.

    def _take(self, frame: MavFrame) -> None:
        message = frame.message
        if isinstance(message, Heartbeat):
            self.partner_heartbeats += 1
            return
        if not isinstance(message, CommandLong | CommandInt):
            return
        self.heard.append(message)
        try:
            order = MavCommand(message.command)
        except ValueError:
            self._acknowledge(frame, message.command, MavResult.UNSUPPORTED)
            return
        if self.deaf_for.get(order, 0) > 0:
            self.deaf_for[order] -= 1
            return
        result = self.refuse.get(order)
        if result is None:
            result = self._obey(order, message)
        if result is MavResult.ACCEPTED:
            self.acted.append(order)
        self._acknowledge(frame, order, result)

    def _acknowledge(self, frame: MavFrame, command: int, result: MavResult) -> None:
        self._send(
            CommandAck(command=command, result=result, target_system=frame.system, target_component=frame.component)
        )

    def _obey(self, order: MavCommand, message: CommandLong | CommandInt) -> MavResult:
        match order:
            case MavCommand.ARM if isinstance(message, CommandLong):
                return self._arm(message.param1 >= 0.5)
            case MavCommand.TAKE_OFF if isinstance(message, CommandLong):
                return self._take_off(message.param7)
            case MavCommand.LAND:
                self._target, self._lands_there = (self.latitude, self.longitude, 0.0), True
            case MavCommand.RETURN_HOME:
                self._target, self._lands_there = (*self._home[:2], max(self.height_m, 10.0)), True
            case MavCommand.REPOSITION if isinstance(message, CommandInt):
                if self.landed is Landed.ON_GROUND:
                    self.say("not in the air")
                    return MavResult.DENIED
                height = message.z - self._home[2]
                self._target, self._lands_there = (message.x / 1e7, message.y / 1e7, height), False
            case MavCommand.SET_MODE if isinstance(message, CommandLong):
                self.mode = int(message.param2)
            case MavCommand.SET_MESSAGE_INTERVAL if isinstance(message, CommandLong):
                if self._asked is not None:
                    self._asked.add(int(message.param1))
            case _:
                return MavResult.UNSUPPORTED
        return MavResult.ACCEPTED

    def _arm(self, wanted: bool) -> MavResult:
        if wanted and self.battery_percent < 10:
            self.say("PreArm: battery low")
            return MavResult.DENIED
        if not wanted and self.landed is not Landed.ON_GROUND:
            self.say("Disarm denied: not landed")
            return MavResult.DENIED
        self.armed = wanted
        return MavResult.ACCEPTED

    def _take_off(self, height: float) -> MavResult:
        if not self.armed:
            self.say("Take-off denied: not armed")
            return MavResult.DENIED
        above = height - self._home[2] if self._autopilot is Autopilot.PX4 else height
        self._target, self._lands_there = (self.latitude, self.longitude, above), False
        if self.landed is Landed.ON_GROUND:
            self.landed = Landed.TAKING_OFF
        return MavResult.ACCEPTED

    # Its flight.

    async def _fly(self) -> None:
        loop = asyncio.get_running_loop()
        last_s, tick = loop.time(), 0
        while True:
            now_s = loop.time()
            self._move((now_s - last_s) * self._pace)
            last_s = now_s
            self._tell(tick)
            tick += 1
            await asyncio.sleep(TICK_S)

    def _move(self, dt_s: float) -> None:
        self._time_s += dt_s
        if self.landed is not Landed.ON_GROUND:
            self.battery_percent = max(0.0, self.battery_percent - self._drain_percent_s * dt_s)
        if self._target is None or not self.armed:
            return
        latitude, longitude, height = self._target
        north = math.radians(latitude - self.latitude) * EARTH_M
        shrink = math.cos(math.radians(latitude))
        east = math.radians(longitude - self.longitude) * EARTH_M * shrink
        away_m, step_m = math.hypot(north, east), SPEED_M_S * dt_s
        share = 1.0 if away_m <= step_m else step_m / away_m
        self.latitude += math.degrees(north * share / EARTH_M)
        self.longitude += math.degrees(east * share / (EARTH_M * shrink))
        if share == 1.0 and self._lands_there:
            self.landed = Landed.LANDING
            height = 0.0
        climb_m = max(-CLIMB_M_S * dt_s, min(CLIMB_M_S * dt_s, height - self.height_m))
        self.height_m += climb_m
        if self.landed is Landed.LANDING and self.height_m <= 0.01:
            self.landed, self.armed, self._target, self.height_m = Landed.ON_GROUND, False, None, 0.0
        elif self.landed is Landed.TAKING_OFF and abs(height - self.height_m) < 0.1:
            self.landed = Landed.IN_AIR

    def _tell(self, tick: int) -> None:
        """Each message every so many ticks, as a real one staggers them."""
        if tick % 10 == 0:
            mode = ARMED_FLAG if self.armed else 0
            state = ACTIVE if self.armed else STANDBY
            self._tell_of(Heartbeat(QUADROTOR, self._autopilot, mode, self.mode, state))
        if tick % 5 == 1:
            self._tell_of(ExtendedSysState(landed_state=self.landed))
        if tick % 5 == 2:
            self._tell_of(
                GlobalPosition(
                    time_boot_ms=int(self._time_s * 1000) % 2**32,
                    lat=round(self.latitude * 1e7),
                    lon=round(self.longitude * 1e7),
                    alt=round((self._home[2] + self.height_m) * 1000),
                    relative_alt=round(self.height_m * 1000),
                )
            )
        if tick % 10 == 3:
            remaining = int(self.battery_percent)
            self._tell_of(SysStatus(voltage_battery=12_400, battery_remaining=remaining))
            self._tell_of(BatteryStatus(voltages=(4_150, 4_140, 4_130, *(65535,) * 7), battery_remaining=remaining))

    def _tell_of(self, message: MavMessage) -> None:
        if self._asked is None or message.NUMBER in self._asked:
            self._send(message)


class _Radio(asyncio.DatagramProtocol):
    def __init__(self, vehicle: SimulatedVehicle) -> None:
        self._vehicle = vehicle

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._vehicle.received(data)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens yet, or any more."""
