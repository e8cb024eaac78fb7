"""Names of compiled agents in the parts of a snapshot, read without the table that wrote them.

A part with rows begins with TABLE_PART; what follows says its kind and holds the table's own part. Parts with names are
the one thing in there that others may read too; how rows are stored is the table's business.
"""

from __future__ import annotations

import zlib

import msgspec
from msgspec import Struct

from stigmergy.core.codec import UNDECODABLE
from stigmergy.core.errors import JournalCorrupt
from stigmergy.core.snapshot import PART_BYTES_MAX, TABLE_PART

PART_FORMAT = 1


class Names(Struct, array_like=True, frozen=True, tag="names"):
    """The beginning of a part with names; what follows is about enrolments."""

    format: int
    first: int
    count: int
    names: bytes
    """Compressed, each followed by a zero byte."""


class Rows(Struct, array_like=True, frozen=True, tag="rows"):
    """Any other part."""

    format: int


_outer = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, bytes])
_inner: msgspec.msgpack.Decoder[Names | Rows] = msgspec.msgpack.Decoder(Names | Rows)


def kind_of_part(part: bytes) -> str:
    """Of which kind of compiled agents this part of a snapshot is; empty if it is none of theirs."""
    return _opened(part)[0] if part.startswith(TABLE_PART) else ""


def names_in(part: bytes) -> tuple[str, int, list[str]] | None:
    """The names in a part of a snapshot: kind, number of the first, names. None if there are none in it.

    Raises JournalCorrupt for what does not decode.
    """
    if not part.startswith(TABLE_PART):
        return None
    kind, body = _opened(part)
    try:
        found = _inner.decode(body)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a part of a snapshot does not decode ({error}); an older one is used") from None
    if not isinstance(found, Names):
        return None
    if found.format != PART_FORMAT:
        raise JournalCorrupt(f"names of format {found.format} in a snapshot, this version reads {PART_FORMAT}")
    engine = zlib.decompressobj()
    try:
        joined = engine.decompress(found.names, PART_BYTES_MAX).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise JournalCorrupt(f"names in a snapshot do not decompress ({error}); an older one is used") from None
    # None of them is empty: nobody makes room for millions of nothing.
    whole = engine.eof and joined[-1:] in ("", "\0") and not joined.startswith("\0") and "\0\0" not in joined
    if not whole or joined.count("\0") != found.count:
        raise JournalCorrupt("names in a snapshot are not as many as it says; an older one is used")
    return kind, found.first, joined[:-1].split("\0") if joined else []


def _opened(part: bytes) -> tuple[str, bytes]:
    try:
        kind, _, body = _outer.decode(memoryview(part)[len(TABLE_PART) :])
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a part of a snapshot does not decode ({error}); an older one is used") from None
    return kind, body
