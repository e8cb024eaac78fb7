"""Tells one listener what is in a bucket of keys, and every change of it."""

from __future__ import annotations

import asyncio
import logging

from stigmergy.adapters.memory_store.line import Line
from stigmergy.adapters.memory_store.shelf import Listener, MemoryBucket
from stigmergy.ports.store import Anew, Change, Complete, Heard

EXPIRY_PAUSE_S_MIN = 0.001
"""So long a watcher waits at least before it looks again whether a lease is over: clocks and timers may differ."""

_log = logging.getLogger(__name__)


class MemoryWatch:
    """Calls one listener, each time from the event loop, and wakes up when leases run out."""

    def __init__(self, line: Line, bucket: MemoryBucket, prefix: str, heard: Heard) -> None:
        self._line = line
        self._bucket = bucket
        self._heard = heard
        self._listener = Listener(prefix, self._tell)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._blind = True
        """Nothing is passed on before everything was told anew."""
        line.enlist(self)
        bucket.listeners.append(self._listener)

    def begin(self) -> None:
        """Tells everything, now or when there is a way again."""
        self._blind = True
        self._loop.call_soon(self._tell_all)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._line.dismiss(self)
            self._bucket.listeners.remove(self._listener)
            if self._timer is not None:
                self._timer.cancel()

    def _tell_all(self) -> None:
        if self._stopped or self._line.cut_off or not self._blind:
            return
        self._call(Anew())
        entries = self._bucket.entries(self._listener.prefix)
        self._blind = False
        for entry in entries:
            self._call(entry)
        self._call(Complete())
        self._set_timer()

    def _tell(self, change: Change) -> None:
        if self._line.cut_off:
            self._blind = True
        if not self._blind:
            self._loop.call_soon(self._call, change)
            self._set_timer()

    def _call(self, change: Change) -> None:
        if self._stopped:
            return
        try:
            self._heard(change)
        except Exception:
            _log.exception("who watches %s failed; it is told of the next change all the same", self._bucket.name)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_s = self._bucket.next_expiry_s()
        if left_s is not None and not self._stopped:
            self._timer = self._loop.call_later(max(left_s, EXPIRY_PAUSE_S_MIN), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._bucket.expire()
        self._set_timer()
