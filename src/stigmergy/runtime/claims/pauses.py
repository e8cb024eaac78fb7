"""Growing pauses between tries, for whoever waits for a ledger."""

from __future__ import annotations

import asyncio
import contextlib

PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 1.0


class Pauses:
    """Doubles from one try to the next, up to a bound."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S_MIN

    def reset(self) -> None:
        """It went well."""
        self._pause_s = PAUSE_S_MIN

    async def wait(self, resolved: asyncio.Event | None = None) -> None:
        """Waits, or until there is nothing more to wait for."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, PAUSE_S_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await (resolved or asyncio.Event()).wait()
