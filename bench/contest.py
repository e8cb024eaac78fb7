"""One contestant of `bench alternatives` in its process: takes windows of the workload as it is asked to.

`python -m bench.contest NAME FOLDER` reads one request a line and answers with what the window took and which
actions followed. Every window begins at the beginning of the same stock of events: a slow contestant gets a part of
what a quick one gets. `make_process_ours` goes for all: it speeds up the others, too.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from bench.contestants import Acted, Contestant, entry_of
from bench.contestants.plain_drone import decode, fold, new_state
from bench.subjects import serve
from bench.workload import Report, reports
from stigmergy.base.system import make_process_ours

MODULE = "bench.contest"
SEED = 11
STOCK_EVENTS = 50_000


class Take(Struct, frozen=True):
    """Takes so many events."""

    events: int


class Taken(Struct, frozen=True):
    """What one window gave."""

    events: int
    seconds: float
    cpu_s: float
    """Processor time, all threads together."""
    actions: dict[str, list[str]]
    """By drone, in the order of its events."""

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds


class Stock:
    """The events of a contest, as many as are asked for, from the beginning."""

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def take(self, count: int) -> list[Report]:
        """The first so many; beyond the stock they come again from its beginning."""
        needed = min(count, STOCK_EVENTS)
        if len(self._reports) < needed:
            self._reports = reports(SEED, needed)
        rounds, rest = divmod(count, STOCK_EVENTS)
        return self._reports * rounds + self._reports[:rest]

    @functools.cache  # noqa: B019 - there is one stock in a process
    def actions(self, count: int) -> dict[str, list[str]]:
        """What follows from the first so many: the same in every window that has as many."""
        return expected(self.take(count))


def expected(events: Sequence[Report]) -> dict[str, list[str]]:
    """The actions that follow from these events by the rules of the workload, by drone."""
    state = new_state()
    acted: list[Acted] = []
    for report in events:
        action = fold(state, decode(report.body))
        if action is not None:
            acted.append((report.address, action))
    return by_drone(acted)


def by_drone(acted: Iterable[Acted]) -> dict[str, list[str]]:
    """Actions by whose they are; only their order at one drone means something."""
    found: dict[str, list[str]] = {}
    for address, action in acted:
        found.setdefault(address, []).append(action)
    return found


def difference(wanted: dict[str, list[str]], found: dict[str, list[str]]) -> str | None:
    """What is different, in words, about the first drone for which something is."""
    for address in sorted(wanted.keys() | found.keys()):
        want, have = wanted.get(address, []), found.get(address, [])
        if want != have:
            return f"{address} was to do {', '.join(want) or 'nothing'} and did {', '.join(have) or 'nothing'}"
    return None


def main(arguments: list[str]) -> None:
    """Lets one contestant in and has it take what is asked for."""
    name, folder = arguments
    entry = entry_of(name)
    module = importlib.import_module(f"bench.contestants.{entry.module}")
    stock = Stock()
    contestant: Contestant = module.enter(Path(folder), entry.variant)
    make_process_ours()

    def take(request: Take) -> Taken:
        prepared = contestant.prepare(stock.take(request.events))
        begin_cpu_s, begin_s = time.process_time(), time.perf_counter()
        acted = contestant.take(prepared)
        seconds, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        return Taken(events=request.events, seconds=seconds, cpu_s=cpu_s, actions=by_drone(acted))

    try:
        serve(Take, take)
    finally:
        contestant.close()


if __name__ == "__main__":
    main(sys.argv[1:])
