"""One segment: a file of frames, and where to start reading for a position of a shard.

Names are numbers, `0000000000000001.log`, without a gap. A finished segment never changes; the last one grows at its
end. Landmarks at intervals say how far each shard had come, so that a reader finds a position without reading the
segment from its start. They are made while reading and writing, and never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from stigmergy.base.errors import JournalCorrupt
from stigmergy.journal.file_errors import RESTORE, reading_error
from stigmergy.journal.port import StoredCommit
from stigmergy.journal.segments.folder import Folder, OpenFile
from stigmergy.journal.segments.frames import (
    HEADER_BYTES,
    SegmentFrame,
    SegmentFrameKind,
    decode_group,
    decode_kept,
    encode_frame,
    encode_kept,
    read_frame,
    size_ahead,
)

SUFFIX = ".log"
SPARE = "spare"
IDENTITY = "identity"
READ_BYTES = 1 << 18
LANDMARK_BYTES = 1 << 18
"""So far apart, so that their number is bounded by the segment's size, however small its frames are."""


def segment_name(number: int) -> str:
    """The file of a segment."""
    return f"{number:016d}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number of a segment by the name of its file; None for another file."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == 16 and stem.isascii() and stem.isdigit() else None


class Landmark(Struct, frozen=True):
    """A frame begins there, with this number, and these are the last positions before it."""

    offset: int
    number: int
    positions: dict[int, int]


class Segment:
    """One file of the log."""

    def __init__(self, number: int, start: Landmark, end: int | None) -> None:
        self.number = number
        self.start = start
        """Behind the segment's own first frame."""
        self.end = end
        """Behind the last frame; None while that has not been looked for."""
        self._landmarks = [start]

    @property
    def name(self) -> str:
        """Its file."""
        return segment_name(self.number)

    def note(self, offset: int, number: int, positions: Mapping[int, int]) -> None:
        """A frame begins there: now and then one is a landmark. Ask `is_due` first, where positions take work."""
        if self.is_due(offset):
            self._landmarks.append(Landmark(offset, number, dict(positions)))

    def is_due(self, offset: int) -> bool:
        """Whether a frame that begins there is to be a landmark."""
        return offset - self._landmarks[-1].offset >= LANDMARK_BYTES

    def landmark_before(self, shard: int, position: int) -> Landmark:
        """The last one that lies before a position of a shard."""
        for landmark in reversed(self._landmarks):
            if landmark.positions.get(shard, 0) < position:
                return landmark
        return self.start

    def walk(self, file: OpenFile, key: bytes, landmark: Landmark) -> Iterator[tuple[int, SegmentFrame]]:
        """The frames from a landmark on, each with its offset, until one is not the next."""
        offset, number = landmark.offset, landmark.number
        data, data_offset = b"", offset
        while self.end is None or offset < self.end:
            frame = read_frame(key, data, offset - data_offset)
            # What was read some time ago may have been written over since: it counts only if it is the next frame.
            if frame is None or frame.number != number:
                data, data_offset = read_ahead(file, key, offset), offset
                frame = read_frame(key, data)
            if frame is None or frame.number != number:
                return
            yield offset, frame
            offset += frame.size_bytes
            number += 1

    def commits(self, folder: Folder, key: bytes, shard: int, position: int) -> Iterator[StoredCommit]:
        """The commits of a shard from a position on, as far as this segment has them."""
        for stored in self._walk_commits(folder, key, self.landmark_before(shard, position)):
            if stored.sealed.shard == shard and stored.sealed.position >= position:
                yield stored

    def commits_from(self, folder: Folder, key: bytes, firsts: Mapping[int, int]) -> Iterator[StoredCommit]:
        """The commits of all shards in this segment that have not been dropped."""
        for stored in self._walk_commits(folder, key, self.start):
            if stored.sealed.position >= firsts.get(stored.sealed.shard, 1):
                yield stored

    def _walk_commits(self, folder: Folder, key: bytes, landmark: Landmark) -> Iterator[StoredCommit]:
        where = f"{folder.path}/{self.name}"
        try:
            file = folder.open(self.name)
        except OSError as error:
            raise reading_error(error, where) from error
        try:
            positions = dict(landmark.positions)
            reached = landmark.offset
            for offset, frame in self.walk(file, key, landmark):
                reached = offset + frame.size_bytes
                if frame.kind not in (SegmentFrameKind.GROUP, SegmentFrameKind.BLOCKS):
                    continue
                self.note(offset, frame.number, positions)
                for stored in decode_group(frame, where):
                    positions[stored.sealed.shard] = stored.sealed.position
                    yield stored
            if self.end is not None and reached < self.end:
                raise JournalCorrupt(f"{where}: damaged at byte {reached}; {RESTORE}")
        except OSError as error:
            raise reading_error(error, where) from error
        finally:
            file.close()


def read_ahead(file: OpenFile, key: bytes, offset: int) -> bytes:
    """From a frame's first byte on, all of it and some more; never more than the file has, whatever a header says."""
    left_bytes = max(0, file.size() - offset)
    wanted = max(READ_BYTES, size_ahead(key, file.read_at(offset, HEADER_BYTES)))
    return file.read_at(offset, min(wanted, left_bytes))


# The remainder of removed segments: the few commits in them that may still be needed, in one file.
#
# The newest commit of a shard is never dropped. Without this file, one silent shard would hold its segment, and every
# later one, forever. So when nearly all of the oldest segment may go, the rest is copied here before it is removed. The
# file is one frame, replaced as a whole; it is read when the journal is opened and is small.

KEPT = "kept"
KEPT_COMMITS_MAX = 4_096
KEPT_SHARE_MAX = 8
"""At most this part of a segment's size is kept in the file: it is written anew each time a segment goes."""

KeptCommits = Mapping[int, Sequence[StoredCommit]]
"""By shard, in order, without a gap."""


def read_kept(folder: Folder, key: bytes) -> KeptCommits:
    """What was kept; nothing if there is no such file. Raises JournalCorrupt where it is not as it was."""
    if folder.size(KEPT) is None:
        return {}
    file = folder.open(KEPT)
    try:
        frame = read_frame(key, file.read_at(0, file.size()))
    finally:
        file.close()
    where = f"{folder.path}/{KEPT}"
    if frame is None or frame.kind is not SegmentFrameKind.KEPT:
        raise JournalCorrupt(f"{where}: damaged, and commits are in it that are nowhere else; {RESTORE}")
    return by_shard(decode_kept(frame, where))


def write_kept(folder: Folder, key: bytes, kept: KeptCommits) -> None:
    """Replaces what was kept, durably."""
    fresh = f"{KEPT}.new"
    folder.remove(fresh)
    file = folder.open(fresh, create=True)
    try:
        commits = [stored for shard in sorted(kept) for stored in kept[shard]]
        file.write_at(0, encode_frame(key, SegmentFrameKind.KEPT, 1, encode_kept(commits)))
    finally:
        file.close()
    folder.replace(fresh, KEPT)


def by_shard(commits: Iterable[StoredCommit]) -> dict[int, list[StoredCommit]]:
    """The same commits, each with its shard's."""
    found: dict[int, list[StoredCommit]] = {}
    for stored in commits:
        found.setdefault(stored.sealed.shard, []).append(stored)
    return found


def check_beginning(folder: Folder, kept: KeptCommits, reached: Mapping[int, int], firsts: Mapping[int, int]) -> None:
    """Whatever the oldest segment does not have any more was dropped or is kept. Raises JournalCorrupt."""
    for shard, position in sorted(reached.items()):
        first = firsts.get(shard, 1)
        found = [one.sealed.position for one in kept.get(shard, ()) if first <= one.sealed.position <= position]
        if len(found) != max(0, position - first + 1) or found != list(range(first, first + len(found))):
            raise JournalCorrupt(
                f"{folder.path}: shard {shard}: what was before position {position + 1} is missing; {RESTORE}"
            )


# The spare: a file that becomes the next segment, prepared between appends.
#
# After small frames it is filled with zeros, a little at a time: syncing bytes that are already allocated is the
# cheapest sync. After large ones its space is only reserved: then it pays to write once.

FILL_BYTES = 1 << 18
"""A spare grows by so much after an append, at most; at least by as much as the append took."""
FILL_SYNC_BYTES = 1 << 20
"""A spare is synced each time it has grown by so much, so that no sync has much to do."""
LARGE_BYTES = 1 << 16
"""A frame of so many bytes is large: written in whole blocks, past the page cache where that can be."""


class Spare:
    """The spare of one journal. Used by its writer alone; raises OSError."""

    def __init__(self, folder: Folder, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file: OpenFile | None = None
        self._size_bytes = 0
        self._synced_bytes = 0

    @property
    def ready(self) -> bool:
        """Whether it has the length of a segment."""
        return self._size_bytes >= self._segment_bytes

    @property
    def wanted(self) -> bool:
        """Whether there is none at all."""
        return self._file is None and self._folder.size(SPARE) is None

    def resize(self, segment_bytes: int) -> None:
        """Segments have this size from now on. A larger spare is the next segment, or is given up for want of room."""
        self._segment_bytes = segment_bytes

    def grow(self, appended_bytes: int) -> None:
        """A frame of so many bytes was appended: the spare keeps ahead. Where room is short none is taken."""
        if self.ready or self._folder.free_bytes() < 2 * self._segment_bytes:
            return
        if self._file is None:
            self._file = self._folder.open(SPARE, create=True)
            self._size_bytes = self._synced_bytes = self._file.size()
        left_bytes = self._segment_bytes - self._size_bytes
        if left_bytes <= 0:
            return  # an earlier run has left it ready
        if appended_bytes >= LARGE_BYTES:
            self._file.reserve(self._segment_bytes)
            self._file.sync()
            self._size_bytes = self._synced_bytes = self._segment_bytes
        else:
            self._fill(self._file, appended_bytes)

    def _fill(self, file: OpenFile, appended_bytes: int) -> None:
        grow_bytes = max(FILL_BYTES if appended_bytes > FILL_BYTES // 8 else 1 << 14, 2 * appended_bytes)
        grow_bytes = min(grow_bytes, self._segment_bytes - self._size_bytes)
        file.write_at(self._size_bytes, bytes(grow_bytes))
        self._size_bytes += grow_bytes
        if self._size_bytes - self._synced_bytes >= FILL_SYNC_BYTES:
            file.sync()
            self._synced_bytes = self._size_bytes

    def become(self, name: str) -> None:
        """The spare, if there is one, is the file of this name from now on."""
        if self._folder.size(SPARE) is not None:
            self.let_go()
            self._folder.replace(SPARE, name)

    def take_over(self, name: str) -> None:
        """A file that is not needed any more is the spare from now on."""
        self._folder.replace(name, SPARE)
        self._size_bytes = self._synced_bytes = self._folder.size(SPARE) or 0

    def give_up(self) -> bool:
        """Gives its room back; whether there was one."""
        if self._folder.size(SPARE) is None:
            return False
        self.let_go()
        self._folder.remove(SPARE)
        self._folder.sync()
        return True

    def let_go(self) -> None:
        """Closes the file and leaves it as it is."""
        file, self._file = self._file, None
        self._size_bytes = self._synced_bytes = 0
        if file is not None:
            file.close()
