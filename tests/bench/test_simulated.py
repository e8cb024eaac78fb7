"""A quick run of the simulator's benchmark has every figure, and finds nothing wrong."""

import argparse
from pathlib import Path

import pytest

from bench import simulated


@pytest.mark.prove
def test_a_quick_run_gives_all_figures(tmp_path: Path) -> None:
    figures = simulated.run(argparse.Namespace(quick=True, directory=tmp_path))
    assert figures["violations"] == 0
    assert figures["nodes"] == 4
    assert figures["hour_messages"] > 40 * 360
    assert figures["messages_per_s"] > 0
    assert len(figures["trace"]) == 64
    assert all(target.figure in figures for target in simulated.TARGETS)
    (chart,) = simulated.charts(figures)
    assert len(chart.bars) == 3  # type: ignore[union-attr]
