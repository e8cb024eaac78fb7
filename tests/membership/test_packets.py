"""Packets of membership: read as written, cut to size, and nothing else is taken for one."""

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import Malformed
from stigmergy.membership.packets import (
    ABOUT_BYTES_MAX,
    CONTACT_CHARS_MAX,
    DIGESTS_BYTES,
    INCARNATION_MAX,
    PACKET_BYTES_MAX,
    PACKET_FORMAT,
    UPDATE_BYTES_MIN,
    MemberStatus,
    PacketKind,
    SwimPacket,
    SwimUpdate,
    fitting,
    fleet_key,
    read_packet,
    update_bytes,
    write_packet,
)

KEY = fleet_key("delivery")
RUN = b"run-0001"
names = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
runs = st.binary(min_size=8, max_size=8)
incarnations = st.integers(0, INCARNATION_MAX)
updates = st.builds(
    SwimUpdate,
    names,
    incarnations,
    st.integers(0, 3),
    runs,
    st.text(max_size=CONTACT_CHARS_MAX),
    st.binary(max_size=ABOUT_BYTES_MAX),
)
PING = SwimPacket(PACKET_FORMAT, PacketKind.PING, 7, RUN, 1, "", b"", ())


@st.composite
def packets(draw: st.DrawFn) -> SwimPacket:
    kind = draw(st.sampled_from(PacketKind))
    subject = {PacketKind.PING_REQ: names, PacketKind.ACK: st.one_of(st.just(""), names)}.get(kind, st.just(""))
    size = DIGESTS_BYTES if kind in (PacketKind.SYNC, PacketKind.SYNC_BACK) else 0
    return SwimPacket(
        PACKET_FORMAT,
        kind,
        draw(incarnations),
        draw(runs),
        draw(st.integers(0, 2**32 - 1)),
        draw(subject),
        draw(st.binary(min_size=size, max_size=size)),
        tuple(draw(st.lists(updates, max_size=5))),
    )


@given(packets())
def test_packet_is_read_as_it_was_written(packet: SwimPacket) -> None:
    assert read_packet(write_packet(packet, KEY), KEY) == packet


@given(packets(), st.lists(updates, max_size=60), st.integers(900, 3_000))
def test_packet_keeps_to_its_size(packet: SwimPacket, more: list[SwimUpdate], bytes_max: int) -> None:
    packet = msgspec.structs.replace(packet, updates=())
    filled = fitting(packet, more, bytes_max)
    assert len(write_packet(filled, KEY)) <= bytes_max
    assert list(filled.updates) == [update for update in more if update in filled.updates][: len(filled.updates)]
    if sum(map(update_bytes, more)) < bytes_max - 450:
        assert list(filled.updates) == more


def test_shortest_update_is_as_short_as_said() -> None:
    assert update_bytes(SwimUpdate("a", 0, 0, RUN)) == UPDATE_BYTES_MIN


def test_full_packet_looks_no_further() -> None:
    many = [SwimUpdate(f"n{number:02}", 0, 0, RUN) for number in range(100)]
    filled = fitting(PING, many, 900)
    assert 0 < len(filled.updates) < 60
    assert 900 - UPDATE_BYTES_MIN - 4 <= len(write_packet(filled, KEY)) <= 900


def test_count_of_updates_is_bounded() -> None:
    many = [SwimUpdate(f"n{number}", 0, 0, RUN) for number in range(600)]
    assert len(fitting(PING, many, 60_000).updates) == 512


@given(st.binary(max_size=200))
def test_junk_is_malformed(junk: bytes) -> None:
    with pytest.raises(Malformed):
        read_packet(junk, KEY)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_every_damaged_byte_is_found(place: int, change: int) -> None:
    body = bytearray(write_packet(PING, KEY))
    body[place % len(body)] ^= change
    with pytest.raises(Malformed, match="damaged"):
        read_packet(bytes(body), KEY)


def test_packet_of_another_fleet_is_refused() -> None:
    with pytest.raises(Malformed, match="another fleet"):
        read_packet(write_packet(PING, fleet_key("another")), KEY)


def test_too_long_is_refused_unread() -> None:
    with pytest.raises(Malformed, match="at most"):
        read_packet(bytes(PACKET_BYTES_MAX + 1), KEY)


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\x90", msgspec.msgpack.encode([1, 0, 7, RUN, 1, b"\xff", b"", []]), b"\x91" * 2_000]
)
def test_sealed_junk_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed, match="not a packet"):
        read_packet(body + blake3(body, key=KEY).digest(8), KEY)


def test_text_that_is_no_text_is_malformed() -> None:
    body = msgspec.msgpack.encode(msgspec.structs.replace(PING, kind=PacketKind.ACK, subject="abc"))
    body = body.replace(b"\xa3abc", b"\xa3\xff\xff\xff")
    with pytest.raises(Malformed, match="not a packet"):
        read_packet(body + blake3(body, key=KEY).digest(8), KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"kind": -1},
        {"kind": 6},
        {"incarnation": -1},
        {"incarnation": INCARNATION_MAX + 1},
        {"run": b"short"},
        {"sequence": -1},
        {"sequence": 2**32},
        {"subject": "a"},
        {"kind": PacketKind.ACK, "subject": "a/b"},
        {"kind": PacketKind.PING_REQ},
        {"kind": PacketKind.SYNC},
        {"digests": bytes(DIGESTS_BYTES)},
        {"updates": (SwimUpdate("a", 0, 0, RUN),) * 513},
    ],
)
def test_field_that_cannot_be_is_malformed(wrong: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        read_packet(write_packet(msgspec.structs.replace(PING, **wrong), KEY), KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"node": ""},
        {"node": "a b"},
        {"incarnation": -1},
        {"incarnation": INCARNATION_MAX + 1},
        {"status": 4},
        {"status": -1},
        {"run": b""},
        {"contact": "x" * 129},
        {"about": bytes(257)},
    ],
)
def test_update_that_cannot_be_is_malformed(wrong: dict[str, object]) -> None:
    update = msgspec.structs.replace(SwimUpdate("a", 1, MemberStatus.ALIVE, RUN), **wrong)
    with pytest.raises(Malformed):
        read_packet(write_packet(msgspec.structs.replace(PING, updates=(update,)), KEY), KEY)
