"""The parts of a journal of several processes, read as one: for listing, exporting and looking back.

It cannot be written, and it is not verified as one: each part has signers and signatures of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from stigmergy.core.commit import Group, Head
from stigmergy.core.errors import Bug, ConfigError, JournalForeign
from stigmergy.ports.journal import Journal, JournalIdentity, JournalSize, SnapshotPart, StoredCommit


class JoinedJournal:
    """The Journal port over several parts, for reading."""

    def __init__(self, parts: Sequence[Journal]) -> None:
        self._parts = tuple(parts)
        identities = [part.identity for part in parts]
        names = {(identity.fleet, identity.shards, identity.shard_by) for identity in identities}
        owned = [shard for identity in identities for shard in identity.owned]
        if len(names) != 1 or owned != list(range(identities[0].shards)):
            raise JournalForeign("these parts do not make up one journal; look at each of them, or restore a copy")
        self._identity = structs.replace(identities[0], part=None)
        self._by_shard = {shard: part for part in self._parts for shard in part.identity.owned}

    @property
    def identity(self) -> JournalIdentity:
        return self._identity

    def heads(self) -> list[Head]:
        return [head for part in self._parts for head in part.heads()]

    def first_position(self, shard: int) -> int:
        return self._part(shard).first_position(shard)

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        return self._part(shard).read(shard, after)

    def snapshots(self, shard: int) -> list[int]:
        return self._part(shard).snapshots(shard)

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        return self._part(shard).read_snapshot(shard, position)

    def size(self) -> JournalSize:
        sizes = [part.size() for part in self._parts]
        return JournalSize(
            commits=sum(size.commits for size in sizes),
            bytes_used=sum(size.bytes_used for size in sizes),
            bytes_free=min(size.bytes_free for size in sizes),
        )

    async def append(self, group: Group) -> None:
        raise _read_only()

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        raise _read_only()

    async def drop_snapshot(self, shard: int, position: int) -> None:
        raise _read_only()

    async def drop(self, shard: int, upto: int) -> None:
        raise _read_only()

    async def close(self) -> None:
        for part in self._parts:
            await part.close()

    def _part(self, shard: int) -> Journal:
        part = self._by_shard.get(shard)
        if part is None:
            raise ConfigError(f"shard {shard}: this journal has shards 0 to {self._identity.shards - 1}")
        return part


def _read_only() -> Bug:
    return Bug("parts that are read as one journal cannot be written; open each of them")
