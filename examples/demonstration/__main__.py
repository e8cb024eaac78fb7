"""Flies, kills, recovers, proves; a live table on a terminal, plain lines elsewhere. Exits with 1 if a proof fails."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demonstration.evidence import Finding, prove
from examples.demonstration.world import TICK_S, World

KILL_AFTER_S = (3.5, 5.5)
"""The kill comes at a random moment between these, in the middle of the flight."""
FLIGHT_S_MAX = 40.0
NEWS_LINES = 6
BAR = 20


def table(world: World) -> Group:
    """The fleet as it is on disk, and what the world has seen."""
    drones = Table(title="patrol: twelve drones, one node, one SQLite file", title_justify="left")
    for column in ("drone", "mission", "route", "battery", "neighbour", "delivered", ""):
        drones.add_column(column)
    seen = {drone.name: drone for drone in world.status.drones} if world.status else {}
    for name in world.flights:
        drone = seen.get(name)
        if drone is None:
            drones.add_row(name)
            continue
        done = round(drone.progress / 100 * BAR)
        drones.add_row(
            name,
            drone.mission or "",
            "━" * done + "╌" * (BAR - done),
            f"{drone.battery:.0f} %",
            f"in cell {drone.neighbour_cell}",
            str(drone.delivered),
            Text(f"landed: {drone.landed_because}", style="yellow") if drone.landed_because else "",
        )
    return Group(drones, Text(summary(world)), *(Text(f"  {line}", style="dim") for line in world.news[-NEWS_LINES:]))


def summary(world: World) -> str:
    """One line about where everything stands."""
    commits = world.status.commits if world.status else 0
    return (
        f"{world.seconds:5.1f} s: {world.events_acknowledged} events acknowledged, {world.in_flight} envelopes on "
        f"their way, {commits} commits, {len(world.done)} actions, {world.repeats_dropped} repeats dropped"
    )


class Screen:
    """A live table on a terminal, a line a second elsewhere."""

    def __init__(self, console: Console, world: World) -> None:
        self._console = console
        self._world = world
        self._live: Live | None = None
        self._next_line_s = 0.0
        self._news = 0

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(table(self._world), console=self._console, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(table(self._world))
            self._live.stop()

    def refresh(self) -> None:
        """Shows what is new."""
        if self._live is not None:
            self._live.update(table(self._world))
            return
        for line in self._world.news[self._news :]:
            self._console.print(f"         {line}", highlight=False, soft_wrap=True)
        self._news = len(self._world.news)
        if self._world.seconds >= self._next_line_s:
            self._console.print(summary(self._world), highlight=False, soft_wrap=True)
            self._next_line_s = self._world.seconds + 1.0

    def say(self, line: str, style: str = "bold") -> None:
        """Something that stays on the screen."""
        self._console.print(Text(line, style=style), soft_wrap=True)


def fly(world: World, screen: Screen, until: Callable[[], bool]) -> None:
    """Lets the world go on until something is so, or the node breaks."""
    next_tick_s = time.monotonic()
    while world.broken is None and not until() and world.seconds < FLIGHT_S_MAX:
        world.tick()
        next_tick_s += TICK_S
        world.listen(max(0.0, next_tick_s - time.monotonic()))
        screen.refresh()


def wait_for_writes(world: World, chance: random.Random) -> None:
    """Returns at a moment when the node has something that it has not acknowledged."""
    while world.broken is None:
        world.tick()
        world.listen(chance.uniform(0.0, 0.003))
        if world.in_flight:
            return
        world.listen(TICK_S)


def run(console: Console, folder: Path, seed: int, pace: float = 1.0) -> list[Finding]:
    """The whole demonstration."""
    chance = random.Random(seed)
    world = World(folder / "patrol.db", pace)
    with Screen(console, world) as screen:
        world.start_node()
        world.start_missions()
        kill_at_s = world.seconds + chance.uniform(*KILL_AFTER_S) / pace
        fly(world, screen, lambda: world.seconds >= kill_at_s)
        if world.broken is None:
            wait_for_writes(world, chance)
            before, on_their_way = world.events_acknowledged, world.in_flight
            world.kill_node()
            screen.say(f"kill -9 after {world.seconds:.2f} s, with {on_their_way} envelopes on their way", "bold red")
            world.start_node()
            if world.ready is not None:
                screen.say(
                    f"recovered {world.ready.agents} drones in {world.ready.milliseconds:.1f} ms from "
                    f"{'a snapshot and ' if world.ready.from_snapshot else ''}{world.ready.events} events in "
                    f"{world.ready.commits} commits; {before} events were acknowledged before the kill",
                    "bold green",
                )
        fly(world, screen, lambda: not world.flying() and bool(world.safe))
        if world.broken is None:
            world.stop_node()
        screen.refresh()
    if world.broken is not None:
        return [Finding(False, f"the node broke: {world.broken}")]
    return prove(folder / "patrol.db", world, chance)


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration in a folder that is gone afterwards."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="when the kill comes and which bit is flipped")
    parser.add_argument("--pace", type=float, default=1.0, help="fly so many times faster")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    console = Console()
    with tempfile.TemporaryDirectory(prefix="stigmergy-demo-") as folder:
        findings = run(console, Path(folder), seed, options.pace)
    console.print()
    for finding in findings:
        mark, style = ("proved", "green") if finding.holds else ("NOT SO", "bold red")
        console.print(Text(f"{mark}  ", style=style).append(finding.what, style="default"), soft_wrap=True)
    console.print(f"seed {seed}", style="dim")
    return 0 if all(finding.holds for finding in findings) else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
