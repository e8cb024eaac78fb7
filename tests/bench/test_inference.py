"""`bench inference`: it runs on a real node, every answer is the model's, and its figures are of the same batches."""

import argparse
from pathlib import Path

from bench import inference
from bench.inference import QUICK, Timed
from stigmergy.models import runtimes


def test_it_runs(tmp_path: Path) -> None:
    figures = inference.run(argparse.Namespace(quick=True, directory=tmp_path))
    for net in QUICK.nets:
        assert figures[f"{net.name}_inferences_per_s"] > 0
        assert figures[f"{net.name}_runtime_ratio"] > 0
        assert figures[f"{net.name}_p99_ms"] >= figures[f"{net.name}_p50_ms"] > 0
        assert 1 <= figures[f"{net.name}_rows_per_batch"] <= QUICK.agents
    assert {target.figure for target in inference.TARGETS} <= set(figures)
    assert [one["name"] for one in figures["int8"]] == [net.name for net in QUICK.nets]
    assert all(one["int8_bytes"] < one["float_bytes"] for one in figures["int8"])
    assert inference.charts(figures)
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    assert inference.COUNTED not in runtimes.OURS


def test_a_ratio_is_one_of_neighbouring_windows() -> None:
    windows = [
        Timed(60.0, 1e-4, 90.0, 100.0, 8.0, 0.5, [0.001]),
        Timed(6.0, 1e-4, 9.0, 10.0, 8.0, 0.5, [0.001]),
        Timed(9.0, 1e-4, 9.0, 10.0, 8.0, 0.5, [0.003]),
    ]
    bundle = inference._bundle(QUICK.nets[0])
    figures = inference._figures("", bundle, windows)
    assert (figures["ratio"], figures["runtime_ratio"]) == (0.6, 0.9)
    assert (figures["p50_ms"], figures["p99_ms"], figures["inferences_per_s"]) == (1.0, 3.0, 9)
