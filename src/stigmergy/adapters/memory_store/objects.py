"""The Objects port over a line to a shelf."""

from __future__ import annotations

from blake3 import blake3

from stigmergy.adapters.memory_store.line import Line
from stigmergy.adapters.memory_store.shelf import MemoryShelf, StoredObject
from stigmergy.ports.store import ObjectVersion, check_object, check_object_name


class MemoryObjects:
    """The Objects port."""

    def __init__(self, line: Line, shelf: MemoryShelf, bucket: str) -> None:
        self._line = line
        self._shelf = shelf
        self._bucket = bucket
        self._kept = shelf.objects(bucket)

    @property
    def bucket(self) -> str:
        return self._bucket

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        check_object(name, len(data), label, versions_kept)
        await self._line.reach()
        self._shelf.check_room(len(data))
        digest = blake3(data).hexdigest()
        wall_ns = self._line.clock.wall_ns()
        about = ObjectVersion(name, self._shelf.next_version(), len(data), digest, label, wall_ns)
        kept = self._kept.setdefault(name, [])
        kept.append(StoredObject(about, bytes(data)))
        del kept[:-versions_kept]
        return about

    async def versions(self, name: str) -> list[ObjectVersion]:
        check_object_name(name)
        await self._line.reach()
        return [stored.about for stored in self._kept.get(name, ())]

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        check_object_name(name)
        await self._line.reach()
        kept = self._kept.get(name, [])
        found = [stored.data for stored in kept if version is None or stored.about.version == version]
        return found[-1] if found else None

    async def names(self, prefix: str = "") -> list[str]:
        await self._line.reach()
        return sorted(name for name in self._kept if name.startswith(prefix))

    async def delete(self, name: str, version: int | None = None) -> None:
        check_object_name(name)
        await self._line.reach()
        left = [stored for stored in self._kept.get(name, ()) if version not in (None, stored.about.version)]
        if left:
            self._kept[name] = left
        else:
            self._kept.pop(name, None)
