"""Objects in a folder: on another disk, or on a mounted disk of a peer. Every version is its own file.

`folder:/mnt/peer` must exist: a folder made where nothing is mounted would be on the disk that copies must outlive. A
file is a descriptive line and the bytes; it is written under another name, synced, and renamed to a unique name. The
work runs in threads. There are no keys here: a folder cannot compare and set for several machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from blake3 import blake3

from stigmergy.base.clock import Clock
from stigmergy.base.errors import (
    Bug,
    ConfigError,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreUnavailable,
)
from stigmergy.store.port import (
    OBJECT_BYTES_MAX,
    OBJECTS_COUNT_MAX,
    KeyValue,
    Objects,
    ObjectVersion,
    check_bucket,
    check_object,
    check_object_name,
)

SCHEME = "folder:"
SUFFIX = ".object"
FRESH = ".new"
HEADER_BYTES_MAX = 16 * 1024
TRIES_MAX = 100
"""How often others may use a number before us."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

ResultT = TypeVar("ResultT")
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ObjectVersion)


class FolderStore:
    """The Store port, without keys."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._closed = False

    async def key_value(self, bucket: str) -> KeyValue:
        raise ConfigError(
            f"{SCHEME}{self._root}: a folder keeps objects and no keys; give a NATS server, nats://hub:4222"
        )

    async def objects(self, bucket: str) -> Objects:
        self.check_open()
        return FolderObjects(self, self._root, check_bucket(bucket), self._clock)

    async def find_objects(self, bucket: str) -> Objects | None:
        place = self._root / check_bucket(bucket)
        objects = await self.objects(bucket)
        # A missing root is an error; a missing bucket is not.
        await objects.names()
        return objects if await asyncio.to_thread(place.is_dir) else None

    async def close(self) -> None:
        self._closed = True

    def check_open(self) -> None:
        """Raises Bug if the store was closed."""
        if self._closed:
            raise Bug("the store is closed; open it again")


class FolderObjects:
    """The Objects port: a folder for each name, with a file for each version."""

    def __init__(self, store: FolderStore, root: Path, bucket: str, clock: Clock) -> None:
        self._store = store
        self._root = root
        self._bucket = bucket
        self._clock = clock

    @property
    def bucket(self) -> str:
        return self._bucket

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        check_object(name, len(data), label, versions_kept)
        about = await self._run(lambda: self._put(name, data, label))
        # The new version is stored; errors with older ones do not matter.
        with contextlib.suppress(StoreError):
            await self._run(lambda: self._keep_newest(name, versions_kept))
        return about

    async def versions(self, name: str) -> list[ObjectVersion]:
        check_object_name(name)
        return await self._run(lambda: self._still_there(self._files(name)))

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        check_object_name(name)
        return await self._run(lambda: self._get(name, version))

    async def names(self, prefix: str = "") -> list[str]:
        return await self._run(lambda: self._names(prefix))

    async def delete(self, name: str, version: int | None = None) -> None:
        check_object_name(name)
        await self._run(lambda: self._delete(name, version))

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        self._store.check_open()
        return await asyncio.to_thread(self._translated, work)

    def _translated(self, work: Callable[[], ResultT]) -> ResultT:
        try:
            if not self._root.is_dir():
                raise StoreUnavailable(f"{self._root}: there is no such folder; is it mounted? make it, or mount it")
            return work()
        except OSError as error:
            what = "no room" if error.errno in NO_ROOM else str(error.strerror)
            raise StoreUnavailable(f"{self._root}: {what}; nothing was written, try again") from None

    # The rest runs in a thread.

    def _put(self, name: str, data: bytes, label: str) -> ObjectVersion:
        folder = self._folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        digest, made_ns = blake3(data).hexdigest(), self._clock.wall_ns()
        fresh = folder / f"{os.urandom(8).hex()}{FRESH}"
        try:
            for _ in range(TRIES_MAX):
                version = max([made_ns, *(_number(path) + 1 for path in self._files(name))])
                about = ObjectVersion(name, version, len(data), digest, label, made_ns)
                _write(fresh, _encode(about) + b"\n", data)
                with contextlib.suppress(FileExistsError):
                    os.link(fresh, folder / f"{version:020d}{SUFFIX}")
                    _sync_folder(folder)
                    return about
        finally:
            fresh.unlink(missing_ok=True)
        raise StoreUnavailable(f"{folder}: others keep putting versions; try again")

    def _keep_newest(self, name: str, count: int) -> None:
        for path in self._files(name)[:-count]:
            path.unlink(missing_ok=True)

    def _get(self, name: str, version: int | None) -> bytes | None:
        found = [path for path in self._files(name) if version is None or _number(path) == version]
        if not found:
            return None
        path = found[-1]
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise StoreConflict(f"{path}: was deleted while it was read; list the versions again") from None
        line, _, data = content.partition(b"\n")
        about = _read_header(path, line)
        if len(data) != about.size_bytes or blake3(data).hexdigest() != about.digest:
            raise StoreCorrupt(
                f"{path}: its bytes do not match the digest that they were put with; take another version"
            )
        return data

    def _names(self, prefix: str) -> list[str]:
        place = self._root / self._bucket
        folders = sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
        if len(folders) > OBJECTS_COUNT_MAX:
            raise StoreForeign(f"{place}: {len(folders)} objects, {OBJECTS_COUNT_MAX} at most; this is not our bucket")
        found = [self._still_there(sorted(folder.glob(f"*{SUFFIX}"))[-1:]) for folder in folders]
        return sorted(about.name for versions in found for about in versions if about.name.startswith(prefix))

    def _delete(self, name: str, version: int | None) -> None:
        for path in self._files(name):
            if version is None or _number(path) == version:
                path.unlink(missing_ok=True)
        if version is None:
            shutil.rmtree(self._folder(name), ignore_errors=True)

    def _files(self, name: str) -> list[Path]:
        """The versions, oldest first."""
        return sorted(self._folder(name).glob(f"*{SUFFIX}"))

    def _folder(self, name: str) -> Path:
        # Names of objects may be longer than those of files, and have any character in them.
        return self._root / self._bucket / blake3(name.encode()).hexdigest()[:40]

    def _still_there(self, files: Sequence[Path]) -> list[ObjectVersion]:
        """The versions of these files, without those that were deleted meanwhile."""
        found: list[ObjectVersion] = []
        for path in files:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                found.append(_read_header(path, file.readline(HEADER_BYTES_MAX).removesuffix(b"\n")))
        return found


def _read_header(path: Path, line: bytes) -> ObjectVersion:
    try:
        about = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{path}: its first line does not decode ({error}); take another version") from None
    if about.version != _number(path) or not 0 <= about.size_bytes <= OBJECT_BYTES_MAX:
        raise StoreCorrupt(f"{path}: its first line describes another version; take another one")
    return about


def _number(path: Path) -> int:
    text = path.name.removesuffix(SUFFIX)
    return int(text) if text.isdecimal() else 0


def _write(path: Path, *pieces: bytes) -> None:
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Syncs the entries of a folder, and of its parents up to the bucket."""
    for place in _up_to_the_bucket(folder):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _up_to_the_bucket(folder: Path) -> Iterator[Path]:
    yield from (folder, folder.parent, folder.parent.parent)


async def open_store(url: str, clock: Clock) -> FolderStore:
    """The store in the folder of `folder:PATH`."""
    path = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not path:
        raise ConfigError(f"store {url!r}: write folder:PATH, for example folder:/mnt/peer")
    return FolderStore(Path(path), clock)
