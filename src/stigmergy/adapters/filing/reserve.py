"""The reserve: a file beside a journal that holds room and nothing else.

To drop old commits takes room as well, and a device that is full has none. The reserve is given up for that, and for
nothing else, and is made again as soon as there is room. It is never read: losing it costs nothing but the room.
"""

from __future__ import annotations

from stigmergy.adapters.filing.files import Files

RESERVE_BYTES = 4 << 20
RESERVE_BYTES_MIN = 1 << 14
SHARE_OF_FREE_MAX = 8
"""On a small device it is at most this part of what is free when it is made."""


class Reserve:
    """The reserve of one journal. Used by its writer alone; raises OSError."""

    def __init__(self, files: Files, journal: str, size_bytes: int) -> None:
        self.path = f"{journal}-reserve"
        self.size_bytes = size_bytes
        """What it is to have. 0: none is made."""
        self._files = files
        self._fitted = False
        """Whether its size was made to fit the device: from then on it is made in that size or not at all."""

    @property
    def held_bytes(self) -> int:
        """The room that it holds now."""
        return self._files.size(self.path) or 0

    def make(self, beside_bytes: int = 0) -> bool:
        """Makes it, if it is missing and there is room for it and for so much more; whether it is there.

        A larger one, of before, is replaced.
        """
        held_bytes = self.held_bytes
        if held_bytes > self.size_bytes:
            self.give_up()
            held_bytes = 0
        if held_bytes or not self.size_bytes:
            self.size_bytes = held_bytes
            return True
        if not self._fitted:
            share_bytes = self._files.free_bytes(self.path) // SHARE_OF_FREE_MAX
            if share_bytes < min(RESERVE_BYTES_MIN, self.size_bytes):
                return False
            self.size_bytes = min(self.size_bytes, share_bytes)
            self._fitted = True
        if self._files.free_bytes(self.path) < self.size_bytes + beside_bytes:
            return False
        try:
            self._files.reserve(self.path, self.size_bytes)
        except OSError:
            self._files.remove(self.path)
            return False
        return True

    def give_up(self) -> bool:
        """Gives its room back to the device; whether there was any."""
        there = self.held_bytes > 0
        self._files.remove(self.path)
        return there
