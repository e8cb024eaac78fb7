"""`bench swarm` flies the application, reads what it says, and says what a drone costs."""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import swarm
from bench.swarm import QUICK, TARGETS, charts, row_of, run
from stigmergy.base.errors import ConfigError

FOUND: dict[str, Any] = {
    "seed": 7,
    "drones": 1_000,
    "world_s": 180.0,
    "wall_s": 200.0,
    "real_time_factor": 0.9,
    "busy_share": {"world": 0.2, "broker": 0.1, "ground": 0.1, "dispatch-a": 0.05, "r1": 0.85, "r2": 0.5},
    "jobs": 500,
    "delivered": 400,
    "under_way": 95,
    "reassignment_p99_s": 7.5,
    "least_distance_m": 12.5,
    "violations": 0,
}
QUALITY: dict[str, Any] = {
    "mean_ratio": 0.9,
    "static_solver_over_bound": 1.01,
    "loads": [{"busy_share": 0.6, "mean_ratio": 0.9}],
}


def given(folder: Path, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"quick": False, "directory": folder, "drones": None, "minutes": None, "seed": 7} | more
    )


def test_what_a_drone_costs_is_that_of_all_processes_by_the_clock_of_the_world() -> None:
    row = row_of(FOUND)
    assert row["cores"] == 1.8
    assert row["cpu_us_per_drone_s"] == 2_000.0
    assert row["of_nodes_us"] == round(1.5e6 / 900, 1)
    assert row["busiest_share"] == 0.85


def test_sizes_are_flown_from_small_to_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(words: list[str], within_s: float) -> dict[str, Any]:
        asked.append(words)
        if words[0] == "quality":
            return dict(QUALITY)
        drones = int(words[words.index("--drones") + 1])
        sampled = {"telemetry_events_per_s": 1_999_000, "telemetry_event_to_action_p50_ms": 12.0}
        telemetry = sampled if "--telemetry" in words else {}
        return {
            **FOUND,
            **telemetry,
            "drones": drones,
            "violations": int(drones == 100),
            "real_time_factor": 1_000 / drones,
        }

    monkeypatch.setattr(swarm, "_ask", answer)
    figures = run(given(tmp_path, drones=[2_000, 100], minutes=1.0))
    assert [words[words.index("--drones") + 1] for words in asked] == ["100", "2000", "5000", "200"]
    assert "--keep" in asked[0]
    assert (figures["largest_drones"], figures["real_time_factor"], figures["violations"]) == (2_000, 0.5, 1)
    assert figures["cpu_growth"] == 1.0
    assert {target.figure: target.met(figures) for target in TARGETS} == {
        "real_time_factor": False,
        "violations": False,
        "telemetry_events_per_s": False,
        "telemetry_event_to_action_p50_ms": True,
        "quality_mean_ratio": True,
        "quality_static_solver_over_bound": True,
    }
    assert len(charts(figures)) == 2
    assert not list(tmp_path.iterdir())


def test_a_run_without_figures_is_said_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, stdout="", stderr="no nats-server here")

    monkeypatch.setattr(subprocess, "run", ended)
    with pytest.raises(ConfigError, match="no nats-server here"):
        swarm._ask(["--drones", "20"], 1.0)

    def too_long(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 1.0)

    monkeypatch.setattr(subprocess, "run", too_long)
    with pytest.raises(ConfigError, match="did not end within 1 s"):
        swarm._ask(["--drones", "20"], 1.0)


def test_a_run_that_found_violations_still_has_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**FOUND, "violations": 3}

    def ended(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, stdout=json.dumps(found), stderr="")

    monkeypatch.setattr(subprocess, "run", ended)
    assert swarm._ask(["--drones", "1000"], 1.0) == found


def test_what_is_not_installed_is_named_before_anything_is_flown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm, "find_spec", lambda name: None if name == "scipy" else object())
    with pytest.raises(ConfigError, match="needs scipy: make setup"):
        run(given(tmp_path))


def test_the_application_says_what_a_row_is_made_of(tmp_path: Path) -> None:
    """All of it, for moments: the broker, the nodes, the world, the checker."""
    words = ["--drones", "4", "--minutes", "0.02", "--drain", "0.1", "--keep", str(tmp_path / "run")]
    row = row_of(swarm._ask(words, within_s=240.0))
    assert row["drones"] == 4
    assert row["real_time_factor"] > 0.0
    assert row["cpu_us_per_drone_s"] > row["of_nodes_us"] > 0.0
    assert row["violations"] == 0


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_a_small_swarm_is_flown_and_measured(tmp_path: Path) -> None:
    figures = run(given(tmp_path, quick=True))
    (row,) = figures["sizes"]
    assert row["drones"] == QUICK.drones[0]
    assert row["real_time_factor"] > 0.0
    assert row["cpu_us_per_drone_s"] > row["of_nodes_us"] > 0.0
    assert row["violations"] == 0
    assert figures["telemetry_events_per_s"] > 0
    assert figures["telemetry_events"] + figures["telemetry_dropped"] == 20 * 420 * 12
    assert figures["quality_mean_ratio"] > 0.0
    assert figures["quality_static_solver_over_bound"] >= 1.0
    assert charts(figures) == []
    assert not list(tmp_path.iterdir())
