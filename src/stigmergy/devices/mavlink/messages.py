"""The MAVLink messages that we support, and their bytes. Pure.

A layout is written as in the protocol's definition: types and names in order, then later additions. From that follow
the order on the wire (larger types first, additions last) and the byte that both sides mix into the checksum, so that
two sides with different layouts do not misread each other.
"""

from __future__ import annotations

import enum
import math
import struct
from typing import Any, ClassVar

from msgspec import Struct

SIZES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "char": "s"}
DEFINED_AS = {
    "u8": "uint8_t",
    "i8": "int8_t",
    "u16": "uint16_t",
    "i16": "int16_t",
    "u32": "uint32_t",
    "i32": "int32_t",
    "f32": "float",
    "char": "char",
}


class Autopilot(enum.IntEnum):
    """Who flies, as a heartbeat says it; of the others we only know that they are others."""

    GENERIC = 0
    ARDUPILOT = 3
    NONE = 8
    PX4 = 12


class Landed(enum.IntEnum):
    """Where a vehicle is between ground and air."""

    UNDEFINED = 0
    ON_GROUND = 1
    IN_AIR = 2
    TAKING_OFF = 3
    LANDING = 4


class MavResult(enum.IntEnum):
    """What an autopilot says about a command."""

    ACCEPTED = 0
    TEMPORARILY_REJECTED = 1
    DENIED = 2
    UNSUPPORTED = 3
    FAILED = 4
    IN_PROGRESS = 5
    CANCELLED = 6


class MavCommand(enum.IntEnum):
    """The commands that we send."""

    RETURN_HOME = 20
    LAND = 21
    TAKE_OFF = 22
    SET_MODE = 176
    REPOSITION = 192
    ARM = 400
    SET_MESSAGE_INTERVAL = 511


ARMED_FLAG = 128
"""In a heartbeat's base_mode."""
ONBOARD_COMPUTER = 18
"""What kind of thing we are, in our heartbeat."""
ACTIVE = 4


class MavMessage(Struct, frozen=True):
    """A message of the protocol. Numbers are as on the wire: degrees × 10⁷, millimetres, centimetres a second."""

    NUMBER: ClassVar[int]
    NAME: ClassVar[str]
    FIELDS: ClassVar[str]
    ADDED: ClassVar[str] = ""


class Heartbeat(MavMessage, frozen=True):
    """I am here, of this kind, in this state; about once a second."""

    NUMBER, NAME = 0, "HEARTBEAT"
    FIELDS = "u8 type u8 autopilot u8 base_mode u32 custom_mode u8 system_status u8 mavlink_version"
    type: int = 0
    autopilot: int = 0
    base_mode: int = 0
    custom_mode: int = 0
    system_status: int = 0
    mavlink_version: int = 3


class SysStatus(MavMessage, frozen=True):
    """The state of the system, with the battery that flies it."""

    NUMBER, NAME = 1, "SYS_STATUS"
    FIELDS = (
        "u32 onboard_control_sensors_present u32 onboard_control_sensors_enabled u32 onboard_control_sensors_health "
        "u16 load u16 voltage_battery i16 current_battery i8 battery_remaining u16 drop_rate_comm u16 errors_comm "
        "u16 errors_count1 u16 errors_count2 u16 errors_count3 u16 errors_count4"
    )
    onboard_control_sensors_present: int = 0
    onboard_control_sensors_enabled: int = 0
    onboard_control_sensors_health: int = 0
    load: int = 0
    voltage_battery: int = 65535
    """Millivolts; 65535: not known."""
    current_battery: int = -1
    battery_remaining: int = -1
    """Percent; -1: not known."""
    drop_rate_comm: int = 0
    errors_comm: int = 0
    errors_count1: int = 0
    errors_count2: int = 0
    errors_count3: int = 0
    errors_count4: int = 0


class GlobalPosition(MavMessage, frozen=True):
    """Where the vehicle believes to be."""

    NUMBER, NAME = 33, "GLOBAL_POSITION_INT"
    FIELDS = "u32 time_boot_ms i32 lat i32 lon i32 alt i32 relative_alt i16 vx i16 vy i16 vz u16 hdg"
    time_boot_ms: int = 0
    lat: int = 0
    lon: int = 0
    alt: int = 0
    relative_alt: int = 0
    vx: int = 0
    vy: int = 0
    vz: int = 0
    hdg: int = 65535


class CommandInt(MavMessage, frozen=True):
    """A command with a place: degrees as whole numbers, which a float could not hold."""

    NUMBER, NAME = 75, "COMMAND_INT"
    FIELDS = (
        "u8 target_system u8 target_component u8 frame u16 command u8 current u8 autocontinue "
        "f32 param1 f32 param2 f32 param3 f32 param4 i32 x i32 y f32 z"
    )
    target_system: int = 0
    target_component: int = 0
    frame: int = 0
    command: int = 0
    current: int = 0
    autocontinue: int = 0
    param1: float = 0.0
    param2: float = 0.0
    param3: float = 0.0
    param4: float = 0.0
    x: int = 0
    y: int = 0
    z: float = 0.0


class CommandLong(MavMessage, frozen=True):
    """A command. `confirmation` counts how often it was sent before."""

    NUMBER, NAME = 76, "COMMAND_LONG"
    FIELDS = (
        "u8 target_system u8 target_component u16 command u8 confirmation "
        "f32 param1 f32 param2 f32 param3 f32 param4 f32 param5 f32 param6 f32 param7"
    )
    target_system: int = 0
    target_component: int = 0
    command: int = 0
    confirmation: int = 0
    param1: float = 0.0
    param2: float = 0.0
    param3: float = 0.0
    param4: float = 0.0
    param5: float = 0.0
    param6: float = 0.0
    param7: float = 0.0


class CommandAck(MavMessage, frozen=True):
    """What became of a command."""

    NUMBER, NAME = 77, "COMMAND_ACK"
    FIELDS = "u16 command u8 result"
    ADDED = "u8 progress i32 result_param2 u8 target_system u8 target_component"
    command: int = 0
    result: int = 0
    progress: int = 0
    result_param2: int = 0
    target_system: int = 0
    target_component: int = 0


class BatteryStatus(MavMessage, frozen=True):
    """One battery of possibly several."""

    NUMBER, NAME = 147, "BATTERY_STATUS"
    FIELDS = (
        "u8 id u8 battery_function u8 type i16 temperature u16[10] voltages i16 current_battery i32 current_consumed "
        "i32 energy_consumed i8 battery_remaining"
    )
    ADDED = "i32 time_remaining u8 charge_state u16[4] voltages_ext u8 mode u32 fault_bitmask"
    id: int = 0
    battery_function: int = 0
    type: int = 0
    temperature: int = 32767
    voltages: tuple[int, ...] = (65535,) * 10
    """Millivolts of each cell; 65535: there is none."""
    current_battery: int = -1
    current_consumed: int = -1
    energy_consumed: int = -1
    battery_remaining: int = -1
    time_remaining: int = 0
    charge_state: int = 0
    voltages_ext: tuple[int, ...] = (0,) * 4
    mode: int = 0
    fault_bitmask: int = 0


class ExtendedSysState(MavMessage, frozen=True):
    """On the ground, in the air, or between."""

    NUMBER, NAME = 245, "EXTENDED_SYS_STATE"
    FIELDS = "u8 vtol_state u8 landed_state"
    vtol_state: int = 0
    landed_state: int = 0


class StatusText(MavMessage, frozen=True):
    """A line for people; after a refusal it says why."""

    NUMBER, NAME = 253, "STATUSTEXT"
    FIELDS = "u8 severity char[50] text"
    ADDED = "u16 id u8 chunk_seq"
    severity: int = 6
    text: str = ""
    id: int = 0
    chunk_seq: int = 0


class _Field(Struct, frozen=True):
    name: str
    type: str
    count: int
    """0: not an array."""

    @property
    def format(self) -> str:
        return f"{self.count or ''}{SIZES[self.type]}"

    @property
    def unit_bytes(self) -> int:
        return struct.calcsize("<" + SIZES[self.type])


class MavLayout:
    """How one message lies on the wire."""

    def __init__(self, cls: type[MavMessage]) -> None:
        base = sorted(_fields(cls.FIELDS), key=lambda field: -field.unit_bytes)
        self.cls = cls
        self._fields = [*base, *_fields(cls.ADDED)]
        self._struct = struct.Struct("<" + "".join(field.format for field in self._fields))
        self.base_bytes = struct.calcsize("<" + "".join(field.format for field in base))
        self.full_bytes = self._struct.size
        self.seed = _seed(cls.NAME, base)

    def pack(self, message: MavMessage) -> bytes:
        """The payload, with all its zeros. Numbers that do not fit are an error of the caller (struct.error)."""
        values: list[Any] = []
        for field in self._fields:
            value = getattr(message, field.name)
            if field.type == "char":
                values.append(value.encode("utf-8", "replace")[: field.count])
            elif field.count:
                values.extend(value)
            else:
                values.append(value)
        return self._struct.pack(*values)

    def unpack(self, payload: bytes) -> MavMessage:
        """The message. What a sender left out at the end is zero; what a newer one added is passed over."""
        values = list(self._struct.unpack(payload[: self.full_bytes].ljust(self.full_bytes, b"\0")))
        found: dict[str, Any] = {}
        for field in self._fields:
            if field.type == "char":
                found[field.name] = values.pop(0).split(b"\0")[0].decode("utf-8", "replace")
            elif field.count:
                found[field.name] = tuple(values[: field.count])
                del values[: field.count]
            else:
                value = values.pop(0)
                found[field.name] = value if isinstance(value, int) or math.isfinite(value) else math.nan
        return self.cls(**found)


def checksum(data: bytes, value: int = 0xFFFF) -> int:
    """CRC-16/MCRF4XX, which the protocol calls X.25."""
    for byte in data:
        byte ^= value & 0xFF
        byte = (byte ^ (byte << 4)) & 0xFF
        value = (value >> 8) ^ (byte << 8) ^ (byte << 3) ^ (byte >> 4)
    return value


def _fields(text: str) -> list[_Field]:
    words = text.split()
    found: list[_Field] = []
    for kind, name in zip(words[::2], words[1::2], strict=True):
        bare, _, count = kind.partition("[")
        found.append(_Field(name, bare, int(count.rstrip("]") or 0)))
    return found


def _seed(name: str, base: list[_Field]) -> int:
    """The byte that stands for the layout in the checksum of each message."""
    value = checksum(f"{name} ".encode())
    for field in base:
        value = checksum(f"{DEFINED_AS[field.type]} {field.name} ".encode(), value)
        if field.count:
            value = checksum(bytes([field.count]), value)
    return (value & 0xFF) ^ (value >> 8)


MESSAGES: tuple[type[MavMessage], ...] = (
    Heartbeat,
    SysStatus,
    GlobalPosition,
    CommandInt,
    CommandLong,
    CommandAck,
    BatteryStatus,
    ExtendedSysState,
    StatusText,
)
LAYOUTS: dict[int, MavLayout] = {cls.NUMBER: MavLayout(cls) for cls in MESSAGES}


# Frames: bytes to messages and back. Reads MAVLink 1 and 2, writes 2. Bad input is only counted.
#
# If the checksum of a frame is wrong, its length is not believed either: the search continues at the next byte.
# Signatures are skipped and not checked; protect a link that strangers can reach.

MAGIC_1, MAGIC_2 = 0xFE, 0xFD
SIGNED_FLAG = 0x01
HEADER_1, HEADER_2, CHECKSUM, SIGNATURE = 6, 10, 2, 13
FRAME_BYTES_MAX = HEADER_2 + 255 + CHECKSUM + SIGNATURE


class MavFrame(Struct, frozen=True):
    """A message and who sent it."""

    system: int
    component: int
    sequence: int
    message: MavMessage


class FrameCounters(Struct):
    """What a link has brought."""

    frames: int = 0
    unknown: int = 0
    """Messages that we have no layout for; they are well."""
    bad_bytes: int = 0
    """Bytes that were part of no frame, or of a damaged one."""


class MavParser:
    """Finds frames in a stream of bytes. Keeps less than one frame between two calls."""

    def __init__(self) -> None:
        self._buffer = b""
        self.counters = FrameCounters()

    def feed(self, data: bytes) -> list[MavFrame]:
        """The messages that are complete now, in order."""
        buffer = self._buffer + data
        found: list[MavFrame] = []
        at = 0
        while at < len(buffer):
            if buffer[at] not in (MAGIC_1, MAGIC_2):
                at += 1
                self.counters.bad_bytes += 1
                continue
            end = _end(buffer, at)
            if end is None or end > len(buffer):
                break
            frame = None if end == at else self._read(buffer, at, end)
            if frame is None:
                at += 1
                self.counters.bad_bytes += 1
                continue
            if isinstance(frame, MavFrame):
                found.append(frame)
                self.counters.frames += 1
            at = end
        self._buffer = buffer[at:]
        return found

    def finish(self) -> list[MavFrame]:
        """No more belongs to what came last, because a datagram holds whole frames. Returns what a false start hid."""
        found: list[MavFrame] = []
        while self._buffer:
            rest, self._buffer = self._buffer[1:], b""
            self.counters.bad_bytes += 1
            found += self.feed(rest)
        return found

    def _read(self, buffer: bytes, at: int, end: int) -> MavFrame | bool | None:
        """The frame; True for a message that we do not know; None if this is no frame."""
        if buffer[at] == MAGIC_2:
            header, length = HEADER_2, buffer[at + 1]
            sequence, system, component = buffer[at + 4], buffer[at + 5], buffer[at + 6]
            number = int.from_bytes(buffer[at + 7 : at + 10], "little")
        else:
            header, length = HEADER_1, buffer[at + 1]
            sequence, system, component, number = buffer[at + 2 : at + 6]
        layout = LAYOUTS.get(number)
        body_end = at + header + length
        if layout is None:
            # Its checksum cannot be checked. It is believed if another frame, or nothing yet, follows.
            if end < len(buffer) and buffer[end] not in (MAGIC_1, MAGIC_2):
                return None
            self.counters.unknown += 1
            return True
        told = int.from_bytes(buffer[body_end : body_end + CHECKSUM], "little")
        if told != checksum(bytes([layout.seed]), checksum(buffer[at + 1 : body_end])):
            return None
        payload = buffer[at + header : body_end]
        if header == HEADER_1:
            payload = payload[: layout.base_bytes]
        return MavFrame(system, component, sequence, layout.unpack(payload))


class MavWriter:
    """Makes frames of one sender, numbered."""

    def __init__(self, system: int, component: int) -> None:
        self._system = system
        self._component = component
        self._sequence = 0

    def frame(self, message: MavMessage) -> bytes:
        """The bytes of a message, as MAVLink 2."""
        layout = LAYOUTS[message.NUMBER]
        payload = layout.pack(message)
        payload = payload[:1] + payload[1:].rstrip(b"\0")  # zeros at the end are left out, but for the first byte
        head = bytes((len(payload), 0, 0, self._sequence, self._system, self._component))
        self._sequence = (self._sequence + 1) % 256
        body = head + message.NUMBER.to_bytes(3, "little") + payload
        value = checksum(bytes([layout.seed]), checksum(body))
        return bytes([MAGIC_2]) + body + value.to_bytes(2, "little")


def _end(buffer: bytes, at: int) -> int | None:
    """Where the frame that begins here would end; None if that cannot be seen yet."""
    if buffer[at] == MAGIC_1:
        return at + HEADER_1 + buffer[at + 1] + CHECKSUM if len(buffer) > at + 1 else None
    if len(buffer) <= at + 2:
        return None
    flags = buffer[at + 2]
    if flags & ~SIGNED_FLAG:
        # Flags that we do not know change what follows: such a frame is not for us. It ends before it begins.
        return at
    return at + HEADER_2 + buffer[at + 1] + CHECKSUM + (SIGNATURE if flags & SIGNED_FLAG else 0)
