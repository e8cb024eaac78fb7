"""The benchmark runs, its figures are all there, and its workload is what it says."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import interpreted
from bench.throughput import Limit, nested
from bench.workload import (
    BATCH_EVENTS,
    DRONES,
    BatteryMeasured,
    Descend,
    Drone,
    Feed,
    Land,
    OrderAcknowledged,
    Positioned,
    reports,
    roll_call,
)
from stigmergy.agents.codec import open_envelope, tag_of
from stigmergy.testing import given

PROMISED = {
    "events_per_s",
    "limit_events_per_s",
    "ratio",
    "p50_ms",
    "p99_ms",
    "fdatasync_p99_ms",
    "p99_over_fdatasync",
    "segments_events_per_s",
    "segments_ratio",
    "segments_p50_ms",
    "segments_p99_ms",
    "segments_p99_over_fdatasync",
    "agents_100k_mb",
    "replay_1m_s",
    "snapshot_recovery_s",
}


def test_same_seed_same_bytes() -> None:
    assert reports(5, 2_000) == reports(5, 2_000)
    assert reports(5, 2_000) != reports(6, 2_000)


def test_shares_are_those_of_the_workload() -> None:
    made = reports(1, 20_000)
    tags = [tag_of(report.body) for report in made]
    assert abs(tags.count("Positioned@1") / len(tags) - 0.70) < 0.02
    assert abs(tags.count("BatteryMeasured@1") / len(tags) - 0.25) < 0.02
    assert abs(tags.count("OrderAcknowledged@1") / len(tags) - 0.05) < 0.02
    assert 0.02 < sum(report.acts for report in made) / len(made) < 0.04
    assert len({report.address for report in made}) > 0.9 * DRONES


def test_feed_counts_on_through_its_stock() -> None:
    feed = Feed("ground", reports(1, 2 * BATCH_EVENTS))
    envelopes = [open_envelope(data) for data in feed.envelopes(5)]
    assert [envelope.sequence for envelope in envelopes] == [1, 1001, 2001, 3001, 4001]
    assert envelopes[0].items == envelopes[2].items == envelopes[4].items != envelopes[1].items


def test_roll_call_names_every_drone_once() -> None:
    assert [report.address for report in roll_call(1, 3, first=7)] == ["Drone/D-7", "Drone/D-8", "Drone/D-9"]


def test_the_drone_acts_as_the_reports_say() -> None:
    high = Positioned(north_m=0.0, east_m=0.0, altitude_m=100.5)
    given(Drone).when(high).then(Descend(altitude_m=100.0))
    given(Drone).when(BatteryMeasured(percent=14.9)).then(Land(reason="battery"))
    given(Drone).when(BatteryMeasured(percent=15.0)).then()
    given(Drone).when(OrderAcknowledged(order=3)).then()


def test_the_limit_reads_every_event(tmp_path: Path) -> None:
    limit = Limit(tmp_path / "limit.log")
    batch = Feed("ground", roll_call(1, DRONES)).envelopes(5)
    limit.run(batch)
    read = dict(limit.state)
    assert len(read) == DRONES
    assert (tmp_path / "limit.log").read_bytes() == b"".join(batch)
    limit.state.clear()
    limit.run_nested([nested(data) for data in batch])
    limit.close()
    assert limit.state == read


def test_targets_compare_in_the_right_direction() -> None:
    ratio, latency = interpreted.TARGETS[:2]
    assert ratio.met({"ratio": 0.41})
    assert not ratio.met({"ratio": 0.39})
    assert latency.met({"p99_over_fdatasync": 2.9})
    assert not latency.met({"p99_over_fdatasync": 3.1})


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_a_quick_run_gives_all_figures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--json", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert figures.keys() >= PROMISED
    assert all(figures[name] > 0 for name in PROMISED)
    assert figures["replay_events"] >= 10_000
    assert figures["agents"] == 2_000
    assert list(tmp_path.iterdir()) == []


def test_options_can_be_added_to_any_parser() -> None:
    parser = argparse.ArgumentParser()
    interpreted.add_arguments(parser)
    assert parser.parse_args(["--quick", "--windows", "7"]).windows == 7
