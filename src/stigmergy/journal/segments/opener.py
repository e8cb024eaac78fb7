"""Opens and makes journals in segments. Refuses one that is foreign, damaged or in use, and then changes nothing.

First the identity says whose the folder is. Then it claims the mark beside the folder, so that nobody else opens it.
Earlier versions kept the mark inside the folder; it is moved once everything has been checked. Then the segments: each
must begin with the frame that says what came before it, their numbers have no gap, and the last one is read through.
Behind its last frame only unacknowledged data may follow: one torn frame. A whole frame behind a bad one, or less than
the mark witnessed, means that acknowledged commits are damaged, and is refused.

Only then does it write: the last frame over itself, because data that a dead process left in the page cache may not be
on the disk, and effects follow from it. Earlier segments are checked when they are read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError, JournalCorrupt, JournalForeign, JournalLocked
from stigmergy.journal.file_errors import RESTORE, opening_error
from stigmergy.journal.files import FileLock
from stigmergy.journal.identity import (
    MARK_BYTES,
    check_identity,
    check_incarnation,
    check_mark,
    decode_mark,
    encode_mark,
    mark_path,
    own_mark,
    read_mark,
)
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.segments.folder import Folder, OpenFile, OsFolder
from stigmergy.journal.segments.frames import (
    FORMAT,
    HEADER_BYTES,
    KEY_BYTES,
    SegmentFrame,
    SegmentFrameKind,
    SegmentHead,
    decode_firsts,
    decode_group,
    decode_head,
    encode_frame,
    frames_anywhere,
    read_frame,
    size_ahead,
)
from stigmergy.journal.segments.journal import OpenedSegments, SegmentJournal
from stigmergy.journal.segments.segment import (
    IDENTITY,
    SUFFIX,
    Landmark,
    Segment,
    check_beginning,
    read_kept,
    segment_name,
    segment_number,
)
from stigmergy.shard.commit import Head, head_of

SCHEME = "segments:"
RESERVE_BYTES = 1 << 20
"""What a drop writes is little: a frame, the head of a segment, and commits that are kept of one that goes."""
SEGMENT_BYTES = 16 << 20
SEGMENT_BYTES_MIN = 1 << 12
SHARDS_MAX = 1 << 22
OLD_MARK = "mark"
"""Where the mark was before it moved beside the folder: removing the folder removed it too."""
PART_FORMAT = 2
"""Of a journal that keeps some of a fleet's shards: a version that knows of no parts does not take it for all."""
KEYED_FORMAT = 3
"""Of a fleet with a function that says where agents live: a version that knows of none would look in other shards."""
_IDENTITY_KEY = blake3(b"stigmergy 2026 identity of a journal in segments").digest()
"""The identity's own frame cannot be keyed with what it holds."""


class SegmentIdentity(Struct, array_like=True, frozen=True):
    """The payload of the identity's frame."""

    format: int
    fleet: str
    shards: int
    incarnation: int
    key: bytes


class SegmentPartIdentity(SegmentIdentity, array_like=True, frozen=True):
    """The same of a journal that keeps some of the shards: from which to which."""

    part: tuple[int, int]


class SegmentKeyedIdentity(SegmentIdentity, array_like=True, frozen=True):
    """The same of a fleet with a function that says where agents live: its name. All shards are here without a part."""

    part: tuple[int, int] | None
    shard_by: str


_encoder = msgspec.msgpack.Encoder()
_identity = msgspec.msgpack.Decoder(SegmentIdentity)
_part_identity = msgspec.msgpack.Decoder(SegmentPartIdentity)
_keyed_identity = msgspec.msgpack.Decoder(SegmentKeyedIdentity)


def open_journal(
    url: str,
    identity: JournalIdentity,
    *,
    read_only: bool = False,
    inline: bool = False,
    segment_bytes: int = SEGMENT_BYTES,
    filled: bool = True,
    reserve_bytes: int = RESERVE_BYTES,
    folder: Folder | None = None,
    key: bytes | None = None,
) -> SegmentJournal:
    """Opens `segments:path/to/folder`, made if it is missing. Fleet and shards must match; the incarnation is the
    stored one.

    `filled`: room is taken in advance, which makes a sync cheaper and writes everything twice. `reserve_bytes` is the
    room that is held for dropping on a full device; small devices get less. `inline` does all work
    in the caller's thread; `folder` and `key` put a simulated disk underneath.
    """
    if segment_bytes < SEGMENT_BYTES_MIN:
        raise ConfigError(f"segment_bytes={segment_bytes}; give at least {SEGMENT_BYTES_MIN}")
    opened = _Opening(url, folder, read_only=read_only).run(identity, key)
    return SegmentJournal(
        opened, inline=inline, segment_bytes=segment_bytes, filled=filled, reserve_bytes=reserve_bytes
    )


def inspect_journal(url: str, *, folder: Folder | None = None) -> SegmentJournal:
    """Opens an existing journal of any fleet for reading only."""
    opened = _Opening(url, folder, read_only=True).run(None, None)
    return SegmentJournal(opened, inline=True, segment_bytes=SEGMENT_BYTES, filled=False, reserve_bytes=0)


def renew_incarnation(url: str, incarnation: int, *, folder: Folder | None = None) -> None:
    """Makes a restored copy a journal of its own. Peers then do not mistake it for the original, which knew more."""
    check_incarnation(incarnation)
    opened = _Opening(url, folder, read_only=False, heed_mark=False).run(None, None)
    try:
        renewed = structs.replace(opened.identity, incarnation=incarnation)
        _write_identity(opened.folder, renewed, opened.key)
    except OSError as error:
        raise opening_error(error, opened.folder.path) from error
    finally:
        opened.claim.close()


def path_of(url: str) -> str:
    """The folder that a URL names."""
    path = url.removeprefix(SCHEME)
    if path == url or not path or path.startswith(":"):
        raise ConfigError(f"journal URL {url!r}: expected {SCHEME}path/to/folder")
    return path


class _Opening:
    """One attempt to open a journal."""

    def __init__(self, url: str, folder: Folder | None, *, read_only: bool, heed_mark: bool = True) -> None:
        self._path = path_of(url)
        self._given = folder
        self._read_only = read_only
        self._heed_mark = heed_mark

    def run(self, wanted: JournalIdentity | None, key: bytes | None) -> OpenedSegments:
        with self._translating(), contextlib.ExitStack() as undo:
            may_make = wanted is not None and not self._read_only
            if not may_make and self._given is None and not os.path.isdir(self._path):
                raise ConfigError(f"{self._path}: there is no such journal; name the right folder")
            folder = self._folder = self._given or OsFolder(self._path)
            if not self._look():
                if not may_make:
                    raise ConfigError(f"{folder.path}: there is no such journal; name the right folder")
                self._check_not_lost()
                folder.make()
            claim = self._claim()
            undo.callback(claim.close)
            if not self._read_only:
                folder.files.close_to_others(folder.path)
            old_claim = self._claim_old()
            if old_claim is not None:
                undo.callback(old_claim.close)
            if not self._look() and wanted is not None:
                self._make(wanted, key)
            identity, stored_key = self._read_identity()
            if wanted is not None:
                check_identity(identity, wanted, folder.path)
            opened = OpenedSegments(
                folder=folder,
                identity=identity,
                key=stored_key,
                claim=claim,
                pid=os.getpid(),
                read_only=self._read_only,
                segments=[],
                number=0,
                heads={},
                firsts={},
                kept=read_kept(folder, stored_key),
            )
            self._read_segments(opened)
            # Until a copy has its own incarnation, the mark still speaks of what the original knew.
            if self._heed_mark:
                self._heed_marks(opened, old_claim)
            undo.pop_all()
            if old_claim is not None:
                old_claim.close()
            return opened

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise opening_error(error, self._path) from error

    # ------------------------------------------------------------------ whose it is

    def _look(self) -> bool:
        """Whether there is a journal; refuses a folder of something else."""
        try:
            names = self._folder.names()
        except FileNotFoundError:
            return False
        if IDENTITY in names:
            return True
        if any(segment_number(name) is not None for name in names):
            raise JournalCorrupt(f"{self._folder.path}: segments without an identity; {RESTORE}")
        strangers = [name for name in names if name not in (OLD_MARK, f"{IDENTITY}.new")]
        if strangers:
            raise JournalForeign(
                f"{self._folder.path}: a folder with other files ({strangers[0]}); name an empty or a new one"
            )
        return False

    def _claim(self) -> FileLock:
        try:
            return self._folder.files.claim(self._mark_path)
        except BlockingIOError:
            raise self._locked(self._folder.files.read(self._mark_path, 0, MARK_BYTES)) from None

    def _claim_old(self) -> FileLock | None:
        """The mark in the folder, if there is one: a program of an earlier version claims that."""
        if OLD_MARK not in self._folder.names():
            return None
        try:
            return self._folder.claim(OLD_MARK)
        except BlockingIOError:
            file = self._folder.open(OLD_MARK)
            held = file.read_at(0, MARK_BYTES)
            file.close()
            raise self._locked(held) from None

    def _locked(self, mark: bytes) -> JournalLocked:
        held = decode_mark(mark)
        holder = f"process {held.pid}" if held else "another process"
        return JournalLocked(f"{self._folder.path}: {holder} has the journal open; stop it first, or look at a copy")

    @property
    def _mark_path(self) -> str:
        return mark_path(self._folder.path)

    def _heed_marks(self, opened: OpenedSegments, old_claim: FileLock | None) -> None:
        """Refuses a journal that holds less than its marks say; then there is one mark, and it is beside the folder."""
        files, folder, identity = self._folder.files, self._folder, opened.identity
        marks = [read_mark(opened.claim.read(), self._mark_path)]
        if old_claim is not None:
            marks.append(read_mark(old_claim.read(), f"{folder.path}/{OLD_MARK}"))
        for mark in marks:
            check_mark(opened.heads, identity, mark, folder.path)
        if self._read_only:
            return
        newest = max((own_mark(identity, mark) for mark in marks), key=lambda mark: mark.position)
        opened.claim.write(encode_mark(newest))
        if old_claim is not None:
            # Durable before the old one goes: at no time is there none.
            files.rewrite(self._mark_path, MARK_BYTES)
            files.sync_folder(self._mark_path)
            folder.remove(OLD_MARK)
            folder.sync()

    def _check_not_lost(self) -> None:
        """There is no journal. Refuses to begin one where the mark says that there was one with commits."""
        files, folder = self._folder.files, self._folder
        marks = [(self._mark_path, files.size(self._mark_path)), (f"{folder.path}/{OLD_MARK}", folder.size(OLD_MARK))]
        for path, size in marks:
            mark = read_mark(files.read(path, 0, MARK_BYTES), path) if size else None
            if mark is not None and mark.position > 0:
                raise JournalCorrupt(
                    f"{folder.path}: the segments are gone, but {path} says that there were commits; "
                    f"{RESTORE}, or remove {path} to start empty"
                )

    def _make(self, identity: JournalIdentity, key: bytes | None) -> None:
        check_incarnation(identity.incarnation)
        if not 1 <= identity.shards <= SHARDS_MAX:
            raise ConfigError(f"{self._folder.path}: {identity.shards} shards; possible are 1 to {SHARDS_MAX}")
        self._check_not_lost()
        _write_identity(self._folder, identity, os.urandom(KEY_BYTES) if key is None else key)

    def _read_identity(self) -> tuple[JournalIdentity, bytes]:
        file = self._folder.open(IDENTITY)
        try:
            frame = read_frame(_IDENTITY_KEY, file.read_at(0, file.size()))
        finally:
            file.close()
        try:
            if frame is None or frame.kind is not SegmentFrameKind.IDENTITY:
                raise msgspec.DecodeError("not whole")
            found = _identity.decode(frame.payload)
            part, shard_by = None, ""
            if found.format == PART_FORMAT:
                part = _part_identity.decode(frame.payload).part
            elif found.format == KEYED_FORMAT:
                keyed = _keyed_identity.decode(frame.payload)
                part, shard_by = keyed.part, keyed.shard_by
            identity = JournalIdentity(found.fleet, found.shards, found.incarnation, part, shard_by)
        except (msgspec.DecodeError, ConfigError) as error:
            raise JournalCorrupt(f"{self._folder.path}: the identity is damaged ({error}); {RESTORE}") from None
        if found.format not in (FORMAT, PART_FORMAT, KEYED_FORMAT):
            raise JournalForeign(
                f"{self._folder.path}: journal format {found.format}, this version reads {FORMAT} to {KEYED_FORMAT}; "
                "use the version that wrote it"
            )
        return identity, found.key

    # ------------------------------------------------------------------ the segments

    def _read_segments(self, opened: OpenedSegments) -> None:
        numbers = [number for name in self._folder.names() if (number := segment_number(name)) is not None]
        for before, number in itertools.pairwise(numbers):
            if number != before + 1:
                raise self._corrupt(before + 1, "is missing")
        heads: list[tuple[SegmentHead, SegmentFrame]] = []
        for number in numbers:
            found = self._read_head(opened.key, number)
            if found is None:
                # The power went when it was begun. Nothing of it was ever acknowledged.
                if number != numbers[-1] or (not heads and number != 1):
                    raise self._corrupt(number, "does not begin as it should")
                self._check_unbegun(opened.key, number, heads[-1][1].number if heads else 0)
                break
            heads.append(found)
        for head, frame in heads:
            positions = {one.shard: one.position for one in head.heads}
            start = Landmark(frame.size_bytes, frame.number + 1, positions)
            opened.segments.append(Segment(head.segment, start, None))
        if heads:
            self._read_last(opened, *heads[-1])
            check_beginning(self._folder, opened.kept, opened.segments[0].start.positions, opened.firsts)
        elif opened.kept:
            raise JournalCorrupt(f"{self._folder.path}: the segments are gone; {RESTORE}")

    def _read_head(self, key: bytes, number: int) -> tuple[SegmentHead, SegmentFrame] | None:
        file = self._folder.open(segment_name(number))
        try:
            frame = read_frame(key, file.read_at(0, size_ahead(key, file.read_at(0, HEADER_BYTES))))
        finally:
            file.close()
        if frame is None or frame.kind is not SegmentFrameKind.SEGMENT:
            return None
        head = decode_head(frame, segment_name(number))
        # A spare that was a segment before still begins with what it was.
        return (head, frame) if head.segment == number else None

    def _check_unbegun(self, key: bytes, number: int, reached: int) -> None:
        file = self._folder.open(segment_name(number))
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        if any(
            frame.number > reached and frame.kind is not SegmentFrameKind.SEGMENT
            for frame in _later(key, data, reached)
        ):
            raise self._corrupt(number, "does not begin as it should, and has commits")

    def _read_last(self, opened: OpenedSegments, head: SegmentHead, first: SegmentFrame) -> None:
        """Reads the segment that grows, up to its end."""
        segment = opened.segments[-1]
        opened.heads = {one.shard: one for one in head.heads}
        opened.firsts = dict(head.firsts)
        opened.number = first.number
        where = f"{self._folder.path}/{segment.name}"
        file = self._folder.open(segment.name)
        try:
            end, last = segment.start.offset, (0, first.size_bytes)
            for offset, frame in segment.walk(file, opened.key, segment.start):
                end, last = offset + frame.size_bytes, (offset, frame.size_bytes)
                opened.number = frame.number
                if segment.is_due(offset):
                    segment.note(offset, frame.number, {shard: one.position for shard, one in opened.heads.items()})
                if frame.kind is SegmentFrameKind.FIRSTS:
                    opened.firsts.update(decode_firsts(frame, where))
                elif frame.kind in (SegmentFrameKind.GROUP, SegmentFrameKind.BLOCKS):
                    self._advance(opened.heads, frame, where)
            segment.end = end
            self._check_end(opened, segment, file, end)
            if not self._read_only:
                offset, size = last
                file.write_at(offset, file.read_at(offset, size))
                file.sync()
        finally:
            file.close()
        _check_shards(opened)

    def _advance(self, heads: dict[int, Head], frame: SegmentFrame, where: str) -> None:
        for stored in decode_group(frame, where):
            sealed = stored.sealed
            before = heads.get(sealed.shard)
            if sealed.position != (before.position + 1 if before else 1):
                raise JournalCorrupt(f"{where}: shard {sealed.shard}: position {sealed.position} is out of turn")
            heads[sealed.shard] = head_of(sealed)

    def _check_end(self, opened: OpenedSegments, segment: Segment, file: OpenFile, end: int) -> None:
        """Behind the end lies nothing that was acknowledged: no frame that is whole and newer."""
        rest = file.read_at(end, max(0, file.size() - end))
        if any(True for _ in _later(opened.key, rest, opened.number)):
            raise self._corrupt(segment.number, f"is damaged at byte {end}, and commits follow")

    def _corrupt(self, number: int, what: str) -> JournalCorrupt:
        return JournalCorrupt(f"{self._folder.path}: segment {number:016d}{SUFFIX} {what}; {RESTORE}")


def _later(key: bytes, data: bytes, reached: int) -> Iterator[SegmentFrame]:
    return (frame for frame in frames_anywhere(key, data) if frame.number > reached)


def _write_identity(folder: Folder, identity: JournalIdentity, key: bytes) -> None:
    names = (identity.fleet, identity.shards, identity.incarnation, key)
    record = SegmentIdentity(FORMAT, *names)
    if identity.shard_by:
        record = SegmentKeyedIdentity(KEYED_FORMAT, *names, identity.part, identity.shard_by)
    elif identity.part is not None:
        record = SegmentPartIdentity(PART_FORMAT, *names, identity.part)
    fresh = f"{IDENTITY}.new"
    folder.remove(fresh)
    file = folder.open(fresh, create=True)
    try:
        file.write_at(0, encode_frame(_IDENTITY_KEY, SegmentFrameKind.IDENTITY, 1, _encoder.encode(record)))
    finally:
        file.close()
    folder.replace(fresh, IDENTITY)


def _check_shards(opened: OpenedSegments) -> None:
    for shard in opened.heads:
        if shard not in opened.identity.owned:
            raise JournalCorrupt(f"{opened.folder.path}: commits of shard {shard}, which is not kept here; {RESTORE}")
