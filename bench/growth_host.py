"""One host of `bench growth` in its process: its fleet and its log grow as it is asked to.

`python -m bench.growth_host ENGINE PATH SNAPSHOTS` reads one request a line and answers with what it took.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

from msgspec import Struct

from bench.engines import ENGINES, Growing
from bench.footprint import resident_mb
from bench.subjects import serve
from stigmergy.base.system import make_process_ours

MODULE = "bench.growth_host"
SEED = 21
WITH, WITHOUT = "snapshots", "no-snapshots"


class Grow(Struct, frozen=True):
    """Enrols so many agents first, if any, and takes so many events of a fleet of this size."""

    events: int
    agents: int
    enrol: int = 0


class Grown(Struct, frozen=True):
    """What the events took; enrolling is not timed."""

    events: int
    seconds: float
    cpu_s: float
    resident_mb: float

    @property
    def us_per_event(self) -> float:
        """Of time."""
        return self.seconds / self.events * 1e6

    @property
    def cpu_us_per_event(self) -> float:
        """Of processor time, all threads together."""
        return self.cpu_s / self.events * 1e6


def main(arguments: list[str]) -> None:
    """Runs one host."""
    name, path, snapshots = arguments
    engine = next(engine for engine in ENGINES if engine.name == name)
    module = importlib.import_module(f"bench.engines.{engine.module}")
    growing: Growing = module.enter(Path(path), snapshots=snapshots == WITH)
    make_process_ours()

    def grow(request: Grow) -> Grown:
        if request.enrol:
            growing.enrol(request.enrol)
        prepared = growing.prepare(SEED, request.events, request.agents)
        begin_cpu_s, begin_s = time.process_time(), time.perf_counter()
        growing.take(prepared)
        seconds, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        return Grown(events=request.events, seconds=seconds, cpu_s=cpu_s, resident_mb=resident_mb())

    try:
        serve(Grow, grow)
    finally:
        growing.close()


if __name__ == "__main__":
    main(sys.argv[1:])
