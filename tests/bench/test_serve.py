"""The benchmark of the HTTP API measures something; its figures are for a quiet machine."""

import argparse
from pathlib import Path

from bench.serve import TARGETS, charts, run


def test_it_measures(tmp_path: Path) -> None:
    figures = run(argparse.Namespace(quick=True, directory=tmp_path, without_views=True))
    assert {target.figure for target in TARGETS} <= set(figures)
    assert figures["commands_per_s_http"] > 0
    assert figures["stream_slowest_had"] == figures["stream_expected"]
    assert charts(figures)
