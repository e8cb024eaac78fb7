"""What a journal on files checks before it trusts itself: whose it is, and whether it holds what its mark witnessed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from stigmergy.adapters.filing.mark import Mark
from stigmergy.core.commit import Head
from stigmergy.core.errors import ConfigError, JournalCorrupt, JournalForeign
from stigmergy.ports.journal import JournalIdentity, check_shard_by

INCARNATION_MAX = (1 << 63) - 1


def check_incarnation(incarnation: int) -> None:
    """Refuses a number that the formats cannot hold."""
    if not 0 <= incarnation <= INCARNATION_MAX:
        raise ConfigError(f"incarnation {incarnation}; possible are 0 to {INCARNATION_MAX}")


def check_identity(found: JournalIdentity, wanted: JournalIdentity, path: str) -> None:
    """Refuses the journal of another fleet."""
    if found.fleet != wanted.fleet:
        raise JournalForeign(f"{path}: belongs to fleet {found.fleet!r}, not to {wanted.fleet!r}; name the right file")
    if found.shards != wanted.shards:
        raise JournalForeign(
            f"{path}: made for {found.shards} shards, not for {wanted.shards}; the number of shards is fixed for good"
        )
    check_shard_by(found.shard_by, wanted.shard_by, path)
    if found.part != wanted.part:
        raise JournalForeign(f"{path}: keeps {_shards(found)}, not {_shards(wanted)}; {_remedy(found)}")


def _shards(identity: JournalIdentity) -> str:
    """Which shards a journal keeps, for people."""
    if identity.part is None:
        return f"all of the {identity.shards} shards"
    first, last = identity.part
    return f"shard {first}" if first == last else f"shards {first} to {last}"


def _remedy(found: JournalIdentity) -> str:
    if found.part is None:
        return "it was made by one process alone: run it with one, or name another journal"
    return "it is a part of a journal of several processes: run it with as many as it was made for"


def check_mark(heads: Mapping[int, Head], identity: JournalIdentity, mark: Mark | None, path: str) -> None:
    """Refuses a journal that holds less than was acknowledged."""
    if mark is None or mark.position == 0 or mark.incarnation != identity.incarnation:
        return
    head = heads.get(mark.shard)
    found = head.position if head else 0
    if found < mark.position:
        raise JournalCorrupt(
            f"{path}: shard {mark.shard} was acknowledged up to {mark.position}, found {found}; "
            "restore the journal from a copy, or, if this is a restored copy, give it an incarnation of its own "
            "(renew_incarnation; docs/running.md, Copies)"
        )


def own_mark(identity: JournalIdentity, mark: Mark | None) -> Mark:
    """The mark from now on: what it said, if it spoke of this incarnation, and our process."""
    if mark is not None and mark.incarnation == identity.incarnation:
        return Mark(identity.incarnation, mark.shard, mark.position, os.getpid())
    return Mark(identity.incarnation, 0, 0, os.getpid())
