"""Where the bundles of a node's policy are: a folder, or a bucket of objects of a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from stigmergy.base.clock import Threads
from stigmergy.base.errors import PolicyRefused
from stigmergy.policy.bundle import BUNDLE_BYTES_MAX, SUFFIX
from stigmergy.store.port import Objects

FILES_COUNT_MAX = 10_000


class PolicyPlace(Protocol):
    """Where bundles are. Raises StigmergyError or OSError if it cannot be looked at, now."""

    async def list(self) -> Mapping[str, str]:
        """The names of all bundles, each with a stamp that changes when the bundle does."""
        ...

    async def read(self, name: str) -> bytes:
        """A bundle; of one that is too large, enough to see that."""
        ...


class PolicyFolder:
    """A folder on this machine."""

    def __init__(self, folder: Path, threads: Threads) -> None:
        self._folder = folder
        self._threads = threads

    async def list(self) -> Mapping[str, str]:
        """The names of all bundles, with size and time of their last change."""
        return await self._threads.run(self._list)

    async def read(self, name: str) -> bytes:
        """A file of the folder."""
        return await self._threads.run(lambda: read_bounded(self._folder / name))

    def _list(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in sorted(self._folder.iterdir())[:FILES_COUNT_MAX]:
            if path.name.endswith(SUFFIX):
                status = path.stat()
                found[path.name] = f"{status.st_size}.{status.st_mtime_ns}.{status.st_ino}"
        return found


class PolicyStore:
    """A bucket of objects, such as on NATS."""

    def __init__(self, open_objects: Callable[[], Awaitable[Objects]]) -> None:
        self._open = open_objects

    async def list(self) -> Mapping[str, str]:
        """The names of all bundles, with their digests."""
        objects = await self._open()
        names = [name for name in (await objects.names())[:FILES_COUNT_MAX] if name.endswith(SUFFIX)]
        found = {name: await objects.versions(name) for name in names}
        return {name: versions[-1].digest for name, versions in found.items() if versions}

    async def read(self, name: str) -> bytes:
        """An object of the bucket."""
        data = await (await self._open()).get(name)
        if data is None:
            raise PolicyRefused("it was deleted from the store meanwhile; put it there again")
        return data


def read_bounded(path: Path) -> bytes:
    """A file, as far as it can be a bundle."""
    with path.open("rb") as file:
        return file.read(BUNDLE_BYTES_MAX + 1)
