"""Workflows on SQLite: the five-step delivery by drone, one agent for each drone, durable; and the same on dbos.

Runs are begun a number at a time, and each begins when one before it has ended. Every step is an answered command of
an agent, on disk before the run goes on: a run has its own log, and the agent has its. dbos has the same five steps as
a workflow with five steps, on SQLite, with threads as many as runs at a time; a step of it is a function that returns.
Each is a process of its own, and windows of both take turns. A ratio is one of neighbouring windows; the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
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
OURS, DBOS = "bench.workflow_runs", "bench.contestants.dbos_workflow"


class Fly(Struct, frozen=True):
    """Carries out so many runs, so many of them at a time."""

    runs: int
    at_a_time: int


class Flown(Struct, frozen=True):
    """What one window gave."""

    seconds: float
    cpu_s: float
    run_s: list[float]
    """How long each run took."""


class Sizes(Struct, frozen=True):
    """How much is measured."""

    windows: int = 5
    runs: int = 2_000
    at_a_time: int = 200
    dbos_runs: int = 200
    dbos_at_a_time: int = 16
    """It is about as fast with one: its transactions wait for one another."""


FULL, QUICK = Sizes(), Sizes(windows=1, runs=20, at_a_time=10, dbos_runs=4, dbos_at_a_time=2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench workflows`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures both in turn; dbos only where it is installed."""
    sizes = QUICK if arguments.quick else FULL
    own: list[Flown] = []
    others: list[Flown] = []
    ask, ask_dbos = Fly(sizes.runs, sizes.at_a_time), Fly(sizes.dbos_runs, sizes.dbos_at_a_time)
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name, ExitStack() as stack:
        ours = stack.enter_context(Subject(Flown, OURS, Path(name) / "ours"))
        dbos = stack.enter_context(Subject(Flown, DBOS, Path(name) / "dbos")) if find_spec("dbos") else None
        for number in range(sizes.windows + 1):
            flown = ours.ask(ask)
            flown_dbos = None if dbos is None else dbos.ask(ask_dbos)
            if number:  # the first pair warms everything up
                own.append(flown)
                others += [] if flown_dbos is None else [flown_dbos]
    return {
        "windows": sizes.windows,
        "steps_per_run": STEPS,
        "runs_at_a_time": sizes.at_a_time,
        **_figures(own, ""),
        "dbos_runs_at_a_time": sizes.dbos_at_a_time,
        **(_figures(others, "dbos_") if others else {"dbos_steps_per_s": None}),
        "dbos_ratio": _ratio(own, others) if others else None,
        "not_installed": [] if others else [{"name": "dbos", "install": "make bench"}],
    }


def _figures(windows: list[Flown], name: str) -> dict[str, Any]:
    run_s = sorted(took_s for one in windows for took_s in one.run_s)
    steps = statistics.median(_steps_per_s(one) for one in windows)
    return {
        f"{name}steps_per_s": round(steps),
        f"{name}runs_per_s": round(steps / STEPS),
        f"{name}run_p50_ms": round(1e3 * run_s[len(run_s) // 2], 1),
        f"{name}run_p99_ms": round(1e3 * run_s[len(run_s) * 99 // 100], 1),
        f"{name}cpu_us_per_step": round(
            1e6 * statistics.median(one.cpu_s / (STEPS * len(one.run_s)) for one in windows)
        ),
    }


def _steps_per_s(window: Flown) -> float:
    return STEPS * len(window.run_s) / window.seconds


def _ratio(own: list[Flown], others: list[Flown]) -> float:
    pairs = zip(own, others, strict=True)
    return round(statistics.median(_steps_per_s(one) / _steps_per_s(other) for one, other in pairs), 1)


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Steps a second of both."""
    bars = [Bar("stigmergy", figures["steps_per_s"], ours=True)]
    if figures["dbos_steps_per_s"]:
        bars.append(Bar("dbos", figures["dbos_steps_per_s"]))
    return [Bars("durable steps of workflows a second, on SQLite", "steps/s", bars)]
