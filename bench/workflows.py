"""Workflows on SQLite: the five-step delivery by drone, one agent for each drone, durable; and on dbos and Restate.

Runs are begun a number at a time, and each begins when one before it has ended. Every step is an answered command of
an agent, on disk before the run goes on: a run has its own log, and the agent has its. dbos has the same five steps as
a workflow with five steps, on SQLite, with threads as many as runs at a time; a step of it is a function that returns.
Restate has them in a service of its own, and its log in its server. Each subject lives through all windows, and windows
take turns: one of runs that end well, and one of runs whose fourth step fails, so that the others are undone. A ratio
is one of neighbouring windows; the median counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.subjects import Subject
from bench.targets import Target

STEPS = 5
TARGETS = (Target("steps_per_s", "durable steps of workflows on SQLite", 3_000, at_least=True),)
OURS = "bench.workflow_runs"
FAILING = 5
"""Windows of runs that fail have so many times fewer runs."""
STUCK = "stuck"
"""A parcel that is not released."""


class Fly(Struct, frozen=True):
    """Carries out so many runs, so many of them at a time."""

    runs: int
    at_a_time: int
    fails: bool = False
    """Whether the fourth step of each fails."""


class Flown(Struct, frozen=True):
    """What one window gave."""

    seconds: float
    cpu_s: float
    run_s: list[float]
    """How long each run took."""


class Other(Struct, frozen=True):
    """Somebody we are held against, where it is installed."""

    name: str
    module: str
    needs: tuple[str, ...]
    install: str
    program: Callable[[], str | None] = lambda: ""
    """A server that it needs; None: it is not there."""

    @property
    def installed(self) -> bool:
        """Whether all is there that it needs."""
        return all(map(find_spec, self.needs)) and self.program() is not None


def restate_server() -> str | None:
    """The program of Restate's server: `RESTATE_SERVER` names it, or it is on the path."""
    return shutil.which(os.environ.get("RESTATE_SERVER", "restate-server"))


OTHERS = (
    Other("dbos", "bench.contestants.dbos_workflow", ("dbos",), "make bench"),
    Other(
        "restate",
        "bench.contestants.restate_workflow",
        ("restate", "hypercorn", "httpx"),
        "make bench, and its server, for Linux on x64: npm install @restatedev/restate-server-linux-x64, with "
        "RESTATE_SERVER=node_modules/@restatedev/restate-server-linux-x64/bin/restate-server",
        restate_server,
    ),
)


class Sizes(Struct, frozen=True):
    """How much is measured: windows, our runs in each, and those of the others."""

    windows: int
    own: Fly
    others: dict[str, Fly]


FULL = Sizes(5, Fly(2_000, 200), {"dbos": Fly(200, 16), "restate": Fly(400, 64)})
"""dbos is about as fast with one run at a time, because its transactions wait for one another."""
QUICK = Sizes(1, Fly(20, 10), {"dbos": Fly(4, 2), "restate": Fly(4, 2)})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench workflows`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures all in turn; others only where they are installed."""
    sizes = QUICK if arguments.quick else FULL
    others = [other for other in OTHERS if other.installed]
    missing = [other for other in OTHERS if not other.installed]
    for other in missing:
        print(f"NOT MEASURED: {other.name} is not installed; {other.install}", file=sys.stderr)
    asks = {"": sizes.own, **{other.name: sizes.others[other.name] for other in others}}
    flown: dict[str, list[tuple[Flown, Flown]]] = {name: [] for name in asks}
    with (
        tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as folder,
        ExitStack() as stack,
    ):
        modules = {"": OURS, **{other.name: other.module for other in others}}
        subjects = {
            name: stack.enter_context(Subject(Flown, module, Path(folder) / (name or "ours")))
            for name, module in modules.items()
        }
        for number in range(sizes.windows + 1):
            for name, subject in subjects.items():
                ask = asks[name]
                failing = Fly(max(1, ask.runs // FAILING), ask.at_a_time, fails=True)
                pair = subject.ask(ask), subject.ask(failing)
                if number:  # the first round warms everything up
                    flown[name].append(pair)
    own = flown.pop("")
    figures = {"windows": sizes.windows, "steps_per_run": STEPS, "load": round(os.getloadavg()[0], 1)}
    figures |= _figures("", sizes.own, own)
    for name, windows in flown.items():
        figures |= _figures(f"{name}_", asks[name], windows)
        figures[f"{name}_ratio"] = _ratio([good for good, _ in own], [good for good, _ in windows])
        figures[f"{name}_undone_ratio"] = _ratio([failed for _, failed in own], [failed for _, failed in windows])
    absent = {f"{other.name}_{figure}": None for other in missing for figure in ("steps_per_s", "ratio")}
    return figures | absent | {"not_installed": [{"name": one.name, "install": one.install} for one in missing]}


def _figures(name: str, ask: Fly, windows: list[tuple[Flown, Flown]]) -> dict[str, Any]:
    good = [one for one, _ in windows]
    run_s = sorted(took_s for one in good for took_s in one.run_s)
    runs = statistics.median(map(_runs_per_s, good))
    return {
        f"{name}runs_at_a_time": ask.at_a_time,
        f"{name}steps_per_s": round(STEPS * runs),
        f"{name}runs_per_s": round(runs),
        f"{name}undone_runs_per_s": round(statistics.median(_runs_per_s(one) for _, one in windows), 1),
        f"{name}run_p50_ms": round(1e3 * run_s[len(run_s) // 2], 1),
        f"{name}run_p99_ms": round(1e3 * run_s[len(run_s) * 99 // 100], 1),
        f"{name}cpu_us_per_step": round(1e6 * statistics.median(one.cpu_s / (STEPS * len(one.run_s)) for one in good)),
    }


def _runs_per_s(window: Flown) -> float:
    return len(window.run_s) / window.seconds


def _ratio(own: list[Flown], others: list[Flown]) -> float:
    pairs = zip(own, others, strict=True)
    return round(statistics.median(_runs_per_s(one) / _runs_per_s(other) for one, other in pairs), 1)


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Steps a second of all."""
    bars = [Bar("stigmergy", figures["steps_per_s"], ours=True)]
    bars += [Bar(one.name, steps) for one in OTHERS if (steps := figures[f"{one.name}_steps_per_s"])]
    return [Bars("durable steps of workflows a second", "steps/s", bars)]
