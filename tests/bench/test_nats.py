"""The benchmark of a fleet on NATS runs on real servers, and what it counts is what was sent."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench.catalogue import Measured, benchmark_of
from bench.display import show
from bench.nats import latency
from bench.nats.failover import measure_failover
from bench.nats.throughput import BATCH_EVENTS, measure_throughput
from stigmergy.testing.nats import NatsCluster

RUN_S_MAX = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster.start(tmp_path_factory.mktemp("servers"), nodes=3) as cluster:
        yield cluster


@pytest.mark.prove
def test_a_worker_and_the_raw_engine_take_the_same_messages(cluster: NatsCluster) -> None:
    found = asyncio.run(measure_throughput(cluster.url, windows=2, envelopes=2, shards=2))
    assert len(found.ratios) == 2
    assert 0 < found.ratio < 10
    assert found.events_per_s > 0
    assert 0 < found.events_per_message <= 2 * BATCH_EVENTS
    assert found.bytes_per_message > found.events_per_message * 40, "an event weighs more than this"


def test_every_acting_event_is_timed_and_a_log_is_caught_up_with(
    cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "EVENTS_PER_S", 100)
    found = asyncio.run(latency.measure_latency(cluster.url, 0.5, shards=2))
    assert found.actions == 50
    assert 0 < found.p50_ms <= found.p99_ms
    assert 0 < found.raw_p50_ms <= found.raw_p99_ms
    caught_up = asyncio.run(latency.measure_catch_up(cluster.url, 5))
    assert caught_up.events == 5 * BATCH_EVENTS
    assert caught_up.events_per_s > 0


@pytest.mark.prove
def test_gaps_of_real_workers_are_seen(cluster: NatsCluster, tmp_path: Path) -> None:
    found = asyncio.run(measure_failover(cluster, tmp_path, 2, 2.0, kill_servers=False))
    assert found.quiet_gap_ms > 0
    assert found.planned_gap_ms > 0
    assert found.worker_killed_gap_s * 1e3 > found.worker_killed_others_gap_ms
    assert found.worker_mb > 10
    assert found.commands > 10


@pytest.mark.prove
def test_it_runs_as_a_command_and_shows_its_figures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "nats", "--quick", "--json", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=RUN_S_MAX, check=True)
    figures = msgspec.json.decode(done.stdout)
    benchmark = benchmark_of("nats")
    assert all(target.figure in figures for target in benchmark.TARGETS)
    assert figures["ratio"] > 0
    to = Console(file=io.StringIO(), width=120)
    show(Measured("nats", benchmark, figures, quick=True), to)
    assert isinstance(to.file, io.StringIO)
    assert "claims_per_s" in to.file.getvalue()
