"""What it costs to be observed: the same events with metrics, or with 1 % of traces, and without. Windows of both take
turns, in one process; spans go to a collector in another one.

There are many short windows, and the figure is the ratio of their lower quartiles: what else the machine does only ever
makes one slower. Processor time says it best, because it does not wait for the disk. `singles` are events one by one,
each with a commit of its own: the worst case, because all that is measured is measured once for a group. `profile_off`
is a host on which a profile has run, against one on which none has; `profile_on` is one on which it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.rig import SHARED_LOOP, make_host, open_file
from bench.targets import Target
from bench.throughput import STOCK_EVENTS, run_host
from bench.workload import BATCH_EVENTS, Feed, reports
from stigmergy.app.node_config import open_exporter
from stigmergy.app.profiled_process import profiled_process
from stigmergy.node.host import Host
from stigmergy.node.profiling import ProfileCounters
from stigmergy.node.settings import MetricsSettings, Settings, TraceSettings
from stigmergy.traces.exporter import SpanExporter

PAIRS = 301
SINK = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Sizes(Struct, frozen=True):
    """How much is in each window."""

    envelopes: int = 2
    """Of 1,000 events."""
    singles: int = 6
    batches: int = 1
    """For compiled agents, of 16,384 records."""


FULL, QUICK = Sizes(), Sizes(1, 1, 1)
TARGETS = (
    Target("cpu_ratio", "processor time of an event without metrics / with", 0.98, at_least=True),
    Target("throughput_ratio", "events per second with metrics / without", 0.98, at_least=True),
    Target("profile_off_cpu_ratio", "the same without a profile / after one", 0.98, at_least=True),
    Target("traces_throughput_ratio", "events per second with 1 % of traces / without", 0.95, at_least=True),
    Target("traces_off_cpu_ratio", "processor time of an event without traces, twice the same", 0.98, at_least=True),
    Target("compiled_cpu_ratio", "the same processor time of compiled agents", 0.99, at_least=True),
)


class Window(Struct, frozen=True):
    """What a window took."""

    seconds: float
    cpu_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench observed`."""
    add_common(parser)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="windows with and without, of each measurement")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures."""
    sizes = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="bench-") as folder:
        metrics = (_settings(False), _settings(True))
        figures = asyncio.run(_interpreted(Path(folder), "", metrics, sizes, arguments.pairs))
        with Sink() as sink:
            for name, sample in (("traces_", 0.01), ("traces_off_", 0.0)):
                on = structs.replace(SHARED_LOOP, traces=TraceSettings(sample=sample, export=sink.url))
                traces = (SHARED_LOOP, on)
                figures |= asyncio.run(_interpreted(Path(folder), name, traces, sizes, arguments.pairs))
        if importlib.util.find_spec("numba") is not None:
            figures |= _compiled(Path(folder), sizes, arguments.pairs)
        else:
            figures |= {"compiled_throughput_ratio": None, "compiled_cpu_ratio": None}
    return figures


def charts(figures: dict[str, Any]) -> list[Chart]:
    """The ratios."""
    names = ("cpu_ratio", "singles_cpu_ratio", "compiled_cpu_ratio", "traces_cpu_ratio", "traces_singles_cpu_ratio")
    return [Bars("observed / not", "", [Bar(name, figures[name] or 0.0) for name in names])]


def _settings(record: bool) -> Settings:
    return structs.replace(SHARED_LOOP, metrics=MetricsSettings(record=record))


class Sink:
    """A collector that takes everything and keeps nothing, in a process of its own."""

    def __enter__(self) -> Sink:
        self._process = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


async def _interpreted(
    folder: Path, prefix: str, settings: tuple[Settings, Settings], sizes: Sizes, pairs: int
) -> dict[str, Any]:
    hosts: list[Host] = []
    exporters: list[SpanExporter | None] = []
    feeds = [Feed("ground", reports(1, STOCK_EVENTS)) for _ in range(2)]
    singles = [Feed("one", reports(2, STOCK_EVENTS // 10), batch_events=1) for _ in range(2)]
    for number, one in enumerate(settings):
        host = make_host(open_file(folder / f"{prefix}{number}.db"), lambda _: None, one)
        exporter = open_exporter(one.traces, "bench", "bench")
        host.trace_to(exporter, "bench")
        exporters.append(exporter)
        await host.start()
        hosts.append(host)

    async def flood(which: int) -> Window:
        batch = feeds[which].envelopes(sizes.envelopes)
        return await _timed(lambda: run_host(hosts[which], batch))

    async def one_by_one(which: int) -> Window:
        batch = singles[which].envelopes(sizes.singles)

        async def send() -> None:
            for data in batch:
                await hosts[which].intake.deliver(data)

        return await _timed(send)

    found = {"": await _in_turn(flood, pairs), "singles_": await _in_turn(one_by_one, pairs)}
    if not prefix:
        found |= await _profiled(folder, sizes, pairs)
    for host, exporter in zip(hosts, exporters, strict=True):
        await host.stop()
        if exporter is not None:
            await asyncio.to_thread(exporter.close)
    events = sizes.envelopes * BATCH_EVENTS
    figures: dict[str, Any] = {"pairs": pairs}
    for name, (off, on) in found.items():
        figures |= _ratios(f"{prefix}{name}", off, on)
    if prefix:
        sent = exporters[1].counters() if exporters[1] is not None else {}
        return figures | {f"{prefix}{name}": count for name, count in sent.items()}
    for name, windows in (("off", found[""][0]), ("on", found[""][1])):
        figures[f"events_per_s_{name}"] = round(statistics.median(events / one.seconds for one in windows))
        figures[f"cpu_us_per_event_{name}"] = round(statistics.median(one.cpu_s / events for one in windows) * 1e6, 3)
    return figures


async def _profiled(folder: Path, sizes: Sizes, pairs: int) -> dict[str, tuple[list[Window], list[Window]]]:
    """Two hosts that measure, of which the second is profiled: between its windows, and in them."""
    hosts = [make_host(open_file(folder / f"profiled-{n}.db"), lambda _: None, _settings(True)) for n in range(2)]
    feeds = [Feed("ground", reports(3, STOCK_EVENTS)) for _ in hosts]
    for host in hosts:
        await host.start()

    async def window(which: int, on: bool) -> Window:
        batch, counting = feeds[which].envelopes(sizes.envelopes), ProfileCounters(profiled_process(), hosts[1:])
        if which:
            counting.begin()
        if not on:
            counting.undo()
        took = await _timed(lambda: run_host(hosts[which], batch))
        counting.undo()
        return took

    found = {
        "profile_off_": await _in_turn(lambda which: window(which, False), pairs),
        "profile_on_": await _in_turn(lambda which: window(which, True), pairs),
    }
    for host in hosts:
        await host.stop()
    return found


async def _timed(run: Callable[[], Any]) -> Window:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await run()
    return Window(time.perf_counter() - began_s, time.process_time() - began_cpu_s)


async def _in_turn(window: Callable[[int], Any], pairs: int) -> tuple[list[Window], list[Window]]:
    """Windows of both, off and on; which one is first takes turns too. The first pair warms everything up."""
    found: tuple[list[Window], list[Window]] = ([], [])
    for number in range(pairs + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            took = await window(which)
            if number:
                found[which].append(took)
    return found


def _ratios(name: str, off: list[Window], on: list[Window]) -> dict[str, Any]:
    """Without / with, so that 0.98 means that 2 % are lost; of the quicker windows, see `_undisturbed`."""
    return {
        f"{name}throughput_ratio": round(_undisturbed([one.seconds for one in off], [one.seconds for one in on]), 4),
        f"{name}cpu_ratio": round(_undisturbed([one.cpu_s for one in off], [one.cpu_s for one in on]), 4),
    }


def _undisturbed(off: list[float], on: list[float]) -> float:
    """The ratio of the lower quartiles: what else the machine does only ever makes a window slower."""
    return statistics.quantiles(off, n=4)[0] / statistics.quantiles(on, n=4)[0]


def _compiled(folder: Path, sizes: Sizes, pairs: int) -> dict[str, Any]:
    from bench.columns.throughput import Node, Run

    nodes = [Node(folder / f"columns-{record}", settings=_settings(record)) for record in (False, True)]

    async def window(which: int) -> Window:
        # The node has an event loop of its own, so it runs in a thread.
        ran = await asyncio.to_thread(nodes[which].run, Run(sizes.batches))
        return Window(ran.seconds / ran.events, ran.cpu_s / ran.events)

    off, on = asyncio.run(_in_turn(window, pairs))
    for node in nodes:
        node.close()
    return _ratios("compiled_", off, on)
