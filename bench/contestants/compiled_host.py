"""Our host with compiled agents, whole: the same promises as with interpreted ones, on segments.

It is given what a producer sends, column batches of records, and has to open and check them; who carries out actions
gets them in bulk, as arrays. Only for the comparison with the others are they told apart, behind the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.columns.rig import BATCH_RECORDS, ColumnFeed, carried_out, enrol, make_fleet, make_host, run_columns
from bench.contestants import Acted
from bench.records import RECORD, Records, from_reports
from bench.rig import SHARED_LOOP
from bench.workload import DRONES, Descend, Land, Report, address_of
from stigmergy.node.column_actuators import Orders

Bulk = tuple[Any, Any, str]
"""Orders of one type: their sequences, the numbers of the drones, and which action it is."""


class Told:
    """The actions that were carried out in bulk, told apart, in the order of their events."""

    def __init__(self, bulks: Sequence[Bulk]) -> None:
        self._bulks = bulks

    def __iter__(self) -> Iterator[Acted]:
        told = [
            (sequence, address_of(number), name)
            for sequences, numbers, name in self._bulks
            for sequence, number in zip(sequences.tolist(), numbers.tolist(), strict=True)
        ]
        return ((address, name) for _, address, name in sorted(told))


class CompiledHost:
    """A host whose event loop runs while it has something to take."""

    def __init__(self, path: Path) -> None:
        self._bulks: list[Bulk] = []
        self._rows: dict[Report, int] = {}
        self._stock: Records = from_reports([])
        self._sequence = 1
        self._acting = 0
        self._loop = asyncio.new_event_loop()
        self._host = make_host(path, make_fleet(self._descend, self._land), SHARED_LOOP)
        self._loop.run_until_complete(self._host.start())
        self._roster = self._loop.run_until_complete(enrol(self._host, DRONES))

    def prepare(self, reports: Sequence[Report]) -> list[bytes]:
        """Batches of records, numbered on from the last ones. What comes again need not be made a record again."""
        new = [report for report in dict.fromkeys(reports) if report not in self._rows]
        self._rows |= {report: len(self._rows) + place for place, report in enumerate(new)}
        # Not np.concatenate: it would move the fields apart that share their places.
        self._stock = np.frombuffer(self._stock.tobytes() + from_reports(new).tobytes(), RECORD)
        rows = np.fromiter((self._rows[report] for report in reports), np.int64, len(reports))
        feed = ColumnFeed("ground", self._stock[rows], self._roster, sequence=self._sequence)
        batches = feed.batches(-(-len(reports) // BATCH_RECORDS))
        self._sequence = feed.sequence
        self._acting += feed.acting
        return batches

    def take(self, prepared: list[bytes]) -> Told:
        """Until everything is durable and the actions have been carried out."""
        self._loop.run_until_complete(self._take(prepared))
        bulks, self._bulks = self._bulks, []
        return Told(bulks)

    def close(self) -> None:
        """Stops the host."""
        self._loop.run_until_complete(self._host.stop())
        self._loop.close()

    async def _take(self, batches: list[bytes]) -> None:
        await run_columns(self._host, batches)
        await carried_out(self._host, self._acting)

    def _descend(self, orders: Orders[Any]) -> None:
        self._bulks.append((orders.sequences, orders.numbers, Descend.__name__))

    def _land(self, orders: Orders[Any]) -> None:
        self._bulks.append((orders.sequences, orders.numbers, Land.__name__))


def enter(folder: Path, _: str) -> CompiledHost:
    """A host on an empty journal."""
    return CompiledHost(folder / "journal")
