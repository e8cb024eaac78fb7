"""Blobs: payloads of any size in a store, each under the digest of its bytes. A message refers to one by a `Blob`.

    blob = await blobs.put(Path("photo.jpg"), media_type="image/jpeg")
    await blobs.fetch_to(blob, Path("copy.jpg"))

A blob is kept in *pieces* of at most 1 MiB, each an object named by its own digest, and a *manifest*, which names them
and is written last: a blob is there with all its bytes, or not at all. What was interrupted goes on where it was:
pieces that are there are not sent again, and pieces that were fetched are kept. Memory holds one piece of a transfer.
Put a blob before you send what refers to it. docs/blobs.md is the manual, docs/formats.md has the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS, Blob
from stigmergy.base.clock import Clock, Entropy, Threads
from stigmergy.base.errors import (
    BlobMissing,
    ConfigError,
    NotRunning,
    Overloaded,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    StoreUnknown,
    TooLarge,
)
from stigmergy.base.system import SystemEntropy
from stigmergy.store.port import LABEL_CHARS_MAX, Objects, ObjectVersion
from stigmergy.store.sealed import SEED_BYTES, Opener, Sealer, sealed_media_type

FORMAT = 1
MANIFESTS, PIECES = "blob/", "piece/"
"""What the names of objects begin with."""
PIECE_BYTES = 1024 * 1024
"""Each piece but the last has so many."""
BLOB_BYTES_MAX = 16 * 1024 * 1024 * 1024
FETCH_BYTES_MAX = 64 * 1024 * 1024
"""Of a blob that is fetched into memory; a larger one is streamed, or fetched into a file."""
STORE_BYTES_MAX = 48 * 1024 * 1024 * 1024
"""The highest quota: a bucket lists at most 65,536 objects."""
BLOBS_COUNT_MAX = 10_000
"""Blobs of a store, by the same reason; with more, `put` raises StoreFull."""
TRANSFERS_MAX = 8
"""Transfers of one node at the same time; more wait."""
WAITING_MAX = 256
"""Transfers that wait; one more is refused with Overloaded."""
PAUSE_S, PAUSE_S_MAX = 0.2, 3.0
"""Before a store that could not be reached is tried again; the pause doubles."""
USAGE_S = 60
"""The room that others use is looked up after so long again."""
PART = ".part"
"""A file that is being fetched is called so, with the beginning of its digest before it."""
_YEAR_S = 366 * 86_400
_HEX_CHARS = 64
T = TypeVar("T")


class BlobSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of a node's blobs."""

    bytes_max: int = 8 * 1024 * 1024 * 1024
    """The quota of the store. A put that would pass it raises StoreFull. Give the same to all nodes of a store."""
    grace_s: float = 86_400.0
    """What was put, or was referred to, within this time is not collected as garbage."""
    patience_s: float = 30.0
    """So long a transfer tries again to reach a store, piece by piece."""
    references_every_s: float = 600.0
    """How often a node tells the store which blobs its log refers to."""
    collect: bool = False
    """Whether this node collects garbage in the store, as often. In the folder beside its journal it always does."""

    def __post_init__(self) -> None:
        if not PIECE_BYTES <= self.bytes_max <= STORE_BYTES_MAX:
            raise ConfigError(
                f"settings: blobs.bytes_max = {self.bytes_max!r}; give {PIECE_BYTES} to {STORE_BYTES_MAX} bytes"
            )
        for name in ("grace_s", "patience_s", "references_every_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= _YEAR_S:
                raise ConfigError(f"settings: blobs.{name} = {value!r}; give more than 0 seconds, a year at most")


class BlobManifest(Struct, frozen=True, array_like=True):
    """What a blob consists of."""

    format: int
    digest: bytes
    """BLAKE3 of all bytes."""
    size_bytes: int
    piece_bytes: int
    pieces: list[bytes]
    """The digests of the pieces, in order."""


class KeptBlob(Struct, frozen=True):
    """A blob of a store, for people."""

    blob: Blob
    version: int
    made_ns: int


class Elsewhere(Protocol):
    """Who may have what this store lacks: other nodes."""

    async def get(self, name: str) -> bytes | None:
        """The bytes of an object of another node's store; None if nobody has it. Raises StoreUnavailable, TooLarge."""
        ...

    def away(self) -> Sequence[str]:
        """The nodes that are known and not there: they may have it."""
        ...


Source = bytes | bytearray | memoryview | Path | AsyncIterable[bytes]
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(BlobManifest)


def manifest_name(digest: bytes, size_bytes: int) -> str:
    """The name of a manifest's object. The size is in it, so that a list of names says how much there is."""
    return f"{MANIFESTS}{digest.hex()}/{size_bytes}"


def piece_name(digest: bytes) -> str:
    return f"{PIECES}{digest.hex()}"


def read_manifest_name(name: str) -> tuple[bytes, int]:
    """The digest and the size. Raises StoreCorrupt for a name that is not of this kind."""
    _, _, rest = name.partition("/")
    text, _, size = rest.partition("/")
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(text) != _HEX_CHARS or not digest or not size.isdecimal():
        raise StoreCorrupt(f"{name[:100]!r} is no name of a blob; this is not our bucket")
    return digest, int(size)


def read_manifest(blob: Blob, data: bytes) -> BlobManifest:
    """Decodes a manifest. Raises StoreCorrupt if it is not that of this blob."""
    try:
        found = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"blob {blob.hex}: its manifest does not decode ({error}); {PUT_AGAIN}") from None
    if found.format > FORMAT:
        raise StoreCorrupt(f"blob {blob.hex}: kept in format {found.format} of a later version; update this one")
    fits = found.digest == blob.digest and found.size_bytes == blob.size_bytes and found.piece_bytes == PIECE_BYTES
    if not fits or len(found.pieces) != -(-found.size_bytes // PIECE_BYTES):
        raise StoreCorrupt(f"blob {blob.hex}: its manifest describes another blob; {PUT_AGAIN}")
    return found


PUT_AGAIN = "who has it should put it again with again=True"


class Blobs:
    """The blobs of one store, as a node or a program uses them.

    Ordering: none; a blob never changes. Durability: when `put` has returned, the blob survives like any object there.
    Duplication: the same bytes are one blob, however often and by whomever they are put.
    Concurrency: any number of nodes on one store; TRANSFERS_MAX at once here, and WAITING_MAX that wait.
    Errors: BlobMissing, StoreFull, StoreUnavailable (not within the patience), StoreCorrupt (not the bytes that were
        put), TooLarge, Overloaded, ConfigError (a file that cannot be read or written).
    """

    def __init__(
        self,
        place: str,
        open_objects: Callable[[], Awaitable[Objects]],
        find_objects: Callable[[], Awaitable[Objects | None]],
        clock: Clock,
        threads: Threads,
        settings: BlobSettings | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        """`place` is the store's name for people. It is opened when somebody needs it; to find makes nothing there.
        `entropy` is for keys of what is sealed."""
        self._entropy = entropy or SystemEntropy()
        self.place = place
        self.elsewhere: Elsewhere | None = None
        """Asked for what the store lacks; what it has is kept here."""
        self.settings = settings or BlobSettings()
        self.clock = clock
        self.find_objects = find_objects
        """The bucket underneath, for garbage collection; None if there are no blobs yet."""
        self._open_objects = open_objects
        self._threads = threads
        self._transfer = _Transfers(place)
        self._listed_bytes = 0
        self._listed_count = 0
        self._listed_ns: int | None = None
        self._under_way_bytes = 0
        """Of uploads that are in no list yet."""

    async def put(
        self,
        source: Source,
        *,
        media_type: str = "application/octet-stream",
        again: bool = False,
        reader: bytes | str | None = None,
    ) -> Blob:
        """Stores bytes, a file (a Path) or the chunks of an async iterator, and returns the reference to them.

        Idempotent: pieces that are there are not sent again, unless `again` says to replace them. With the public key
        of a `reader` the bytes are sealed for that one before they leave; each put is then another blob.
        """
        _check_media_type(media_type)
        sealer = None if reader is None else Sealer(reader, self._entropy.token(SEED_BYTES))
        async with self._transfer:
            begun_ns, sent_bytes = self.clock.monotonic_ns(), 0
            digest, size_bytes, pieces = blake3(), 0, list[bytes]()
            pieces_of = _reader_of(source, self._threads)
            if sealer is not None:
                pieces_of, media_type = _SealedReader(pieces_of, sealer), sealed_media_type(media_type)
            try:
                while piece := await pieces_of.next():
                    size_bytes += len(piece)
                    if size_bytes > BLOB_BYTES_MAX:
                        raise TooLarge(f"a blob of more than {BLOB_BYTES_MAX} bytes; put it as several")
                    name = blake3(piece).digest()
                    sent_bytes += await self._put_once(piece_name(name), piece, "", again)
                    digest.update(piece)
                    pieces.append(name)
                if self.clock.monotonic_ns() - begun_ns > self._fresh_ns:
                    raise StoreUnavailable(
                        f"{self.place}: the upload took longer than half of blobs.grace_s; put it again: what is there "
                        "is not sent again"
                    )
                blob = Blob(digest.digest(), size_bytes, media_type)
                manifest = BlobManifest(FORMAT, blob.digest, size_bytes, PIECE_BYTES, pieces)
                await self._put_once(manifest_name(blob.digest, size_bytes), _encode(manifest), media_type, again)
                self._listed_bytes += sent_bytes
                self._listed_count += 1
                return blob
            finally:
                self._under_way_bytes -= sent_bytes
                await pieces_of.close()

    async def fetch(self, blob: Blob) -> bytes:
        """The bytes of a blob of at most FETCH_BYTES_MAX, verified."""
        if _checked(blob).size_bytes > FETCH_BYTES_MAX:
            raise TooLarge(
                f"blob {blob.hex}: {blob.size_bytes} bytes, {FETCH_BYTES_MAX} at most into memory; use fetch_to(blob, "
                "path), or `async for chunk in stream(blob)`"
            )
        async with self._transfer:
            return b"".join([chunk async for chunk in self.stream(blob)])

    async def open(self, blob: Blob, seed: bytes) -> bytes:
        """The content of a sealed blob of at most FETCH_BYTES_MAX, by the seed of its reader's private key.

        Raises ConfigError if it was sealed for another reader, StoreCorrupt if it is not sealed, or was changed.
        """
        opener = Opener(seed, f"blob {_checked(blob).hex}")
        return b"".join([*opener.open(await self.fetch(blob)), opener.end()])

    def stream(self, blob: Blob) -> BlobStream:
        """The bytes in chunks: `async for chunk in blobs.stream(blob)`. Each chunk is verified against the manifest,
        and all of them against the digest: rely on them when the iteration has ended without an error."""
        return BlobStream(self, _checked(blob))

    async def fetch_to(self, blob: Blob, path: Path) -> Path:
        """Fetches a blob into a file, which appears when it is complete and verified, and replaces what was there.

        An interrupted fetch leaves `NAME.DIGEST.part` beside it; the next one goes on with it.
        """
        path = Path(path)
        part = path.with_name(f"{path.name}.{_checked(blob).hex[:16]}{PART}")
        async with self._transfer:
            manifest = await self.find_manifest(blob)
            file = await self._on_disk(path, lambda: part.open("r+b" if part.exists() else "w+b"))
            try:
                digest, kept = await self._on_disk(path, lambda: _kept_pieces(file, manifest))
                for name in manifest.pieces[kept:]:
                    piece = await self.get_piece(blob, name)
                    digest.update(piece)
                    await self._on_disk(path, lambda piece=piece: file.write(piece))  # type: ignore[misc]
                if digest.digest() != blob.digest:
                    part.unlink(missing_ok=True)
                    raise StoreCorrupt(f"blob {blob.hex}: the bytes in {self.place} are others; {PUT_AGAIN}")
                await self._on_disk(path, lambda: _finish_file(file, part, path))
            finally:
                file.close()
        return path

    async def locate(self, digest: str) -> Blob:
        """The blob with this digest in hexadecimal, of this store or of another node's. Raises BlobMissing if nobody
        has it, StoreUnavailable if a node that may have it is away or does not answer."""
        for kept in (await self.kept(digest))[-1:]:
            return kept.blob
        told = None if self.elsewhere is None else await self.elsewhere.get(f"{MANIFESTS}{digest}/")
        if told is not None:
            size_bytes, _, media_type = told.decode("utf-8", "replace").partition(" ")
            if size_bytes.isascii() and size_bytes.isdigit() and int(size_bytes) <= BLOB_BYTES_MAX:
                return Blob(bytes.fromhex(digest), int(size_bytes), media_type)
        away = [] if self.elsewhere is None else self.elsewhere.away()
        if away:
            raise StoreUnavailable(
                f"no blob {digest} in {self.place}, nor at the nodes that are here; {', '.join(away[:5])} may have it "
                "and is away: try again when it is back"
            )
        nobody = "" if self.elsewhere is None else ", and no node on the bus has it"
        raise BlobMissing(f"{self.place} has no blob {digest}{nobody}; put it, or ask elsewhere")

    async def has(self, blob: Blob) -> bool:
        """Whether this store has a blob; other nodes are not asked."""
        objects = await self._open_objects()
        return bool(await objects.versions(manifest_name(_checked(blob).digest, blob.size_bytes)))

    async def kept(self, beginning: str = "") -> list[KeptBlob]:
        """The blobs of this store whose digest begins so, by digest."""
        objects, found = await self._open_objects(), list[KeptBlob]()
        for name in await objects.names(MANIFESTS + beginning):
            digest, size_bytes = read_manifest_name(name)
            for about in (await objects.versions(name))[-1:]:
                found.append(KeptBlob(Blob(digest, size_bytes, about.label), about.version, about.made_ns))
        return found

    # ------------------------------------------------------------------ pieces

    async def find_manifest(self, blob: Blob) -> BlobManifest:
        """Raises BlobMissing if nobody has the blob."""
        name = manifest_name(blob.digest, blob.size_bytes)
        data = await self._find(name, blob.media_type, lambda data: read_manifest(blob, data))
        if data is None:
            raise BlobMissing(
                f"blob {blob.hex} of {blob.size_bytes} bytes is not in {self.place}"
                f"{'' if self.elsewhere is None else ', and no node on the bus has it'}: it was never put there, or "
                "was collected as garbage; put it, and try again"
            )
        return read_manifest(blob, data)

    async def get_piece(self, blob: Blob, digest: bytes) -> bytes:
        """One piece, verified."""

        def verify(data: bytes) -> None:
            if blake3(data).digest() != digest:
                raise StoreCorrupt(f"blob {blob.hex}: a piece in {self.place} has other bytes; {PUT_AGAIN}")

        data = await self._find(piece_name(digest), "", verify)
        if data is None:
            raise StoreCorrupt(f"blob {blob.hex}: the piece {digest.hex()} is not in {self.place}; {PUT_AGAIN}")
        return data

    async def _find(self, name: str, label: str, verify: Callable[[bytes], object]) -> bytes | None:
        """An object of this store, or of another node's, which is then kept here as well."""
        data = await self._patiently(lambda objects: objects.get(name))
        if data is None and self.elsewhere is not None:
            data = await self.elsewhere.get(name)
            if data is not None:
                verify(data)
                sent_bytes = await self._put_once(name, data, label, again=False)
                self._under_way_bytes -= sent_bytes
                self._listed_bytes += sent_bytes
        if data is not None:
            verify(data)
        return data

    async def _put_once(self, name: str, data: bytes, label: str, again: bool) -> int:
        """Stores an object, unless it is there and so young that no collection of garbage can be about to delete it.
        Returns how many bytes of a piece are new."""

        async def put(objects: Objects) -> bool:
            versions = await objects.versions(name)
            is_new = not versions and name.startswith(PIECES)
            if is_new:
                await self._check_room(objects, len(data))
            if again or not self._is_fresh(versions):
                await objects.put(name, data, label=label)
            return is_new

        new_bytes = len(data) if await self._patiently(put) else 0
        self._under_way_bytes += new_bytes
        return new_bytes

    def _is_fresh(self, versions: list[ObjectVersion]) -> bool:
        return bool(versions) and self.clock.wall_ns() - versions[-1].made_ns < self._fresh_ns

    @property
    def _fresh_ns(self) -> int:
        return int(self.settings.grace_s * SECOND_NS / 2)

    async def _patiently(self, call: Callable[[Objects], Awaitable[T]]) -> T:
        """Calls the store, again and again while it cannot be reached. What is put here may be put twice."""
        ends_ns = self.clock.monotonic_ns() + int(self.settings.patience_s * SECOND_NS)
        pause_s = PAUSE_S
        while True:
            try:
                return await call(await self._open_objects())
            except (StoreUnavailable, StoreUnknown):
                if self.clock.monotonic_ns() >= ends_ns:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    # ------------------------------------------------------------------ bounds

    async def _check_room(self, objects: Objects, new_bytes: int) -> None:
        """Whether so many more bytes fit. Others use the store too: what there is, is listed again when it seems full,
        and after USAGE_S. Pieces of uploads that were interrupted do not count."""
        now_ns, bytes_max, used_bytes = self.clock.monotonic_ns(), self.settings.bytes_max, 0
        for is_listed in (self._listed_ns is not None and now_ns - self._listed_ns < USAGE_S * SECOND_NS, False):
            if not is_listed:
                sizes = [read_manifest_name(name)[1] for name in await objects.names(MANIFESTS)]
                self._listed_bytes, self._listed_count, self._listed_ns = sum(sizes), len(sizes), now_ns
            used_bytes = self._listed_bytes + self._under_way_bytes
            if used_bytes + new_bytes <= bytes_max and self._listed_count < BLOBS_COUNT_MAX:
                return
        raise StoreFull(
            f"{self.place} has {self._listed_count} blobs, with what is under way {used_bytes} bytes; at most "
            f"{BLOBS_COUNT_MAX} and {bytes_max}: run `stigmergy blob gc`, or raise bytes_max under [settings.blobs]"
        )

    async def _on_disk(self, path: Path, call: Callable[[], T]) -> T:
        try:
            return await self._threads.run(call)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror}); make room, or name another") from None


class _Transfers:
    """The places for transfers, and those that wait for one."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._free = asyncio.Semaphore(TRANSFERS_MAX)
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{self._place}: {WAITING_MAX} transfers wait already; try again later")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


class BlobStream:
    """The chunks of a blob, verified on the way."""

    def __init__(self, blobs: Blobs, blob: Blob) -> None:
        self._blobs = blobs
        self._blob = blob
        self._left: list[bytes] | None = None
        self._digest = blake3()

    def __aiter__(self) -> BlobStream:
        return self

    async def __anext__(self) -> bytes:
        blob = self._blob
        if self._left is None:
            self._left = (await self._blobs.find_manifest(blob)).pieces[::-1]
        if not self._left:
            if self._digest.digest() != blob.digest:
                raise StoreCorrupt(f"blob {blob.hex}: the bytes in {self._blobs.place} are others; {PUT_AGAIN}")
            raise StopAsyncIteration
        piece = await self._blobs.get_piece(blob, self._left.pop())
        self._digest.update(piece)
        return piece


class _Reader(Protocol):
    """Gives out a source in pieces: full ones, and at last a smaller one; then none."""

    async def next(self) -> bytes: ...

    async def close(self) -> None: ...


class _BytesReader:
    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data).cast("B")
        self._at = 0

    async def next(self) -> bytes:
        piece = bytes(self._data[self._at : self._at + PIECE_BYTES])
        self._at += len(piece)
        return piece

    async def close(self) -> None:
        self._data.release()


class _FileReader:
    def __init__(self, path: Path, threads: Threads) -> None:
        self._path = path
        self._threads = threads
        self._file: BinaryIO | None = None

    async def next(self) -> bytes:
        try:
            if self._file is None:
                self._file = await self._threads.run(lambda: self._path.open("rb"))
            file = self._file
            return await self._threads.run(lambda: file.read(PIECE_BYTES))
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read ({error.strerror}); name a file") from None

    async def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _ChunksReader:
    def __init__(self, chunks: AsyncIterable[bytes]) -> None:
        self._chunks = aiter(chunks)
        self._held = bytearray()
        self._ended = False

    async def next(self) -> bytes:
        while len(self._held) < PIECE_BYTES and not self._ended:
            try:
                self._held += await anext(self._chunks)
            except StopAsyncIteration:
                self._ended = True
        piece = bytes(self._held[:PIECE_BYTES])
        del self._held[:PIECE_BYTES]
        return piece

    async def close(self) -> None:
        self._held.clear()


class _SealedReader:
    """Seals what another one gives out."""

    def __init__(self, plain: _Reader, sealer: Sealer) -> None:
        self._plain = plain
        self._sealer = sealer
        self._held = bytearray(sealer.head)
        self._ahead: bytes | None = None
        self._ended = False

    async def next(self) -> bytes:
        if self._ahead is None:
            self._ahead = await self._plain.next()
        while len(self._held) < PIECE_BYTES and not self._ended:
            chunk, self._ahead = self._ahead, await self._plain.next() if self._ahead else b""
            self._ended = not self._ahead
            self._held += self._sealer.seal(chunk, is_last=self._ended)
        piece = bytes(self._held[:PIECE_BYTES])
        del self._held[:PIECE_BYTES]
        return piece

    async def close(self) -> None:
        self._held.clear()
        await self._plain.close()


def _reader_of(source: object, threads: Threads) -> _Reader:
    if isinstance(source, bytes | bytearray | memoryview):
        return _BytesReader(source)
    if isinstance(source, Path):
        return _FileReader(source, threads)
    if isinstance(source, AsyncIterable):
        return _ChunksReader(source)
    raise ConfigError(f"put({type(source).__name__}): give bytes, a pathlib.Path, or an async iterator of bytes")


def _kept_pieces(file: BinaryIO, manifest: BlobManifest) -> tuple[blake3, int]:
    """How many pieces of an interrupted fetch are in the file, and their digest; what is behind them is cut off."""
    digest, kept = blake3(), 0
    file.seek(0)
    for name in manifest.pieces:
        piece = file.read(PIECE_BYTES)
        if blake3(piece).digest() != name:
            break
        digest.update(piece)
        kept += 1
    file.truncate(min(kept * PIECE_BYTES, manifest.size_bytes))
    file.seek(0, os.SEEK_END)
    return digest, kept


def _finish_file(file: BinaryIO, part: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_media_type(media_type: object) -> None:
    if not isinstance(media_type, str) or not media_type.isprintable() or not 0 < len(media_type) <= LABEL_CHARS_MAX:
        raise ConfigError(f"media_type={media_type!r}: give a text like 'image/jpeg'")


def _checked(blob: object) -> Blob:
    if not isinstance(blob, Blob) or len(blob.digest) * 2 != _HEX_CHARS or not 0 <= blob.size_bytes <= BLOB_BYTES_MAX:
        raise ConfigError(f"{blob!r}: give a Blob as `put` returns it, with a digest of 32 bytes and its size")
    return blob


# Sensors, actuators and workers run in tasks of a node, and reach its blobs as `fleet.blobs`.

_current: ContextVar[Blobs | None] = ContextVar("stigmergy_blobs", default=None)


@contextlib.contextmanager
def as_current(blobs: Blobs | None) -> Iterator[None]:
    """Tasks that are begun within have these blobs."""
    token = _current.set(blobs)
    try:
        yield
    finally:
        _current.reset(token)


def current_blobs() -> Blobs:
    """Those of the node that runs the calling sensor, actuator or worker."""
    found = _current.get()
    if found is None:
        raise NotRunning(
            "fleet.blobs is for `async def` sensors, actuators and workers, while a node runs them; elsewhere use "
            "live.put(…) and live.fetch(…)"
        )
    return found
