"""`bench observed`: it runs, and its figures are ratios of the same events."""

import argparse
from pathlib import Path

import pytest

from bench import observed
from bench.observed import Window


def test_it_runs(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    figures = observed.run(argparse.Namespace(quick=True, directory=tmp_path, pairs=3))
    for name in ("", "singles_", "compiled_"):
        assert figures[f"{name}cpu_ratio"] > 0
        assert figures[f"{name}throughput_ratio"] > 0
    assert {target.figure for target in observed.TARGETS} <= set(figures)
    assert observed.charts(figures)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_disturbed_window_does_not_count() -> None:
    off = [Window(1.0, 0.98)] * 6 + [Window(50.0, 9.0)] * 2
    on = [Window(1.0, 1.0)] * 8
    assert observed._ratios("", off, on) == {"throughput_ratio": 1.0, "cpu_ratio": 0.98}
