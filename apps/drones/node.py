"""One node of a swarm that runs on several: `python -m apps.drones.node --name r1 --folder F …`.

`ground` has the jobs and the airspace and serves the API, `dispatch-a` and `dispatch-b` have a dispatcher of each zone,
`r1`, `r2`, … the drones and sectors of a region. A region node is fed with frames: the fixes of all its drones, twice
a second, in envelopes. At most `FRAMES_MAX` frames wait; of more the oldest are dropped and counted. A drone that
misses a fix gets the next one half a second later, and one that misses many lands: that is its own decision.

It says `ready` on stdout, and writes down every few seconds how busy it was, for a kill leaves no time for that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from apps.drones.airframe import Airframe, fit
from apps.drones.dispatcher import Dispatcher
from apps.drones.drone import Drone
from apps.drones.fleet import TICK_S, make_fleet
from apps.drones.link import RemoteWorld
from apps.drones.matching import load
from apps.drones.messages import Ticked
from apps.drones.plan import Plan, load_plan
from apps.drones.telemetry import fed_node, listening
from apps.drones.world import Frame, fix_of
from stigmergy import Command, Event, Live, StigmergyError, make_process_ours, pack_envelope
from stigmergy.serve.embedded import ServedFleet

ITEMS_MAX = 1000
"""Fixes in one envelope: what one commit takes."""
FRAMES_MAX = 2
ENVELOPES_MAX = 100
"""On their way into the log; for more the next frame waits."""
REPORT_S = 2.0
SECTORS_S = 5.0
"""How often it is looked which sectors there are."""
AT_A_TIME = 50
SITE = "swarm"
GROUND, DISPATCHERS = "ground", ("dispatch-a", "dispatch-b")


class Report(Struct):
    """How a node was."""

    name: str
    started_s: float
    at_s: float = 0.0
    cpu_s: float = 0.0
    frames: int = 0
    frames_dropped: int = 0
    fixes: int = 0
    lag_s: float = 0.0
    """How old the last frame was when all of it was handled."""
    lag_s_max: float = 0.0
    events: int = 0
    dead_letters: int = 0
    dispatching: int = 0
    """So many of its dispatchers have given jobs away."""
    troubles: list[str] = []


def agents_of(name: str, plan: Plan) -> list[str]:
    """The agents of a node, by its name. Two nodes have no pattern that looks as if both had the same agents."""
    if name == GROUND:
        return ["Job/*", "Airspace/*", "Place/gateway*"]
    if name in DISPATCHERS:
        return [address for address, _ in plan.desks(name[-1])]
    drones = [f"{kind}/{name}-*" for kind in ("Drone", "Delivery", "Leg")]
    return drones + [f"Sector/{zone}@{name}" for zone in plan.area.zones()]


class Feed:
    """Hands the frames of a region to its agents, in order, and never more than it can take."""

    def __init__(self, live: Live, report: Report, took: Callable[[float], None] = lambda _: None) -> None:
        self._live = live
        self._took = took
        self._names: tuple[str, ...] = ()
        self._addresses: list[str] = []
        self._report = report
        self._frames: deque[tuple[float, float, Frame]] = deque()
        self._come = asyncio.Event()
        self._incarnation = time.time_ns()
        self._sequence = 1
        self._on_the_way: deque[asyncio.Task[None]] = deque()
        self._sectors: list[str] = []
        self._looked_s = self._ticked_t = 0.0

    def put(self, t: float, names: tuple[str, ...], frame: Frame) -> None:
        """A frame has come: one row for each drone of the region."""
        if names is not self._names:
            self._names, self._addresses = names, [f"Drone/{name}" for name in names]
        if len(self._frames) >= FRAMES_MAX:
            self._frames.popleft()
            self._report.frames_dropped += 1
        self._frames.append((time.monotonic(), t, frame))
        self._come.set()

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        while True:
            while self._frames:
                came_s, t, frame = self._frames.popleft()
                await self._deliver(t, frame)
                self._took(t)
                self._report.lag_s = time.monotonic() - came_s
                self._report.lag_s_max = max(self._report.lag_s_max, self._report.lag_s)
                self._report.frames += 1
            self._come.clear()
            await self._come.wait()

    async def _deliver(self, t: float, frame: Frame) -> None:
        items: list[tuple[str, Event]] = []
        for address, row in zip(self._addresses, frame.tolist(), strict=True):
            fix = fix_of(t, row)
            if fix is not None:
                items.append((address, fix))
        self._report.fixes += len(items)
        if t - self._ticked_t >= TICK_S - 0.01:
            self._ticked_t = t
            items += [(sector, Ticked(t=t)) for sector in self._known_sectors()]
        last = items.pop() if items else None
        for first in range(0, len(items), ITEMS_MAX):
            some = items[first : first + ITEMS_MAX]
            envelope = pack_envelope("frames", some, sequence=self._sequence, incarnation=self._incarnation)
            self._sequence += len(some)
            self._on_the_way.append(asyncio.ensure_future(self._live.deliver(envelope)))
        if last is not None:
            # An envelope returns when it is known on disk that it was consumed, which may wait for a second. What is
            # observed behind it returns when it is handled.
            await self._live.observe(*last)
        while self._on_the_way and (self._on_the_way[0].done() or len(self._on_the_way) > ENVELOPES_MAX):
            await self._on_the_way.popleft()

    def _known_sectors(self) -> list[str]:
        """A sector is there once a drone has told it something."""
        if time.monotonic() - self._looked_s >= SECTORS_S or not self._sectors:
            self._looked_s = time.monotonic()
            self._sectors = self._live.agents("Sector")
        return self._sectors


async def send_all(
    send: Callable[[str, Command], Awaitable[Any]], commands: Iterable[tuple[str, Command]], at_a_time: int = AT_A_TIME
) -> int:
    """Sends commands, so many at a time, and each again until it is answered; how many were refused."""
    waiting, refused = iter(commands), 0

    async def one_after_the_other() -> None:
        nonlocal refused
        for address, command in waiting:
            while True:
                try:
                    refused += not await send(address, command)
                    break
                except StigmergyError:
                    await asyncio.sleep(0.2)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_a_time)))
    return refused


async def commission(live: Live, name: str, plan: Plan) -> None:
    """Puts those into service that are not yet: after a kill they are."""
    if name == GROUND:
        return
    if name in DISPATCHERS:
        known = set(live.agents("Dispatcher"))
        await send_all(live.send, ((to, one) for to, one in plan.desks(name[-1]) if to not in known))
        return
    known = {one for one in live.agents("Drone") if live.query(one, Drone).area is not None}
    await send_all(live.send, ((to, one) for to, one in plan.commissions(f"{name}-") if to not in known))


async def write_reports(live: Live, report: Report, path: Path) -> None:
    """Goes on until it is cancelled, and writes once more then."""

    def write() -> None:
        standing = live.standing()
        report.at_s, report.cpu_s = time.time(), time.process_time()
        report.events, report.dead_letters = standing.events, standing.dead_letters
        report.troubles = standing.troubles[:5]
        if report.name in DISPATCHERS:
            report.dispatching = sum(live.query(one, Dispatcher).round > 0 for one in live.agents("Dispatcher"))
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_builtins(report)) + "\n")

    try:
        while True:
            await asyncio.sleep(REPORT_S)
            write()
    finally:
        write()


async def run(options: argparse.Namespace) -> int:
    """Runs the node until SIGTERM."""
    folder: Path = options.folder
    plan, name = load_plan(folder), options.name
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    load()
    is_region = name != GROUND and name not in DISPATCHERS
    world = RemoteWorld(options.world, f"{name}-" if is_region else None)
    place = fed_node(options.rings, name, plan.names) if options.rings and is_region else None
    fleet = make_fleet(world, area=plan.area, more=(Airframe,) if place else ())
    if place:
        fit(fleet, place.board)
    fleet.attach(world)
    report = Report(name, time.time())
    running = fleet.running(
        journal=f"{options.journal}:{folder / name}{'.db' if options.journal == 'sqlite' else ''}",
        key=folder / "swarm.key",
        agents=[*agents_of(name, plan), *([f"Airframe/{name}-*"] if place else [])],
        bus=options.bus,
        site=SITE,
        node=name,
        ledger=options.ledger,
        rings=[place.ring] if place else [],
    )
    async with contextlib.AsyncExitStack() as stack:
        live = await stack.enter_async_context(running)
        ready: dict[str, Any] = {"ready": name}
        if options.serve:
            served = await stack.enter_async_context(ServedFleet(running, live, options.serve))
            ready["url"] = served.url
        if place:
            await stack.enter_async_context(listening(running, live, place.socket))
        tasks: list[asyncio.Task[Any]] = [
            asyncio.ensure_future(write_reports(live, report, folder / f"{name}.reports"))
        ]
        stack.push_async_callback(end, tasks)
        if is_region:
            feed = Feed(live, report, world.took)
            world.each_frame(feed.put)
            tasks.append(asyncio.ensure_future(feed.run()))
        await commission(live, name, plan)
        make_process_ours(large_commits=place is not None)
        print(json.dumps(ready), flush=True)
        failed = asyncio.ensure_future(live.wait_failure())
        tasks.append(failed)
        waits = asyncio.ensure_future(stopped.wait())
        await asyncio.wait([waits, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and task is not failed:
                task.result()
        if failed.done():
            print(f"{name}: {failed.result()}", file=sys.stderr)
            return 1
    return 0


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """Ends what still runs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m apps.drones.node", description=__doc__)
    parser.add_argument("--name", required=True, help="ground, dispatch-a, dispatch-b, or a region such as r1")
    parser.add_argument("--folder", type=Path, required=True, help="of the run: has its plan, gets its journals")
    parser.add_argument("--world", required=True, metavar="tcp://HOST:PORT")
    parser.add_argument("--bus", required=True, metavar="URL")
    parser.add_argument("--ledger", required=True, metavar="URL")
    parser.add_argument("--journal", choices=("sqlite", "segments"), default="sqlite")
    parser.add_argument("--serve", metavar="HOST:PORT", help="the page and the API there")
    parser.add_argument("--rings", type=Path, metavar="FOLDER", help="of the telemetry; without it there is none")
    return asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
