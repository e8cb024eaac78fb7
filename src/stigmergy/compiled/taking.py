"""One step of a table while it is under way: which records are next, what has come of those before. No numba."""

from __future__ import annotations

from stigmergy.compiled.rows import Bytes
from stigmergy.core.messages import SECOND_NS, Effect


class Taking:
    """What becomes of the records of one step."""

    __slots__ = (
        *("actions", "count", "data", "error", "flags", "halt", "kept"),
        *("known", "left", "now", "now_ns", "number", "others", "start"),
    )

    def __init__(
        self, data: Bytes, count: int, known: int, flags: int, now_ns: int, start: int, room_bytes: int
    ) -> None:
        self.data = data
        self.count = count
        self.known = known
        self.flags = flags
        self.now = now_ns / SECOND_NS
        self.now_ns = now_ns
        self.start = self.number = start
        """The record that is next."""
        self.left = room_bytes
        self.kept = 0
        self.actions = 0
        self.others: list[tuple[int, int, Effect]] = []
        self.halt = 0
        self.error: Exception | None = None

    def mark(self) -> tuple[int, int, int, int]:
        """Where it stands, to go back to."""
        return self.number, self.kept, self.actions, self.left

    def go_back(self, mark: tuple[int, int, int, int]) -> None:
        """As if nothing had been taken since."""
        self.number, self.kept, self.actions, self.left = mark
        self.halt = 0
