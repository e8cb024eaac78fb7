"""Kills the broker under a town and brings it back: everybody goes on alone, safely, and catches up afterwards."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, to_builtins
from rich.console import Console

from apps.traffic.grid import AXES
from apps.traffic.intersection import COMING, HERE, beats_of, vehicles_of
from apps.traffic.latency import start_broker
from apps.traffic.nodes import Town
from apps.traffic.phases import Phase

WAIT_S_MAX = 120.0
LOOK_S = 0.1


class Found(Struct):
    """What became of the town."""

    coordinated_s: float = -1.0
    """After so long all knew their neighbours; negative: they never did."""
    alone_s: float = -1.0
    """So long after the end of the broker all said that they were alone."""
    served_alone: int = 0
    """Vehicles that crossed meanwhile."""
    all_red: int = 0
    """Intersections that stood still meanwhile."""
    trips: int = 0
    """How often a monitor had to step in."""
    together_s: float = -1.0
    """So long after its return all knew each other again."""
    agree_s: float = -1.0
    """And so long until every phase and every vehicle was known everywhere as it was."""

    @property
    def holds(self) -> bool:
        """Whether all is as it must be."""
        times = (self.coordinated_s, self.alone_s, self.together_s, self.agree_s)
        return min(times) >= 0 and self.served_alone > 0 and not self.all_red and not self.trips


async def wait_until(condition: Callable[[], bool]) -> float:
    """How long something took; -1 if it did not come."""
    begin_s = time.monotonic()
    while not condition():
        if time.monotonic() - begin_s > WAIT_S_MAX:
            return -1.0
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - begin_s


def modes(town: Town) -> list[str]:
    """Who is alone and who is not, each once."""
    return sorted({town.state(name).mode for name in town.names})


def agree(town: Town) -> bool:
    """Whether all know the same of all, and it is so."""
    states = {name: town.state(name) for name in town.names}
    for one in states.values():
        for axis in AXES:
            for name, register in beats_of(one, axis).items():
                beat = register.value
                if beat is None or (beat.phase, beat.number) != (states[name].phase, states[name].number):
                    return False
    found: dict[str, list[str]] = {}
    for name, one in states.items():
        for axis in AXES:
            for place in (HERE, COMING):
                for vehicle in vehicles_of(one, axis)[name][place]:
                    found.setdefault(vehicle, []).append(name)
    return found == {vehicle: [place] for vehicle, place in town.traffic.places().items()}


async def measure(options: argparse.Namespace, folder: Path) -> Found:
    """The whole story."""
    found = Found()
    with start_broker(options.broker, folder / "broker") as broker:
        bus = f"{broker.url}?reconnect_s_max=1"
        async with Town(options.rows, options.columns, folder, nodes=options.nodes, bus=bus) as town:
            found.coordinated_s = await wait_until(lambda: modes(town) == ["coordinated"])
            await wait_until(lambda: all(town.state(name).phase is not Phase.ALL_RED for name in town.names))
            broker.kill()
            found.alone_s = await wait_until(lambda: modes(town) == ["local"])
            served = town.traffic.figures.crossed
            await asyncio.sleep(options.seconds)
            found.served_alone = town.traffic.figures.crossed - served
            found.all_red = sum(town.state(name).phase is Phase.ALL_RED for name in town.names)
            broker.start()
            found.together_s = await wait_until(lambda: modes(town) == ["coordinated"])
            found.agree_s = await wait_until(lambda: agree(town))
            found.trips = sum(cabinet.monitor.trips for cabinet in town.roadside.all())
    return found


async def run(options: argparse.Namespace) -> int:
    """Measures and says what was found."""
    with tempfile.TemporaryDirectory(prefix="stigmergy-traffic-") as folder:
        found = await measure(options, Path(folder))
    said = {key: round(value, 1) for key, value in to_builtins(found).items()}
    if options.json:
        print(json.dumps({**said, "holds": found.holds}))
        return 0 if found.holds else 1
    console = Console()
    for key, value in said.items():
        console.print(f"{key:14} {value}", highlight=False)
    console.print("as wanted" if found.holds else "NOT as wanted", style="green" if found.holds else "bold red")
    return 0 if found.holds else 1


def add_outage(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What can be said about it."""
    options = commands.add_parser("outage", help="what happens when the broker dies", description=__doc__)
    options.add_argument("--rows", type=int, default=2)
    options.add_argument("--columns", type=int, default=2)
    options.add_argument("--nodes", type=int, default=4, help="with one for each, nobody has a neighbour at home")
    options.add_argument("--seconds", type=float, default=30.0, help="how long the broker is away")
    options.add_argument("--broker", choices=("nats", "mosquitto"), default="nats")
    options.add_argument("--json", action="store_true")
    options.set_defaults(run=run)
