"""Hosts grow as they are asked to, and a quick run has every figure and every line."""

import argparse
import importlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import engines, growth
from bench.catalogue import measure
from bench.charts import Lines
from bench.display import show
from bench.engines import ENGINES, Engine


@pytest.mark.prove
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_host_grows_over_starts(engine: Engine, tmp_path: Path) -> None:
    module: Any = importlib.import_module(f"bench.engines.{engine.module}")
    path = tmp_path / "growing.db"
    for agents in (1_000, 1_500):
        growing = module.enter(path, snapshots=False)
        growing.enrol(agents)
        growing.take(growing.prepare(3, 2_000, agents))
        growing.take(growing.prepare(3, 1_000, agents))
        growing.close()
    replayed = module.start(path)
    assert (replayed.events // 1_000, replayed.agents, replayed.from_snapshot) == (8, 1_500, False)
    module.snapshot(path)
    restored = module.start(path)
    assert (restored.events, restored.from_snapshot) == (0, True)
    assert restored.agents >= 1_500


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_a_quick_run_gives_all_figures_and_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(growth, "QUICK_HISTORIES", (6_000,))
    # As if the extra [compiled] were not there: `bench compiled` lets compiled agents grow, and is tried elsewhere.
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    picture = tmp_path / "growth.png"
    drawn = ["--plot", str(picture)] if find_spec("matplotlib") is not None else []
    measured = measure("growth", ["--quick", "--directory", str(tmp_path), *drawn], argparse.ArgumentParser())
    if drawn:
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
        assert picture.stat().st_size > 20_000
        picture.unlink()
    assert not list(tmp_path.iterdir())
    check_figures(measured.figures)
    charts = growth.charts(measured.figures)
    assert [type(chart) for chart in charts] == [Lines, Lines, Lines]
    assert all(series.points for chart in charts if isinstance(chart, Lines) for series in chart.series)
    console = Console(record=True, width=100, file=io.StringIO())
    show(measured, console)
    shown = console.export_text()
    assert "interpreted_fleet_ratio" in shown
    assert "start with history" in shown
    assert "●" in shown


def check_figures(figures: dict[str, Any]) -> None:
    measured = ["interpreted"]
    assert [(row["engine"], row["agents"]) for row in figures["fleet"]] == [
        (name, agents) for name in measured for agents in growth.QUICK_FLEETS
    ]
    assert [(row["events"], row["snapshots"]) for row in figures["history"]] == [
        (length, snapshots) for _ in measured for length in growth.QUICK_HISTORIES for snapshots in (True, False)
    ]
    assert all(row["us_per_event"] > 0 for row in figures["fleet"] + figures["history"])
    replayed = {row["events"]: row["replayed_as_left"] for row in figures["history"] if not row["snapshots"]}
    for length, events in replayed.items():
        assert length <= events <= length + 100
    assert figures["interpreted_fleet_ratio"] > 0
    assert figures["compiled_fleet_ratio"] is None
    assert figures["not_installed"] == [{"name": "compiled", "missing": "numpy, numba"}]
    assert {target.figure for target in growth.TARGETS} <= figures.keys()
