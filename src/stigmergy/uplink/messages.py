"""Messages between an uplink and its receiver, and their bytes. Pure. docs/uplink.md describes every field.

    Inquiry    up     how far are you?
    Told       down   so far, and it is durable; or why not
    Batch      up     everything after one number up to another that the rule lets through

A message is one byte, 1 for plain and 2 for zlib, and then msgpack. The topic names the sender, the message never does.
"""

from __future__ import annotations

import zlib

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import MESSAGE_BYTES_MAX, NUMBERS_END, REASON_CHARS_MAX, UNDECODABLE
from stigmergy.base.errors import Malformed, TooLarge
from stigmergy.uplink.rules import SLOT_BITS, Item

PLAIN = b"\x01"
PACKED = b"\x02"
SHARDS_MAX = 4096
ITEMS_COUNT_MAX = 10_000
MARKS_COUNT_MAX = 10_000
NAME_CHARS_MAX = 200
OPENED_BYTES_MAX = 1024 * 1024
"""The decompressed size of a message."""
ITEM_OVERHEAD_BYTES = 20
DIGEST_BYTES = 8
PACK_FROM_BYTES = 200
"""Smaller messages do not get smaller."""
PACK_LEVEL = 1


class UplinkMark(Struct, frozen=True, array_like=True):
    """The receiver's position in a shard: everything up to this number is durable there."""

    shard: int
    incarnation: int
    epoch: int
    number: int
    digest: bytes = b""
    """The sender's digest of the commit there, if it sent one in this run of the receiver."""


class Inquiry(Struct, frozen=True, array_like=True, tag="inquiry"):
    """Asks for all marks. The answer repeats `nonce`, so that it cannot be an old one."""

    nonce: str


class Told(Struct, frozen=True, array_like=True, tag="told"):
    """The receiver's answer."""

    receiver: str
    """The node that collects."""
    run: str
    """Another one at each start: it may have been restored from a copy meanwhile."""
    nonce: str
    """Of the inquiry that this answers; empty after a batch."""
    marks: list[UplinkMark]
    """In answer to an inquiry, all of this uplink; after a batch, that of its shard."""
    refused: str = ""
    """Why the last batch was refused; else empty."""


class Batch(Struct, frozen=True, array_like=True, tag="batch"):
    """Everything after `after` up to and including `upto`. The rule left out numbers without an item.

    With `lost`, all of it will never come, and this says why.
    """

    shard: int
    incarnation: int
    epoch: int
    after: int
    upto: int
    items: list[Item]
    lost: str = ""
    digest: bytes = b""
    """The beginning of the digest of the commit at `upto`, by which a sender recognises its own log."""


Up = Inquiry | Batch
_encoder = msgspec.msgpack.Encoder()
_up_decoder: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_told_decoder = msgspec.msgpack.Decoder(Told)


def write_message(message: Up | Told) -> bytes:
    """Encodes a message; compressed if that makes it smaller."""
    data = _encoder.encode(message)
    if len(data) >= PACK_FROM_BYTES:
        packed = zlib.compress(data, PACK_LEVEL)
        if len(packed) < len(data):
            return PACKED + packed
    return PLAIN + data


def read_up(data: bytes) -> Up:
    """Decodes a sender's message. Raises Malformed or TooLarge."""
    try:
        message = _up_decoder.decode(_opened(data))
    except UNDECODABLE as error:
        raise Malformed(f"not an uplink message ({error}); docs/uplink.md describes them") from None
    if isinstance(message, Inquiry):
        if len(message.nonce) > NAME_CHARS_MAX:
            raise TooLarge(f"a nonce of {len(message.nonce)} characters, {NAME_CHARS_MAX} at most")
        return message
    _check_batch(message)
    return message


def read_told(data: bytes) -> Told:
    """Decodes a receiver's message. Raises Malformed or TooLarge."""
    try:
        told = _told_decoder.decode(_opened(data))
    except UNDECODABLE as error:
        raise Malformed(f"not an answer to an uplink ({error}); docs/uplink.md describes them") from None
    if max(len(told.receiver), len(told.run), len(told.nonce)) > NAME_CHARS_MAX or len(told.refused) > REASON_CHARS_MAX:
        raise TooLarge("an answer to an uplink whose names or reason are too long")
    if len(told.marks) > MARKS_COUNT_MAX:
        raise TooLarge(f"{len(told.marks)} marks in one answer, {MARKS_COUNT_MAX} at most")
    for mark in told.marks:
        _check_numbers(mark.shard, mark.incarnation, mark.epoch, mark.number)
    return told


def _check_batch(batch: Batch) -> None:
    _check_numbers(batch.shard, batch.incarnation, batch.epoch, batch.after, batch.upto)
    if len(batch.items) > ITEMS_COUNT_MAX:
        raise TooLarge(f"{len(batch.items)} items in one batch, {ITEMS_COUNT_MAX} at most")
    if len(batch.digest) > DIGEST_BYTES:
        raise TooLarge(f"a digest of {len(batch.digest)} bytes, {DIGEST_BYTES} at most")
    if batch.upto <= batch.after or (batch.lost and batch.items) or len(batch.lost) > REASON_CHARS_MAX:
        raise Malformed("a batch goes from one number to a higher one, and what is lost has no items")
    before = batch.after
    for number, _, body in batch.items:
        if not before < number <= batch.upto:
            raise Malformed("the items of a batch have rising numbers, after its first and up to its last")
        if len(body) > MESSAGE_BYTES_MAX:
            raise TooLarge(f"an event of {len(body)} bytes, {MESSAGE_BYTES_MAX} at most")
        before = number


def _check_numbers(shard: int, *numbers: int) -> None:
    if not 0 <= shard < SHARDS_MAX or not all(0 <= number < NUMBERS_END >> 1 for number in numbers):
        raise Malformed(f"an uplink message with impossible numbers; they are below 2**{40 + SLOT_BITS}")


def _opened(data: bytes) -> bytes:
    """Decompresses, up to a bound."""
    first, rest = data[:1], data[1:]
    if first == PACKED:
        opener = zlib.decompressobj()
        try:
            opened = opener.decompress(rest, OPENED_BYTES_MAX)
        except zlib.error as error:
            raise Malformed(f"an uplink message that does not decompress: {error}") from None
        if opener.unconsumed_tail:
            raise TooLarge(f"an uplink message that decompresses to more than {OPENED_BYTES_MAX} bytes")
        if not opener.eof or opener.unused_data:
            raise Malformed("an uplink message that is cut off, or has extra bytes")
        return opened
    if first != PLAIN:
        raise Malformed("an uplink message of another format; update this node")
    if len(rest) > OPENED_BYTES_MAX:
        raise TooLarge(f"an uplink message of {len(rest)} bytes, {OPENED_BYTES_MAX} at most")
    return rest


class UplinkStatus(Struct, frozen=True):
    """The status of an uplink."""

    to: str = ""
    """The collecting node; empty before it has answered."""
    commits_behind: int = 0
    """Commits that it has not confirmed."""
    seconds_behind: float = 0.0
    """The age of the last confirmed commit, compared with the newest; 0 while unknown."""
    under_way: int = 0
    """Batches sent and not confirmed."""
    lost_commits: int = 0
    """Dropped before they were sent."""
    trouble: str = ""
