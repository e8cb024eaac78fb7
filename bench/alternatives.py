"""The same drones on the public Python alternatives: events/s of each, durable in the strongest way that it offers.

All take the same events in the same run, each in a process of its own, one window after the other in turn. The actions
of every window are held against the rules of the workload; a contestant that misses one, invents one or changes their
order ends the run. Who is slow gets fewer events, so that a window takes about as long for everybody. A ratio is one of
neighbouring windows, to the fastest alternative; the median counts. What is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.charts import Bar, Bars, Chart
from bench.contest import MODULE, Stock, Take, Taken, difference
from bench.contestants import ENTRIES, Entry
from bench.options import add_common
from bench.subjects import Subject
from bench.targets import Target
from bench.workload import BATCH_EVENTS

EVENTS_MIN = 100
"""In a window, however slow a contestant is."""
INTERPRETED = "interpreted"
INSTALL = "make bench"
TARGETS = (
    Target("ratio", "our fastest / the fastest durable alternative", 20.0, at_least=True),
    Target("interpreted_ratio", "the same for interpreted agents", 1.0, at_least=True),
)


class Sizes(Struct, frozen=True):
    """How much is measured."""

    windows: int = 5
    window_s: float = 1.0
    checked_events: int = 2_000
    """Taken by everybody first, and the same for all."""
    events_max: int = 4_000_000
    """In a window, however fast a contestant is."""


FULL = Sizes()
QUICK = Sizes(windows=1, window_s=0.05, checked_events=1_000, events_max=20_000)


class Result(Struct, frozen=True):
    """What one contestant gave."""

    name: str
    ours: bool
    events_per_s: int
    ratio: float
    """To the fastest alternative."""
    cpu_us_per_event: float
    events_per_window: int
    what: str
    keeps: str


class _Measured(Struct):
    """One contestant while it is measured."""

    entry: Entry
    subject: Subject[Taken]
    events: int
    windows: list[Taken] = []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench alternatives`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everybody who is installed and returns the figures by name."""
    return contest(arguments.directory, QUICK if arguments.quick else FULL, ENTRIES)


def contest(directory: Path, sizes: Sizes, entries: tuple[Entry, ...]) -> dict[str, Any]:
    """Measures these."""
    present = [entry for entry in entries if not entry.missing]
    stock = Stock()
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=directory) as name, ExitStack() as open_ones:
        measured = [_enter(entry, Path(name), sizes, stock, open_ones) for entry in present]
        for _ in range(sizes.windows):
            for one in measured:
                one.windows.append(_window(one.entry, one.subject, one.events, stock))
    results = _results(measured)
    others = [result for result in results if not result.ours]
    own = [result for result in results if result.ours]
    checked = stock.actions(sizes.checked_events)
    return {
        "fastest_alternative": max(others, key=lambda result: result.events_per_s).name if others else None,
        "fastest_of_ours": max(own, key=lambda result: result.events_per_s).name if own else None,
        "ratio": max((result.ratio for result in own), default=None) if others else None,
        "interpreted_ratio": _best_ratio(own, INTERPRETED) if others else None,
        "same_actions": True,
        "actions_checked": sum(len(actions) for actions in checked.values()),
        "events_checked": sum(one.events for one in measured) * sizes.windows + sizes.checked_events * len(measured),
        "windows": sizes.windows,
        "contestants": [_plain(result) for result in results],
        "not_installed": [
            {"name": entry.name, "missing": ", ".join(entry.missing), "install": INSTALL}
            for entry in entries
            if entry.missing
        ],
    }


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Who is how fast."""
    bars = [Bar(one["name"], one["events_per_s"], ours=one["ours"]) for one in figures["contestants"]]
    bars.sort(key=lambda bar: -bar.value)
    return [Bars("durable events a second, the same drones for all", "events/s", bars, logarithmic=True)]


def _enter(entry: Entry, folder: Path, sizes: Sizes, stock: Stock, open_ones: ExitStack) -> _Measured:
    """Starts a contestant, checks it on what everybody gets, and finds out how much it can take in a window."""
    own = folder / entry.name
    own.mkdir()
    subject = open_ones.enter_context(Subject(Taken, MODULE, entry.name, own))
    first = _window(entry, subject, sizes.checked_events, stock)
    warm = _window(entry, subject, _events_in(first, sizes.window_s / 2, sizes.events_max), stock)
    return _Measured(entry, subject, _events_in(warm, sizes.window_s, sizes.events_max))


def _events_in(window: Taken, seconds: float, events_max: int) -> int:
    """How many events it will take in so many seconds: whole batches, or for one that is slower a part of one."""
    events = window.events_per_s * seconds
    whole = BATCH_EVENTS if events >= BATCH_EVENTS else EVENTS_MIN
    return min(events_max, max(1, round(events / whole)) * whole)


def _window(entry: Entry, subject: Subject[Taken], events: int, stock: Stock) -> Taken:
    taken = subject.ask(Take(events))
    different = difference(stock.actions(events), taken.actions)
    if different is not None:
        raise RuntimeError(f"{entry.name} does not do what follows from {events:,} events: {different}")
    return taken


def _results(measured: list[_Measured]) -> list[Result]:
    speeds = {one.entry.name: _median_speed(one) for one in measured}
    others = [one for one in measured if not one.entry.ours]
    best = max(others, key=lambda one: speeds[one.entry.name], default=None)
    return [
        Result(
            name=one.entry.name,
            what=one.entry.what,
            keeps=one.entry.keeps,
            ours=one.entry.ours,
            events_per_s=round(speeds[one.entry.name]),
            ratio=round(_ratio(one, best), 4) if best is not None else 0.0,
            cpu_us_per_event=round(statistics.median(w.cpu_s / w.events for w in one.windows) * 1e6, 3),
            events_per_window=one.events,
        )
        for one in measured
    ]


def _best_ratio(own: list[Result], names: str) -> float | None:
    """Of those of ours whose names begin like this."""
    return max((result.ratio for result in own if result.name.startswith(names)), default=None)


def _median_speed(one: _Measured) -> float:
    return statistics.median(window.events_per_s for window in one.windows)


def _ratio(one: _Measured, other: _Measured) -> float:
    return statistics.median(
        mine.events_per_s / theirs.events_per_s for mine, theirs in zip(one.windows, other.windows, strict=True)
    )


def _plain(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__struct_fields__}
