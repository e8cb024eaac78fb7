"""The bytes of channels on NATS: what is said to reach somebody, and the pieces that frames travel in. Pure.

On a subject where somebody listens: a `Call` with where the caller hears, answered by `Answered` or `Declined`; and
`Owned`, by which a newer owner makes an older one fall silent. On a channel every message begins with its kind in one
byte and a number in eight, the highest first:

    PIECE, LAST   the number of this piece, from 1; its bytes follow. A frame is its pieces up to the LAST.
    TAKEN         how many pieces were taken so far: there is room for others.
    ALIVE         nothing but that.
    OVER          nothing more will come.
"""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from stigmergy.core.codec import UNDECODABLE
from stigmergy.core.errors import Malformed

FORMAT = 1
PIECE, LAST, TAKEN, ALIVE, OVER = range(1, 6)
HEAD = struct.Struct(">BQ")
REASON_CHARS_MAX = 300


class Call(Struct, array_like=True, frozen=True, tag=1):
    """Somebody wants a channel, and hears at this subject. It has spoken with an owner of this rank before."""

    format: int
    subject: str
    rank: int


class Answered(Struct, array_like=True, frozen=True, tag=2):
    """It has one, and is heard at this subject, by an owner of this rank."""

    subject: str
    rank: int


class Declined(Struct, array_like=True, frozen=True, tag=3):
    """It gets none, and why."""

    why: str


class Owned(Struct, array_like=True, frozen=True, tag=4):
    """From now on this one answers here; whoever has a lower rank is an owner of the past."""

    rank: int
    instance: str


Said = Call | Answered | Declined | Owned

_decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
write_said = msgspec.msgpack.Encoder().encode


def read_said(data: bytes) -> Said:
    """Reads what was said where somebody listens; raises Malformed."""
    try:
        return _decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"what does not decode ({error}); run the same version everywhere") from None
