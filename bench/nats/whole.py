"""A fleet on NATS JetStream measured: speed against the raw engine, latency, gaps, catching up, memory, claims.

Three real servers on this machine keep everything three times and sync every message to disk. A window of a worker with
all shards is followed by one of the raw engine with the very same messages; the median of the ratios counts. All
processes share the cores of this machine, which a real cluster does not: the ratio counts, the speeds say more about
the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.targets import Target
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import make_process_ours

try:
    from bench.nats.claims import measure as measure_claims
    from bench.nats.failover import measure_failover
    from bench.nats.latency import EVENTS_PER_S, measure_catch_up, measure_latency
    from bench.nats.rig import SERVERS, SHARDS
    from bench.nats.throughput import measure_throughput
    from stigmergy.testing.nats import NatsCluster
except ModuleNotFoundError as error:
    raise ConfigError(f'bench nats needs {error.name}: pip install "stigmergy[nats]"') from None

WINDOWS = 9


class Sizes(Struct, frozen=True):
    """How much is measured."""

    envelopes: int = 60
    """For each shard, in each window."""
    latency_s: float = 10.0
    replayed: int = 5_000
    """Envelopes in a log that is caught up with."""
    settle_s: float = 15.0
    """After each thing that happens to workers and servers."""
    claims_s: float = 5.0
    failover_shards: int = 8
    kill_servers: bool = True
    """A new leader takes 5 to 8 s."""


FULL = Sizes()
QUICK = Sizes(
    envelopes=3, latency_s=0.5, replayed=20, settle_s=3.0, claims_s=0.5, failover_shards=2, kill_servers=False
)

TARGETS = (
    Target("ratio", "events/s of a worker / of the raw engine, same messages, kept three times", 0.5, at_least=True),
    Target("planned_gap_ms", "a shard that is handed over does not answer, ms", 100.0),
    Target("worker_killed_gap_s", "a shard whose worker was killed does not answer, s", 5.0),
    Target("server_killed_gap_s", "a shard whose log's leader was killed does not answer, s", 12.0),
    Target("claims_per_s", "claims through the ledger, granted and given back", 3_000.0, at_least=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench nats`."""
    add_common(parser)
    parser.add_argument("--windows", type=int, default=WINDOWS, help="windows of each measurement, at least 5")
    parser.add_argument("--shards", type=int, default=SHARDS, help=f"shards of the fleet (default: {SHARDS})")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the figures by name."""
    sizes = QUICK if arguments.quick else FULL
    windows = 1 if arguments.quick else max(5, arguments.windows)
    shards = max(1, arguments.shards)
    make_process_ours()
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name:
        folder = Path(name).resolve()
        with NatsCluster.start(folder / "servers", nodes=SERVERS) as cluster:
            speed = asyncio.run(measure_throughput(cluster.url, windows, sizes.envelopes, shards))
            latency = asyncio.run(measure_latency(cluster.url, sizes.latency_s, shards))
            caught_up = asyncio.run(measure_catch_up(cluster.url, sizes.replayed))
            claims = measure_claims(f"{cluster.url}?replicas={SERVERS}", seconds=sizes.claims_s)
        with NatsCluster.start(folder / "others", nodes=SERVERS) as cluster:
            gaps = asyncio.run(
                measure_failover(
                    cluster, folder, sizes.failover_shards, sizes.settle_s, kill_servers=sizes.kill_servers
                )
            )
    return {
        "events_per_s": round(speed.events_per_s),
        "limit_events_per_s": round(speed.limit_events_per_s),
        "ratio": round(speed.ratio, 3),
        "ratio_per_window": [round(ratio, 3) for ratio in speed.ratios],
        "shards": shards,
        "events_per_message": round(speed.events_per_message, 1),
        "bytes_per_message": round(speed.bytes_per_message),
        "messages_per_s": round(speed.messages_per_s),
        "limit_messages_per_s": round(speed.limit_messages_per_s),
        "cpu_us_per_event": round(speed.cpu_us_per_event, 2),
        "limit_cpu_us_per_event": round(speed.limit_cpu_us_per_event, 2),
        "open_loop_events_per_s": EVENTS_PER_S,
        "open_loop_actions": latency.actions,
        "p50_ms": round(latency.p50_ms, 2),
        "p99_ms": round(latency.p99_ms, 2),
        "raw_p50_ms": round(latency.raw_p50_ms, 2),
        "raw_p99_ms": round(latency.raw_p99_ms, 2),
        "quiet_gap_ms": round(gaps.quiet_gap_ms, 1),
        "planned_gap_ms": round(gaps.planned_gap_ms, 1),
        "planned_others_gap_ms": round(gaps.planned_others_gap_ms, 1),
        "worker_killed_gap_s": round(gaps.worker_killed_gap_s, 2),
        "worker_killed_others_gap_ms": round(gaps.worker_killed_others_gap_ms, 1),
        "server_killed_gap_s": _rounded(gaps.server_killed_gap_s),
        "server_killed_others_gap_ms": _rounded(gaps.server_killed_others_gap_ms),
        "members_server_killed_gap_s": _rounded(gaps.members_server_killed_gap_s),
        "failover_shards": sizes.failover_shards,
        "failover_commands": gaps.commands,
        "worker_mb": round(gaps.worker_mb, 1),
        "catch_up_events": caught_up.events,
        "catch_up_events_per_s": round(caught_up.events_per_s),
        "claims_per_s": round(claims.claims_per_s),
        "claim_p50_ms": round(claims.p50_ms, 2),
        "claim_p99_ms": round(claims.p99_ms, 2),
    }


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Speed, latency and gaps."""
    speed = [
        Bar("a worker", figures["events_per_s"]),
        Bar("the raw engine", figures["limit_events_per_s"], ours=False),
    ]
    latency = [
        Bar("event to action, p50", figures["p50_ms"]),
        Bar("event to action, p99", figures["p99_ms"]),
        Bar("message alone, p50", figures["raw_p50_ms"], ours=False),
        Bar("message alone, p99", figures["raw_p99_ms"], ours=False),
    ]
    gaps = [
        Bar("handed over", figures["planned_gap_ms"] / 1e3),
        Bar("worker killed", figures["worker_killed_gap_s"]),
    ]
    if figures["server_killed_gap_s"] is not None:
        gaps.append(Bar("server killed", figures["server_killed_gap_s"]))
    return [
        Bars("durable throughput on three servers", "events/s", speed),
        Bars(f"at {figures['open_loop_events_per_s']:,} events/s", "ms", latency),
        Bars("how long a shard does not answer", "s", gaps),
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
