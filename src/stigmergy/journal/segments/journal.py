"""The journal in segments: the port's methods over a folder. Use `opener.open_journal` to make one.

An append is one frame at the end of the last segment, and one sync. A full segment is never changed, and the next one
begins with a frame that says how far each shard had come. Between appends, after the callers were answered, a spare is
filled with zeros a little at a time: syncing bytes that are already allocated is the cheapest sync. Segments that are
no longer needed become spares.

A frame also says where a shard begins after a drop. Whole segments before that are removed; the rest of a nearly empty
segment moves to a file of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from stigmergy.base.errors import Bug, JournalCorrupt, JournalFull, JournalUnknown, StigmergyError
from stigmergy.journal.file_errors import RESTORE, full_error, is_full, reading_error, unknown_error
from stigmergy.journal.files import (
    FileLock,
    FileWatch,
    InlineWriter,
    Reserve,
    ThreadWriter,
    Writer,
    gone_error,
    refused_write,
)
from stigmergy.journal.identity import AcknowledgedHead, encode_mark, mark_path
from stigmergy.journal.port import JournalIdentity, JournalSize, SnapshotPart, StoredCommit
from stigmergy.journal.segments.folder import Folder, OpenFile
from stigmergy.journal.segments.frames import (
    FORMAT,
    HEADER_BYTES,
    SegmentFrameKind,
    SegmentHead,
    encode_blocks,
    encode_firsts,
    encode_frame,
    encode_group,
    encode_head,
    frame_pieces,
    frame_size,
    read_frame,
    size_ahead,
)
from stigmergy.journal.segments.segment import (
    IDENTITY,
    KEPT,
    KEPT_COMMITS_MAX,
    KEPT_SHARE_MAX,
    LARGE_BYTES,
    SPARE,
    KeptCommits,
    Landmark,
    Segment,
    Spare,
    by_shard,
    segment_name,
    write_kept,
)
from stigmergy.metrics.histogram import Histogram
from stigmergy.shard.commit import Group, Head, advance, check_drop

# Snapshots of a journal in segments: one file each, `snapshot-SHARD-POSITION`, with a frame for each part.


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
                frame = encode_frame(key, SegmentFrameKind.PART, part.part + 1, payload)
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
    if frame is None or frame.kind is not SegmentFrameKind.PART:
        return None
    try:
        found = _decoder.decode(frame.payload)
    except msgspec.DecodeError:
        return None
    return (found.body, frame.size_bytes) if (found.shard, found.position, found.part) == place else None


QUOTA_SHARE = 8
"""Of what is kept within a number of bytes, a segment has this part, and the reserve too."""
SEGMENT_BYTES_QUOTA_MIN = 1 << 14


class OpenedSegments(Struct):
    """What opening has found out and holds: the journal takes it over."""

    folder: Folder
    identity: JournalIdentity
    key: bytes
    claim: FileLock
    pid: int
    read_only: bool
    segments: list[Segment]
    """At least one, unless it is read only; the last is the one that grows."""
    number: int
    """Of the last frame."""
    heads: dict[int, Head]
    firsts: dict[int, int]
    kept: KeptCommits


class SegmentJournal:
    """The Journal port on a folder of segments."""

    def __init__(
        self, opened: OpenedSegments, *, inline: bool, segment_bytes: int, filled: bool, reserve_bytes: int
    ) -> None:
        self._opened = opened
        self._folder = opened.folder
        self._key = opened.key
        self._segments = opened.segments
        self._heads = opened.heads
        self._firsts = opened.firsts
        self._kept = opened.kept
        self._unkept = (0, 0)
        """The segment that was last found to have too much to keep, and how many commits of it that were."""
        self._number = opened.number
        self._segment_bytes = segment_bytes
        self._filled = filled
        self._file: OpenFile | None = None
        self._file_bytes = 0
        self._spare = Spare(self._folder, segment_bytes)
        self._appended_bytes = 0
        self._reserve = Reserve(self._folder.files, self._folder.path, 0 if opened.read_only else reserve_bytes)
        self._reserve_due = not opened.read_only
        self._watch = FileWatch(self._folder.files, self._folder.path, (mark_path(self._folder.path),))
        self._lock = threading.Lock()
        self._closed = False
        self._failure: JournalUnknown | None = None
        self.syncs = Histogram()
        """How long it has waited for the disk; observed by the thread that writes."""
        self._writer: Writer
        if inline:
            self._writer = InlineWriter(self._fill_spare)
        else:
            self._writer = ThreadWriter(self._fill_spare, name=f"journal {self._folder.path}")

    @property
    def identity(self) -> JournalIdentity:
        return self._opened.identity

    def heads(self) -> list[Head]:
        self._check_usable()
        heads = dict(self._heads)
        return [heads[shard] for shard in sorted(heads)]

    def first_position(self, shard: int) -> int:
        self._check_usable()
        return self._firsts.get(shard, 1)

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        self._check_usable()
        position = max(after + 1, self.first_position(shard))
        while (head := self._heads.get(shard)) is not None and position <= head.position:
            before, segment = position, self._segment_with(shard, position)
            try:
                for stored in self._commits(segment, shard, position):
                    if stored.sealed.position != position:
                        break
                    if position < self.first_position(shard):
                        raise Bug(f"shard {shard}: position {position} was dropped while it was to be read")
                    yield stored
                    position += 1
            except JournalCorrupt:
                # It went while it was read, and its file may be another segment's by now.
                if segment is None or segment in self._segments:
                    raise
                continue
            if position == before and (segment is None or segment in self._segments):
                where = f"{self._folder.path}/{KEPT if segment is None else segment.name}"
                raise JournalCorrupt(
                    f"{where}: position {position} of shard {shard} is missing, or damage lies before it; {RESTORE}"
                )

    def append(self, group: Group) -> Awaitable[None]:
        try:
            self._check_writable()
            moved = advance(self._heads, group, self.identity.owned)
            return self._writer.run(partial(self._append, group, moved))
        except StigmergyError as error:
            return refused_write(error)

    def begin_at(self, heads: Sequence[Head]) -> None:
        """Lets the shards of a new journal begin behind these commits, which a snapshot covers: to restore a copy.

        Append what follows each of them at once: the first segment says where they begin.
        """
        self._check_writable()
        if self._heads or self._segments:
            raise Bug("the journal has commits; a copy is restored into a new one")
        for head in heads:
            self._heads[head.shard] = head
            self._firsts[head.shard] = head.position + 1

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        self._check_writable()
        if parts:
            await self._writer.run(partial(self._put_snapshot, shard, position, tuple(parts)))

    def snapshots(self, shard: int) -> list[int]:
        self._check_usable()
        try:
            return positions(self._folder, shard)
        except OSError as error:
            raise reading_error(error, self._folder.path) from error

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        self._check_usable()
        return read_parts(self._folder, self._key, shard, position)

    async def drop_snapshot(self, shard: int, position: int) -> None:
        self._check_writable()
        await self._writer.run(partial(self._drop_snapshot, shard, position))

    async def drop(self, shard: int, upto: int) -> None:
        self._check_writable()
        check_drop(self._heads, shard, upto)
        await self._writer.run(partial(self._drop, shard, upto))

    async def check_files(self) -> None:
        """Raises JournalUnknown if a segment, the identity or the mark is not in its place any more."""
        if self._closed:
            return  # begun before the journal was closed: there is nothing left that could be acknowledged
        self._check_usable()
        await self._writer.run(self._check_files)

    def keep_within(self, bytes_max: int) -> None:
        """All files together should stay below this: segments, the spare and the reserve take a share and no more."""
        share_bytes = bytes_max // QUOTA_SHARE
        self._segment_bytes = min(self._segment_bytes, max(SEGMENT_BYTES_QUOTA_MIN, share_bytes))
        self._spare.resize(self._segment_bytes)
        self._reserve.size_bytes = min(self._reserve.size_bytes, share_bytes)
        self._reserve_due = True

    def size(self) -> JournalSize:
        self._check_usable()
        heads, firsts = dict(self._heads), dict(self._firsts)
        try:
            return JournalSize(
                commits=sum(head.position - firsts.get(shard, 1) + 1 for shard, head in heads.items()),
                bytes_used=sum(self._folder.size(name) or 0 for name in self._folder.names())
                + sum(
                    self._folder.files.size(path) or 0 for path in (mark_path(self._folder.path), self._reserve.path)
                ),
                # A spare is given up when there is no other room.
                bytes_free=self._folder.free_bytes() + (self._folder.size(SPARE) or 0),
            )
        except OSError as error:
            raise reading_error(error, self._folder.path) from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._writer.close(self._close)

    # What follows runs in the writer's thread, under the lock.

    def _append(self, group: Group, moved: dict[int, Head]) -> None:
        with self._writing():
            if sum(len(one.body) for one in group.commits) >= LARGE_BYTES:
                self._write(SegmentFrameKind.BLOCKS, encode_blocks(group))
            else:
                self._write(SegmentFrameKind.GROUP, [encode_group(group)])
            self._watch.check()
            self._heads.update(moved)
            last = group.commits[-1]
            mark = AcknowledgedHead(self.identity.incarnation, last.shard, last.position, self._opened.pid)
            # A witness that cannot be heard is no reason to stop.
            with contextlib.suppress(OSError):
                self._opened.claim.write(encode_mark(mark))

    def _check_files(self) -> None:
        with self._writing():
            self._watch.check()
            there = set(self._folder.names())
            for name in (IDENTITY, *(segment.name for segment in self._segments)):
                if name not in there:
                    raise gone_error(self._folder.path, self._path_of(name), replaced=False)

    def _path_of(self, name: str) -> str:
        return f"{self._folder.path}/{name}"

    def _write(self, kind: SegmentFrameKind, payload: Sequence[bytes]) -> None:
        """Adds one frame and syncs. A frame alone in its sync: so a bad one in front of a good one is damage."""
        segment, file = self._active()
        end = segment.end or 0
        # A large frame may go beyond what was reserved: else much of a segment would stay empty.
        length = sum(len(piece) for piece in payload)
        if self._is_full(segment, end + (1 if kind is SegmentFrameKind.BLOCKS else frame_size(kind, length))):
            segment, file = self._begin_segment()
            end = segment.end or 0
        size_bytes = frame_size(kind, length, end)
        self._write_frame(file, end, frame_pieces(self._key, kind, self._number + 1, payload, end))
        self._number += 1
        self._appended_bytes = size_bytes
        if segment.is_due(end):
            segment.note(end, self._number, self._positions())
        segment.end = end + size_bytes
        self._file_bytes = max(self._file_bytes, segment.end)

    def _is_full(self, segment: Segment, end: int) -> bool:
        """Whether a frame that would end there goes into the next segment. A file that would have to grow is left when
        one that is filled already is at hand: so the first segment of a journal, which nobody has filled, is short."""
        if segment.end == segment.start.offset:
            return False
        return end > self._segment_bytes or (end > self._file_bytes and self._spare.ready)

    def _write_frame(self, file: OpenFile, offset: int, frame: Sequence[bytes]) -> None:
        try:
            file.write_pieces(offset, frame)
        except OSError as error:
            if not is_full(error):
                raise
            self._write_in_place_of_the_spare(file, offset, frame, error)
        began_ns = time.perf_counter_ns()
        file.sync()
        self.syncs.observe(time.perf_counter_ns() - began_ns)

    def _write_in_place_of_the_spare(self, file: OpenFile, offset: int, frame: Sequence[bytes], error: OSError) -> None:
        if not self._spare.give_up():
            raise full_error(self._folder.path) from error
        try:
            file.write_pieces(offset, frame)
        except OSError as again:
            if is_full(again):
                raise full_error(self._folder.path) from again
            raise

    def _active(self) -> tuple[Segment, OpenFile]:
        """The segment that grows, and its file."""
        if not self._segments:
            return self._begin_segment()
        segment = self._segments[-1]
        if self._file is None:
            self._file = self._folder.open(segment.name)
            self._file_bytes = self._file.size()
            self._watch.exchange(None, self._path_of(segment.name))
        return segment, self._file

    def _begin_segment(self) -> tuple[Segment, OpenFile]:
        """Begins the next segment, with a frame of its own that is durable before anything follows it."""
        number = self._segments[-1].number + 1 if self._segments else 1
        name = segment_name(number)
        try:
            self._spare.become(name)
            file = self._folder.open(name, create=True)
            self._folder.sync()
        except OSError as error:
            if is_full(error):
                raise full_error(self._folder.path) from error
            raise
        heads = [self._heads[shard] for shard in sorted(self._heads)]
        head = SegmentHead(FORMAT, self.identity.incarnation, number, heads, self._firsts)
        payload = encode_head(head)
        frame = frame_pieces(self._key, SegmentFrameKind.SEGMENT, self._number + 1, [payload])
        try:
            self._write_frame(file, 0, frame)
        except BaseException:
            file.close()
            raise
        self._number += 1
        start = frame_size(SegmentFrameKind.SEGMENT, len(payload))
        segment = Segment(number, Landmark(start, self._number + 1, self._positions()), start)
        if self._file is not None:
            self._file.close()
        left = self._path_of(self._segments[-1].name) if self._segments else None
        self._watch.exchange(left, self._path_of(name))
        self._segments.append(segment)
        self._file = file
        self._file_bytes = file.size()
        return segment, file

    def _positions(self) -> dict[int, int]:
        return {shard: head.position for shard, head in self._heads.items()}

    def _put_snapshot(self, shard: int, position: int, parts: tuple[SnapshotPart, ...]) -> None:
        with self._writing():
            write_parts(self._folder, self._key, shard, position, parts)

    def _drop_snapshot(self, shard: int, position: int) -> None:
        with self._writing():
            self._folder.remove(snapshot_name(shard, position))
            self._folder.sync()

    def _drop(self, shard: int, upto: int) -> None:
        if shard not in self._heads or upto < self._firsts.get(shard, 1):
            return
        with self._writing():
            moved = {shard: upto + 1}
            self._write_to_free([encode_firsts(moved)])
            self._firsts = {**self._firsts, **moved}
            while len(self._segments) > 1 and self._is_free(*self._segments[:2]):
                self._discard(self._segments.pop(0))

    def _write_to_free(self, payload: Sequence[bytes]) -> None:
        """Writes that something was dropped. To a full device the reserve is given up for that."""
        try:
            self._write(SegmentFrameKind.FIRSTS, payload)
        except JournalFull:
            if not self._reserve.give_up():
                raise
            self._reserve_due = True
            self._write(SegmentFrameKind.FIRSTS, payload)

    def _is_free(self, oldest: Segment, second: Segment) -> bool:
        """Whether nobody can ask any more for what the oldest segment has; the little that somebody can is kept."""
        live = 0
        for shard, position in second.start.positions.items():
            before = max(self._firsts.get(shard, 1) - 1, oldest.start.positions.get(shard, 0))
            live += max(0, position - before)
        if not live:
            return True
        if live > KEPT_COMMITS_MAX or self._unkept == (oldest.number, live):
            return False
        self._unkept = (oldest.number, live)
        # If it is damaged, its next reader finds that; until then it stays as it is.
        with contextlib.suppress(JournalCorrupt):
            found = list(oldest.commits_from(self._folder, self._key, self._firsts))
            if len(found) == live:
                return self._keep(found, oldest.start.positions)
        return False

    def _keep(self, found: list[StoredCommit], before: dict[int, int]) -> bool:
        """Keeps these beside what is kept of still older segments; False if that is too much, or finds no room."""
        # If the power went right after this was done, the file has already what the segment has.
        kept_before = [
            stored
            for stored in itertools.chain.from_iterable(self._kept.values())
            if self._firsts.get(stored.sealed.shard, 1) <= stored.sealed.position <= before.get(stored.sealed.shard, 0)
        ]
        kept = by_shard([*kept_before, *found])
        size_bytes = sum(len(stored.sealed.body) for commits in kept.values() for stored in commits)
        if len(kept_before) + len(found) > KEPT_COMMITS_MAX or size_bytes > self._segment_bytes // KEPT_SHARE_MAX:
            return False
        try:
            write_kept(self._folder, self._key, kept)
        except OSError as error:
            if not is_full(error):
                raise
            self._unkept = (0, 0)
            return False
        self._kept = kept
        return True

    def _discard(self, segment: Segment) -> None:
        if self._filled and self._spare.wanted:
            self._spare.take_over(segment.name)
        else:
            self._folder.remove(segment.name)
            self._folder.sync()

    def _fill_spare(self) -> None:
        """After an append, when its waiters were told. If it fails, the next segment begins without a spare."""
        if self._closed or self._failure is not None:
            return
        if self._reserve_due:
            with self._lock, contextlib.suppress(OSError):
                self._reserve_due = not self._reserve.make()
        if not self._filled or not self._appended_bytes:
            return
        appended_bytes, self._appended_bytes = self._appended_bytes, 0
        # Whatever goes wrong, nobody waits for this, and the thread it runs in must live.
        with self._lock, contextlib.suppress(Exception):
            self._spare.grow(appended_bytes)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Translates errors. After any that leaves open what was kept, the journal is at its end."""
        with self._lock:
            self._check_failure()
            try:
                yield
            except JournalUnknown as error:
                self._failure = error
                self._let_go()
                raise
            except StigmergyError:
                raise
            except Exception as error:
                self._failure = unknown_error(error, self._folder.path)
                self._let_go()
                raise self._failure from error

    def _close(self) -> None:
        with self._lock:
            if self._failure is None:
                self._let_go()

    def _let_go(self) -> None:
        """Leaves the files as they are. A failed journal must not be made to look well by a later sync."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        with contextlib.suppress(OSError):
            self._spare.let_go()
        self._file = None
        self._opened.claim.close()

    # What follows runs on the event loop.

    def _segment_with(self, shard: int, position: int) -> Segment | None:
        """Where a position is; None if it is among what was kept of segments that have gone."""
        for segment in reversed(list(self._segments)):
            if segment.start.positions.get(shard, 0) < position:
                return segment
        return None

    def _commits(self, segment: Segment | None, shard: int, position: int) -> Iterator[StoredCommit]:
        if segment is not None:
            return segment.commits(self._folder, self._key, shard, position)
        if position < self.first_position(shard):
            raise Bug(f"shard {shard}: position {position} was dropped while it was to be read")
        return iter([stored for stored in self._kept.get(shard, ()) if stored.sealed.position >= position])

    def _check_writable(self) -> None:
        self._check_usable()
        if self._opened.read_only:
            raise Bug("the journal was opened for reading only")

    def _check_usable(self) -> None:
        self._check_failure()
        if self._closed:
            raise Bug("the journal is closed; open it again")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise JournalUnknown(str(self._failure))
