"""The checkpoint of a ledger on NATS: pieces under a random name, and a head that names the current ones.

The head is replaced by compare-and-set: of two concurrent stores the later position stays, whichever is quicker. The
pieces of the previous one are removed afterwards. A reader that misses pieces has read an old head, and reads again.
"""

from __future__ import annotations

import asyncio
import base64
import os

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.base.errors import LedgerCorrupt, LedgerUnavailable, LedgerUnknown
from stigmergy.claims.port import LedgerCheckpoint
from stigmergy.nats.errors import NO_MESSAGE, STREAM_NOT_FOUND, JetStreamRefused
from stigmergy.nats.ledger.streams import NOT_THERE, LedgerAddress, refused
from stigmergy.nats.link import NatsLink

CHUNK_BYTES = 512 * 1024
OVERHEAD_BYTES = 1_024
"""The overhead of a message beside its piece."""
FORMAT = 1
NAME_BYTES = 8
TRIES_MAX = 5
PAUSE_S = 0.05
CALL_S = 3.0
_CONTEXT = "stigmergy 2026 checkpoint of a ledger on nats"


class CheckpointHead(Struct, array_like=True, frozen=True):
    """Which checkpoint is the newest."""

    format: int
    position: int
    pieces: str
    """The common name of its pieces."""
    pieces_count: int
    digest: bytes
    """Over position and body."""


_head_decoder = msgspec.msgpack.Decoder(CheckpointHead)


async def read_head(place: LedgerAddress, link: NatsLink) -> tuple[CheckpointHead | None, int]:
    """The newest head and the sequence of its message; None and 0 if there is none. Raises LedgerError."""
    try:
        found = await link.api(f"STREAM.MSG.GET.{place.checkpoints}", {"last_by_subj": place.head_subject}, CALL_S)
    except JetStreamRefused as error:
        if error.code in (NO_MESSAGE, STREAM_NOT_FOUND):
            return None, 0
        raise refused(place, error) from None
    except NOT_THERE as error:
        raise LedgerUnavailable(f"{place.shown}: cannot be reached ({error}); try again") from None
    message = found["message"]
    try:
        head = _head_decoder.decode(base64.b64decode(message.get("data", "")))
    except UNDECODABLE:
        raise _damaged(place) from None
    if head.format != FORMAT:
        raise LedgerCorrupt(f"{place.shown}: a checkpoint of format {head.format}, this version reads {FORMAT}; update")
    return head, int(message["seq"])


async def read_checkpoint(place: LedgerAddress, link: NatsLink, covers: int) -> LedgerCheckpoint | None:
    """The newest checkpoint. The log was cut up to `covers`: a checkpoint that ends before is an old answer."""
    for _ in range(TRIES_MAX):
        head, _ = await read_head(place, link)
        if head is None and not covers:
            return None
        if head is not None and head.position >= covers:
            pieces = [await _read_piece(place, link, head.pieces, number) for number in range(head.pieces_count)]
            if None not in pieces:
                body = b"".join(piece for piece in pieces if piece is not None)
                if _digest(head.position, body) != head.digest:
                    raise _damaged(place)
                return LedgerCheckpoint(head.position, body)
        await asyncio.sleep(PAUSE_S)
    raise LedgerUnavailable(f"{place.shown}: its checkpoint cannot be read right now; try again")


async def store_checkpoint(place: LedgerAddress, link: NatsLink, checkpoint: LedgerCheckpoint) -> None:
    """Stores a checkpoint, unless there is one as new. Raises LedgerError."""
    head, sequence = await read_head(place, link)
    if head is not None and head.position >= checkpoint.position:
        return
    name, body = os.urandom(NAME_BYTES).hex(), checkpoint.body
    size = min(CHUNK_BYTES, link.max_payload_bytes - OVERHEAD_BYTES)
    starts = range(0, len(body), size) if body else range(1)
    try:
        for number, start in enumerate(starts):
            await _publish(place, link, place.chunk_subject(name, number), body[start : start + size])
        digest = _digest(checkpoint.position, body)
        data = encode(CheckpointHead(FORMAT, checkpoint.position, name, len(starts), digest))
        for _ in range(TRIES_MAX):
            expected = {"Nats-Expected-Last-Subject-Sequence": str(sequence)}
            try:
                await link.publish(place.head_subject, data, expected, within_s=CALL_S)
            except JetStreamRefused as error:
                if not error.is_fence:
                    raise refused(place, error) from None
                head, sequence = await read_head(place, link)
                if head is None or (head.position < checkpoint.position and head.pieces != name):
                    continue
                name = name if head.pieces != name else ""  # another store was quicker, or ours had arrived
                return
            await _drop(place, link, head)
            name = ""
            return
    except NOT_THERE as error:
        raise LedgerUnknown(f"{place.shown}: nobody confirmed the checkpoint ({error}); store it again") from None
    finally:
        if name:
            await _drop(place, link, CheckpointHead(FORMAT, 0, name, 0, b""))
    raise LedgerUnavailable(f"{place.shown}: others keep storing checkpoints; try again")


async def _publish(place: LedgerAddress, link: NatsLink, subject: str, data: bytes) -> None:
    try:
        await link.publish(subject, data, within_s=CALL_S)
    except JetStreamRefused as error:
        raise refused(place, error) from None


async def _read_piece(place: LedgerAddress, link: NatsLink, name: str, number: int) -> bytes | None:
    subject = place.chunk_subject(name, number)
    try:
        found = await link.api(f"STREAM.MSG.GET.{place.checkpoints}", {"last_by_subj": subject}, CALL_S)
    except JetStreamRefused:
        return None
    except NOT_THERE as error:
        raise LedgerUnavailable(f"{place.shown}: cannot be reached ({error}); try again") from None
    return base64.b64decode(found["message"].get("data", ""))


async def _drop(place: LedgerAddress, link: NatsLink, head: CheckpointHead | None) -> None:
    """Deletes the pieces of a checkpoint. If that fails they only use space until somebody purges the stream."""
    if head is None:
        return
    try:
        await link.api(f"STREAM.PURGE.{place.checkpoints}", {"filter": place.chunk_subject(head.pieces, "*")}, CALL_S)
    except (*NOT_THERE, JetStreamRefused):
        return


def _digest(position: int, body: bytes) -> bytes:
    return blake3(position.to_bytes(8, "big") + body, derive_key_context=_CONTEXT).digest()


def _damaged(place: LedgerAddress) -> LedgerCorrupt:
    return LedgerCorrupt(f"{place.shown}: its checkpoint is not what was written; restore it from a copy")
