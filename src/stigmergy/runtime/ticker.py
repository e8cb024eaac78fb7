"""A steady beat on the monotonic clock: the grid never shifts, and ticks that were missed are skipped and counted."""

from __future__ import annotations

import asyncio

from stigmergy.core.errors import DefinitionError
from stigmergy.core.messages import SECOND_NS
from stigmergy.ports.clock import Clock

EVERY_S_MIN = 0.001
EVERY_S_MAX = 86_400.0
CLOSE_NS = 1_000
"""Nearer than this, a tick has come: sleeping for less than a microsecond is no sleep."""


class Ticker:
    """Ticks at start, start + every, start + 2 × every, … However late one is taken, the next is where it would be."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock = clock
        self._every_ns = int(every_s * SECOND_NS)
        self._last_ns: int | None = None
        self.overruns = 0
        """Ticks that passed while whoever ticks was busy."""

    async def wait_tick(self) -> int:
        """Waits for the next tick that lies ahead; returns its moment on the monotonic clock. The first is at once."""
        now_ns = self._clock.monotonic_ns()
        if self._last_ns is None:
            self._last_ns = now_ns
            return now_ns
        due_ns = self._last_ns + self._every_ns
        if due_ns < now_ns:
            missed = -(-(now_ns - due_ns) // self._every_ns)
            self.overruns += missed
            due_ns += missed * self._every_ns
        self._last_ns = due_ns
        await asyncio.sleep(max(0, due_ns - now_ns) / SECOND_NS)
        while (left_ns := due_ns - self._clock.monotonic_ns()) > CLOSE_NS:  # noqa: ASYNC110 - the clocks may differ
            await asyncio.sleep(left_ns / SECOND_NS)
        return due_ns


def check_every(what: str, every_s: float) -> None:
    """Raises DefinitionError for a period that no timer here can keep."""
    if not EVERY_S_MIN <= every_s <= EVERY_S_MAX:
        raise DefinitionError(f"{what}: every_s={every_s}; give {EVERY_S_MIN} to {EVERY_S_MAX:.0f} seconds")
