"""The budgets of a small device measured: what an install takes, what an idle node takes, what wears out its flash.

And what one agent that floods does to the others (row 20 of the scorecard): a window in which the flood goes past the
node is followed by one in which it comes in, and the median of the ratios counts. Then 40,000 messages of one agent at
once, over MQTT and over NATS, and the worst delay of another one. These parts want a real broker; without one their
figures are missing.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from msgspec import Struct

import stigmergy
from bench.charts import Bar, Bars, Chart
from bench.flash import KINDS, write_for
from bench.flood import BURST_COUNT, measure_burst, measure_flood
from bench.options import add_common
from bench.targets import Target
from stigmergy.testing.brokers import NoBroker, start_nats
from stigmergy.testing.nats import start_single

MB = 1_000_000
HOUR_S = 3600.0
START_S_MAX = 30.0
SETTLE_S = 3.0
FLEET = """
from stigmergy import Action, Agent, Effects, Event, Fleet, Order, evolve, react, within


class BatteryMeasured(Event, keep=within(seconds=1)):
    percent: float


class Land(Action):
    reason: str


class Drone(Agent):
    battery: float = 100.0

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @react
    def land_when_low(self, event: BatteryMeasured) -> Effects:
        if self.battery < 15:
            yield Land(reason="battery")


fleet = Fleet("idle", agents=[Drone])


@fleet.actuator(Land)
async def land(order: Order[Land]) -> None:
    pass
"""

TARGETS = (
    Target("install_mb", "base install with everything it needs, MB", 60.0),
    Target("idle_mb", "resident memory of an idle node on SQLite and MQTT, MB", 60.0),
    Target("flash_ratio", "bytes written for within(seconds=1) / for durable, at 10 Hz", 0.2),
    Target("flood_p99_ratio", "p99 of the others while one floods this node / another", 1.1),
    Target("burst_worst_ms", "worst delay of one agent while another sends 40,000 at once over MQTT, ms", 100.0),
    Target("burst_nats_worst_ms", "the same over a NATS server that syncs every two minutes, ms", 100.0),
    Target("burst_nats_synced_worst_ms", "beside 5,000 over a NATS server that syncs each message, ms", 100.0),
)


class Sizes(Struct, frozen=True):
    """How much is measured."""

    flash_s: float = HOUR_S
    windows: int = 5
    window_s: float = 5.0
    burst: int = BURST_COUNT
    synced_burst: int = 5_000
    """Where the server syncs each message the disk decides how many come in a second, often a few hundred."""


FULL = Sizes()
QUICK = Sizes(flash_s=60.0, windows=1, window_s=1.0, burst=2_000, synced_burst=500)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench edge`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the figures by name."""
    sizes = QUICK if arguments.quick else FULL
    figures: dict[str, Any] = {"install_mb": round(install_bytes() / MB, 1)}
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name:
        folder = Path(name)
        figures |= _flash(folder, sizes)
        try:
            with start_nats(folder / "broker") as broker:
                figures["idle_mb"] = round(idle_mb(folder, broker.url), 1)
                flood = asyncio.run(measure_flood(folder, broker.url, sizes.windows, sizes.window_s))
                figures |= {
                    "flood_quota_per_s": flood.quota_per_s,
                    "flood_sent_per_s": round(flood.sent_per_s),
                    "flood_shed": flood.shed,
                    "others_p99_ms": round(flood.baseline_p99_ms, 2),
                    "others_p99_flooded_ms": round(flood.flooded_p99_ms, 2),
                    "flood_p99_ratio": round(flood.ratio, 3),
                    "flood_ratio_per_window": [round(ratio, 3) for ratio in flood.ratios],
                }
                figures |= _burst("burst", folder, broker.url, sizes.burst)
            with start_single(folder / "nats", sync_always=False) as server:
                figures |= _burst("burst_nats", folder, server.url, sizes.burst)
            with start_single(folder / "synced") as server:
                figures |= _burst("burst_nats_synced", folder, server.url, sizes.synced_burst)
        except NoBroker:
            figures |= {"idle_mb": round(idle_mb(folder, None), 1), "flood_p99_ratio": None}
            figures |= {target.figure: None for target in TARGETS if target.figure.startswith("burst")}
    return figures


def _burst(name: str, folder: Path, url: str, count: int) -> dict[str, Any]:
    own = folder / name
    own.mkdir()
    burst = measure_burst(own, url, count)
    return {
        f"{name}_sent": burst.sent,
        f"{name}_s": round(burst.took_s, 2),
        f"{name}_shed": burst.shed,
        f"{name}_worst_before_ms": round(burst.worst_before_ms, 1),
        f"{name}_worst_ms": round(burst.worst_ms, 1),
    }


def charts(figures: dict[str, Any]) -> list[Chart]:
    """What is written and what is taken; and, where there was a broker, what a flood does to the others."""
    flash = [Bar(f"keep={keep}", figures[f"flash_{keep}_mb_per_h"]) for keep in KINDS]
    sizes = [Bar("base install, on disk", figures["install_mb"]), Bar("idle node, in memory", figures["idle_mb"])]
    drawn: list[Chart] = [
        Bars("written for one event a second, by its promise", "MB/h", flash),
        Bars("what a node takes", "MB", sizes),
    ]
    if figures["flood_p99_ratio"] is not None:
        flood = [Bar("flood elsewhere", figures["others_p99_ms"]), Bar("flood here", figures["others_p99_flooded_ms"])]
        drawn.append(Bars("p99 of the others while one agent floods", "ms", flood))
    return drawn


def install_bytes() -> int:
    """What the base install takes on disk: this package and, without extras, all that it needs, byte code included."""
    waiting, seen = ["stigmergy"], dict[str, int]()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform
        seen[name] = _size_bytes(found)
        waiting += [_name(text) for text in found.requires or () if "extra ==" not in text]
    return sum(seen.values())


def idle_mb(folder: Path, bus: str | None) -> float:
    """The resident memory of `stigmergy run` that nobody uses."""
    (folder / "idle_fleet.py").write_text(FLEET)
    command = [sys.executable, "-m", "stigmergy", "run", "idle_fleet:fleet", "--journal", "sqlite:idle.db"]
    process = subprocess.Popen(
        [*command, *(("--bus", bus) if bus else ())],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_S_MAX
        while not (folder / "idle.db.sock").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the idle node did not start")
            time.sleep(0.05)
        time.sleep(SETTLE_S)
        return _resident_mb(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S_MAX)


def _flash(folder: Path, sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    hourly = HOUR_S / sizes.flash_s
    for keep in KINDS:
        written = write_for(keep, 1.0, sizes.flash_s, folder)
        figures[f"flash_{keep}_mb_per_h"] = round(written.bytes_written * hourly / MB, 2)
        figures[f"cpu_{keep}_us_per_event"] = round(written.cpu_us_per_event, 1)
    seconds = sizes.flash_s / 10
    fast = {keep: write_for(keep, 10.0, seconds, folder) for keep in ("durable", "within")}
    figures["flash_durable_10hz_mb_per_h"] = round(fast["durable"].bytes_written * HOUR_S / seconds / MB, 2)
    figures["flash_within_10hz_mb_per_h"] = round(fast["within"].bytes_written * HOUR_S / seconds / MB, 2)
    figures["flash_ratio"] = round(fast["within"].bytes_written / fast["durable"].bytes_written, 3)
    return figures


def _name(requirement: str) -> str:
    for end, sign in enumerate(requirement):
        if not (sign.isalnum() or sign in "-_."):
            return requirement[:end]
    return requirement


def _size_bytes(found: Distribution) -> int:
    if found.name == "stigmergy":
        # An editable install lists none of our files.
        return _tree_bytes(Path(stigmergy.__file__).parent)
    paths = [Path(str(file.locate())) for file in found.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def _tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MB
    raise RuntimeError("the kernel does not say how much memory the node has")
