"""Sees to it that the sorted stream goes on being fed: when a leader is lost, its server may rest for half a minute.

The cure is to take the source away and to give it again: the server then looks where it was, and goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from stigmergy.adapters.nats.errors import JetStreamRefused
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats_bus.options import BusOptions
from stigmergy.adapters.nats_bus.streams import SECOND_NS, locked
from stigmergy.core.errors import LinkDown

LOOK_S = 1.5
SILENT_S_MAX = 2.5
"""A source that is well says so every second. One that a new leader has not begun to read says -1."""
ASK_S = 2.0


class Feeding:
    """Watches one stream that has a source. Every shard's owner does; only one of them acts at a time."""

    def __init__(
        self,
        link: NatsLink,
        options: BusOptions,
        stream: str,
        sources: list[dict[str, Any]],
        is_wanted: Callable[[], bool],
    ) -> None:
        """`sources` are given to a stream that has none; `is_wanted`: whether there is one to watch, at the moment."""
        self._link = link
        self._options = options
        self._stream = stream
        self._sources = sources
        self._is_wanted = is_wanted
        self._was_silent = False
        self.revived_count = 0

    async def watch(self) -> None:
        """For as long as it is not cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._is_wanted():
                # Whoever has no leader at the moment answers later.
                with contextlib.suppress(LinkDown, JetStreamRefused):
                    await self._look()

    async def _look(self) -> None:
        is_silent = _is_silent(await self._info())
        was_silent, self._was_silent = self._was_silent, is_silent
        # Seen twice: a leader that is new needs a moment.
        if not (is_silent and was_silent):
            return
        async with locked(self._link, self._options, "feeding") as is_ours:
            if not is_ours:
                return
            info = await self._info()
            if _is_silent(info):
                # Without any, somebody was ended between taking them away and giving them back.
                config = {**info["config"], "sources": info["config"].get("sources") or self._sources}
                await self._link.api(f"STREAM.UPDATE.{self._stream}", {**config, "sources": []}, ASK_S)
                await self._link.api(f"STREAM.UPDATE.{self._stream}", config, ASK_S)
                self.revived_count += 1
                self._was_silent = False

    async def _info(self) -> dict[str, Any]:
        return await self._link.api(f"STREAM.INFO.{self._stream}", within_s=ASK_S)


def _is_silent(info: dict[str, Any]) -> bool:
    silent = [int(source.get("active", 0)) for source in info.get("sources") or []]
    return not silent or any(active_ns < 0 or active_ns > SILENT_S_MAX * SECOND_NS for active_ns in silent)
