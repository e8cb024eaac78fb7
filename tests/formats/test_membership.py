"""Packets of membership and datagrams over UDP are what docs/formats.md says, byte by byte, for ever."""

import msgspec
import pytest
from blake3 import blake3

from stigmergy.membership.mesh import MEMBERSHIP, REPLICAS
from stigmergy.membership.packets import (
    BUCKETS_COUNT,
    PACKET_FORMAT,
    MemberStatus,
    MemberTable,
    PacketKind,
    SwimPacket,
    SwimUpdate,
    fleet_key,
    read_packet,
    write_packet,
)
from stigmergy.membership.service import About
from stigmergy.membership.settings import SwimSettings
from stigmergy.membership.udp import FORMAT, read_datagram, write_datagram
from tests.formats.manual import fields_of, tables

UPDATE = SwimUpdate("drone-7", 1_800_000_000_000, MemberStatus.SUSPECT, b"\x01" * 8, "10.0.0.7:7946", b"\x91\xa31.0")
PACKET = SwimPacket(PACKET_FORMAT, PacketKind.ACK, 7, b"\x02" * 8, 41, "drone-7", b"", (UPDATE,))


@pytest.mark.parametrize("structure", [SwimPacket, SwimUpdate, About], ids=lambda structure: structure.__name__)
def test_fields_are_documented_in_their_order(structure: type[msgspec.Struct]) -> None:
    assert structure.__struct_config__.array_like
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_numbers_are_documented() -> None:
    kinds = {row[1]: row[3] for row in tables("formats.md")["SwimPacket"]}["kind"]
    assert kinds == ", ".join(f"{kind.value} {kind.name.lower().replace('_', '-')}" for kind in PacketKind)
    statuses = {row[1]: row[3] for row in tables("formats.md")["SwimUpdate"]}["status"]
    assert statuses == "0 alive, 1 suspected, 2 dead, 3 left"
    assert [status.value for status in MemberStatus] == [0, 1, 2, 3]
    assert (PACKET_FORMAT, FORMAT, MEMBERSHIP, REPLICAS) == (1, 1, 1, 2)


def test_packet_has_these_bytes() -> None:
    key = blake3(b"delivery", derive_key_context="stigmergy 2026 membership of a fleet").digest()
    assert key == fleet_key("delivery")
    body = write_packet(PACKET, key)
    assert body[:-8].hex() == (
        "98010107c408020202020202020229a764726f6e652d37c4009196a764726f6e652d37cf000001a3185c500001c4080101010101010101"
        "ad31302e302e302e373a37393436c40591a3312e30"
    )
    assert body[-8:] == blake3(body[:-8], key=key).digest()[:8]
    assert read_packet(body, key) == PACKET


def test_digest_of_a_bucket_is_as_documented() -> None:
    table = MemberTable()
    for name in ("drone-7", "drone-8"):
        table.take(SwimUpdate(name, 5, MemberStatus.ALIVE, b"\x03" * 8), 0)
    expected = [0] * BUCKETS_COUNT
    for name in ("drone-7", "drone-8"):
        digest = blake3(f"{name} 5 ".encode() + b"\x03" * 8).digest()[:4]
        expected[blake3(name.encode()).digest()[0] % 64] ^= int.from_bytes(digest, "big")
    assert table.digests() == b"".join(number.to_bytes(4, "big") for number in expected)


def test_datagram_has_these_bytes() -> None:
    plain = write_datagram("drone-7", "gateway", b"body", 258, b"")
    assert plain.hex() == "7374676d0100000000000000010207" + b"drone-7".hex() + "07" + b"gateway".hex() + b"body".hex()
    key = blake3(b"s" * 32, derive_key_context="stigmergy 2026 seal of a datagram").digest()
    sealed = write_datagram("drone-7", "gateway", b"body", 258, key)
    assert sealed[5] == 1
    assert sealed[:5] + b"\x00" + sealed[6:-16] == plain
    assert sealed[-16:] == blake3(sealed[:-16], key=key).digest()[:16]
    assert read_datagram(sealed, key) == ("drone-7", "gateway", b"body", 258)


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1] for row in tables("membership.md")["Membership"]}
    settings = msgspec.structs.asdict(SwimSettings())
    assert documented == {name: str(value) for name, value in settings.items()}
