"""Commits of a log in memory: the newest that we wrote ourselves, and those that were read on the way to others."""

from __future__ import annotations

from collections import deque

from stigmergy.core.commit import Group
from stigmergy.ports.journal import StoredCommit

RECENT_BYTES_MAX = 2 * 1024 * 1024
"""Of one log. A worker may own many."""
AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""While a node starts, or a log is looked at."""


class Recent:
    """The end of what was written, as far as it fits: whoever follows us closely asks no server."""

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


class Ahead:
    """Commits of other shards that came with those of one shard: each is read next, and would be fetched again.

    Each is given out once. What does not fit is fetched again.
    """

    def __init__(self, bytes_max: int = AHEAD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[tuple[int, int], StoredCommit] = {}

    def put(self, stored: StoredCommit) -> None:
        """A commit that nobody has asked for yet."""
        sealed = stored.sealed
        key = (sealed.shard, sealed.position)
        if key not in self._kept and self._bytes + len(sealed.body) <= self._bytes_max:
            self._kept[key] = stored
            self._bytes += len(sealed.body)

    def take(self, shard: int, position: int) -> StoredCommit | None:
        """A commit, if it is here."""
        stored = self._kept.pop((shard, position), None)
        if stored is not None:
            self._bytes -= len(stored.sealed.body)
        return stored

    def clear(self) -> None:
        """Nobody reads whole logs any more."""
        self._kept.clear()
        self._bytes = self._bytes_max = 0
