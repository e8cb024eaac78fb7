"""A commit as a row of a group: its bytes, with what a journal must know without opening them."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.core.commit import Sealed


class CommitRow(Struct, array_like=True, frozen=True):
    """A commit, with what of it is needed without opening it. Journals name their own after it."""

    shard: int
    position: int
    epoch: int
    time_ns: int
    events: int
    digest: bytes
    body: bytes


def row_of(sealed: Sealed) -> tuple[int, int, int, int, int, bytes, bytes]:
    """What is stored of a commit, in the order of the row's fields."""
    return (
        sealed.shard,
        sealed.position,
        sealed.epoch,
        sealed.time_ns,
        sealed.events,
        sealed.digest,
        sealed.body,
    )


def sealed_of(row: CommitRow) -> Sealed:
    """The commit that was stored."""
    return Sealed(row.shard, row.position, row.epoch, row.time_ns, row.events, row.digest, row.body)
