"""A bucket as its watcher knows it: a copy that follows the changes, and says when it has changed.

A copy is always a little behind. Who decides by it does so with compare-and-set, or asks the store once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stigmergy.core.errors import StoreUnavailable
from stigmergy.ports.store import Anew, Change, Complete, Entry, Gone, KeyValue, Watch


class Mirror:
    """Follows all keys of a bucket. `heard` is told of each key that has changed, with what is there now."""

    def __init__(self, keys: KeyValue, heard: Callable[[str, Entry | None], None]) -> None:
        self._keys = keys
        self._heard = heard
        self._entries: dict[str, Entry] = {}
        self._told: dict[str, None] | None = None
        """What was told since the last Anew; None while nothing is told anew."""
        self._complete = asyncio.Event()
        self._watch: Watch | None = None

    async def start(self, within_s: float) -> None:
        """Waits until all that is there is known. Raises StoreUnavailable if that takes too long."""
        self._watch = self._keys.watch("", self._change)
        try:
            async with asyncio.timeout(within_s):
                await self._complete.wait()
        except TimeoutError:
            self.stop()
            raise StoreUnavailable(
                f"bucket {self._keys.bucket}: what is there was not told within {within_s:g} s; is the server up, and "
                "do most of its cluster answer?"
            ) from None

    def stop(self) -> None:
        """Hears nothing more."""
        if self._watch is not None:
            self._watch.stop()

    def get(self, key: str) -> Entry | None:
        """What is there, as far as is known."""
        return self._entries.get(key)

    def entries(self) -> list[Entry]:
        """All that is there, by key."""
        return [self._entries[key] for key in sorted(self._entries)]

    def forget(self, entry: Entry) -> None:
        """Somebody has looked: this is not there any more. Does nothing if it was written anew meanwhile."""
        if self._entries.get(entry.key) == entry:
            self._put(entry.key, None)

    def _change(self, change: Change) -> None:
        match change:
            case Anew():
                self._told = {}
            case Entry():
                if self._told is not None:
                    self._told[change.key] = None
                known = self._entries.get(change.key)
                if known is None or known.revision < change.revision:
                    self._put(change.key, change)
            case Gone():
                self._put(change.key, None)
            case Complete():
                told, self._told = self._told or {}, None
                for key in [key for key in self._entries if key not in told]:
                    self._put(key, None)
                self._complete.set()

    def _put(self, key: str, entry: Entry | None) -> None:
        if entry is None and self._entries.pop(key, None) is None:
            return
        if entry is not None:
            self._entries[key] = entry
        self._heard(key, entry)
