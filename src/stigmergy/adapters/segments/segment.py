"""One segment: a file of frames, and where to begin to read it for a position of a shard.

Names are numbers, `0000000000000001.log`, without a gap. A segment that is written is never changed again; the last one
grows at its end. Landmarks, some way apart, say how far each shard had come there, so that a reader finds a position
without reading the segment from its start. They are made by reading and by writing, and never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from stigmergy.adapters.segments.errors import RESTORE, reading_error
from stigmergy.adapters.segments.folder import Folder, OpenFile
from stigmergy.adapters.segments.frames import HEADER_BYTES, Frame, Kind, decode_group, read_frame, size_ahead
from stigmergy.core.errors import JournalCorrupt
from stigmergy.ports.journal import StoredCommit

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

    def walk(self, file: OpenFile, key: bytes, landmark: Landmark) -> Iterator[tuple[int, Frame]]:
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
                if frame.kind not in (Kind.GROUP, Kind.BLOCKS):
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
