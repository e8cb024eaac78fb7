"""What a store holds of one node's copies: manifests, each version a point to go back to, and the pieces they need.

A point of an earlier life of the node, of another incarnation, is not taken away to make room for those of today: a
node that lost its disk and began anew by mistake must not push out what it could be restored from.
"""

from __future__ import annotations

from stigmergy.core.codec import encode
from stigmergy.core.copies import CopyManifest, digest_piece, read_manifest
from stigmergy.core.errors import JournalError, StoreConflict, StoreCorrupt
from stigmergy.ports.store import VERSIONS_COUNT_MAX, Objects

INCARNATIONS_KEPT = 3
"""Of so many earlier lives of a node the newest point is kept."""
SEPARATOR = ":"
"""Between the name of a node, which has none, and the digest of a piece."""


class Holdings:
    """The copies of one node in one store."""

    def __init__(self, objects: Objects, node: str, points_kept: int) -> None:
        self._objects = objects
        self._node = node
        self._points_kept = points_kept
        self._points: dict[int, CopyManifest] = {}
        """By version, oldest first."""
        self._pieces: dict[bytes, None] = {}

    @property
    def points(self) -> dict[int, CopyManifest]:
        """The points that are there, by version, oldest first."""
        return self._points

    async def load(self) -> None:
        """Finds out what is there. Points that cannot be read are left alone, and are none."""
        self._points = {}
        await self._find_points()
        names = await self._objects.names(self._node + SEPARATOR)
        self._pieces = dict.fromkeys(_digest_in(name) for name in names)

    async def _find_points(self) -> None:
        """Those that are not known yet."""
        for about in await self._objects.versions(self._node):
            if about.version in self._points:
                continue
            try:
                data = await self._objects.get(self._node, about.version)
                if data is not None:
                    self._points[about.version] = read_manifest(data)
            except (JournalError, StoreCorrupt, StoreConflict):
                continue
        self._points = dict(sorted(self._points.items()))

    async def put_piece(self, data: bytes) -> bytes:
        """Has a piece there, and says its digest."""
        digest = digest_piece(data)
        if digest not in self._pieces:
            await self._objects.put(piece_name(self._node, digest), data)
            self._pieces[digest] = None
        return digest

    async def put_point(self, manifest: CopyManifest, instead_of: int | None) -> int:
        """Makes a point of pieces that are there, perhaps instead of another one; returns its version."""
        label = f"{manifest.commits} commits of incarnation {manifest.incarnation}"
        about = await self._objects.put(self._node, encode(manifest), label=label, versions_kept=VERSIONS_COUNT_MAX)
        self._points[about.version] = manifest
        # A node that was restored elsewhere while this one still runs has points of its own, with pieces of ours.
        await self._find_points()
        for version in self._superfluous(manifest.incarnation, instead_of):
            await self._objects.delete(self._node, version)
            del self._points[version]
        await self._sweep()
        return about.version

    def _superfluous(self, incarnation: int, instead_of: int | None) -> list[int]:
        ours = [version for version, one in self._points.items() if one.incarnation == incarnation]
        gone = [version for version in ours if version == instead_of]
        ours = [version for version in ours if version != instead_of]
        gone += ours[: -self._points_kept]
        newest: dict[int, int] = {}
        for version, one in self._points.items():
            if one.incarnation != incarnation:
                newest.pop(one.incarnation, None)
                newest[one.incarnation] = version
        kept = list(newest.values())[-INCARNATIONS_KEPT:]
        return gone + [
            version for version, one in self._points.items() if one.incarnation != incarnation and version not in kept
        ]

    async def _sweep(self) -> None:
        """Takes away pieces that no point needs, also those of a copy that was never finished."""
        needed = dict.fromkeys(digest for one in self._points.values() for digest in one.digests)
        for digest in [digest for digest in self._pieces if digest not in needed]:
            await self._objects.delete(piece_name(self._node, digest))
            del self._pieces[digest]


def piece_name(node: str, digest: bytes) -> str:
    """What a piece of this node's copies is called."""
    return f"{node}{SEPARATOR}{digest.hex()}"


def _digest_in(name: str) -> bytes:
    text = name.rpartition(SEPARATOR)[2]
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
