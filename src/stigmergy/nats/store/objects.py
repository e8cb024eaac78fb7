"""The Objects port on a stream: pieces first, then the message that makes them a version.

A version is the message's sequence, which a mirror keeps. Pieces without such a message are left from an interrupted
put. A later put deletes them when they are old; it looks for them once an hour.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hashlib
import secrets
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct, field

from stigmergy.base.errors import StoreConflict, StoreCorrupt, StoreError, StoreForeign, StoreUnavailable
from stigmergy.nats.errors import NO_MESSAGE, JetStreamRefused
from stigmergy.nats.store.buckets import OBJECTS, BucketPlace
from stigmergy.nats.store.connection import StoreConnection, asking
from stigmergy.store.port import (
    OBJECT_BYTES_MAX,
    OBJECTS_COUNT_MAX,
    VERSIONS_COUNT_MAX,
    ObjectVersion,
    check_object,
    check_object_name,
)

# The message that completes an object: as NATS's own object store writes it, with our digest.

DIGEST = "stigmergy-blake3"
MADE = "stigmergy-made-ns"
SHA_PREFIX = "SHA-256="


class ObjectMeta(Struct, omit_defaults=True):
    """As in NATS. Fields that we do not need are left out, and ignored when present."""

    name: str
    bucket: str
    nuid: str
    """Its pieces have this token in their subject."""
    size: int = 0
    chunks: int = 0
    digest: str = ""
    description: str = ""
    mtime: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    options: dict[str, Any] = field(default_factory=dict)


class ObjectDigests(Struct, frozen=True):
    """Of an object's bytes: ours, and the one that NATS's tools check."""

    blake3_hex: str
    sha256: str


_decoder = msgspec.json.Decoder(ObjectMeta)
encode_meta = msgspec.json.Encoder().encode


def digests_of(data: bytes) -> ObjectDigests:
    sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    return ObjectDigests(blake3(data).hexdigest(), SHA_PREFIX + sha)


def decode_meta(bucket: str, data: bytes) -> ObjectMeta:
    """Raises StoreForeign if it is not in NATS's format."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise StoreForeign(f"{bucket}: the description of an object does not decode: {error}") from None


def version_of(meta: ObjectMeta, sequence: int) -> ObjectVersion:
    """As the port describes it. Raises StoreForeign for an object of another program."""
    digest = meta.metadata.get(DIGEST, "")
    if not digest:
        raise StoreForeign(
            f"{meta.bucket}: {meta.name} was put by another program, without our digest; keep it elsewhere"
        )
    made = meta.metadata.get(MADE, "0")
    return ObjectVersion(meta.name, sequence, meta.size, digest, meta.description, int(made) if made.isdecimal() else 0)


def name_token(name: str) -> str:
    """The token of an object's name."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def name_of(token: str) -> str:
    """The name of a token."""
    return base64.urlsafe_b64decode(token.encode()).decode()


PIECE_BYTES_MAX = 256 * 1024
HEADERS_BYTES = 4 * 1024
"""Room for subject and headers, within the server's limit."""
UNDER_WAY_MAX = 8
"""Pieces sent and not yet acknowledged."""
READ_COUNT = 16
"""Pieces requested at once."""
READ_TRIES_MAX = 20
READ_PAUSE_S = 0.1
"""A replica may not have the newest pieces yet."""
NUID_BYTES = 12
LEFT_OVER_S = 3600.0
"""Pieces of an interrupted put are removed when they are this old."""


class NatsObjects:
    """One bucket of objects."""

    def __init__(self, line: StoreConnection, place: BucketPlace) -> None:
        self._line = line
        self._place = place
        self._swept_s: float | None = None

    @property
    def bucket(self) -> str:
        return self._place.bucket

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        check_object(name, len(data), label, versions_kept)
        self._check_writable()
        digests = await asyncio.to_thread(digests_of, data)
        nuid = secrets.token_hex(NUID_BYTES)
        try:
            pieces = await self._put_pieces(name, nuid, data)
            made_ns = self._line.clock.wall_ns()
            meta = ObjectMeta(
                name=name,
                bucket=self.bucket,
                nuid=nuid,
                size=len(data),
                chunks=pieces,
                digest=digests.sha256,
                description=label,
                mtime=_time_text(made_ns),
                metadata={DIGEST: digests.blake3_hex, MADE: str(made_ns)},
            )
            with asking(f"{self.bucket}: {name}", writes=True):
                subject = self._place.write_prefix + self._meta_subject(name)
                ack = await self._line.publish(subject, encode_meta(meta), {})
        except StoreUnavailable:
            await self._take_back(nuid)
            raise
        await self._keep_newest(name, versions_kept)
        await self._sweep_sometimes()
        return version_of(meta, ack.sequence)

    async def versions(self, name: str) -> list[ObjectVersion]:
        return [version_of(meta, sequence) for sequence, meta in await self._metas(name)]

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        found = await self._find(name, version)
        if found is None:
            return None
        sequence, meta = found
        if not 0 <= meta.size <= OBJECT_BYTES_MAX or meta.chunks > meta.size:
            raise StoreForeign(f"{self.bucket}: {name} says that it has {meta.size} bytes in {meta.chunks} pieces")
        about = version_of(meta, sequence)
        data = await self._read_pieces(about, meta)
        if len(data) != meta.size or (await asyncio.to_thread(digests_of, data)).blake3_hex != about.digest:
            raise StoreCorrupt(
                f"{self.bucket}: {name}, version {sequence}: its {len(data)} bytes do not have the digest that they "
                "were put with; take another version"
            )
        return data

    async def names(self, prefix: str = "") -> list[str]:
        head = f"{OBJECTS}.{self.bucket}.M."
        tokens = [subject.removeprefix(head) for subject in await self._subjects(f"{head}>")]
        if len(tokens) > OBJECTS_COUNT_MAX:
            raise StoreForeign(
                f"{self.bucket}: {len(tokens)} objects, {OBJECTS_COUNT_MAX} at most; this is not our bucket"
            )
        try:
            names = sorted(name_of(token) for token in tokens)
        except ValueError:
            raise StoreForeign(
                f"{self.bucket}: the name of an object does not decode; this is not our bucket"
            ) from None
        return [name for name in names if name.startswith(prefix)]

    async def delete(self, name: str, version: int | None = None) -> None:
        self._check_writable()
        for sequence, meta in await self._metas(name):
            if version is None or sequence == version:
                await self._delete_one(name, sequence, meta)

    async def sweep(self, older_than_s: float = LEFT_OVER_S) -> int:
        """Deletes pieces that belong to no version, left by interrupted puts; returns the number of puts.

        A version has pieces under one nuid, or none if it is empty. So it reads all versions only if there are more
        nuids than versions.
        """
        self._check_writable()
        pieces = f"{OBJECTS}.{self.bucket}.C."
        nuids = {subject.removeprefix(pieces) for subject in await self._subjects(f"{pieces}>")}
        versions = await self._subjects(f"{OBJECTS}.{self.bucket}.M.>")
        if len(nuids) <= sum(versions.values()):
            return 0
        used = {meta.nuid for name in await self.names() for _, meta in await self._metas(name)}
        now_s = self._line.clock.wall_ns() / 1e9
        swept = 0
        for nuid in sorted(nuids - used):
            with asking(f"{self.bucket}: pieces", writes=True):
                if (made_s := await self._time_of(pieces + nuid)) is not None and now_s - made_s > older_than_s:
                    await self._purge(nuid)
                    swept += 1
        return swept

    # ------------------------------------------------------------------ writing

    async def _put_pieces(self, name: str, nuid: str, data: bytes) -> int:
        """Sends the pieces in batches; returns their number."""
        subject = f"{self._place.write_prefix}{OBJECTS}.{self.bucket}.C.{nuid}"
        size = min(PIECE_BYTES_MAX, self._line.link.max_payload_bytes - HEADERS_BYTES)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        last = 0
        for start in range(0, len(pieces), UNDER_WAY_MAX):
            self._line.check_open()
            sent = [self._line.publish(subject, piece, {}) for piece in pieces[start : start + UNDER_WAY_MAX]]
            answers = await asyncio.gather(*sent, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    # Whether a piece arrived does not matter: without the last message there is no object.
                    with asking(f"{self.bucket}: {name}", writes=False):
                        raise answer
                if answer.sequence <= last:
                    raise StoreUnavailable(f"{self.bucket}: {name}: pieces arrived out of order; put it again")
                last = answer.sequence
        return len(pieces)

    async def _keep_newest(self, name: str, count: int) -> None:
        """Removes older versions. Errors do not matter: the next put removes them too."""
        with contextlib.suppress(StoreError):
            metas = await self._metas(name)
            for sequence, meta in metas[:-count]:
                await self._delete_one(name, sequence, meta)

    async def _sweep_sometimes(self) -> None:
        """Sweeps at most once an hour. Errors do not matter to the put: the next hour tries again."""
        now_s = self._line.clock.wall_ns() / 1e9
        if self._swept_s is None or not 0 <= now_s - self._swept_s < LEFT_OVER_S:
            self._swept_s = now_s
            with contextlib.suppress(StoreError):
                await self.sweep()

    async def _delete_one(self, name: str, sequence: int, meta: ObjectMeta) -> None:
        """The message first: no reader must find a version whose pieces are gone."""
        with asking(f"{self.bucket}: {name}", writes=True):
            try:
                await self._line.link.api(
                    f"STREAM.MSG.DELETE.{self._place.stream}", {"seq": sequence, "no_erase": True}
                )
            except JetStreamRefused as refused:
                if not _is_missing(refused):
                    raise
            await self._purge(meta.nuid)

    async def _purge(self, nuid: str) -> None:
        await self._line.link.api(f"STREAM.PURGE.{self._place.stream}", {"filter": f"{OBJECTS}.{self.bucket}.C.{nuid}"})

    async def _take_back(self, nuid: str) -> None:
        with contextlib.suppress(StoreError), asking(self.bucket, writes=True):
            await self._purge(nuid)

    # ------------------------------------------------------------------ reading

    async def _find(self, name: str, version: int | None) -> tuple[int, ObjectMeta] | None:
        found = await self._metas(name)
        wanted = [pair for pair in found if version is None or pair[0] == version]
        return wanted[-1] if wanted else None

    async def _metas(self, name: str) -> list[tuple[int, ObjectMeta]]:
        """The messages of all versions, oldest first, from the stream's leader."""
        subject = self._meta_subject(check_object_name(name))
        found: list[tuple[int, ObjectMeta]] = []
        after = 0
        while len(found) <= VERSIONS_COUNT_MAX:
            self._line.check_open()
            with asking(f"{self.bucket}: {name}", writes=False):
                try:
                    answer = await self._line.link.api(
                        f"STREAM.MSG.GET.{self._place.stream}", {"seq": after + 1, "next_by_subj": subject}
                    )
                except JetStreamRefused as refused:
                    if refused.code == NO_MESSAGE:
                        return found
                    raise
            message = answer["message"]
            after = int(message["seq"])
            meta = decode_meta(self.bucket, base64.b64decode(message.get("data") or ""))
            if not meta.deleted:
                found.append((after, meta))
        raise StoreForeign(f"{self.bucket}: {name} has more than {VERSIONS_COUNT_MAX} versions; this is not our bucket")

    async def _read_pieces(self, about: ObjectVersion, meta: ObjectMeta) -> bytes:
        """All pieces in order, from any replica or mirror; retries one that is behind."""
        pieces: list[bytes] = []
        for _ in range(READ_TRIES_MAX):
            pieces = await self._read_once(about, meta)
            if len(pieces) == meta.chunks:
                return b"".join(pieces)
            if await self._find(about.name, about.version) is None:
                raise StoreConflict(f"{self.bucket}: {about.name} was deleted while it was read; list the names again")
            await asyncio.sleep(READ_PAUSE_S)
        raise StoreCorrupt(
            f"{self.bucket}: {about.name}, version {about.version}: {len(pieces)} of {meta.chunks} pieces are there; "
            "take another version"
        )

    async def _read_once(self, about: ObjectVersion, meta: ObjectMeta) -> list[bytes]:
        subject = f"{OBJECTS}.{self.bucket}.C.{meta.nuid}"
        pieces: list[bytes] = []
        after, size_bytes = 0, 0
        while len(pieces) < meta.chunks and size_bytes <= meta.size:
            self._line.check_open()
            with asking(f"{self.bucket}: {about.name}", writes=False):
                found = await self._line.collect_direct(
                    self._place.stream, {"seq": after + 1, "next_by_subj": subject, "batch": READ_COUNT}, READ_COUNT
                )
            for message in found:
                pieces.append(message.data)
                size_bytes += len(message.data)
                after = int((message.headers or {})["Nats-Sequence"])
            if not found:
                break
        return pieces

    async def _subjects(self, wanted: str) -> dict[str, int]:
        """The subjects that there are messages of, and how many of each."""
        found: dict[str, int] = {}
        while True:
            self._line.check_open()
            with asking(self.bucket, writes=False):
                info = await self._line.link.api(
                    f"STREAM.INFO.{self._place.stream}", {"subjects_filter": wanted, "offset": len(found)}
                )
            page = (info.get("state") or {}).get("subjects") or {}
            found.update(page)
            if not page or len(found) >= int(info.get("total") or 0):
                return found

    async def _time_of(self, subject: str) -> float | None:
        """When the last message of a subject was stored."""
        try:
            answer = await self._line.link.api(f"STREAM.MSG.GET.{self._place.stream}", {"last_by_subj": subject})
        except JetStreamRefused as refused:
            if refused.code == NO_MESSAGE:
                return None
            raise
        return datetime.datetime.fromisoformat(str(answer["message"]["time"])).timestamp()

    def _meta_subject(self, name: str) -> str:
        return f"{OBJECTS}.{self.bucket}.M.{name_token(name)}"

    def _check_writable(self) -> None:
        self._line.check_open()
        if self._place.is_mirror:
            raise StoreForeign(f"{self.bucket} is a mirror here and read-only; put and delete objects at its origin")


def _is_missing(refused: JetStreamRefused) -> bool:
    """Whether it was deleted already."""
    return refused.code in (NO_MESSAGE, 10043, 10057) or "not found" in refused.description


def _time_text(wall_ns: int) -> str:
    return datetime.datetime.fromtimestamp(wall_ns / 1e9, datetime.UTC).isoformat().replace("+00:00", "Z")
