"""Says whether a group continues the heads of its shards. Pure; every journal asks before it writes.

A journal keeps dense positions. A position that is taken is another owner's doing and an ordinary error; a gap, an
unknown shard or an empty group can only be a fault of our own.
"""

from __future__ import annotations

from collections.abc import Mapping

from stigmergy.core.commit import Group, Head, head_of
from stigmergy.core.errors import Bug, JournalConflict


def advance(heads: Mapping[int, Head], group: Group, shards: int | range) -> dict[int, Head]:
    """The heads that the group moves, as they are once it is durable. Raises JournalConflict or Bug.

    `shards` are those that the journal was made for: so many, or from one to another.
    """
    kept = range(shards) if isinstance(shards, int) else shards
    if not group.commits:
        raise Bug("a group without commits has nothing to make durable; do not append it")
    moved: dict[int, Head] = {}
    for sealed in group.commits:
        if sealed.shard not in kept:
            raise Bug(f"shard {sealed.shard} does not exist: the journal was made for shards {kept[0]} to {kept[-1]}")
        head = moved.get(sealed.shard) or heads.get(sealed.shard)
        expected = head.position + 1 if head else 1
        if sealed.position < expected:
            raise JournalConflict(
                f"shard {sealed.shard}: position {sealed.position} is taken, the next is {expected}; "
                "another owner wrote, reload and decide again"
            )
        if sealed.position > expected:
            raise Bug(f"shard {sealed.shard}: position {sealed.position} leaves a gap, the next is {expected}")
        moved[sealed.shard] = head_of(sealed)
    return moved


def check_drop(heads: Mapping[int, Head], shard: int, upto: int) -> None:
    """Raises Bug if a drop would take the head: the next commit cites it, and no snapshot can cover it.

    A snapshot counts only when a later commit notes it, so the newest commit is never covered.
    """
    head = heads.get(shard)
    if head is not None and upto >= head.position:
        raise Bug(f"shard {shard}: dropping up to {upto} would take the head, {head.position}, which nothing covers")
