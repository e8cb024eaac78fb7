"""Tells between nodes, and their acknowledgements: the bytes of both. Pure. docs/formats.md describes every field.

    TellFrame            on the receiving agent's topic `tells`: some tells of one shard to this agent
    TellAcknowledgement  on the sending node's topic `acknowledgements`: how far they are durable, or why not

A *pair* is a shard of the sender and an agent elsewhere. Its tells are numbered from 1 without a gap; the receiver
keeps a mark for each pair, in the shard of the agent. A broker's own acknowledgement settles nothing: only the
receiver's does.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import MESSAGE_BYTES_MAX, REASON_CHARS_MAX, UNDECODABLE, tagged_without_empty_end
from stigmergy.base.errors import Malformed, TooLarge
from stigmergy.shard.tracing import WireTraces

CONTENT_TYPE = "application/vnd.stigmergy.tells+msgpack"
FRAME_ITEMS_MAX = 256
FRAME_BYTES_MAX = 64 * 1024
"""A frame with so much in it is sent; a single tell may be larger."""
RECEIVED_BYTES_MAX = FRAME_BYTES_MAX + 2 * MESSAGE_BYTES_MAX
NUMBER_MAX = 2**62
REFUSED_COUNT_MAX = FRAME_ITEMS_MAX


class TellItem(Struct, array_like=True, frozen=True):
    """One tell: the message, and until when it may be taken, in nanoseconds since 1970 by the sender's clock."""

    message: bytes
    expires_ns: int
    teller: str = ""
    """The agent that told it: it hears of it if a node on the way gives the tell up."""
    hops: int = 0
    """Through how many nodes it came."""


class TellFrame(Struct, array_like=True, frozen=True, tag="stigmergy.tells@1"):
    """Consecutive tells of one pair."""

    fleet: str
    site: str
    node: str
    """The sender; it hears the acknowledgement."""
    shard: int
    incarnation: int
    epoch: int
    after: int
    """The receiver must have consumed the pair up to here; if it has not, it says how far it is."""
    first: int
    """The number of the first item. Numbers between `after` and it were given up, and will never come."""
    items: list[TellItem]
    traces: WireTraces = []
    """The trace contexts of some items, by their place; not there if none has one."""

    @property
    def source(self) -> str:
        """The sending shard. With the receiving agent it names the pair."""
        return f"{self.fleet}/{self.site}/{self.node}/{self.shard}"


class TellAcknowledgement(Struct, array_like=True, frozen=True, tag="stigmergy.told@1"):
    """What the receiver says about a pair."""

    fleet: str
    site: str
    node: str
    """The receiver."""
    to: str
    """The agent's address in its fleet."""
    shard: int
    incarnation: int
    epoch: int
    """Of the frame that this answers."""
    durable: int = 0
    """Everything up to here is durable; 0: this says nothing of it."""
    consumed: int = 0
    """How far the receiver's mark is; behind `durable`, what is beyond may still be lost in a crash."""
    resume: int | None = None
    """The frame came too early: go on behind this number."""
    refused: list[tuple[int, str]] = []
    """Tells that are refused for good, and why. Nothing behind the first of them was taken."""
    stale: bool = False
    """The frame is of an owner that has been replaced."""


_frames = msgspec.msgpack.Decoder(TellFrame)
_acknowledgements = msgspec.msgpack.Decoder(TellAcknowledgement)
_write = msgspec.msgpack.Encoder().encode
_FIELDS_MIN = TellFrame.__struct_fields__.index("traces")


def write_tells(said: TellFrame | TellAcknowledgement) -> bytes:
    """The bytes of either."""
    return _write(tagged_without_empty_end(said, _FIELDS_MIN) if isinstance(said, TellFrame) else said)


def read_frame(payload: bytes) -> TellFrame:
    """Reads tells of another node. Raises Malformed or TooLarge."""
    if len(payload) > RECEIVED_BYTES_MAX:
        raise TooLarge(f"tells of {len(payload)} bytes, {RECEIVED_BYTES_MAX} at most")
    try:
        frame = _frames.decode(payload)
    except UNDECODABLE as error:
        raise Malformed(f"these are no tells of another node: {error}; run the same version in all") from None
    numbers = (frame.shard, frame.incarnation, frame.epoch, frame.after)
    if not 1 <= len(frame.items) <= FRAME_ITEMS_MAX or any(not 0 <= number < NUMBER_MAX for number in numbers):
        raise Malformed(f"a frame has 1 to {FRAME_ITEMS_MAX} tells, and numbers from 0 upward")
    if not frame.after < frame.first < NUMBER_MAX:
        raise Malformed(f"the first tell is number {frame.first}, behind number {frame.after}; numbers only grow")
    return frame


def read_acknowledgement(payload: bytes) -> TellAcknowledgement:
    """Reads what a receiver says. Raises Malformed or TooLarge."""
    if len(payload) > RECEIVED_BYTES_MAX:
        raise TooLarge(f"an acknowledgement of {len(payload)} bytes, {RECEIVED_BYTES_MAX} at most")
    try:
        said = _acknowledgements.decode(payload)
    except UNDECODABLE as error:
        raise Malformed(f"this is no acknowledgement of tells: {error}; run the same version in all") from None
    if len(said.refused) > REFUSED_COUNT_MAX or any(len(why) > REASON_CHARS_MAX for _, why in said.refused):
        raise Malformed(f"more than {REFUSED_COUNT_MAX} refusals, or reasons longer than {REASON_CHARS_MAX} characters")
    return said
