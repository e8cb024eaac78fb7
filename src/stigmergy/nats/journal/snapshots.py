"""The snapshots of a fleet's shards, in their own stream: parts cut into chunks, each with the digest of its part.

A subject names shard, position, the owner's epoch when the snapshot was taken, part and chunk. Owners of different
epochs never write to the same subject: a replaced owner that does not know it cannot overwrite the snapshots of its
successor. The highest epoch counts. A chunk that is stored twice is there once, so any write may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.base.errors import JournalCorrupt, JournalError, JournalFull, JournalUnknown, LinkDown, StigmergyError
from stigmergy.journal.port import SnapshotPart
from stigmergy.nats import naming
from stigmergy.nats.errors import STREAM_NOT_FOUND, JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import ensure_stream

PUT_WITHIN_S = 15.0
READ_WITHIN_S = 15.0
TRY_S = 3.0
PAUSE_S = 0.05
CHUNK_ROOM_BYTES = 1024
"""Room for headers and the frame of a chunk, within the server's limit."""
CHUNKS_MAX = 1_024
"""In one part."""
LISTED_MAX = 100_000
"""Subjects that a server lists at once."""


class SnapshotChunk(Struct, array_like=True, frozen=True):
    """A piece of a part of a snapshot."""

    chunks: int
    """The number of chunks of the part."""
    digest: bytes
    """BLAKE3 of the whole part."""
    body: bytes


class StoredSnapshot(Struct, frozen=True):
    """A stored snapshot: the epoch it was taken in, and how many parts it has."""

    epoch: int
    parts: int


Catalogue = dict[int, dict[int, StoredSnapshot]]
"""By shard and position."""

_encoder = msgspec.msgpack.Encoder()
_chunks = msgspec.msgpack.Decoder(SnapshotChunk)


class SnapshotStore:
    """The snapshots of one fleet, as one link sees them."""

    def __init__(self, link: NatsLink, name: str) -> None:
        self._link = link
        self._stream = naming.snapshots_bucket(name)
        self._subject = naming.snapshots_subject(name)
        api = f"$JS.{link.address.domain}.API." if link.address.domain else "$JS.API."
        self._direct = f"{api}DIRECT.GET.{self._stream}"

    async def ensure(self, replicas: int, within_s: float) -> None:
        """Makes the stream if there is none. Raises ConfigError if its settings differ."""
        settings: Mapping[str, Any] = {
            "subjects": [f"{self._subject}.>"],
            "storage": "file",
            "num_replicas": replicas,
            "discard": "new",
            "max_msgs_per_subject": 1,
            "max_age": 0,
            "allow_direct": True,
        }
        await ensure_stream(self._link, self._stream, settings, within_s)

    async def catalogue(self, shards: range) -> Catalogue:
        """The stored snapshots of these shards."""
        found: Catalogue = {}
        for subject in await self._subjects(f"{shards[0]}.>" if len(shards) == 1 else ">"):
            shard, position, epoch, part = (int(token) for token in subject.split(".")[:4])
            if shard not in shards:
                continue
            kept = found.setdefault(shard, {})
            best = kept.get(position)
            if best is None or epoch > best.epoch:
                kept[position] = StoredSnapshot(epoch, part + 1)
            elif epoch == best.epoch:
                kept[position] = StoredSnapshot(epoch, max(best.parts, part + 1))
        return found

    async def put(self, shard: int, position: int, epoch: int, part: SnapshotPart) -> None:
        """Stores a part. Raises JournalFull, or JournalUnknown if nobody answers."""
        room_bytes = self._link.max_payload_bytes - CHUNK_ROOM_BYTES
        pieces = [part.body[at : at + room_bytes] for at in range(0, len(part.body), room_bytes)] or [b""]
        if len(pieces) > CHUNKS_MAX:
            raise JournalError(
                f"a part of a snapshot has {len(part.body)} bytes, too much for a server that accepts "
                f"{self._link.max_payload_bytes} at a time; raise its max_payload"
            )
        digest = blake3(part.body).digest()
        for number, piece in enumerate(pieces):
            subject = f"{self._subject}.{shard}.{position}.{epoch}.{part.part}.{number}"
            await self._publish(subject, _encoder.encode((len(pieces), digest, piece)))

    async def read(self, shard: int, position: int, epoch: int, part: int) -> SnapshotPart:
        """Reads a part. Raises JournalCorrupt if its bytes changed, LinkDown if nobody answers."""
        asked = {
            "seq": 1,
            "batch": CHUNKS_MAX,
            "next_by_subj": f"{self._subject}.{shard}.{position}.{epoch}.{part}.*",
        }
        until_s = asyncio.get_running_loop().time() + READ_WITHIN_S
        why = "it is not there"
        while True:
            try:
                messages = await self._link.collect(
                    self._direct, msgspec.json.encode(asked), CHUNKS_MAX, within_s=READ_WITHIN_S
                )
                by_number = {
                    int((message.headers or {})["Nats-Subject"].rpartition(".")[2]): message.data
                    for message in messages
                }
                chunks = [_chunks.decode(by_number[number]) for number in sorted(by_number)]
                body = b"".join(chunk.body for chunk in chunks)
                if chunks and len(chunks) == chunks[0].chunks and blake3(body).digest() == chunks[0].digest:
                    return SnapshotPart(part, body)
                # A replica may be behind.
                why = "its bytes are not those that were stored" if chunks else why
            except LinkDown as error:
                if asyncio.get_running_loop().time() > until_s:
                    raise
                why = str(error)
            except msgspec.DecodeError as error:
                why = str(error)
            if asyncio.get_running_loop().time() > until_s:
                raise JournalCorrupt(f"shard {shard}: part {part} of the snapshot at {position}: {why}")
            await asyncio.sleep(PAUSE_S)

    async def drop(self, shard: int, position: int, epoch_max: int) -> None:
        """Deletes a snapshot taken in this epoch or an earlier one."""
        epochs = {int(subject.split(".")[2]): None for subject in await self._subjects(f"{shard}.{position}.>")}
        for epoch in epochs:
            if epoch <= epoch_max:
                await self._call("STREAM.PURGE", {"filter": f"{self._subject}.{shard}.{position}.{epoch}.>"})

    async def _subjects(self, pattern: str) -> list[str]:
        """The matching subjects, without their common prefix."""
        found: list[str] = []
        while True:
            asked = {"subjects_filter": f"{self._subject}.{pattern}", "offset": len(found)}
            state = (await self._call("STREAM.INFO", asked)).get("state", {})
            listed = state.get("subjects") or {}
            found += [subject.removeprefix(f"{self._subject}.") for subject in listed]
            if len(listed) < LISTED_MAX:
                return found

    async def _call(self, call: str, asked: dict[str, Any]) -> dict[str, Any]:
        until_s = asyncio.get_running_loop().time() + READ_WITHIN_S
        while True:
            try:
                return await self._link.api(f"{call}.{self._stream}", asked, within_s=TRY_S)
            except JetStreamRefused as refused:
                if refused.code == STREAM_NOT_FOUND:
                    return {}
                if not refused.is_passing or asyncio.get_running_loop().time() > until_s:
                    raise JournalError(f"{self._stream} at {self._link.address.shown}: {refused}") from None
            except LinkDown:
                if asyncio.get_running_loop().time() > until_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _publish(self, subject: str, payload: bytes) -> None:
        until_s = asyncio.get_running_loop().time() + PUT_WITHIN_S
        why: StigmergyError | JetStreamRefused
        while True:
            try:
                await self._link.publish(subject, payload, within_s=TRY_S)
                return
            except JetStreamRefused as refused:
                if refused.is_full:
                    raise JournalFull(
                        f"{self._stream}: no room at {self._link.address.shown} ({refused.description})"
                    ) from None
                why = refused
            except LinkDown as error:
                why = error
            if asyncio.get_running_loop().time() > until_s:
                raise JournalUnknown(f"{self._stream}: a snapshot cannot be stored ({why})")
            await asyncio.sleep(PAUSE_S)


def check_parts(parts: Sequence[SnapshotPart], stored: StoredSnapshot | None, epoch: int) -> bool:
    """Whether these parts continue their stored snapshot, or replace it."""
    kept = stored.parts if stored is not None and stored.epoch == epoch and parts[0].part != 0 else 0
    return [part.part for part in parts] == list(range(kept, kept + len(parts)))
