"""Reads where each shard begins and ends, and refuses a database that holds less than it must.

It looks at the first and last row of each shard and not at those between, so that a large journal opens at once; `read`
finds a row that is missing or damaged when it comes to it.
"""

from __future__ import annotations

import apsw

from stigmergy.adapters.filing.identity import check_mark
from stigmergy.adapters.filing.mark import Mark
from stigmergy.adapters.sqlite import schema
from stigmergy.adapters.sqlite.errors import RESTORE
from stigmergy.core.commit import Head, head_of
from stigmergy.core.errors import JournalCorrupt
from stigmergy.ports.journal import JournalIdentity

_LAST_BEFORE = (
    "SELECT id, epoch, time_ns, events, digest, signature, checksum, body FROM commits "
    "WHERE id < ? ORDER BY id DESC LIMIT 1"
)
_FIRST_FROM = "SELECT id FROM commits WHERE id >= ? ORDER BY id LIMIT 1"
_DIGEST_AT = "SELECT digest FROM commits WHERE id = ?"
_BEYOND_ALL = (1 << 63) - 1


def read_shards(
    connection: apsw.Connection, identity: JournalIdentity, mark: Mark | None, path: str
) -> tuple[dict[int, Head], dict[int, int]]:
    """The head and the first position of each shard that has commits."""
    heads, firsts = _ends(connection, path)
    for shard in heads:
        if shard not in identity.owned:
            raise JournalCorrupt(f"{path}: commits of shard {shard}, which is not kept here; {RESTORE}")
    notes = {
        note.shard: note
        for note in (schema.read_shard_note(row, path) for row in connection.execute("SELECT * FROM shards"))
    }
    for shard in sorted(notes.keys() | heads.keys()):
        _check_note(connection, notes.get(shard), heads.get(shard), firsts.get(shard, 1), shard, path)
    check_mark(heads, identity, mark, path)
    return heads, firsts


def _ends(connection: apsw.Connection, path: str) -> tuple[dict[int, Head], dict[int, int]]:
    """From the last shard to the first, with two look-ups for each: the table is never read through."""
    heads: dict[int, Head] = {}
    firsts: dict[int, int] = {}
    bound = _BEYOND_ALL
    while rows := connection.execute(_LAST_BEFORE, (bound,)).fetchall():
        head = head_of(schema.read_commit(rows[0], path).sealed)
        bound = schema.commit_id(head.shard, 0)
        heads[head.shard] = head
        match connection.execute(_FIRST_FROM, (bound,)).fetchall():
            case [(int(first_id),)]:
                firsts[head.shard] = first_id - bound
            case _:
                raise JournalCorrupt(f"{path}: shard {head.shard} has an end and no beginning; {RESTORE}")
    return heads, firsts


def _check_note(
    connection: apsw.Connection, note: schema.ShardNote | None, head: Head | None, first: int, shard: int, path: str
) -> None:
    """What was noted of a shard must still be true: it begins there, and has come at least so far on the same chain."""
    if head is None:
        raise JournalCorrupt(f"{path}: all commits of shard {shard} are missing; {RESTORE}")
    expected_first = note.first if note else 1
    if first != expected_first:
        raise JournalCorrupt(f"{path}: shard {shard} must begin at {expected_first}, found {first}; {RESTORE}")
    if note is None:
        return
    if head.position < note.head:
        raise JournalCorrupt(f"{path}: shard {shard} had come to {note.head}, found {head.position}; {RESTORE}")
    if note.head >= first:
        rows = connection.execute(_DIGEST_AT, (schema.commit_id(shard, note.head),)).fetchall()
        if rows != [(note.digest,)]:
            raise JournalCorrupt(f"{path}: shard {shard}: commit {note.head} is not the one that was noted; {RESTORE}")
