"""Membership packets: the bytes of one datagram. docs/formats.md describes them.

Every packet names the run of its sender and carries what its sender knows about some members. It ends with a check,
keyed with the fleet's name: a packet that was damaged, is of another fleet, or is not exactly a packet raises
Malformed. The check is not secret; use a mesh with a key to keep strangers out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.base.errors import Malformed

PACKET_FORMAT = 1
RUN_BYTES = 8
CHECK_BYTES = 8
"""At the end of a packet."""
ABOUT_BYTES_MAX = 256
"""A node's description of itself beside its name, such as its kinds. This module does not interpret it."""
CONTACT_CHARS_MAX = 128
INCARNATION_MAX = 2**62
SEQUENCE_MAX = 2**32
BUCKETS_COUNT = 64
DIGEST_BYTES = 4
DIGESTS_BYTES = BUCKETS_COUNT * DIGEST_BYTES
UPDATES_COUNT_MAX = 512
UPDATE_BYTES_MIN = 18
"""The size of the shortest update: do not search for one that fits into less."""
PACKET_BYTES_MAX = 64 * 1024
_FLEET_CONTEXT = "stigmergy 2026 membership of a fleet"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class MemberStatus(IntEnum):
    """The status of a member, from the weakest to the strongest claim about the same incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class PacketKind(IntEnum):
    """What a packet asks or answers."""

    PING = 0
    """Are you alive? Answered with ACK."""
    ACK = 1
    """I am; or, from a helper, `subject` is."""
    PING_REQ = 2
    """Ping `subject` for me, and tell me if it answers."""
    SYNC = 3
    """The digest of the members I know; tell me where yours differs, and send yours."""
    SYNC_BACK = 4
    """The answer's own digest, so that the other side can see what it knows better."""
    STATE = 5
    """What I know of some members; no answer expected."""


class SwimUpdate(Struct, frozen=True, array_like=True):
    """The state of one member. The higher (incarnation, status, run) is newer."""

    node: str
    incarnation: int
    """Only the member itself raises it: to refute a suspicion."""
    status: int
    run: bytes
    """Another one at each start of the node."""
    contact: str = ""
    """The address of its mesh, if a name is not enough; with ALIVE only."""
    about: bytes = b""

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """Decides which of two updates about a node is newer."""
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
    """The member that a PING_REQ or the ACK of a helper is about; else empty."""
    digests: bytes
    """Of SYNC and SYNC_BACK: 4 bytes for each of 64 buckets of members; else empty."""
    updates: tuple[SwimUpdate, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SwimPacket)


def fleet_key(fleet: str) -> bytes:
    """The key of the checks of this fleet's packets."""
    return blake3(fleet.encode(), derive_key_context=_FLEET_CONTEXT).digest()


def write_packet(packet: SwimPacket, key: bytes) -> bytes:
    plain = _encoder.encode(packet)
    return plain + blake3(plain, key=key).digest(CHECK_BYTES)


def update_bytes(update: SwimUpdate) -> int:
    """The size of an update in a packet."""
    return len(_encoder.encode(update))


def fitting(packet: SwimPacket, updates: Sequence[SwimUpdate], bytes_max: int) -> SwimPacket:
    """The packet with as many of these updates, from the first on, as fit; one that is too long is skipped."""
    room = bytes_max - CHECK_BYTES - len(_encoder.encode(packet)) - 2  # the count of many updates takes two more bytes
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
    """Raises Malformed."""
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
        raise Malformed("a packet of membership with an invalid field")
    return packet


def _is_in_order(update: SwimUpdate) -> bool:
    return (
        _NAME.fullmatch(update.node) is not None
        and 0 <= update.incarnation <= INCARNATION_MAX
        and 0 <= update.status <= MemberStatus.LEFT
        and len(update.run) == RUN_BYTES
        and len(update.contact) <= CONTACT_CHARS_MAX
        and len(update.about) <= ABOUT_BYTES_MAX
    )


# The known members: for every name the update with the highest rank. Pure.
#
# Ranks are totally ordered and the highest one stays, so the order, repetition and source of updates do not matter:
# tables that received the same updates are equal. Members that are gone stay for a while, so that older updates are
# recognised as old, and so that somebody probes them again when a partition may have healed. A node that was never a
# member is not remembered as gone.

MEMBERS_COUNT_MAX = 4_096
"""Present members, ourselves included. Further ones are refused and counted."""
GONE_COUNT_MAX = 4_096
"""Remembered members that are gone. Beyond it the one that left first is forgotten."""


class MemberTable:
    """All known members."""

    def __init__(self, *, members_count_max: int = MEMBERS_COUNT_MAX, gone_count_max: int = GONE_COUNT_MAX) -> None:
        self._members_count_max = members_count_max
        self._gone_count_max = gone_count_max
        self._present: dict[str, SwimUpdate] = {}
        self._gone: dict[str, tuple[SwimUpdate, int]] = {}
        """With the time it left, oldest first."""
        self._buckets: list[dict[str, None]] = [{} for _ in range(BUCKETS_COUNT)]
        self._digests = [0] * BUCKETS_COUNT
        self.full_count = 0
        """Members that were refused because there were too many."""

    def get(self, node: str) -> SwimUpdate | None:
        """The update about a node, present or gone."""
        return self[node] if node in self._present or node in self._gone else None

    def __getitem__(self, node: str) -> SwimUpdate:
        """The same; KeyError for an unknown node."""
        return self._present[node] if node in self._present else self._gone[node][0]

    def is_present(self, node: str) -> bool:
        """Whether a node is alive or suspected."""
        return node in self._present

    @property
    def present_count(self) -> int:
        """The number of alive or suspected members."""
        return len(self._present)

    def present(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._present)

    def lost(self) -> list[str]:
        """The names of members that died without leaving, sorted."""
        return sorted(node for node, (update, _) in self._gone.items() if update.status == MemberStatus.DEAD)

    def take(self, update: SwimUpdate, now_ns: int) -> bool:
        """Applies an update; returns whether it was new. A node must be alive to become a member."""
        known = self.get(update.node)
        if known is None and update.status != MemberStatus.ALIVE:
            return False
        if known is not None and update.rank <= known.rank:
            return False
        is_here = update.status in (MemberStatus.ALIVE, MemberStatus.SUSPECT)
        if is_here and update.node not in self._present and len(self._present) >= self._members_count_max:
            self.full_count += 1
            return False
        if known is not None and update.status != MemberStatus.ALIVE:
            # Only the member itself says how it is reached and describes itself.
            update = structs.replace(update, contact=known.contact, about=known.about)
        self._remove(update.node)
        bucket = _bucket_of(update.node)
        self._buckets[bucket][update.node] = None
        if is_here:
            self._present[update.node] = update
            self._digests[bucket] ^= _digest_of(update)
        else:
            self._gone[update.node] = (update, now_ns)
            if len(self._gone) > self._gone_count_max:
                self._remove(next(iter(self._gone)))
        return True

    def forget(self, before_ns: int) -> None:
        """Forgets members that were gone before this time."""
        for node, (_, went_ns) in list(self._gone.items()):
            if went_ns >= before_ns:
                return
            self._remove(node)

    def digests(self) -> bytes:
        """Four bytes for each bucket: equal if, but for chance, the same runs are present in it. Ignores suspicion."""
        return b"".join(digest.to_bytes(DIGEST_BYTES, "big") for digest in self._digests)

    def differing(self, digests: bytes) -> list[int]:
        """The buckets that differ from another table with these digests."""
        own = self.digests()
        places = range(0, len(own), DIGEST_BYTES)
        return [at // DIGEST_BYTES for at in places if own[at : at + DIGEST_BYTES] != digests[at : at + DIGEST_BYTES]]

    def in_bucket(self, number: int) -> list[SwimUpdate]:
        """All updates of a bucket, also of members that are gone."""
        return [self[node] for node in sorted(self._buckets[number])]

    def _remove(self, node: str) -> None:
        bucket = _bucket_of(node)
        present = self._present.pop(node, None)
        if present is not None:
            self._digests[bucket] ^= _digest_of(present)
        self._gone.pop(node, None)
        self._buckets[bucket].pop(node, None)


def _bucket_of(node: str) -> int:
    return blake3(node.encode()).digest(1)[0] % BUCKETS_COUNT


def _digest_of(update: SwimUpdate) -> int:
    """Without the status: suspicions change too quickly to be compared."""
    front = f"{update.node} {update.incarnation} ".encode()
    return int.from_bytes(blake3(front + update.run).digest(DIGEST_BYTES), "big")
