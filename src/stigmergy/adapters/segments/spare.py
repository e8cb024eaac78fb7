"""The spare: a file that is to be the next segment, made ready between appends.

After small frames it is filled with zeros, a little at a time: a sync of bytes that lie in a file already is the
cheapest there is. After large ones its room is only reserved: for those it pays to write once.
"""

from __future__ import annotations

from stigmergy.adapters.segments.folder import Folder, OpenFile
from stigmergy.adapters.segments.segment import SPARE

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
