"""Our MAVLink bytes against pymavlink's, in both directions; and whatever comes, nothing breaks."""

import math
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pymavlink.dialects.v10 import common as common_1  # type: ignore[import-untyped]
from pymavlink.dialects.v20 import common  # type: ignore[import-untyped]

from stigmergy.devices.mavlink.messages import (
    FRAME_BYTES_MAX,
    LAYOUTS,
    MESSAGES,
    BatteryStatus,
    CommandInt,
    CommandLong,
    GlobalPosition,
    Heartbeat,
    MavMessage,
    MavParser,
    MavWriter,
    StatusText,
    checksum,
)

RANGES = {"u8": (0, 2**8), "i8": (-(2**7), 2**7), "u16": (0, 2**16), "i16": (-(2**15), 2**15), "u32": (0, 2**32)}
RANGES |= {"i32": (-(2**31), 2**31)}


def theirs(message: type[MavMessage]) -> Any:
    return getattr(common, f"MAVLink_{message.NAME.lower()}_message")


def values(kind: str) -> st.SearchStrategy[Any]:
    bare, _, count = kind.partition("[")
    if bare == "f32":
        return st.floats(width=32, allow_nan=False, allow_infinity=False)
    if bare == "char":
        return st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=int(count.rstrip("]")))
    low, end = RANGES[bare]
    one = st.one_of(st.integers(low, end - 1), st.sampled_from([0, low, end - 1]))
    return st.tuples(*[one] * int(count.rstrip("]"))) if count else one


@st.composite
def messages(draw: st.DrawFn, *, base_only: bool = False) -> MavMessage:
    cls = draw(st.sampled_from(MESSAGES))
    words = f"{cls.FIELDS} {'' if base_only else cls.ADDED}".split()
    return cls(**{name: draw(values(kind)) for kind, name in zip(words[::2], words[1::2], strict=True)})


def as_theirs(message: MavMessage, cls: Any) -> Any:
    found: dict[str, Any] = {}
    for name in cls.fieldnames:
        value = getattr(message, name, 0)
        found[name] = value.encode() if isinstance(value, str) else list(value) if isinstance(value, tuple) else value
    return cls(**found)


@pytest.mark.parametrize("cls", MESSAGES)
def test_layouts_are_those_of_the_protocol(cls: type[MavMessage]) -> None:
    layout, other = LAYOUTS[cls.NUMBER], theirs(cls)
    assert (other.msgname, other.id, other.crc_extra) == (cls.NAME, cls.NUMBER, layout.seed)
    words = f"{cls.FIELDS} {cls.ADDED}".split()
    ours = words[1::2]
    assert ours == other.fieldnames[: len(ours)]
    assert set(structs.asdict(cls())) == set(ours)


def test_the_checksum_is_the_one_of_the_catalogues() -> None:
    assert checksum(b"123456789") == 0x6F91


@given(messages(), st.integers(0, 255))
def test_what_we_write_pymavlink_reads(message: MavMessage, sequence: int) -> None:
    writer = MavWriter(system=7, component=191)
    writer._sequence = sequence
    reader = common.MAVLink(None)
    (read,) = reader.parse_buffer(writer.frame(message))
    assert (read.get_srcSystem(), read.get_srcComponent(), read.get_seq()) == (7, 191, sequence)
    assert read.get_type() == message.NAME
    for name, value in structs.asdict(message).items():
        told = getattr(read, name)
        assert (tuple(told) if isinstance(value, tuple) else told) == value


@given(messages())
def test_we_write_the_very_bytes_that_pymavlink_writes(message: MavMessage) -> None:
    sender = common.MAVLink(None, srcSystem=7, srcComponent=191)
    packed = as_theirs(message, theirs(type(message))).pack(sender)
    if len(theirs(type(message)).fieldnames) == len(structs.asdict(message)):
        assert MavWriter(7, 191).frame(message) == packed
    (frame,) = MavParser().feed(packed)
    assert frame.message == message


@given(messages(base_only=True))
def test_we_read_the_first_version_of_the_protocol_too(message: MavMessage) -> None:
    cls = getattr(common_1, f"MAVLink_{message.NAME.lower()}_message", None)
    if cls is None:
        return
    sender = common_1.MAVLink(None, srcSystem=3, srcComponent=1)
    packed = as_theirs(message, cls).pack(sender)
    assert packed[0] == 0xFE
    (frame,) = MavParser().feed(packed)
    words = type(message).FIELDS.split()[1::2]
    assert {name: getattr(frame.message, name) for name in words} == {name: getattr(message, name) for name in words}
    assert frame.system == 3


@given(st.lists(messages(), max_size=8), st.randoms(use_true_random=False))
def test_frames_are_found_however_the_bytes_are_cut(sent: list[MavMessage], chance: random.Random) -> None:
    writer, parser = MavWriter(1, 1), MavParser()
    stream = b"".join(writer.frame(message) for message in sent)
    found: list[MavMessage] = []
    while stream:
        cut = chance.randint(1, 20)
        found += [frame.message for frame in parser.feed(stream[:cut])]
        stream = stream[cut:]
    assert found == sent
    assert parser.counters.bad_bytes == 0


@given(st.lists(st.one_of(st.binary(max_size=60), messages()), max_size=12))
def test_noise_between_frames_costs_no_frame_that_a_datagram_holds(parts: list[bytes | MavMessage]) -> None:
    writer, parser = MavWriter(1, 1), MavParser()
    for part in parts:
        noise = part if isinstance(part, bytes) else writer.frame(part)
        found = [frame.message for frame in (*parser.feed(noise), *parser.finish())]
        if isinstance(part, MavMessage):
            assert found == [part]


def test_a_false_start_hides_no_frame() -> None:
    parser, beat = MavParser(), MavWriter(1, 1).frame(Heartbeat(type=2))
    data = bytes([0xFD, 200, 0]) + beat
    assert parser.feed(data) == []
    assert [frame.message for frame in parser.finish()] == [Heartbeat(type=2)]
    assert parser.counters.bad_bytes == 3


@given(messages(), st.integers(0, FRAME_BYTES_MAX), st.integers(1, 255))
def test_a_changed_byte_is_never_believed(message: MavMessage, at: int, change: int) -> None:
    data = bytearray(MavWriter(1, 1).frame(message))
    at %= len(data)
    data[at] ^= change
    parser = MavParser()
    found = [*parser.feed(bytes(data)), *parser.finish()]
    assert all(frame.message != message or frame.system != 1 for frame in found)
    assert not [frame for frame in found if type(frame.message) is type(message)]


def test_any_bytes_at_all() -> None:
    chance = random.Random(20261115)
    parser = MavParser()
    for _ in range(3_000):
        size = chance.choice((1, 7, 40, 300, 2_000))
        noise = bytearray(chance.randbytes(size))
        for at in range(0, size, chance.randint(3, 50)):
            noise[at] = chance.choice((0xFD, 0xFE))
        parser.feed(bytes(noise))
        if chance.random() < 0.5:
            parser.finish()
        assert len(parser._buffer) <= FRAME_BYTES_MAX
    parser.finish()
    (frame,) = parser.feed(MavWriter(1, 1).frame(Heartbeat()))
    assert frame.message == Heartbeat()


def signed(message: Any) -> bytes:
    sender = common.MAVLink(None, srcSystem=1, srcComponent=1)
    sender.signing.secret_key = b"k" * 32
    sender.signing.sign_outgoing = True
    sender.signing.timestamp = 1
    packed: bytes = message.pack(sender)
    return packed


def test_signed_frames_are_read_and_their_signature_passed_over() -> None:
    data = signed(common.MAVLink_extended_sys_state_message(0, 2))
    assert data[2] == 1
    parser = MavParser()
    assert len(parser.feed(data + MavWriter(1, 1).frame(Heartbeat()))) == 2
    assert parser.counters.bad_bytes == 0


def test_a_frame_with_flags_we_do_not_know_is_not_for_us() -> None:
    data = bytearray(MavWriter(1, 1).frame(Heartbeat(type=2)))
    data[2] = 0x02
    body = bytes(data[1:-2])
    data[-2:] = checksum(bytes([LAYOUTS[0].seed]), checksum(body)).to_bytes(2, "little")
    parser = MavParser()
    assert [*parser.feed(bytes(data)), *parser.finish()] == []


def test_messages_we_do_not_know_are_passed_over_and_counted() -> None:
    sender = common.MAVLink(None, srcSystem=1, srcComponent=1)
    attitude = common.MAVLink_attitude_message(1, 0.1, 0.2, 0.3, 0, 0, 0).pack(sender)
    parser = MavParser()
    found = parser.feed(attitude + MavWriter(1, 1).frame(Heartbeat()) + attitude)
    assert [type(frame.message) for frame in found] == [Heartbeat]
    assert (parser.counters.unknown, parser.counters.bad_bytes) == (2, 0)


def test_what_is_not_finite_comes_as_not_a_number() -> None:
    data = MavWriter(1, 1).frame(CommandLong(param1=math.inf, param2=-math.inf, param3=math.nan))
    ((message),) = [frame.message for frame in MavParser().feed(data)]
    assert isinstance(message, CommandLong)
    assert all(math.isnan(value) for value in (message.param1, message.param2, message.param3))


def test_texts_are_cut_and_never_break() -> None:
    data = MavWriter(1, 1).frame(StatusText(text="ü" * 60))
    (frame,) = MavParser().feed(data)
    assert isinstance(frame.message, StatusText)
    assert frame.message.text.startswith("ü" * 25)
    layout = LAYOUTS[StatusText.NUMBER]
    again = layout.unpack(b"\x04" + b"\xff\xfe" * 25)
    assert isinstance(again, StatusText)
    assert again.text == "\ufffd" * 50


def test_numbers_that_do_not_fit_are_the_callers_error() -> None:
    for wrong in (GlobalPosition(lat=2**31), CommandInt(command=-1), BatteryStatus(voltages=(1, 2))):
        with pytest.raises(struct.error):
            MavWriter(1, 1).frame(wrong)
