"""`bench policy`: every ruling is the policy's, and its figures are there."""

import argparse
from pathlib import Path

from bench import policy


def test_it_runs_and_has_its_figures(tmp_path: Path) -> None:
    figures = policy.run(argparse.Namespace(quick=True, directory=tmp_path))
    assert all(value > 0 for value in figures.values())
    assert {target.figure for target in policy.TARGETS} <= set(figures)
    assert policy.charts(figures)
    assert list(tmp_path.iterdir()) == []
