"""A fleet over HTTP and gRPC next to the same fleet in process: commands, latency, the event stream; and views.

The node runs on SQLite in this process with its API; HTTP clients are a process of their own and speak HTTP by hand.
Commands are sent by 32 clients at once, each waiting for its durable answer, in windows that take turns: in process,
over HTTP, over gRPC. Latency is that of one client alone. The stream goes to 100 clients at 10,000 events a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.targets import Target
from bench.views import TARGETS as VIEW_TARGETS
from bench.views import measure_views
from stigmergy import Agent, Command, Event, Events, Fleet, Live, decide, evolve, pack_envelope, within
from stigmergy.base.errors import ConfigError
from stigmergy.proto.numbers import write_numbers
from stigmergy.proto.service import FleetProto
from stigmergy.serve.access import Policy
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.listener import Address
from stigmergy.serve.server import ApiServer, Serving

CLIENTS = 32
STREAM_CLIENTS = 100
STREAM_EVENTS_PER_S = 10_000
STREAM_AGENTS = 100
TICK_S = 0.01
ENVELOPE_EVENTS = 2_000
LATE_S_MAX = 20.0
TARGETS = (
    Target("commands_ratio", f"commands a second over HTTP / in process, {CLIENTS} clients", 0.25, at_least=True),
    Target("p99_above_ms", "p99 of a durable command over HTTP above that in process, one client, ms", 4.0),
    Target("stream_dropped", f"clients dropped of {STREAM_CLIENTS} at {STREAM_EVENTS_PER_S} events a second", 0.0),
    *VIEW_TARGETS,
)


class Add(Command):
    """Adds."""

    by: int


class Added(Event):
    """Was added."""

    by: int


class Sampled(Event, keep=within(seconds=0.05)):
    """A measurement."""

    number: int
    value: float


class Meter(Agent):
    """Adds up."""

    total: int = 0
    last: float = 0.0

    @decide
    def add(self, command: Add) -> Events:
        """Always."""
        yield Added(by=command.by)

    @evolve
    def added(self, event: Added) -> None:
        """Adds up."""
        self.total += event.by

    @evolve
    def sampled(self, event: Sampled) -> None:
        """Keeps the last one."""
        self.last = event.value


class Sizes(Struct, frozen=True):
    """How much is measured."""

    window_s: float = 5.0
    windows: int = 3
    stream_s: float = 20.0
    stream_clients: int = STREAM_CLIENTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    add_common(parser)
    parser.add_argument("--without-views", action="store_true", help="leave the figures of views out")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures."""
    sizes = Sizes(1.0, 1, 2.0, 10) if arguments.quick else Sizes()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        figures = asyncio.run(_measure(Path(folder), sizes))
    if not arguments.without_views:
        figures |= measure_views(quick=arguments.quick)
    else:
        figures |= {target.figure: None for target in VIEW_TARGETS}
    return figures


def charts(figures: dict[str, Any]) -> list[Chart]:
    """What is drawn of them."""
    named = {"in process": "in_process", "HTTP": "http", "gRPC": "grpc"}
    bars = [Bar(shown, figures[f"commands_per_s_{name}"]) for shown, name in named.items()]
    return [Bars("durable commands, 32 clients", "1/s", bars)]


async def _measure(folder: Path, sizes: Sizes) -> dict[str, Any]:
    async with _served(folder) as (live, port, grpc_port):
        await _in_process(live, CLIENTS, 0.5)
        ours: list[dict[str, float]] = []
        http: list[dict[str, float]] = []
        grpc: list[dict[str, float]] = []
        for _ in range(sizes.windows):
            ours.append(await _in_process(live, CLIENTS, sizes.window_s))
            http.append(await _load("commands", port, CLIENTS, sizes.window_s))
            grpc.append(await _load("grpc", grpc_port, CLIENTS, sizes.window_s))
        alone: list[dict[str, float]] = []
        alone_http: list[dict[str, float]] = []
        alone_grpc: list[dict[str, float]] = []
        for _ in range(sizes.windows):
            alone.append(await _in_process(live, 1, sizes.window_s))
            alone_http.append(await _load("commands", port, 1, sizes.window_s))
            alone_grpc.append(await _load("grpc", grpc_port, 1, sizes.window_s))
        stream = await _stream(live, port, sizes)
    per_s, per_s_http = _median(ours, "per_s"), _median(http, "per_s")
    return {
        "commands_per_s_in_process": round(per_s),
        "commands_per_s_http": round(per_s_http),
        "commands_per_s_grpc": round(_median(grpc, "per_s")),
        "commands_ratio": round(per_s_http / per_s, 3),
        "p50_ms_in_process": round(_median(alone, "p50_ms"), 3),
        "p99_ms_in_process": round(_median(alone, "p99_ms"), 3),
        "p50_ms_http": round(_median(alone_http, "p50_ms"), 3),
        "p99_ms_http": round(_median(alone_http, "p99_ms"), 3),
        "p50_ms_grpc": round(_median(alone_grpc, "p50_ms"), 3),
        "p99_ms_grpc": round(_median(alone_grpc, "p99_ms"), 3),
        "p99_above_ms": round(_median(alone_http, "p99_ms") - _median(alone, "p99_ms"), 3),
        **stream,
    }


def _median(windows: list[dict[str, float]], name: str) -> float:
    return statistics.median(one[name] for one in windows)


@asynccontextmanager
async def _served(folder: Path) -> AsyncIterator[tuple[Live, int, int]]:
    fleet = Fleet("meters", agents=[Meter])
    numbers = folder / "meters.proto.lock"
    numbers.write_bytes(write_numbers(FleetProto(fleet, None).numbers))
    running = fleet.running(journal=f"sqlite:{folder}/meters.db", key=folder / "meters.key")
    async with running as live:
        asker = NodeAsker(running.service(live, "", lambda: None))
        own, policy = Address("127.0.0.1", 0), Policy(rate_per_s=1e9)
        server = ApiServer(fleet, asker, Serving(own, folder / "tokens", policy, grpc=own, numbers=numbers))
        http, grpc = await server.start()
        try:
            yield live, urlsplit(http).port or 0, urlsplit(grpc).port or 0
        finally:
            await server.close()


async def _in_process(live: Live, clients: int, seconds: float) -> dict[str, float]:
    until_s = time.perf_counter() + seconds

    async def send(number: int) -> list[float]:
        found: list[float] = []
        while (began_s := time.perf_counter()) < until_s:
            await live.send(f"Meter/{number}", Add(by=1))
            found.append(time.perf_counter() - began_s)
        return found

    results = await asyncio.gather(*(send(number) for number in range(clients)))
    latencies = sorted(latency for found in results for latency in found)
    count = len(latencies)
    return {
        "per_s": count / seconds,
        "p50_ms": 1e3 * latencies[count // 2],
        "p99_ms": 1e3 * latencies[count * 99 // 100],
    }


async def _start(*words: Any) -> asyncio.subprocess.Process:
    arguments = [sys.executable, "-m", "bench.serve_load", *map(str, words)]
    return await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)


async def _said(process: asyncio.subprocess.Process) -> dict[str, float]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise ConfigError(f"the clients ended with code {await process.wait()}")
    found: dict[str, float] = json.loads(line)
    return found


async def _load(*words: Any) -> dict[str, float]:
    process = await _start(*words)
    found = await _said(process)
    await process.communicate()  # to its end: `wait` alone leaves the pipe open
    return found


async def _stream(live: Live, port: int, sizes: Sizes) -> dict[str, Any]:
    """Events at a fixed rate, whether the clients keep up or not, and then how long the slowest of them takes."""
    expected = int(sizes.stream_s * STREAM_EVENTS_PER_S)
    process = await _start("stream", port, sizes.stream_clients, expected, sizes.stream_s + LATE_S_MAX)
    await _said(process)
    began_s, sent = time.perf_counter(), 0
    sending: set[asyncio.Future[None]] = set()
    while sent < expected:
        due = min(expected, int((time.perf_counter() - began_s) * STREAM_EVENTS_PER_S), sent + ENVELOPE_EVENTS)
        if due > sent:
            items = [(f"Meter/{n % STREAM_AGENTS}", Sampled(number=n, value=n / 7)) for n in range(sent, due)]
            one = asyncio.ensure_future(live.deliver(pack_envelope("bench", items, sequence=sent + 1)))
            sending.add(one)
            one.add_done_callback(sending.discard)
            sent = due
        await asyncio.sleep(TICK_S)
    took_s = time.perf_counter() - began_s
    await asyncio.gather(*sending)
    sent_s = time.time()
    found = await _said(process)
    await process.communicate()  # to its end: `wait` alone leaves the pipe open
    return {
        "stream_clients": sizes.stream_clients,
        "stream_events_per_s": round(expected / took_s),
        "stream_dropped": int(found["dropped"]) + int(found["least"] < expected and not found["dropped"]),
        "stream_slowest_had": int(found["least"]),
        "stream_expected": expected,
        "stream_behind_s": round(max(0.0, found["ended_s"] - sent_s), 3),
    }
