"""The way from one program to a shelf: it can be cut off, mended and closed."""

from __future__ import annotations

import asyncio
from typing import Protocol

from stigmergy.core.errors import Bug, StoreUnavailable
from stigmergy.ports.clock import Clock


class Watcher(Protocol):
    """Who must be told when the line is mended, and stopped when it is closed."""

    def begin(self) -> None:
        """Tells everything anew."""
        ...

    def stop(self) -> None:
        """Tells nothing any more."""
        ...


class Line:
    """One connection. Each call over it gives way to the event loop once, as a wire would."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._cut_off = False
        self._closed = False
        self._watchers: list[Watcher] = []

    @property
    def cut_off(self) -> bool:
        """Whether nothing comes through."""
        return self._cut_off

    @cut_off.setter
    def cut_off(self, cut_off: bool) -> None:
        was, self._cut_off = self._cut_off, cut_off
        if was and not cut_off:
            for watcher in list(self._watchers):
                watcher.begin()

    async def reach(self) -> None:
        """Goes to the shelf, if there is a way."""
        self.check_open()
        await asyncio.sleep(0)
        self.check_open()
        if self._cut_off:
            raise StoreUnavailable("the store is out of reach; nothing was written, try again")

    def check_open(self) -> None:
        """Refuses a call on a store that was closed."""
        if self._closed:
            raise Bug("the store is closed; open it again")

    def enlist(self, watcher: Watcher) -> None:
        """Remembers who watches."""
        self._watchers.append(watcher)

    def dismiss(self, watcher: Watcher) -> None:
        """Forgets who watched."""
        self._watchers.remove(watcher)

    def close(self) -> None:
        """Ends it, and everybody who watches over it."""
        self._closed = True
        for watcher in list(self._watchers):
            watcher.stop()
