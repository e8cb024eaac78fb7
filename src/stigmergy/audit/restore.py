"""Finds copies in a store, and builds a journal from one. `verification` judges the result.

The caller passes a new, empty journal, closes it, and uses it only if it verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from stigmergy.audit.copier import SEPARATOR, piece_name
from stigmergy.audit.copy_format import (
    CopiedCommit,
    CopiedShard,
    CopyManifest,
    digest_piece,
    groups_of,
    read_commits,
    read_manifest,
    read_parts,
)
from stigmergy.base.errors import ConfigError, JournalCorrupt, JournalError, StoreConflict, StoreCorrupt
from stigmergy.journal.port import Journal, SnapshotPart
from stigmergy.shard.commit import Head, genesis_of, open_commit
from stigmergy.shard.snapshot import read_header
from stigmergy.store.port import Objects


class Beginning(Journal, Protocol):
    """A journal whose shards can begin elsewhere than at their first commit, as long as it is new."""

    def begin_at(self, heads: Sequence[Head]) -> None:
        """Lets shards begin behind these commits."""
        ...


class CopyFound(Struct, frozen=True):
    """A version of a node's copies."""

    node: str
    version: int
    made_ns: int
    manifest: CopyManifest | None
    trouble: str = ""
    """Why it cannot be used."""


async def find_copies(objects: Objects, node: str = "") -> list[CopyFound]:
    """The copies in a store, of one node or of all, the oldest of each first."""
    names = [name for name in await objects.names(node) if SEPARATOR not in name and node in ("", name)]
    found: list[CopyFound] = []
    for name in names:
        for about in await objects.versions(name):
            manifest, trouble = None, ""
            try:
                data = await objects.get(name, about.version)
                if data is None:
                    continue
                manifest = read_manifest(data)
            except StoreConflict:
                continue  # Deleted meanwhile, for a newer one.
            except (JournalError, StoreCorrupt) as error:
                trouble = str(error)
            found.append(CopyFound(name, about.version, about.made_ns, manifest, trouble))
    return found


def choose_copy(found: Sequence[CopyFound], version: int | None) -> CopyFound:
    """The version that was asked for, or the newest. Raises ConfigError if it is not clear or not there."""
    nodes = sorted(dict.fromkeys(one.node for one in found))
    if not nodes:
        raise ConfigError("there is no copy here; check the store, the fleet's name and the node's")
    if len(nodes) > 1:
        raise ConfigError(f"copies of several nodes are here: {', '.join(nodes)}; say which one, with --node SITE/NAME")
    wanted = [one for one in found if version is None or one.version == version]
    if not wanted:
        raise ConfigError(f"{nodes[0]}: there is no version {version}; list them without --to")
    return wanted[-1]


async def fetch_pieces(objects: Objects, manifest: CopyManifest, keep: Callable[[bytes, bytes], None]) -> int:
    """Has every piece of a copy given to `keep`, with its digest; returns how many bytes they are."""
    size_bytes = 0
    for digest in dict.fromkeys(manifest.digests):
        data = await objects.get(piece_name(manifest.node, digest))
        if data is None:
            raise JournalCorrupt(f"a piece of this copy is not there any more ({digest.hex()[:16]}…); take another one")
        if digest_piece(data) != digest:
            raise JournalCorrupt(f"a piece of this copy has other bytes ({digest.hex()[:16]}…); take another version")
        keep(digest, data)
        size_bytes += len(data)
    return size_bytes


async def build_journal(journal: Beginning, manifest: CopyManifest, piece: Callable[[bytes], bytes]) -> None:
    """Writes a copy into a new journal, from its pieces by their digests."""
    journal.begin_at([shard.before for shard in manifest.copied if shard.before.position])
    for shard in manifest.copied:
        began = _beginning(manifest, shard.last.shard)
        for snapshot in shard.snapshots:
            number = 0
            for parts in snapshot.pieces:
                for body in read_parts(parts, piece(parts.digest)):
                    await journal.put_snapshot(shard.last.shard, snapshot.position, [SnapshotPart(number, body)])
                    if not number:
                        tables = read_header(body).tables
                        began = Head(tables.shard, tables.position, tables.epoch, tables.digest)
                    number += 1
        if began != shard.before:
            raise JournalCorrupt(
                f"shard {shard.last.shard}: its log in this copy does not begin where its newest snapshot ends; take "
                "another version"
            )
    lanes = {shard.last.shard: _commits_of(shard, piece) for shard in manifest.copied}
    for group in groups_of(lanes):
        await journal.append(group)
    ends = {shard.last.shard: shard.last for shard in manifest.copied}
    for head in journal.heads():
        if head != ends.get(head.shard):
            raise JournalCorrupt(
                f"shard {head.shard}: the copy ends at {head.position}, not where it says; take another"
            )


def _commits_of(shard: CopiedShard, piece: Callable[[bytes], bytes]) -> Iterator[CopiedCommit]:
    """The commits that are needed; none may be missing between them, which the journal checks."""
    for log in shard.log:
        for commit in read_commits(log, piece(log.digest)):
            if commit.shard != shard.last.shard:
                raise JournalCorrupt(f"shard {shard.last.shard}: a commit of shard {commit.shard} in its copy")
            if (
                commit.position == shard.before.position + 1
                and open_commit(commit.body).previous != shard.before.digest
            ):
                raise JournalCorrupt(
                    f"shard {commit.shard}: its log does not follow on its snapshot; take another copy"
                )
            if commit.position > shard.before.position:
                yield commit


def _beginning(manifest: CopyManifest, shard: int) -> Head:
    """Where a shard begins that has no snapshot."""
    return Head(shard, 0, 0, genesis_of(manifest.fleet, shard))
