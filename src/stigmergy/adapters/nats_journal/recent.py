"""The newest commits of a log that we write ourselves, kept in memory: whoever follows us closely asks no server."""

from __future__ import annotations

from collections import deque

from stigmergy.core.commit import Group
from stigmergy.ports.journal import StoredCommit

RECENT_BYTES_MAX = 2 * 1024 * 1024
"""Of one log. A worker may own many."""


class Recent:
    """The end of what was written, as far as it fits."""

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[tuple[int, int], StoredCommit] = {}
        self._order: deque[tuple[int, int]] = deque()

    def take(self, group: Group) -> None:
        """A group that is durable."""
        last = group.commits[-1]
        for sealed in group.commits:
            key = (sealed.shard, sealed.position)
            self._kept[key] = StoredCommit(sealed, group.signature if sealed is last else None)
            self._order.append(key)
            self._bytes += len(sealed.body)
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._kept.pop(self._order.popleft()).sealed.body)

    def find(self, shard: int, position: int) -> StoredCommit | None:
        """A commit, if it is here."""
        return self._kept.get((shard, position))
