"""`bench workflows` carries out every run, and says what it measured; others only where they are installed."""

import argparse
from pathlib import Path

import pytest

from bench.workflows import OTHERS, QUICK, STEPS, Flown, Other, _ratio, charts, restate_server, run


def test_all_runs_are_carried_out_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = run(argparse.Namespace(quick=True, directory=tmp_path))
    assert figures["steps_per_s"] > 0
    assert figures["undone_runs_per_s"] > 0
    assert figures["run_p99_ms"] >= figures["run_p50_ms"] > 0
    assert figures["windows"] == QUICK.windows
    missing = [other.name for other in OTHERS if not other.installed]
    assert [one["name"] for one in figures["not_installed"]] == missing
    assert [other.name for other in OTHERS if figures[f"{other.name}_ratio"] is None] == missing
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines() if "NOT MEASURED" in line] == missing
    assert charts(figures)
    assert not list(tmp_path.iterdir())


def test_a_ratio_is_one_of_neighbouring_windows() -> None:
    def window(seconds: float, runs: int) -> Flown:
        return Flown(seconds, seconds, [seconds] * runs)

    assert _ratio([window(1, 30), window(2, 30)], [window(1, 10), window(2, 5)]) == 4.5
    assert STEPS == 5


def test_somebody_is_installed_if_its_libraries_and_its_server_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_installed(*needs: str) -> bool:
        return Other("one", "module", needs, "", restate_server).installed

    server = tmp_path / "server"
    monkeypatch.setenv("RESTATE_SERVER", str(server))
    assert not is_installed("asyncio")
    server.touch(mode=0o755)
    assert is_installed("asyncio")
    assert not is_installed("asyncio", "no_library_is_called_so")
