"""Garbage collection of blobs: deletes those that no log refers to.

Every node tells the store which blobs its log refers to, in an object of its own. A collection reads all of these. It
deletes a blob only if
1. it was put, or put again, at least a grace period ago,
2. an earlier collection has marked it as unreferenced, at least a grace period ago, and none has found it referenced
   since, and
3. every node has told its references at least a grace period after the mark, and none refers to it.

So a reference may travel from node to node for as long as the grace period before its new owner tells. A node that is
away stops the collection of what is newer than its last word, and is named; an operator may forget it. A collection may
be killed at any point: the manifest of a blob goes first, then pieces that no manifest names and that are older than
the grace period. Versions are deleted by their number, so what is put again at that moment stays. Clocks must agree
within a fraction of the grace period.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS, Blob
from stigmergy.base.errors import StoreConflict, StoreCorrupt
from stigmergy.store.blobs import MANIFESTS, PIECES, Blobs, piece_name, read_manifest, read_manifest_name
from stigmergy.store.port import Objects

FORMAT = 1
REFERENCES = "references/"
MARKS = "garbage"
_encode = msgspec.msgpack.Encoder().encode
T = TypeVar("T")


class BlobReferences(Struct, frozen=True, array_like=True):
    """Which blobs of the store the log of one node, or of one shard of a cluster, refers to."""

    format: int
    owner: str
    told_ns: int
    """When it was begun to read the log for this, by the owner's wall clock."""
    digests: list[bytes]


class BlobMarks(Struct, frozen=True, array_like=True):
    """What the last collection has found unreferenced."""

    format: int
    marked: list[tuple[bytes, int]]
    """Digests, and since when: the wall clock of who collected."""


class Collected(Struct, frozen=True):
    """What a collection has found and done."""

    blobs: int = 0
    referenced: int = 0
    marked: int = 0
    """Unreferenced, and not yet due."""
    deleted: int = 0
    deleted_bytes: int = 0
    pieces_deleted: int = 0
    owners: int = 0
    """Nodes and shards that have told their references."""
    waits_for: tuple[str, ...] = ()
    """Owners that have not told for so long that something stays for their sake."""


async def tell_references(objects: Objects, owner: str, told_ns: int, digests: list[bytes]) -> None:
    """Replaces what an owner has told before. Begin to read its log after `told_ns`."""
    known = dict.fromkeys(read_manifest_name(name)[0] for name in await objects.names(MANIFESTS))
    # What is not in the store needs no protection, and a list that only grows would have no bound.
    kept = sorted(digest for digest in digests if digest in known)
    await objects.put(REFERENCES + owner, _encode(BlobReferences(FORMAT, owner, told_ns, kept)))


async def read_references(objects: Objects) -> list[BlobReferences]:
    """What all owners have told. Raises StoreCorrupt for what cannot be read: nothing may be deleted then."""
    found = [await _read(objects, name, BlobReferences) for name in await objects.names(REFERENCES)]
    return [one for one in found if one is not None]


async def forget_owner(objects: Objects, owner: str) -> bool:
    """Drops what an owner has told: a node that is never to come back. Whether there was one."""
    was_there = bool(await objects.versions(REFERENCES + owner))
    await objects.delete(REFERENCES + owner)
    return was_there


async def collect(blobs: Blobs, *, dry_run: bool = False) -> Collected:
    """Marks what is unreferenced, and deletes what was marked long enough ago. One at a time for each store: raises
    StoreConflict if another one was faster. Killed at any point, the next one goes on."""
    objects = await blobs.find_objects()
    if objects is None:
        return Collected()
    now_ns, grace_ns = blobs.clock.wall_ns(), int(blobs.settings.grace_s * SECOND_NS)
    # First what there is, then who refers to it: what is put meanwhile is not even looked at.
    names = {read_manifest_name(name)[0]: name for name in await objects.names(MANIFESTS)}
    told = await read_references(objects)
    referenced = dict.fromkeys(digest for one in told for digest in one.digests)
    before = dict((await _read(objects, MARKS, BlobMarks) or BlobMarks(FORMAT, [])).marked)
    marked = {digest: min(before.get(digest, now_ns), now_ns) for digest in names if digest not in referenced}
    heard_ns = min((one.told_ns for one in told), default=0)
    ripe = [digest for digest, since_ns in marked.items() if since_ns + grace_ns <= now_ns]
    due = [digest for digest in ripe if heard_ns >= marked[digest] + grace_ns]
    late_ns = max((marked[digest] for digest in ripe), default=0) + grace_ns
    waits_for = tuple(one.owner for one in told if one.told_ns < late_ns) if len(ripe) > len(due) else ()
    deleted, deleted_bytes, pieces = 0, 0, 0
    if not dry_run:
        await _put_marks(objects, marked)
        for digest in due:
            if await _delete_old(objects, names[digest], now_ns - grace_ns):
                deleted += 1
                deleted_bytes += read_manifest_name(names[digest])[1]
        pieces = await _sweep_pieces(objects, now_ns - grace_ns)
    return Collected(
        blobs=len(names),
        referenced=len(names) - len(marked),
        marked=len(marked) - deleted,
        deleted=deleted,
        deleted_bytes=deleted_bytes,
        pieces_deleted=pieces,
        owners=len(told),
        waits_for=waits_for,
    )


async def _put_marks(objects: Objects, marked: dict[bytes, int]) -> None:
    about = await objects.put(MARKS, _encode(BlobMarks(FORMAT, sorted(marked.items()))), versions_kept=2)
    newest = (await objects.versions(MARKS))[-1:]
    if [one.version for one in newest] != [about.version]:
        raise StoreConflict(f"{objects.bucket}: another collection of garbage runs; let it finish, nothing was deleted")


async def _delete_old(objects: Objects, name: str, before_ns: int) -> bool:
    """Deletes the versions that were put before this; whether none is left."""
    versions = await objects.versions(name)
    old = [about.version for about in versions if about.made_ns < before_ns]
    if len(old) != len(versions):
        return False
    for version in old:
        await objects.delete(name, version)
    return bool(old)


async def _sweep_pieces(objects: Objects, before_ns: int) -> int:
    """Deletes old pieces that no manifest names: of deleted blobs, and of uploads that were never finished."""
    pieces = await objects.names(PIECES)
    needed: dict[str, None] = {}
    for name in await objects.names(MANIFESTS):
        digest, size_bytes = read_manifest_name(name)
        data = await objects.get(name)
        if data is not None:
            manifest = read_manifest(Blob(digest, size_bytes), data)
            needed |= dict.fromkeys(piece_name(piece) for piece in manifest.pieces)
    swept = 0
    for name in pieces:
        if name not in needed and await _delete_old(objects, name, before_ns):
            swept += 1
    return swept


async def _read(objects: Objects, name: str, kind: type[T]) -> T | None:
    data = await objects.get(name)
    if data is None:
        return None
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(
            f"{objects.bucket}: {name} does not decode ({error}); nothing is deleted: delete this object, or update"
        ) from None
