"""A flight log file, read as a read-only journal.

`open_flight` reads the file once from end to end and checks every record: damage is listed as a flaw with its place,
and reading goes on where possible. It remembers where sections begin, and the place of every so many commits, so that
memory hardly grows with the file.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from stigmergy.audit.archive_port import Flaw
from stigmergy.audit.flight_format import (
    FLIGHT_MAGIC,
    RECORD_CHECKSUM_BYTES,
    RECORD_HEADER_BYTES,
    FlightCommit,
    FlightDigest,
    FlightDirectory,
    FlightManifest,
    FlightOpening,
    FlightRecord,
    FlightSeal,
    KeyedFlightOpening,
    RecordKind,
    checksum_fits,
    commit_is_intact,
    read_flight_commit,
    read_record,
    read_record_header,
    restore_directory,
)
from stigmergy.base.errors import Bug, ConfigError, JournalCorrupt, JournalError, JournalForeign
from stigmergy.journal.port import JournalIdentity, JournalSize, SnapshotPart, StoredCommit
from stigmergy.shard.commit import Group, Head
from stigmergy.shard.directory import Directory

FLAWS_MAX = 100
"""So many flaws are listed; then reading stops."""
INDEX_EVERY = 1_000
"""Of every so many commits of a section the place is remembered."""


class _Section:
    """Where the commits of one shard are in the file."""

    def __init__(self, first: int, offset: int) -> None:
        self.first = first
        self.last = first - 1
        self.offsets = [offset]
        """Of the first commit and of every INDEX_EVERY-th behind it."""
        self.head: Head | None = None


class FlightFile:
    """A flight log on disk. Implements the FlightLog port. It closes the file that it is given."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self._sections: dict[int, _Section] = {}
        self._directories: dict[int, list[FlightDirectory]] = {}
        self._opening: FlightOpening | None = None
        self._manifest: FlightManifest | None = None
        self._manifest_bytes = b""
        self._seal: FlightSeal | None = None
        self._flaws: list[Flaw] = []
        self._last = (0, 0)
        self._commits = 0
        self._digest = FlightDigest()
        try:
            self._size_bytes = file.seek(0, io.SEEK_END)
            self._scan()
        except BaseException:
            file.close()
            raise

    @property
    def identity(self) -> JournalIdentity:
        opening = self.opening
        shard_by = opening.shard_by if isinstance(opening, KeyedFlightOpening) else ""
        return JournalIdentity(opening.fleet, opening.shards, opening.incarnation, shard_by=shard_by)

    @property
    def opening(self) -> FlightOpening:
        if self._opening is None:
            why = self._flaws[0].what if self._flaws else "it has none"
            raise JournalCorrupt(f"{self._name}: its opening does not say whose log it is: {why}")
        return self._opening

    @property
    def readable(self) -> bool:
        """Whether it says whose log it is; if not, its flaws say why."""
        return self._opening is not None

    @property
    def manifest(self) -> FlightManifest | None:
        return self._manifest

    @property
    def manifest_bytes(self) -> bytes:
        return self._manifest_bytes

    @property
    def seal(self) -> FlightSeal | None:
        return self._seal

    @property
    def flaws(self) -> list[Flaw]:
        return self._flaws

    def heads(self) -> list[Head]:
        return [section.head for _, section in sorted(self._sections.items()) if section.head is not None]

    def first_position(self, shard: int) -> int:
        section = self._sections.get(shard)
        return 1 if section is None else section.first

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        section = self._sections.get(shard)
        if section is None or after >= section.last:
            return
        position = max(after + 1, section.first)
        offset = section.offsets[(position - section.first) // INDEX_EVERY]
        while True:
            record, offset = self._record_at(offset)
            if not isinstance(record, FlightCommit) or record.shard != shard:
                return
            if record.position >= position:
                sealed, signature = read_flight_commit(record)
                yield StoredCommit(sealed, signature)
            if record.position >= section.last:
                return

    def directory_before(self, shard: int) -> Directory:
        return restore_directory(self._directories.get(shard, ()))

    def snapshots(self, shard: int) -> list[int]:
        return []

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        return iter(())

    def size(self) -> JournalSize:
        return JournalSize(commits=self._commits, bytes_used=self._size_bytes, bytes_free=0)

    async def append(self, group: Group) -> None:
        raise Bug("a flight log is never written to")

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        raise Bug("a flight log is never written to")

    async def drop_snapshot(self, shard: int, position: int) -> None:
        raise Bug("a flight log is never written to")

    async def drop(self, shard: int, upto: int) -> None:
        raise Bug("a flight log is never written to")

    async def close(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Closes the file, for callers without a loop."""
        self._file.close()

    # ------------------------------------------------------------------ reading it once

    def _scan(self) -> None:
        magic = self._read(0, len(FLIGHT_MAGIC))
        if magic != FLIGHT_MAGIC:
            raise JournalForeign(f"{self._name}: not a flight log of ours; name the right file")
        self._digest.add(magic)
        offset = len(FLIGHT_MAGIC)
        while offset < self._size_bytes and len(self._flaws) < FLAWS_MAX and self._seal is None:
            try:
                offset = self._take(offset)
            except JournalForeign:
                raise
            except JournalError as error:
                self._flaw(f"the file cannot be read from byte {offset} on: {error}")
                return
        if self._seal is not None and offset < self._size_bytes:
            self._flaw(f"{self._size_bytes - offset} bytes follow behind its end; somebody has added to it")
        if self._seal is None and not self._flaws:
            self._flaw("the file ends without its manifest and seal: it was cut off, or never finished")

    def _take(self, offset: int) -> int:
        """Takes in one record; returns where the next one begins."""
        head, body, checksum = self._pieces(offset)
        kind, length = read_record_header(head)
        after = offset + RECORD_HEADER_BYTES + length + RECORD_CHECKSUM_BYTES
        if len(body) < length or len(checksum) < RECORD_CHECKSUM_BYTES:
            raise JournalCorrupt("the last record is not whole: the file was cut off")
        before = self._digest.value() if kind is RecordKind.MANIFEST else b""
        self._digest.add(head + body + checksum)
        if not checksum_fits(head, body, checksum):
            self._flaw_at(kind, body, f"the record at byte {offset} is not what was written: a byte in it was changed")
            return after
        self._keep(read_record(kind, body), offset, body, before)
        return after

    def _keep(self, record: FlightRecord, offset: int, body: bytes, before: bytes) -> None:
        match record:
            case FlightOpening():
                if self._opening is not None:
                    raise JournalCorrupt("a second opening")
                self._opening = record
            case FlightDirectory():
                if self._opening is None or self._sections or not 0 <= record.shard < self._opening.shards:
                    raise JournalCorrupt("a directory that is not between the opening and the commits, or of no shard")
                self._directories.setdefault(record.shard, []).append(record)
            case FlightCommit():
                self._keep_commit(record, offset)
            case FlightManifest():
                self._manifest, self._manifest_bytes = record, body
                if record.digest != before:
                    self._flaw("the bytes of the file are not those that its manifest was made for")
            case FlightSeal():
                self._seal = record

    def _keep_commit(self, record: FlightCommit, offset: int) -> None:
        if self._opening is None or not 0 <= record.shard < self._opening.shards or record.position < 1:
            raise JournalCorrupt("a commit before the opening, or of a shard or position that cannot be")
        shard, position = self._last = (record.shard, record.position)
        if not commit_is_intact(record):
            self._flaw("the commit's bytes do not have the digest that is stored with them", shard, position)
        section = self._sections.get(shard)
        if section is None:
            section = self._sections[shard] = _Section(position, offset)
        elif position != section.last + 1:
            # One that is damaged was passed over: what follows cannot be reached through the index.
            self._flaw(f"comes behind position {section.last}; what is between them is missing", shard, position)
            return
        elif (position - section.first) % INDEX_EVERY == 0:
            section.offsets.append(offset)
        sealed, _ = read_flight_commit(record)
        section.last = position
        section.head = Head(shard, position, sealed.epoch, record.digest)
        self._commits += 1

    def _record_at(self, offset: int) -> tuple[FlightRecord, int]:
        head, body, _ = self._pieces(offset)
        kind, length = read_record_header(head)
        return read_record(kind, body), offset + RECORD_HEADER_BYTES + length + RECORD_CHECKSUM_BYTES

    def _pieces(self, offset: int) -> tuple[bytes, bytes, bytes]:
        head = self._read(offset, RECORD_HEADER_BYTES)
        _, length = read_record_header(head)
        rest = self._read(offset + RECORD_HEADER_BYTES, length + RECORD_CHECKSUM_BYTES)
        return head, rest[:length], rest[length:]

    def _read(self, offset: int, size: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.read(size)
        except OSError as error:
            raise JournalCorrupt(f"{self._name}: cannot be read: {error.strerror}") from None

    def _flaw_at(self, kind: RecordKind, body: bytes, what: str) -> None:
        """Names the commit as far as its record still tells; else the one that should be there."""
        shard, position = (self._last[0], self._last[1] + 1) if kind is RecordKind.COMMIT else (0, 0)
        with contextlib.suppress(JournalError):
            record = read_record(kind, body)
            if isinstance(record, FlightCommit) and (record.shard, record.position - 1) == self._last:
                shard, position = record.shard, record.position
        if kind is RecordKind.COMMIT:
            self._last = (shard, position)
        self._flaw(what, shard, position)

    def _flaw(self, what: str, shard: int = 0, position: int = 0) -> None:
        self._flaws.append(Flaw(shard, position, what))


def open_flight(path: Path) -> FlightFile:
    """Opens a flight log, whatever its state; what is wrong with it is in its `flaws`."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; name the right file") from None
    return FlightFile(str(path), file)


def open_whole_flight(path: Path) -> FlightFile:
    """Opens a flight log to work with what it says. Raises JournalCorrupt where that would be a part of it."""
    flight = open_flight(path)
    if flight.flaws:
        flight.let_go()
        why = flight.flaws[0].what
        raise JournalCorrupt(f"{path}: {why}; get it once more, stigmergy log verify {path} says what is wrong")
    return flight
