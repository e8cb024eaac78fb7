"""Our host with interpreted agents, whole: marks, chain, signature, journal, effects carried out behind the sync.

It is given what a sender sends, envelopes of 1,000 events, and has to open them; the others get their events apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.contestants import Acted
from bench.rig import SHARED_LOOP, make_host, open_file, open_folder
from bench.throughput import SEGMENTS, run_host
from bench.workload import BATCH_EVENTS, Report
from stigmergy.agents.codec import ENVELOPE_FORMAT, Envelope, encode
from stigmergy.agents.effects import Order
from stigmergy.journal.port import Journal

SETTLE_S_MAX = 30.0


class InterpretedHost:
    """A host whose event loop runs while it has something to take."""

    def __init__(self, journal: Journal) -> None:
        self._sequence = 1
        self._acted: list[Acted] = []
        self._loop = asyncio.new_event_loop()
        self._host = make_host(journal, self._act, SHARED_LOOP)
        self._loop.run_until_complete(self._host.start())

    def prepare(self, reports: Sequence[Report]) -> tuple[list[bytes], int]:
        """Envelopes, numbered on from the last ones; and how many actions to wait for."""
        envelopes: list[bytes] = []
        items = [(report.address, report.body) for report in reports]
        for start in range(0, len(items), BATCH_EVENTS):
            batch = items[start : start + BATCH_EVENTS]
            envelopes.append(encode(Envelope(ENVELOPE_FORMAT, "ground", 1, 0, self._sequence, batch)))
            self._sequence += len(batch)
        return envelopes, sum(report.acts for report in reports)

    def take(self, prepared: tuple[list[bytes], int]) -> list[Acted]:
        """Until everything is durable and the actions have been carried out."""
        envelopes, actions = prepared
        self._loop.run_until_complete(self._take(envelopes, actions))
        acted, self._acted = self._acted, []
        return acted

    def close(self) -> None:
        """Stops the host."""
        self._loop.run_until_complete(self._host.stop())
        self._loop.close()

    async def _take(self, envelopes: list[bytes], actions: int) -> None:
        await run_host(self._host, envelopes)
        deadline_s = time.monotonic() + SETTLE_S_MAX
        while len(self._acted) < actions and time.monotonic() < deadline_s:  # noqa: ASYNC110 - an event would be timed
            await asyncio.sleep(0)

    def _act(self, order: Order[Any]) -> None:
        self._acted.append((order.agent, type(order.effect).__name__))


def enter(folder: Path, variant: str) -> InterpretedHost:
    """A host on an empty journal of this kind."""
    return InterpretedHost(open_folder(folder / "journal") if variant == SEGMENTS else open_file(folder / "journal.db"))
