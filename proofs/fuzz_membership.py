"""Packets of membership and datagrams over UDP, for the fuzzer; checks are made good, so that the inside is reached.

Whatever comes, a node takes it in, goes on, and sends no more than it may.
"""

from __future__ import annotations

import random

from blake3 import blake3

from stigmergy.membership.packets import (
    CHECK_BYTES,
    DIGESTS_BYTES,
    PACKET_FORMAT,
    MemberStatus,
    PacketKind,
    SwimPacket,
    SwimUpdate,
    fleet_key,
    write_packet,
)
from stigmergy.membership.swim import OwnRecord, Swim
from stigmergy.membership.udp import read_datagram, write_datagram

KEY = fleet_key("fleet")
SECOND_NS = 1_000_000_000
BYTES_MAX = 1024
SENDS_COUNT_MAX = 100
"""A node answers one packet with fewer: pages, questions to those who are called dead, the rest of its work."""


def take(data: bytes) -> None:
    """A packet comes, twice; then time passes."""
    chance = random.Random(1)
    us = OwnRecord("us", b"our-run1", 5, "", b"")
    swim = Swim(us, fleet="fleet", bytes_max=BYTES_MAX, choose=chance.randrange, now_ns=0, seeds=("seed",))
    for node in ("peer", "other"):
        swim.table.take(SwimUpdate(node, 5, MemberStatus.ALIVE, b"their-r1"), 0)
    for moment in range(4):
        swim.step("peer", _with_check(data), moment * SECOND_NS // 2)
        swim.tick(moment * SECOND_NS // 2)
        sends = swim.ready().sends
        assert len(sends) <= SENDS_COUNT_MAX
        assert all(len(body) <= BYTES_MAX for _, body in sends)


def take_datagram(data: bytes) -> None:
    """A datagram comes from the network."""
    read_datagram(data, b"")


def packets() -> list[bytes]:
    """Of each kind, without the check."""
    updates = tuple(
        SwimUpdate(node, 6, status, b"their-r1", "10.0.0.1:7946", b"\x91\xa11")
        for node in ("us", "peer", "other", "new")
        for status in MemberStatus
    )
    found = []
    for kind in PacketKind:
        subject = "other" if kind == PacketKind.PING_REQ else ""
        digests = bytes(DIGESTS_BYTES) if kind in (PacketKind.SYNC, PacketKind.SYNC_BACK) else b""
        packet = SwimPacket(PACKET_FORMAT, kind, 6, b"their-r1", 7, subject, digests, updates)
        found.append(write_packet(packet, KEY)[:-CHECK_BYTES])
    return found


def datagrams() -> list[bytes]:
    """Without a seal: with one, nothing that was changed gets any further."""
    return [write_datagram("a", "b", b"body", 1, b""), write_datagram("a" * 64, "b" * 64, b"", 2**64 - 1, b"")]


def _with_check(data: bytes) -> bytes:
    return data + blake3(data, key=KEY).digest(CHECK_BYTES)
