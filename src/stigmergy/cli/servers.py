"""Watches a NATS server of `stigmergy up`: whether it is well, as it says itself; one that keeps nothing is restarted.

A server whose disk is full or fails turns its JetStream off, or gives up a stream, and stays so until it is restarted.
Without room a restart would end in the same. So this waits for room, and longer after each restart that did not help.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stigmergy.cli.children import UP, Child
from stigmergy.cli.output import BAD, GOOD, WARN, shown_bytes
from stigmergy.engine import ServerPlan, last_error_in, look_at, needs_restart

LOOK_S = 0.1
"""So often one that starts is looked at."""
WELL_EVERY_S = 1.0
"""And one that runs; each look at one that is not well is a line in its log."""
ROOM_BYTES_MIN = 16 * 1024 * 1024
"""Free on its disk before it is restarted: less is full again at once."""
FILES_MIN = 100
PAUSE_S = 2.0
PAUSE_S_MAX = 60.0
"""Between two restarts; it doubles each time, until the server was well for the longer of these."""
END_S_MAX = 15.0

Say = Callable[[str, str, str, dict[str, Any]], None]
"""Takes an event, the sentence for people with its style, and the fields for programs."""


class ServerWatch:
    """The watch over one server. `say` is told when it stops to keep, what is waited for, and when it is well again."""

    def __init__(self, child: Child, plan: ServerPlan, log: Path, say: Say) -> None:
        self._child = child
        self._plan = plan
        self._log = log
        self._say = say
        self._seen_s = 0.0
        """Since when it keeps nothing; 0 while it does, or is not there."""
        self._told = ""
        """What we have said of it since."""
        self._restarted = False
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._well_s = 0.0

    @property
    def is_stuck(self) -> bool:
        """It runs, and keeps nothing until it is restarted."""
        return bool(self._told)

    async def run(self) -> None:
        """Looks, until it is cancelled."""
        while True:
            url = f"http://{self._plan.http_host or self._plan.host}:{self._plan.http_port}"
            page = await asyncio.to_thread(look_at, url, "healthz")
            error = str(page.get("error") or "does not answer")
            child, now_s = self._child, time.monotonic()
            if child.pid and page.get("status") == "ok":
                self._is_well(now_s)
            elif child.state == UP:
                child.state, child.detail = "not well", error
            if child.pid and needs_restart(error):
                await self._mend(error, now_s)
            else:
                self._seen_s, self._told = 0.0, ""
            await asyncio.sleep(WELL_EVERY_S if child.state == UP or self._seen_s else LOOK_S)

    def _is_well(self, now_s: float) -> None:
        if self._child.state != UP:
            self._well_s = now_s
        self._child.detail = ""
        self._child.ready()
        if self._restarted:
            self._restarted = False
            self._say("well", f"{self._child.name} is well again", GOOD, {})
        if now_s - self._well_s > PAUSE_S_MAX:
            self._pause_s = 0.0

    async def _mend(self, error: str, now_s: float) -> None:
        if not self._seen_s:  # one that has just begun says the same for a moment
            self._seen_s = now_s
            return
        self._child.state = "not well"
        if waits_for := self._waits_for(now_s):
            self._child.detail = f"keeps nothing; waits for {waits_for}"
        if not self._told:
            cause = last_error_in(self._log) or error
            what = f"{self._child.name} keeps nothing more ({cause}), and does not until it is restarted"
            then = f"; waits for {waits_for}" if waits_for else ""
            self._say("stuck", what + then, BAD, {"error": cause, "waits_for": waits_for or None})
            self._told = what
        if waits_for:
            return
        self._pause_s = min(PAUSE_S_MAX, max(PAUSE_S, 2 * self._pause_s))
        self._not_before_s = now_s + self._pause_s
        self._say("restarting", f"{self._child.name} is restarted: its disk has room", WARN, {})
        self._restarted, self._seen_s, self._told = True, 0.0, ""
        await self._child.restart(END_S_MAX)

    def _waits_for(self, now_s: float) -> str:
        """What must be before it is restarted; empty if it can be now."""
        store = self._plan.store
        try:
            room = os.statvfs(store)
        except OSError as error:
            return f"{store}, which cannot be seen: {error.strerror}"
        if (free := room.f_bavail * room.f_frsize) < ROOM_BYTES_MIN:
            return f"room on the disk of {store}: {shown_bytes(free)} free, {shown_bytes(ROOM_BYTES_MIN)} needed"
        if room.f_files and room.f_favail < FILES_MIN:
            return f"room for files on the disk of {store}: {room.f_favail} more can be made, {FILES_MIN} needed"
        if now_s < self._not_before_s:
            return f"{self._not_before_s - now_s:.0f} s: the restart before did not help"
        return ""
