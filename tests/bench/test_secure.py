"""`bench secure`: it runs, and its figures are of the same events, signed and unsigned."""

import argparse
from pathlib import Path

from bench import secure
from bench.secure import Window


def test_it_runs(tmp_path: Path) -> None:
    figures = secure.run(argparse.Namespace(quick=True, directory=tmp_path, pairs=3))
    assert {target.figure for target in secure.TARGETS} <= set(figures)
    assert all(value > 0 for value in figures.values())
    assert figures["proof_bytes"] > figures["proof_one_bytes"]
    assert secure.charts(figures)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_the_ratio_is_of_the_lower_quartiles() -> None:
    unsigned = [Window(1.0, 0.9)] * 6 + [Window(50.0, 9.0)] * 2
    signed = [Window(1.25, 1.0)] * 8
    found = secure.ratios(unsigned, signed)
    assert (found["signed_ratio"], found["signed_cpu_ratio"]) == (0.8, 0.9)
    assert (found["unsigned_per_s"], found["signed_per_s"]) == (1_000, 800)
