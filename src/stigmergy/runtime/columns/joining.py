"""Joins column deliveries that follow each other, so that a thousand small batches cost as much as a large one.

Only neighbours in the mailbox with consecutive numbers of the same source are joined: the order of nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stigmergy.core.inputs import ColumnDelivery
from stigmergy.runtime.mailbox import Letter

JOINED_BYTES_MAX = 256 * 1024
SMALL_BYTES = 64 * 1024
"""Larger ones are left alone: to copy them costs more than to step them one by one."""


def join_letters(letters: Sequence[Letter]) -> list[Letter]:
    """The letters, with deliveries that follow each other made into one that carries the tickets of all."""
    joined: list[Letter] = []
    run: list[Letter] = []
    size_bytes = 0
    for letter in letters:
        if run and not (_follows(run[-1], letter) and size_bytes + letter.size_bytes <= JOINED_BYTES_MAX):
            joined.append(_joined(run))
            run, size_bytes = [], 0
        run.append(letter)
        size_bytes += letter.size_bytes
    if run:
        joined.append(_joined(run))
    return joined


def _follows(before: Letter, after: Letter) -> bool:
    one, other = before.input, after.input
    if not isinstance(one, ColumnDelivery) or not isinstance(other, ColumnDelivery) or other.start:
        return False
    if max(before.size_bytes, after.size_bytes) > SMALL_BYTES:
        return False
    return (
        before.shard == after.shard
        and other.sequence == (one.sequence + one.length if one.sequence else 0)
        and (one.source, one.incarnation, one.epoch) == (other.source, other.incarnation, other.epoch)
        and (one.kind, one.layout, one.generation) == (other.kind, other.layout, other.generation)
        and one.check == other.check
    )


def _joined(run: list[Letter]) -> Letter:
    first = run[0]
    if len(run) == 1 or not isinstance(first.input, ColumnDelivery):
        return first
    deliveries = [letter.input for letter in run if isinstance(letter.input, ColumnDelivery)]
    delivery = structs.replace(
        first.input,
        records=b"".join(one.records for one in deliveries),
        count=sum(one.count for one in deliveries),
    )
    return Letter(
        shard=first.shard,
        input=delivery,
        tickets=tuple(ticket for letter in run for ticket in letter.tickets),
        items=sum(letter.items for letter in run),
        size_bytes=sum(letter.size_bytes for letter in run),
    )
