"""What nodes say to each other about who is there: the bytes of one datagram of membership. docs/formats.md has them.

Every packet says which run of its sender speaks, and carries what its sender knows about some members. It ends with a
check, keyed with the fleet's name: what was damaged on its way, or is of another fleet, raises Malformed, and so does
anything that is not exactly a packet. The check is no secret; a mesh with a key keeps strangers out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.core.errors import Malformed

PACKET_FORMAT = 1
RUN_BYTES = 8
CHECK_BYTES = 8
"""At the end of a packet."""
ABOUT_BYTES_MAX = 256
"""What a node says of itself beside its name: its kinds, for example. What it means is not this module's business."""
CONTACT_CHARS_MAX = 128
INCARNATION_MAX = 2**62
SEQUENCE_MAX = 2**32
BUCKETS_COUNT = 64
DIGEST_BYTES = 4
DIGESTS_BYTES = BUCKETS_COUNT * DIGEST_BYTES
UPDATES_COUNT_MAX = 512
UPDATE_BYTES_MIN = 18
"""The shortest there is: no need to look for one that fits into less."""
PACKET_BYTES_MAX = 64 * 1024
_FLEET_CONTEXT = "stigmergy 2026 membership of a fleet"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Status(IntEnum):
    """What is known of a member, from the weakest word to the strongest about the same incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class PacketKind(IntEnum):
    """What a packet asks for or answers."""

    PING = 0
    """Are you there? Answered with ACK."""
    ACK = 1
    """I am; or, from a helper, `subject` is."""
    PING_REQ = 2
    """Please ask `subject` whether it is there, and tell me if it is."""
    SYNC = 3
    """This is the digest of whom I know; tell me where yours differs, and yours."""
    SYNC_BACK = 4
    """The answer's own digest, so that the other can tell what it knows better."""
    STATE = 5
    """What I know of some members; nothing is asked."""


class SwimUpdate(Struct, frozen=True, array_like=True):
    """What is known of one member. The higher (incarnation, status, run) is the later truth."""

    node: str
    incarnation: int
    """Only the member itself makes it larger: to say that it is alive after all."""
    status: int
    run: bytes
    """Another one each time that the node starts."""
    contact: str = ""
    """How its mesh is reached, where a name is not enough; with ALIVE only."""
    about: bytes = b""

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """What decides which of two updates about a node holds."""
        return self.incarnation, self.status, self.run


class SwimPacket(Struct, frozen=True, array_like=True):
    """One datagram."""

    format: int
    kind: int
    incarnation: int
    """Of the sender."""
    run: bytes
    sequence: int
    """Of a PING or PING_REQ, and of the ACK that answers it."""
    subject: str
    """The member that a PING_REQ or the ACK of a helper is about; empty otherwise."""
    digests: bytes
    """Of SYNC and SYNC_BACK: 4 bytes for each of 64 buckets of members; empty otherwise."""
    updates: tuple[SwimUpdate, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SwimPacket)


def fleet_key(fleet: str) -> bytes:
    """What the checks of this fleet's packets are keyed with."""
    return blake3(fleet.encode(), derive_key_context=_FLEET_CONTEXT).digest()


def write_packet(packet: SwimPacket, key: bytes) -> bytes:
    """The bytes of a packet."""
    plain = _encoder.encode(packet)
    return plain + blake3(plain, key=key).digest(CHECK_BYTES)


def update_bytes(update: SwimUpdate) -> int:
    """How much of a packet an update takes."""
    return len(_encoder.encode(update))


def fitting(packet: SwimPacket, updates: Sequence[SwimUpdate], bytes_max: int) -> SwimPacket:
    """The packet with as many of these updates, from the first on, as fit; one that is too long is passed over."""
    room = bytes_max - CHECK_BYTES - len(_encoder.encode(packet)) - 2  # the count of many updates takes two more
    taken: list[SwimUpdate] = []
    for update in updates:
        if room < UPDATE_BYTES_MIN:
            break
        size = update_bytes(update)
        if size <= room and len(taken) < UPDATES_COUNT_MAX:
            taken.append(update)
            room -= size
    return msgspec.structs.replace(packet, updates=tuple(taken))


def read_packet(body: bytes, key: bytes) -> SwimPacket:
    """The packet. Raises Malformed."""
    if len(body) > PACKET_BYTES_MAX:
        raise Malformed(f"a packet of {len(body)} bytes, at most {PACKET_BYTES_MAX}")
    plain, check = body[:-CHECK_BYTES], body[-CHECK_BYTES:]
    if blake3(plain, key=key).digest(CHECK_BYTES) != check:
        raise Malformed("a packet that was damaged, or of another fleet")
    try:
        packet = _decoder.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a packet of membership: {error}") from None
    if packet.format != PACKET_FORMAT:
        raise Malformed(f"a packet of format {packet.format}, this version reads {PACKET_FORMAT}")
    asks_about = packet.kind in (PacketKind.PING_REQ, PacketKind.ACK)
    syncs = packet.kind in (PacketKind.SYNC, PacketKind.SYNC_BACK)
    in_order = (
        0 <= packet.kind <= PacketKind.STATE
        and 0 <= packet.incarnation <= INCARNATION_MAX
        and len(packet.run) == RUN_BYTES
        and 0 <= packet.sequence < SEQUENCE_MAX
        and (_NAME.fullmatch(packet.subject) is not None if asks_about and packet.subject else not packet.subject)
        and len(packet.digests) == (DIGESTS_BYTES if syncs else 0)
        and len(packet.updates) <= UPDATES_COUNT_MAX
        and all(map(_is_in_order, packet.updates))
    )
    if not in_order or (packet.kind == PacketKind.PING_REQ and not packet.subject):
        raise Malformed("a packet of membership with a field that is not what it must be")
    return packet


def _is_in_order(update: SwimUpdate) -> bool:
    return (
        _NAME.fullmatch(update.node) is not None
        and 0 <= update.incarnation <= INCARNATION_MAX
        and 0 <= update.status <= Status.LEFT
        and len(update.run) == RUN_BYTES
        and len(update.contact) <= CONTACT_CHARS_MAX
        and len(update.about) <= ABOUT_BYTES_MAX
    )
