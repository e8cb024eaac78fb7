"""The benchmark of compiled agents runs, its figures are all there, and what it counts is what the records say."""

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bench import compiled
from bench.catalogue import Measured, benchmark_of
from bench.columns import throughput
from bench.columns.rig import BATCH_RECORDS, ColumnFeed
from bench.columns.sender import Plan, due_times
from bench.display import show
from bench.records import RECORD_BYTES, acting, records
from stigmergy.base.errors import ConfigError
from stigmergy.node.column_roster import ShardRoster
from stigmergy.shard.batches import open_batch

ROSTER = ShardRoster(layout=bytes(16), generation=1, check=bytes(8), agents=5_000)
COUNTED = {
    "events_per_s",
    "limit_events_per_s",
    "ratio",
    "limit_same_batch_events_per_s",
    "same_batch_ratio",
    "cpu_us_per_event",
    "two_processes_events_per_s",
    "two_processes_gain",
    "alternative_ratio",
    "loaded_p50_ms",
    "loaded_p99_ms",
    "single_p50_ms",
    "single_p99_ms",
    "fdatasync_p99_ms",
    "single_p99_over_fdatasync",
    "replay_10m_s",
    "snapshot_recovery_s",
    "agents_1m_mb",
    "fleet_ratio",
}


def test_a_feed_counts_on_through_its_stock() -> None:
    stock = records(1, 25)
    feed = ColumnFeed("ground", stock, ROSTER, batch_records=10)
    batches = [open_batch(data) for data in feed.batches(4)]
    assert [(one.sequence, one.count) for one in batches] == [(1, 10), (11, 10), (21, 5), (26, 10)]
    assert b"".join(one.records for one in batches[:3]) == stock.tobytes()
    assert batches[3].records == batches[0].records
    assert feed.records == 35
    assert feed.acting == acting(stock).sum() + acting(stock[:10]).sum()
    assert feed.sequence == 36


def test_events_are_due_one_after_the_other() -> None:
    plan = Plan(
        batches=3,
        batch_records=2,
        events_per_s=1_000,
        acting=0.5,
        sequence=1,
        roster=ROSTER,
        start_ns=1_000_000_000,
    )
    acts = np.array([True, False, False, True])
    assert due_times(plan, acts).tolist() == [1_001_000_000, 1_004_000_000, 1_005_000_000]


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_a_quick_run_gives_all_figures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "compiled", "--quick", "--json", "--directory", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout)
    assert {target.figure for target in compiled.TARGETS} <= COUNTED
    assert all(figures[name] > 0 for name in COUNTED)
    check_counts(figures)
    assert list(tmp_path.iterdir()) == []
    to = Console(record=True, width=100, file=io.StringIO())
    show(Measured("compiled", benchmark_of("compiled"), figures, quick=True), to)
    shown = to.export_text()
    for words in ("same_batch_ratio", "event to action", "cost with the size of the fleet"):
        assert words in shown


def check_counts(figures: dict[str, Any]) -> None:
    sizes = compiled.QUICK
    acts = acting(records(throughput.SEED, throughput.STOCK_BATCHES * BATCH_RECORDS))
    warm_up = sizes.batches // 4
    assert figures["events"] == sizes.batches * BATCH_RECORDS
    assert figures["actions"] == acts[warm_up * BATCH_RECORDS : (warm_up + sizes.batches) * BATCH_RECORDS].sum()
    assert figures["limit_batch_events"] * RECORD_BYTES <= sizes.limit_file_bytes
    assert figures["same_actions"]
    for name, batch_records, acting_share in (("loaded", 2_000, 0.03), ("single", 1, 0.25)):
        rate = figures[f"{name}_events_per_s"]
        plan = Plan(int(rate * sizes.window_s) // batch_records, batch_records, rate, acting_share, 1, ROSTER)
        assert figures[f"{name}_actions"] == len(due_times(plan, acting(plan.stock()))) > 0
        assert 0 < figures[f"{name}_commits"] <= plan.batches + 100
        assert figures[f"{name}_p50_ms"] <= figures[f"{name}_p99_ms"]
    assert figures["agents"] == sizes.agents
    assert sizes.events <= figures["replay_events"] <= sizes.events + 100
    assert figures["snapshot_tail_events"] == 0
    assert [row["agents"] for row in figures["fleet"]] == [500, 2_000]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> object:
        return None if name == "numba" else find_spec(name)

    replaced: Callable[[str], object] = found
    monkeypatch.setattr(compiled, "find_spec", replaced)
    with pytest.raises(ConfigError, match=r"numba is not installed; pip install \"stigmergy\[compiled\]\""):
        compiled.run(argparse.Namespace(quick=True, windows=1, directory=Path()))
