"""One run of virtual time: its loop, its trace, its randomness and the disks that are taken down with it.

    run = Run(seed=7)
    result = run.run(main())                  # once

Everything that happens in the run is told to `record`; two runs of one seed have the same hash.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from stigmergy.sim.disk import SimDisk
from stigmergy.sim.loop import STEPS_MAX, VirtualLoop
from stigmergy.sim.trace import Trace

T = TypeVar("T")


class Run:
    """One run of virtual time, with one trace and one seed for all that is in it."""

    def __init__(
        self,
        seed: int,
        *,
        shuffle: bool = False,
        deadline_s: float = 3600.0,
        keep_from: int | None = None,
        steps_max: int = STEPS_MAX,
    ) -> None:
        self.seed = seed
        self.loop = VirtualLoop(seed=seed, shuffle=shuffle, deadline_s=deadline_s, steps_max=steps_max)
        self.trace = Trace(keep_from=keep_from)
        self._disks: list[SimDisk] = []

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs the main coroutine to its end, then takes the disks out of the process. Once."""
        try:
            return self.loop.run(main)
        finally:
            self.close()

    def close(self) -> None:
        """Ends a run, also one that was never begun."""
        self.loop.close()
        for disk in self._disks:
            disk.close()
        self._disks.clear()

    def chance(self, stream: str) -> random.Random:
        """Randomness of its own for each purpose, so that one more draw here changes nothing there."""
        return random.Random(f"stigmergy.sim/{self.seed}/{stream}")

    def record(self, node: str, what: str, detail: Any = None) -> None:
        """Notes what happened, at this virtual moment."""
        self.trace.record(self.loop.time_ns(), node, what, detail)

    def make_disk(self, stream: str, **options: Any) -> SimDisk:
        """A disk that is taken down with the world."""
        disk = SimDisk(self.chance(f"{stream}/disk"), **options)
        self._disks.append(disk)
        return disk

    def timeline(self, records: int = 60) -> str:
        """The last records, for people."""
        return "\n".join(str(record) for record in self.trace.records()[-records:])
