"""The benchmark of the edge runs against a real broker, its figures are all there, and each is of what it says."""

import argparse
from pathlib import Path

import pytest

from bench import edge
from bench.flash import write_for
from bench.targets import Target

PROMISED = {
    "install_mb",
    "idle_mb",
    "flash_ratio",
    "flash_durable_mb_per_h",
    "flash_within_mb_per_h",
    "flash_latest_mb_per_h",
    "flash_transient_mb_per_h",
    "cpu_durable_us_per_event",
    "others_p99_ms",
    "flood_p99_ratio",
    "burst_worst_ms",
    "burst_nats_worst_ms",
    "burst_nats_synced_worst_ms",
}


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_runs_and_prints_what_is_promised(tmp_path: Path) -> None:
    figures = edge.run(argparse.Namespace(quick=True, directory=tmp_path))
    assert figures.keys() >= PROMISED
    assert 5 < figures["install_mb"] < 60
    assert 15 < figures["idle_mb"] < 60
    assert figures["flood_shed"] > 0
    assert figures["others_p99_ms"] > 0
    quick = edge.QUICK
    for name, count in (("burst", quick.burst), ("burst_nats", quick.burst), ("burst_nats_synced", quick.synced_burst)):
        assert figures[f"{name}_sent"] == count
        assert figures[f"{name}_worst_ms"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.prove
def test_what_is_promised_later_is_written_less(tmp_path: Path) -> None:
    written = {keep: write_for(keep, 10.0, 20.0, tmp_path) for keep in ("durable", "within", "latest", "transient")}
    assert written["durable"].commits == 200
    assert written["within"].commits <= 21
    assert written["transient"].bytes_written == 0
    assert 5 * written["within"].bytes_written <= written["durable"].bytes_written
    assert written["latest"].bytes_written <= written["within"].bytes_written


def test_a_figure_that_could_not_be_measured_is_not_reached() -> None:
    assert not Target("missing", "", 1.0).met({"missing": None})
    assert Target("there", "", 1.0).met({"there": 1.0})
