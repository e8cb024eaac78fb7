"""Measures how long a change of phase takes to a neighbour, over a real broker: from disk to disk.

The clock starts when the decision is durable at one node: that is when its lamps get their order. It ends when the
neighbour has it on its own disk, and acts on it. In between are two links, a broker, and one write with its sync.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console

from apps.traffic.city import Roadside, make_fleet
from apps.traffic.grid import AXES, adjacent, grid, is_on
from apps.traffic.intersection import Intersection, axis_of, beats_of
from apps.traffic.nodes import Town
from apps.traffic.traffic import Rates
from stigmergy import Action, Effects, Fleet, Merged, Order, react
from stigmergy.testing.brokers import Broker, start_mosquitto, start_nats

AIM_MS = 30.0
"""What the 99th percentile may be."""
WARM_UP_S = 12.0
SYNC_EVERY_S = 0.1
SYNC_BYTES = 2_048
"""About what a commit takes."""


class Noted(Action):
    """Says which phases of others are on our disk now."""

    known: tuple[tuple[str, int], ...]


class Measured(Intersection):
    """An intersection that says aloud when it has heard of its neighbours."""

    @react
    def note(self, event: Merged) -> Effects:
        axis = axis_of(event.field)
        if axis is not None and not event.field.endswith("vehicles"):
            beats = beats_of(self, axis)
            known = [(name, register.value) for name, register in beats.items() if name != self.id]
            yield Noted(known=tuple((name, beat.number) for name, beat in known if beat is not None))


class Stopwatch:
    """When each phase was durable where it was decided, and where it was heard."""

    def __init__(self, names: list[str]) -> None:
        self._beside = {
            name: [other for axis in AXES for other in adjacent(axis, name, on(name, axis, names))] for name in names
        }
        self._sent_s: dict[tuple[str, int], float] = {}
        self._heard: dict[tuple[str, str], int] = {}
        """The highest number of one that another has on disk."""
        self.took_ms: list[float] = []
        self.runs = False

    def shown(self, name: str, number: int) -> None:
        """A decision of an intersection is durable, and goes to its lamps."""
        self._sent_s.setdefault((name, number), time.perf_counter())

    def noted(self, order: Order[Noted]) -> None:
        """An intersection has these phases of others on its disk."""
        now_s, me = time.perf_counter(), order.agent.partition("/")[2]
        for name, number in order.effect.known:
            before = self._heard.get((me, name), 0)
            if number <= before:
                continue
            self._heard[me, name] = number
            if self.runs and name in self._beside[me]:
                for one in range(before + 1, number + 1):
                    sent_s = self._sent_s.get((name, one))
                    if sent_s is not None:
                        self.took_ms.append((now_s - sent_s) * 1_000)


class MeasuredTown(Town):
    """A town whose cabinets and neighbours stop the time."""

    def __init__(self, stopwatch: Stopwatch, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, kind=Measured, **options)
        self._stopwatch = stopwatch

    def make_fleet(self, roadside: Roadside) -> Fleet:
        """The fleet with a hand for what is noted."""
        fleet = make_fleet(roadside, Measured)

        @fleet.actuator(Noted)
        async def noted(order: Order[Noted]) -> None:
            self._stopwatch.noted(order)

        for name in self.names:
            roadside[name].on_change = lambda cabinet: self._stopwatch.shown(cabinet.name, cabinet.number)
        return fleet


def on(name: str, axis: Any, names: list[str]) -> list[str]:
    """Who else is on this road of an intersection."""
    return [other for other in names if other != name and is_on(axis, name, other)]


class Syncs:
    """Writes as much as a commit takes and syncs it, again and again beside the measurement: the same disk, the same
    moment, nothing of ours around it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "syncs"
        self.took_ms: list[float] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self.took_ms.append(await asyncio.to_thread(self.sync))
            await asyncio.sleep(SYNC_EVERY_S)

    def sync(self) -> float:
        """How long one takes, in milliseconds."""
        with self._path.open("ab") as file:
            begin_s = time.perf_counter()
            file.write(bytes(SYNC_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
            return (time.perf_counter() - begin_s) * 1_000


class Measurement(Struct, frozen=True):
    """How long changes of phase took, each to each neighbour, and how long the disk took meanwhile; sorted."""

    changes_ms: list[float]
    syncs_ms: list[float]


async def measure(options: argparse.Namespace, folder: Path, bus: str, *, memory: bool) -> Measurement:
    """Runs a town and stops the time."""
    stopwatch, syncs = Stopwatch(grid(options.rows, options.columns)), Syncs(folder)
    town = MeasuredTown(
        stopwatch,
        options.rows,
        options.columns,
        folder,
        nodes=options.nodes,
        bus=bus,
        memory=memory,
        rates=Rates(street_per_min=10, avenue_per_min=10, walkers_per_min=1),
    )
    async with town:
        await asyncio.sleep(options.warm_up)
        beside = asyncio.ensure_future(syncs.run())
        stopwatch.runs = True
        await asyncio.sleep(options.seconds)
        stopwatch.runs = False
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
    return Measurement(sorted(stopwatch.took_ms), sorted(syncs.took_ms))


def at(sorted_ms: list[float], share: float) -> float:
    """A percentile."""
    return sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))] if sorted_ms else float("nan")


def start_broker(name: str, folder: Path) -> Broker:
    """A real broker on loopback."""
    return start_mosquitto(folder) if name == "mosquitto" else start_nats(folder)


async def run(options: argparse.Namespace) -> int:
    """Measures on disks, then in memory, and says what share of the time the sync has."""
    with tempfile.TemporaryDirectory(prefix="stigmergy-traffic-") as name:
        folder = Path(name)
        with start_broker(options.broker, folder / "broker") as broker:
            for part in ("disk", "memory"):
                (folder / part).mkdir()
            disk = await measure(options, folder / "disk", broker.url, memory=False)
            memory = await measure(options, folder / "memory", broker.url, memory=True) if options.compare else None
    disk_ms, syncs_ms, memory_ms = disk.changes_ms, disk.syncs_ms, [] if memory is None else memory.changes_ms
    found = {
        "broker": options.broker,
        "intersections": options.rows * options.columns,
        "nodes": options.nodes,
        "changes": len(disk_ms),
        "p50_ms": round(at(disk_ms, 0.5), 2),
        "p99_ms": round(at(disk_ms, 0.99), 2),
        "max_ms": round(at(disk_ms, 1.0), 2),
        "aim_ms": AIM_MS,
        "fdatasync_p50_ms": round(at(syncs_ms, 0.5), 2),
        "fdatasync_p99_ms": round(at(syncs_ms, 0.99), 2),
        "fdatasync_share": round(at(syncs_ms, 0.5) / at(disk_ms, 0.5), 3) if disk_ms else None,
        "memory_p50_ms": round(at(memory_ms, 0.5), 2) if memory_ms else None,
        "memory_p99_ms": round(at(memory_ms, 0.99), 2) if memory_ms else None,
        "load": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }
    holds = bool(disk_ms) and at(disk_ms, 0.99) <= AIM_MS
    if options.json:
        print(json.dumps({**found, "holds": holds}))
        return 0 if holds else 1
    console = Console()
    for key, value in found.items():
        console.print(f"{key:18} {value}", highlight=False)
    console.print("as wanted" if holds else f"NOT within {AIM_MS:g} ms", style="green" if holds else "bold red")
    return 0 if holds else 1


def add_latency(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What can be said about the measurement."""
    options = commands.add_parser(
        "latency", help="how long a phase takes to the neighbours' disks", description=__doc__
    )
    options.add_argument("--rows", type=int, default=3)
    options.add_argument("--columns", type=int, default=3)
    options.add_argument("--nodes", type=int, default=3)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--warm-up", type=float, default=WARM_UP_S, help="seconds before anything counts")
    options.add_argument("--broker", choices=("nats", "mosquitto"), default="nats")
    options.add_argument("--compare", action="store_true", help="measure once more without disks")
    options.add_argument("--json", action="store_true")
    options.set_defaults(run=run)
