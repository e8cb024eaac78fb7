"""What processes that share a fleet say to each other, and its bytes.

Who connects says hello, and is welcomed or sent away. Then, for each pair of shards over which it has something to
tell, it asks how far that pair is (`Opening`, `Reached`), and sends (`Parcel`) what follows; it hears when that is
durable (`Arrived`), or why it was not taken (`Declined`), which ends the connection.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.core.codec import UNDECODABLE
from stigmergy.core.errors import Malformed

FORMAT = 1


class Hello(Struct, array_like=True, frozen=True, tag=1):
    """Who calls, and what it takes the fleet for."""

    format: int
    fleet: str
    shards: int
    process: int
    processes: int


class Welcome(Struct, array_like=True, frozen=True, tag=2):
    """The other one is who we take it for."""


class Goodbye(Struct, array_like=True, frozen=True, tag=3):
    """It is not, or what it does is wrong; and why. The connection is closed."""

    why: str


class Opening(Struct, array_like=True, frozen=True, tag=4):
    """We have something to tell over this pair of shards; so far the receiver has said that it has durable."""

    source: int
    target: int
    settled: int


class Reached(Struct, array_like=True, frozen=True, tag=5):
    """So far the pair has been consumed; nothing behind it was, ever."""

    source: int
    target: int
    consumed: int


class Parcel(Struct, array_like=True, frozen=True, tag=6):
    """Tells that follow each other, from one shard to another; the first has this sequence."""

    source: int
    target: int
    epoch: int
    sequence: int
    items: list[tuple[str, bytes]]


class Arrived(Struct, array_like=True, frozen=True, tag=7):
    """Up to here the pair's tells are durable at the receiver."""

    source: int
    target: int
    last: int


class Declined(Struct, array_like=True, frozen=True, tag=8):
    """A parcel was not taken: the name of the error, and what it says."""

    source: int
    target: int
    kind: str
    why: str


Frame = Hello | Welcome | Goodbye | Opening | Reached | Parcel | Arrived | Declined

_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
write_frame = msgspec.msgpack.Encoder().encode


def read_frame(data: bytes) -> Frame:
    """Reads a frame; raises Malformed."""
    try:
        return _decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"a neighbour sent what does not decode ({error}); run the same version in all") from None
