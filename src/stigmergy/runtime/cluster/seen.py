"""What a worker remembers of its shards' logs, over all its memberships: which they were, and how far they had come.

Servers that lost a log, or its end, have lost what was acknowledged. Only whoever has seen it can know; a shard that
went on with what is left would answer as if it had never been.
"""

from __future__ import annotations

from msgspec import Struct

from stigmergy.core.errors import DataLost, JournalForeign


class _Seen(Struct):
    incarnation: int
    position: int = 0


class SeenLogs:
    """All logs that were opened in this process."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def check_same(self, shard: int, incarnation: int) -> None:
        """Refuses a log that was made anew since we saw it."""
        if self._seen.setdefault(shard, _Seen(incarnation)).incarnation != incarnation:
            raise JournalForeign(
                f"shard {shard}: its log is another one than it was: somebody has deleted it, and what it held is "
                "lost; restore it, or restart all workers to go on with what is there now"
            )

    def check_end(self, shard: int, position: int) -> None:
        """Refuses a log that ends before what we have had from it. Where it ends is certain once it is claimed."""
        seen = self._seen.get(shard)
        if seen is not None and position < seen.position:
            raise DataLost(
                f"shard {shard}: its log ends at position {position}, and had come to {seen.position}: the end of it "
                "is lost; restore it from a newer copy, or restart all workers to go on without"
            )
        self.reached(shard, position)

    def reached(self, shard: int, position: int) -> None:
        """So far the log has come, for certain."""
        seen = self._seen.get(shard)
        if seen is not None:
            seen.position = max(seen.position, position)
