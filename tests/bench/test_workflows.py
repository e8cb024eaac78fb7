"""`bench workflows` carries out every run, and says what it measured; dbos only where it is installed."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from bench.workflows import QUICK, STEPS, Flown, _ratio, charts, run


def test_all_runs_are_carried_out_and_measured(tmp_path: Path) -> None:
    figures = run(argparse.Namespace(quick=True, directory=tmp_path))
    assert figures["steps_per_s"] > 0
    assert figures["run_p99_ms"] >= figures["run_p50_ms"] > 0
    assert figures["windows"] == QUICK.windows
    assert (figures["dbos_ratio"] is None) == (find_spec("dbos") is None) == bool(figures["not_installed"])
    assert charts(figures)
    assert not list(tmp_path.iterdir())


def test_a_ratio_is_one_of_neighbouring_windows() -> None:
    def window(seconds: float, runs: int) -> Flown:
        return Flown(seconds, seconds, [seconds] * runs)

    assert _ratio([window(1, 30), window(2, 30)], [window(1, 10), window(2, 5)]) == 4.5
    assert STEPS == 5
