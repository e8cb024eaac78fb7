"""What stands between retention and the log: holds on it, and an archive or an uplink that must have it first.

Retention asks how far it may drop; what an archive does not have yet is asked for, and may be dropped later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stigmergy.ports.journal import Journal
from stigmergy.runtime.audit.archiving import Archivist
from stigmergy.runtime.audit.holds import Holds


class Upward(Protocol):
    """An uplink, as far as retention is concerned."""

    def floor(self, shard: int) -> int:
        """The last position that it does not need any more."""
        ...

    def spare(self, shard: int, first: int, upto: int) -> int:
        """The last position up to `upto` that a device without room may drop, where the log begins with `first`."""
        ...


class Safeguards:
    """Those of one node; without any, retention does as it likes."""

    def __init__(
        self, holds: Holds | None = None, archivist: Archivist | None = None, *, archive_or_drop: bool = False
    ) -> None:
        self.holds = holds
        self.archivist = archivist
        self.archive_or_drop = archive_or_drop
        """On a device that is full, drop also what no archive has, rather than stop. Never what is held."""
        self.uplink: Upward | None = None
        self.copy_troubles: Callable[[], list[str]] = list
        """Why copies elsewhere are behind; they keep nothing from being dropped."""
        self.readers = 0
        """How many read the log at present, to export or verify it: nothing is dropped under their hands, unless the
        device is full."""

    @property
    def troubles(self) -> list[str]:
        """Why nothing is dropped at present, or copies elsewhere are behind."""
        found = [self.holds.trouble if self.holds else "", self.archivist.trouble if self.archivist else ""]
        return [trouble for trouble in (*found, *self.copy_troubles()) if trouble]

    def unheld(self, journal: Journal, shard: int, upto: int, *, full: bool = False) -> int:
        """The highest position up to `upto` on which there is no hold, and which nobody reads."""
        if self.readers and not full:
            return 0
        return upto if self.holds is None else self.holds.limit(journal, shard, upto)

    def archived(self, shard: int, upto: int, *, full: bool = False) -> int:
        """The highest position up to `upto` that the archive has. What is missing there is asked for."""
        if self.archivist is None:
            return upto
        allowed = self.archivist.allowed(shard, upto)
        if allowed < upto:
            self.archivist.want(shard, upto)
        return upto if full and self.archive_or_drop else allowed

    def sent(self, shard: int, upto: int) -> int:
        """The highest position up to `upto` that the receiver of the uplink has, if there is an uplink."""
        return upto if self.uplink is None else min(upto, self.uplink.floor(shard))

    def spare(self, shard: int, first: int, upto: int) -> int:
        """The highest position up to `upto` that may go for want of room: what was sent up, else what need not be."""
        return upto if self.uplink is None else min(upto, self.uplink.spare(shard, first, upto))

    async def close(self) -> None:
        """Ends what the archive has under way."""
        if self.archivist is not None:
            await self.archivist.close()
