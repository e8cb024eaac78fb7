"""Snapshots of a journal in segments: one file each, `snapshot-SHARD-POSITION`, of a frame for each part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from stigmergy.adapters.segments.errors import full_error, is_full, reading_error
from stigmergy.adapters.segments.folder import Folder, OpenFile
from stigmergy.adapters.segments.frames import HEADER_BYTES, Kind, encode_frame, read_frame, size_ahead
from stigmergy.core.errors import Bug, JournalCorrupt
from stigmergy.ports.journal import SnapshotPart


class SegmentPart(Struct, array_like=True, frozen=True):
    """The payload of a part's frame."""

    shard: int
    position: int
    part: int
    body: bytes


_NAME = re.compile(r"snapshot-(\d+)-(\d+)", re.ASCII)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SegmentPart)


def snapshot_name(shard: int, position: int) -> str:
    """The file of a snapshot."""
    return f"snapshot-{shard}-{position}"


def positions(folder: Folder, shard: int) -> list[int]:
    """The positions of which this shard has a snapshot, lowest first."""
    found = (_NAME.fullmatch(name) for name in folder.names())
    return sorted(int(match[2]) for match in found if match is not None and int(match[1]) == shard)


def write_parts(folder: Folder, key: bytes, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
    """Adds parts; the first one begins the snapshot anew. Raises Bug unless they follow those that are there."""
    name = snapshot_name(shard, position)
    stored, end = _extent(folder, key, shard, position, parts[0].part)
    if [part.part for part in parts] != list(range(stored, stored + len(parts))):
        raise Bug(f"shard {shard}, snapshot {position}: parts must follow the {stored} that are stored")
    try:
        if stored == 0:
            folder.remove(name)
        file = folder.open(name, create=stored == 0)
        try:
            for part in parts:
                payload = _encoder.encode(SegmentPart(shard, position, part.part, part.body))
                frame = encode_frame(key, Kind.PART, part.part + 1, payload)
                file.write_at(end, frame)
                end += len(frame)
            file.sync()
        finally:
            file.close()
        if stored == 0:
            folder.sync()
    except OSError as error:
        if is_full(error):
            raise full_error(folder.path) from error
        raise


def read_parts(folder: Folder, key: bytes, shard: int, position: int) -> Iterator[SnapshotPart]:
    """The parts in order; none if there is no such snapshot. Raises JournalCorrupt where one is not as it was."""
    where = f"{folder.path}/{snapshot_name(shard, position)}"
    try:
        file = folder.open(snapshot_name(shard, position))
    except FileNotFoundError:
        return
    except OSError as error:
        raise reading_error(error, where) from error
    try:
        offset = part = 0
        size_bytes = file.size()
        while offset < size_bytes:
            found = _part_at(file, key, offset, (shard, position, part))
            if found is None:
                raise JournalCorrupt(f"{where}: part {part} is damaged or missing; use an earlier snapshot, or replay")
            body, taken = found
            yield SnapshotPart(part=part, body=body)
            offset += taken
            part += 1
    except OSError as error:
        raise reading_error(error, where) from error
    finally:
        file.close()


def _extent(folder: Folder, key: bytes, shard: int, position: int, parts_max: int) -> tuple[int, int]:
    """How many parts are there, up to so many, and where the last one ends. What lies behind them is written over."""
    if parts_max == 0:
        return 0, 0
    try:
        file = folder.open(snapshot_name(shard, position))
    except FileNotFoundError:
        return 0, 0
    try:
        offset = part = 0
        while part < parts_max and (found := _part_at(file, key, offset, (shard, position, part))) is not None:
            offset += found[1]
            part += 1
        return part, offset
    finally:
        file.close()


def _part_at(file: OpenFile, key: bytes, offset: int, place: tuple[int, int, int]) -> tuple[bytes, int] | None:
    """The body of this part and the bytes it takes, if it is there and whole."""
    frame = read_frame(key, file.read_at(offset, size_ahead(key, file.read_at(offset, HEADER_BYTES))))
    if frame is None or frame.kind is not Kind.PART:
        return None
    try:
        found = _decoder.decode(frame.payload)
    except msgspec.DecodeError:
        return None
    return (found.body, frame.size_bytes) if (found.shard, found.position, found.part) == place else None
