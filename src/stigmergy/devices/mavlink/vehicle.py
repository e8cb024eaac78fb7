"""A MAVLink vehicle as sensors and actuators see it: its last fresh readings, and the commands that it takes.

Readings are at most `fresh_s` seconds old, or None: a lost link is silence, and `WhenStale` handles silence. A command
is sent until it is acknowledged, with a counter of its repetitions, a bounded number of times. Each first checks
whether the vehicle is already in the wanted state and then does nothing, so a repetition is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import termios
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError, DeviceRefused, LinkDown, Overloaded
from stigmergy.base.tasks import end_tasks
from stigmergy.devices.mavlink.messages import (
    ACTIVE,
    ARMED_FLAG,
    ONBOARD_COMPUTER,
    Autopilot,
    BatteryStatus,
    CommandAck,
    CommandInt,
    CommandLong,
    ExtendedSysState,
    FrameCounters,
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

# The link to a vehicle: datagrams or a serial line, heartbeats out, frames in. It reconnects itself and never raises.
#
#     udpin://0.0.0.0:14540         waits for the vehicle, and answers to its address
#     udpout://192.168.1.10:14555   speaks first
#     serial:///dev/ttyACM0?baud=57600

REOPEN_S = 1.0
"""How long a serial line that is gone is left alone before it is opened again."""
READ_BYTES_MAX = 4096
PARTNER_S = 5.0
"""So long an address that has spoken keeps the link to itself."""

Heard = Callable[[MavFrame], None]


class UdpLink(asyncio.DatagramProtocol):
    """Datagrams. When listening, it answers the last sender, but one partner at a time."""

    def __init__(self, url: str, host: str, port: int, heard: Heard, *, listens: bool) -> None:
        self.parser = MavParser()
        self._url = url
        self._place = (host, port)
        self._heard = heard
        self._listens = listens
        self._transport: asyncio.DatagramTransport | None = None
        self._partner: tuple[str, int] | None = None
        self._partner_until_s = 0.0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        here, there = (self._place, None) if self._listens else (None, self._place)
        try:
            opened = await loop.create_datagram_endpoint(lambda: self, local_addr=here, remote_addr=there)
        except OSError as error:
            raise ConfigError(f"vehicle {self._url!r}: cannot be opened: {error}") from None
        self._transport = opened[0]

    @property
    def port(self) -> int:
        """Where we listen."""
        return 0 if self._transport is None else int(self._transport.get_extra_info("sockname")[1])

    def send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise LinkDown(f"vehicle {self._url!r}: the link is closed")
        if self._listens and self._partner is None:
            raise LinkDown(f"vehicle {self._url!r}: nobody has spoken yet, so there is nobody to answer")
        self._transport.sendto(data, self._partner if self._listens else None)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await asyncio.sleep(0)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._listens and addr != self._partner and now_s < self._partner_until_s:
            return
        for frame in (*self.parser.feed(data), *self.parser.finish()):
            # Only who speaks our language becomes our partner.
            self._partner, self._partner_until_s = addr, now_s + PARTNER_S
            self._heard(frame)

    def error_received(self, exc: Exception) -> None:
        """The other side is not there: its silence says as much."""


class SerialLink:
    """A serial line, as flight controllers have them. Unplugged, it is looked for again."""

    def __init__(self, url: str, path: str, baud: int, heard: Heard) -> None:
        self.parser = MavParser()
        self._url = url
        self._path = path
        self._speed = getattr(termios, f"B{baud}", None)
        self._heard = heard
        self._file: int | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        if self._speed is None:
            raise ConfigError(f"vehicle {url!r}: {baud} baud is no speed of a serial line here; 57600 is usual")

    async def open(self) -> None:
        self._closed = False
        self._open()

    def send(self, data: bytes) -> None:
        if self._file is None:
            raise LinkDown(f"vehicle {self._url!r}: the line is not there")
        try:
            os.write(self._file, data)
        except BlockingIOError:
            raise LinkDown(f"vehicle {self._url!r}: the line takes nothing at the moment") from None
        except OSError as error:
            self._lost()
            raise LinkDown(f"vehicle {self._url!r}: {error.strerror}") from None

    async def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        self._lost()

    def _open(self) -> None:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                settings = termios.tcgetattr(file)
                flags = termios.CS8 | termios.CREAD | termios.CLOCAL
                raw = [0, 0, flags, 0, self._speed, self._speed, settings[6]]
                termios.tcsetattr(file, termios.TCSANOW, raw)
            except BaseException:
                os.close(file)
                raise
        except (OSError, termios.error):
            self._look_again()
            return
        self._file = file
        asyncio.get_running_loop().add_reader(file, self._readable)

    def _readable(self) -> None:
        assert self._file is not None
        try:
            data = os.read(self._file, READ_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for frame in self.parser.feed(data):
            self._heard(frame)

    def _lost(self) -> None:
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
        self._look_again()

    def _look_again(self) -> None:
        if not self._closed:
            self._again = asyncio.get_running_loop().call_later(REOPEN_S, self._open)


def link_of(url: str, heard: Heard) -> UdpLink | SerialLink:
    """The link that a URL names; raises ConfigError for one that names none."""
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        if parts.scheme in {"udpin", "udpout"} and parts.hostname and parts.port is not None and not options:
            return UdpLink(url, parts.hostname, parts.port, heard, listens=parts.scheme == "udpin")
        if parts.scheme == "serial" and parts.path and set(options) <= {"baud"}:
            return SerialLink(url, parts.path, int(options.get("baud", ["57600"])[0]), heard)
    except ValueError:
        pass
    raise ConfigError(
        f"vehicle {url!r}: give udpin://0.0.0.0:14540, udpout://host:14555 or serial:///dev/ttyACM0?baud=57600"
    )


HEARTBEAT_S = 1.0
FRESH_S = 3.0
"""Autopilots send a heartbeat each second; three without one, and nothing that was said counts any more."""
ACK_S = 0.5
"""How long an acknowledgement is waited for before the command is sent again."""
SENDS_MAX = 5
PROGRESS_S = 30.0
"""A command that is in progress, as the vehicle says, is waited for this long."""
STREAMS: tuple[tuple[type[MavMessage], float], ...] = (
    (GlobalPosition, 5.0),
    (ExtendedSysState, 2.0),
    (BatteryStatus, 1.0),
    (SysStatus, 1.0),
)
"""What a vehicle is asked to tell, if it does not do so anyhow, and how often in a second."""
EARTH_M = 6_371_000.0
HEIGHT_M_MAX = 100_000.0
"""What flies ends long before; what is more is a mistake."""
MODE_CUSTOM = 1
COPTER_GUIDED = 4
"""ArduPilot takes off only in its guided mode."""
GLOBAL_INT_FRAME = 5

MessageT = TypeVar("MessageT", bound=MavMessage)


class Battery(Struct, frozen=True):
    """How much is left."""

    percent: float
    volts: float | None


class Position(Struct, frozen=True):
    """Where it is, in degrees and metres."""

    latitude: float
    longitude: float
    altitude_m: float
    """Above the sea."""
    height_m: float
    """Above where it started."""
    climb_m_s: float
    speed_m_s: float


class Status(Struct, frozen=True):
    """In what state it is."""

    armed: bool
    landed: Landed
    autopilot: int
    mode: int


def check_height(height_m: float) -> None:
    """Raises DeviceRefused for what is no height to climb to: autopilots take NaN for a height of their own choice."""
    if not 0 < height_m <= HEIGHT_M_MAX:
        raise DeviceRefused(f"{height_m} m is no height to climb to; give metres above the ground")


class VehicleCounters(Struct):
    """What went over the link."""

    heartbeats: int = 0
    commands: int = 0
    repeats: int = 0
    refusals: int = 0
    strangers: int = 0
    """Frames of other systems on the same link."""


class Vehicle:
    """One vehicle on one link. `fleet.attach(vehicle)` opens it with the node and closes it with the node."""

    def __init__(
        self,
        url: str,
        *,
        system: int | None = None,
        own_system: int = 250,
        component: int = 191,
        fresh_s: float = FRESH_S,
    ) -> None:
        self._link = link_of(url, self._heard)
        self._url = url
        self._writer = MavWriter(own_system, component)
        self._own = (own_system, component)
        self._target = system
        """The system that we listen to; unless given, the first autopilot that is heard."""
        self._component = 1
        self._fresh_s = fresh_s
        self._last: dict[type[MavMessage], tuple[MavMessage, float]] = {}
        self._acks: dict[int, asyncio.Queue[CommandAck]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._beating: asyncio.Task[None] | None = None
        self.counters = VehicleCounters()

    # What it says.

    @property
    def is_connected(self) -> bool:
        """Whether it was heard lately."""
        return self._newest(Heartbeat) is not None

    def battery(self) -> Battery | None:
        """What is left in its first battery; None if it does not know, or has not said lately."""
        one, other = self._newest(BatteryStatus), self._newest(SysStatus)
        percent = -1 if one is None else one.battery_remaining
        cells = [cell for cell in (() if one is None else one.voltages) if cell != 65535]
        volts = sum(cells) / 1000 if cells else None
        if other is not None:
            percent = other.battery_remaining if percent < 0 else percent
            volts = other.voltage_battery / 1000 if volts is None and other.voltage_battery != 65535 else volts
        return Battery(percent=float(percent), volts=volts) if 0 <= percent <= 100 else None

    def position(self) -> Position | None:
        """Where it is; None if it has not said so lately."""
        told = self._newest(GlobalPosition)
        if told is None:
            return None
        return Position(
            latitude=told.lat / 1e7,
            longitude=told.lon / 1e7,
            altitude_m=told.alt / 1000,
            height_m=told.relative_alt / 1000,
            climb_m_s=-told.vz / 100,
            speed_m_s=math.hypot(told.vx, told.vy) / 100,
        )

    def status(self) -> Status | None:
        """In what state it is; None if it was not heard lately."""
        beat = self._newest(Heartbeat)
        if beat is None:
            return None
        state = self._newest(ExtendedSysState)
        landed = state.landed_state if state is not None and state.landed_state in set(Landed) else Landed.UNDEFINED
        return Status(bool(beat.base_mode & ARMED_FLAG), Landed(landed), beat.autopilot, beat.custom_mode)

    def is_armed(self) -> bool:
        """Whether its motors may turn; False if that is not known."""
        status = self.status()
        return status is not None and status.armed

    def is_landed(self) -> bool:
        """Whether it stands on the ground; False if that is not known.

        One that does not say so is down when its motors may not turn: autopilots disarm after landing.
        """
        status = self.status()
        if status is None:
            return False
        return status.landed is Landed.ON_GROUND or (status.landed is Landed.UNDEFINED and not status.armed)

    def is_flying(self) -> bool:
        """Whether it is in the air and no longer taking off; False if that is not known."""
        status = self.status()
        return status is not None and status.landed is Landed.IN_AIR

    def is_at(self, latitude: float, longitude: float, *, within_m: float = 2.0) -> bool:
        """Whether it is so near to this place, seen from above; False if that is not known."""
        here = self.position()
        if here is None:
            return False
        north = math.radians(latitude - here.latitude) * EARTH_M
        east = math.radians(longitude - here.longitude) * EARTH_M * math.cos(math.radians(latitude))
        return math.hypot(north, east) <= within_m

    # What it can be told. Each raises LinkDown, Overloaded (not now) or DeviceRefused (not at all).

    async def arm(self) -> None:
        """Lets the motors turn."""
        if not self.is_armed():
            await self._command(MavCommand.ARM, 1.0)

    async def disarm(self) -> None:
        """Stops the motors. The vehicle refuses in the air."""
        status = self.status()
        if status is None or status.armed:
            await self._command(MavCommand.ARM, 0.0)

    async def take_off(self, height_m: float) -> None:
        """Climbs to this height above where it stands; it must be armed."""
        check_height(height_m)
        status = self.status()
        if status is not None and status.landed in (Landed.IN_AIR, Landed.TAKING_OFF):
            return
        autopilot = Autopilot.GENERIC if status is None else status.autopilot
        if autopilot == Autopilot.ARDUPILOT:
            await self._command(MavCommand.SET_MODE, MODE_CUSTOM, COPTER_GUIDED)
        height = height_m
        if autopilot == Autopilot.PX4:  # which counts from the sea
            height += self._here("take off").altitude_m
        await self._command(MavCommand.TAKE_OFF, 0.0, 0.0, 0.0, math.nan, math.nan, math.nan, height)

    async def land(self) -> None:
        """Comes down where it is."""
        status = self.status()
        if status is None or status.armed or status.landed is not Landed.ON_GROUND:
            await self._command(MavCommand.LAND, 0.0, 0.0, 0.0, math.nan, math.nan, math.nan, 0.0)

    async def return_home(self) -> None:
        """Flies to where it started and lands there."""
        status = self.status()
        if status is None or status.armed or status.landed is not Landed.ON_GROUND:
            await self._command(MavCommand.RETURN_HOME)

    async def go_to(self, latitude: float, longitude: float, height_m: float, *, speed_m_s: float = -1.0) -> None:
        """Flies to a place, at this height above where it started."""
        if not (-90 <= latitude <= 90 and -180 <= longitude <= 180 and abs(height_m) <= HEIGHT_M_MAX):
            raise DeviceRefused(f"{latitude}, {longitude} at {height_m} m is no place; give degrees and metres")
        here = self._here("go anywhere")
        message = CommandInt(
            frame=GLOBAL_INT_FRAME,
            command=MavCommand.REPOSITION,
            param1=speed_m_s,
            param2=1.0,  # also if it has to change its mode for that
            param4=math.nan,
            x=round(latitude * 1e7),
            y=round(longitude * 1e7),
            z=here.altitude_m - here.height_m + height_m,
        )
        await self._send_until_acknowledged(message)

    # Its life.

    async def open(self) -> None:
        """Opens the link and begins to send heartbeats; what comes and goes from then on is the link's business."""
        await self._link.open()
        self._beating = asyncio.ensure_future(self._beat())

    async def close(self) -> None:
        """Closes the link."""
        await end_tasks(self._beating)
        await self._link.close()

    @property
    def port(self) -> int:
        """Where it listens, if it does: useful with port 0."""
        return self._link.port if isinstance(self._link, UdpLink) else 0

    @property
    def frames(self) -> FrameCounters:
        """What the link has brought, good and bad."""
        return self._link.parser.counters

    async def _beat(self) -> None:
        beat = Heartbeat(type=ONBOARD_COMPUTER, autopilot=Autopilot.NONE, system_status=ACTIVE)
        while True:
            if self._send(beat):
                self.counters.heartbeats += 1
            if self.is_connected:
                self._ask_for_streams()
            await asyncio.sleep(HEARTBEAT_S)

    def _heard(self, frame: MavFrame) -> None:
        message = frame.message
        if self._target is None and isinstance(message, Heartbeat) and message.autopilot != Autopilot.NONE:
            self._target, self._component = frame.system, frame.component
        if frame.system != self._target:
            self.counters.strangers += 1
            return
        if isinstance(message, Heartbeat):
            if message.autopilot == Autopilot.NONE:
                return  # a camera or a gimbal of the vehicle, not what flies it
            self._component = frame.component
        elif isinstance(message, BatteryStatus) and message.id != 0:
            return
        elif isinstance(message, CommandAck):
            self._acknowledged(message)
            return
        self._last[type(message)] = (message, asyncio.get_running_loop().time())

    def _ask_for_streams(self) -> None:
        """Asks for what is not heard, with each heartbeat until it is: most autopilots tell most of it anyhow."""
        for message, hertz in STREAMS:
            if self._newest(message) is not None:
                continue
            self._send(
                CommandLong(
                    target_system=self._target or 0,
                    target_component=self._component,
                    command=MavCommand.SET_MESSAGE_INTERVAL,
                    param1=message.NUMBER,
                    param2=1e6 / hertz,
                )
            )

    def _acknowledged(self, ack: CommandAck) -> None:
        ours = ack.target_system in (0, self._own[0]) and ack.target_component in (0, self._own[1])
        waiting = self._acks.get(ack.command)
        if ours and waiting is not None and not waiting.full():
            waiting.put_nowait(ack)

    def _send(self, message: MavMessage) -> bool:
        try:
            self._link.send(self._writer.frame(message))
        except LinkDown:
            return False
        return True

    async def _command(self, order: MavCommand, *params: float) -> None:
        values = {f"param{number}": float(value) for number, value in enumerate(params, start=1)}
        await self._send_until_acknowledged(structs.replace(CommandLong(command=order), **values))

    async def _send_until_acknowledged(self, message: CommandLong | CommandInt) -> None:
        number = message.command
        # An acknowledgement names the command and nothing else, so of each kind one is under way at a time.
        async with self._locks.setdefault(number, asyncio.Lock()):
            acks = self._acks[number] = asyncio.Queue(maxsize=16)
            try:
                await self._converse(message, acks)
            finally:
                del self._acks[number]

    async def _converse(self, message: CommandLong | CommandInt, acks: asyncio.Queue[CommandAck]) -> None:
        name = MavCommand(message.command).name
        self.counters.commands += 1
        asked_s = asyncio.get_running_loop().time()
        for sent in range(SENDS_MAX):
            # An old refusal of the same command may still be on its way; ours comes after we asked.
            message = structs.replace(message, target_system=self._target or 0, target_component=self._component)
            if isinstance(message, CommandLong):
                message = structs.replace(message, confirmation=sent)
            self.counters.repeats += sent > 0
            self._link.send(self._writer.frame(message))
            ack = await _wait(acks, ACK_S)
            while ack is not None and ack.result == MavResult.IN_PROGRESS:
                ack = await _wait(acks, PROGRESS_S)
                if ack is None:
                    raise LinkDown(f"{name}: begun, but nothing was heard of it for {PROGRESS_S:g} s")
            if ack is not None:
                self._judge(name, ack.result, asked_s)
                return
        raise LinkDown(f"{name}: sent {SENDS_MAX} times and not acknowledged; the link to {self._url} is lost")

    def _judge(self, name: str, result: int, asked_s: float) -> None:
        if result == MavResult.ACCEPTED:
            return
        self.counters.refusals += 1
        said = result if result not in set(MavResult) else MavResult(result).name.lower().replace("_", " ")
        text, at_s = self._last.get(StatusText, (None, 0.0))
        why = f": {text.text}" if isinstance(text, StatusText) and text.text and at_s >= asked_s else ""
        if result == MavResult.TEMPORARILY_REJECTED:
            raise Overloaded(f"{name} was {said}{why}")
        raise DeviceRefused(f"{name} was refused ({said}){why}")

    def _newest(self, kind: type[MessageT]) -> MessageT | None:
        found = self._last.get(kind)
        if found is None or asyncio.get_running_loop().time() - found[1] > self._fresh_s:
            return None
        message = found[0]
        return message if isinstance(message, kind) else None

    def _here(self, what: str) -> Position:
        here = self.position()
        if here is None:
            raise LinkDown(f"the vehicle at {self._url} has not said lately where it is, and cannot be told to {what}")
        return here


async def _wait(acks: asyncio.Queue[CommandAck], seconds: float) -> CommandAck | None:
    try:
        async with asyncio.timeout(seconds):
            return await acks.get()
    except TimeoutError:
        # It may have come in the very turn of the loop in which the time was over.
        return None if acks.empty() else acks.get_nowait()
