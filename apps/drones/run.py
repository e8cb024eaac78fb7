"""A whole run on this machine: a broker, a world, five nodes in processes of their own, customers, faults.

The world is in this process and steps ten times in a second of its time, which is one of the wall's or, with `speed`,
less. If the machine cannot keep up the world slows down; it never skips: `real_time_factor` is seconds of the world for
each second that passed. At the end nodes are stopped, and a checker that is not part of this application judges by
their journals and by what the world has witnessed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from msgspec import Struct, field, to_builtins

import stigmergy
from apps.drones.fleet import FLEET
from apps.drones.job import ENDED
from apps.drones.link import WorldServer
from apps.drones.messages import ClosedZone, CloseZone, PlaceJob
from apps.drones.node import DISPATCHERS, GROUND
from apps.drones.physics import STEP_S
from apps.drones.plan import BUSY_SHARE, Customers, Plan
from apps.drones.telemetry import FedNode, fed_node, fly_telemetry, ring_folder
from apps.drones.world import World
from apps.processes import (
    ROOT,
    START_S_MAX,
    STOP_S_MAX,
    NodeProcess,
    Trouble,
    end_task,
    environment,
    printed,
    read_lives,
)
from stigmergy import Client, Command, NoAnswer, StigmergyError, Verdict
from stigmergy.testing.nats import NatsCluster, start_single
from stigmergy.testing.proxy import LinkProxy

BEHIND_S_MAX = 0.5
"""So far the world may be behind, in its own seconds, and still catch up: more is made up for by slowing down."""
NODES_BEHIND_S_MAX = 1.0
"""So far a region may be behind the world: the world waits for it, as a frame that is dropped blinds all its drones."""
REPEATED_S = 1.0
"""While the world waits, the regions that are not behind get the last fixes again this often: drones land as blind
after 3 s."""
SPEED_MAX = 4.0
"""Messages, commits and decisions take the wall's time. At this speed the half second that they may take is two of the
world's, which is what the rules of `airways` allow for; leases, rounds and restarts last four times as long in it."""
STEPS_AT_ONCE = 3
PLACERS = 8
"""Requests that customers have under way at a time."""
CLOCK_S = 1.0
LOOK_S = 2.0
RETRY_S = 0.5
TRIES_SAID = 40
"""Tries of one command, each time so many, that are no mere hiccup: somebody is told."""
Say = Callable[[str], None]
__all__ = [
    "ROOT",
    "SPEED_MAX",
    "START_S_MAX",
    "STOP_S_MAX",
    "Options",
    "Outcome",
    "Swarm",
    "Trouble",
    "check",
    "cpu_s_of",
    "end_task",
    "environment",
    "read_reports",
]


class Options(Struct, frozen=True):
    """What is to be run."""

    minutes: float = 1.0
    """For so long customers place jobs."""
    drain_s: float = 900.0
    """So long it is waited at most until all jobs have ended."""
    share: float = BUSY_SHARE
    """Of the drones that are to be busy."""
    journal: str = "sqlite"
    serve: str = "127.0.0.1:0"
    faults: tuple[str, ...] = ()
    stay: bool = False
    """Keep everything running when all jobs have ended, until Ctrl-C."""
    by_hand: bool = False
    """Somebody else starts the cluster."""
    speed: float = 1.0
    """So many seconds of the world are to pass in each of the wall, up to `SPEED_MAX`."""
    telemetry_hz: float = 0.0
    """Samples of each airframe in a second, while customers place jobs; 0 for none."""


class Outcome(Struct):
    """How the run itself went; what became of jobs and drones is for the checker to say."""

    drones: int = 0
    world_s: float = 0.0
    wall_s: float = 0.0
    real_time_factor: float = 0.0
    placed: int = 0
    busy_share: dict[str, float] = field(default_factory=dict)
    """Seconds of processor time for each second that passed, by process."""
    frames_dropped: int = 0
    lag_s_max: float = 0.0
    drained: bool = False
    faults: list[str] = field(default_factory=list)
    restarts: int = 0
    """Nodes that ended by themselves and were started again."""
    exit_codes: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0


class Swarm:
    """All parts of a run. Faults take hold of them."""

    is_cluster = False

    def __init__(self, plan: Plan, folder: Path, options: Options, say: Say) -> None:
        self.plan = plan
        self.folder = folder
        self.options = options
        self._say = say
        self._made_s = time.monotonic()
        self.world = World(plan.area, plan.names, plan.seed, plan.start_t, folder)
        self.nodes: dict[str, NodeProcess] = {}
        self.broker: NatsCluster | None = None
        self.link: LinkProxy | None = None
        """In front of the broker, for the last region."""
        self.outcome = Outcome(drones=len(plan.names))
        self.client: Client | None = None
        self.url = ""
        self._jobs: dict[str, bool] = {}
        self._began_s = 0.0
        self._began_t = 0.0
        self._answers: TextIO | None = None
        self._fed: list[FedNode] = []
        self._telemetry: dict[str, Any] = {}

    # ------------------------------------------------------------------ what it says

    def say(self, text: str) -> None:
        """Says it, with the minutes and seconds since the command was given."""
        self._say(self._stamped(text))

    def say_fault(self, text: str) -> None:
        """Says what was broken or mended now. It is among the findings, too."""
        self.outcome.faults.append(self._stamped(text))
        self._say(self._stamped(text))

    def _stamped(self, text: str) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._made_s), 60)
        return f"{minutes}:{seconds:02d}  {text}"

    # ------------------------------------------------------------------ time

    async def run_world(self, server: WorldServer) -> None:
        """Steps the world, as fast as it is to run, until it is cancelled."""
        loop, speed = asyncio.get_running_loop(), self.options.speed
        step_s, behind_s_max = STEP_S / speed, BEHIND_S_MAX / speed
        due_s, noted_s = loop.time(), 0.0
        moved_s = due_s
        with (self.folder / "clock.jsonl").open("w", encoding="utf-8") as clock:
            while True:
                now_s = loop.time()
                if now_s - due_s > behind_s_max:
                    due_s = now_s - behind_s_max
                steps = min(int((now_s - due_s) / step_s), STEPS_AT_ONCE)
                if steps and server.behind_s() <= NODES_BEHIND_S_MAX:
                    # To the middle of a step: times since 1970 are not exact enough for its end.
                    self.world.advance(self.world.now_t() + (steps + 0.5) * STEP_S)
                    due_s += steps * step_s
                    moved_s = now_s
                elif now_s - moved_s >= REPEATED_S:
                    server.repeat()
                    moved_s = now_s
                if now_s - noted_s >= CLOCK_S:
                    noted_s = now_s
                    clock.write(json.dumps({"wall_s": time.time(), "t": self.world.now_t()}) + "\n")
                    clock.flush()
                await asyncio.sleep(max(due_s + step_s - loop.time(), 0.0))

    @property
    def passed_s(self) -> float:
        """Seconds of the world since customers have begun."""
        return self.world.now_t() - self._began_t

    async def sleep(self, seconds: float) -> None:
        """Waits so long by the clock of the world."""
        end_t = self.world.now_t() + seconds
        while self.world.now_t() < end_t:  # noqa: ASYNC110 - the world is slower than the wall, or not
            await asyncio.sleep(min(max(end_t - self.world.now_t(), 0.05), 0.5))

    # ------------------------------------------------------------------ customers

    async def place_jobs(self) -> None:
        """Customers order, at a rate that keeps so many drones busy, over HTTP."""
        customers = Customers(self.plan)
        every_s = 1.0 / self.plan.jobs_per_s(self.options.share)
        begin_t, count = self.world.now_t(), 0
        waiting: asyncio.Queue[tuple[str, PlaceJob] | None] = asyncio.Queue(maxsize=PLACERS * 4)
        placers = [asyncio.ensure_future(self._place(waiting)) for _ in range(PLACERS)]
        while (passed_s := self.world.now_t() - begin_t) < self.options.minutes * 60:
            while count * every_s <= passed_s:
                await waiting.put(customers.next_job())
                count += 1
            await asyncio.sleep(0.05)
        for _ in placers:
            await waiting.put(None)
        await asyncio.gather(*placers)

    async def _place(self, waiting: asyncio.Queue[tuple[str, PlaceJob] | None]) -> None:
        assert self._answers is not None
        while (job := await waiting.get()) is not None:
            name, command = job
            answer = await self.send(f"Job/{name}", command)
            self._jobs[name] = bool(answer)
            self.outcome.placed += bool(answer)
            line = {"job": name, "accepted": bool(answer), "reason": getattr(answer, "reason", "")}
            self._answers.write(json.dumps(line) + "\n")
            self._answers.flush()

    async def send(self, address: str, command: Command) -> Verdict:
        """Sends a command until it is answered, always with the id of the first try: so it is done once."""
        assert self.client is not None
        command_id: str | None = None
        for attempt in itertools.count(1):
            try:
                return await self.client.send(address, command, command_id=command_id)
            except StigmergyError as error:
                why = str(error)
                if isinstance(error, NoAnswer):
                    command_id = error.command_id or command_id
            if attempt % TRIES_SAID == 0:
                self.say(f"{address} has not been answered for {attempt} tries, and is tried again: {why}")
            await asyncio.sleep(RETRY_S)
        raise AssertionError  # it never ends

    async def close_zone(self, zone: ClosedZone) -> None:
        """As an authority, which announces it when it says so."""
        self.world.announce(zone)
        answer = await self.send("Airspace/main", CloseZone(area=self.plan.area, zone=zone))
        if not answer:
            raise Trouble(f"{zone.name} cannot be closed: {answer}")

    async def count_open(self) -> int:
        """Jobs that were accepted and have not ended."""
        assert self.client is not None
        conditions = [f"status!={end}" for end in ENDED]
        return sum(
            self._jobs.get(one.partition("/")[2], True) for one in await self.client.agents("Job", where=conditions)
        )

    async def drain(self) -> None:
        """Waits until every job has ended; drones may still be on their way home."""
        begin_t = self.world.now_t()
        while self.world.now_t() - begin_t < self.options.drain_s:
            await asyncio.sleep(LOOK_S)
            try:
                left = await self.count_open()
            except StigmergyError as error:
                self.say(f"the ground does not answer: {error}")
                continue
            if not left:
                self.outcome.drained = True
                return

    # ------------------------------------------------------------------ all of it

    async def run(self, faults: Callable[[Swarm], Any]) -> dict[str, Any]:
        """From the first process to the last; how it went, and what the checker found."""
        plan, folder = self.plan, self.folder
        plan.save(folder)
        async with contextlib.AsyncExitStack() as stack:
            server = WorldServer(self.world)
            await server.open()
            stack.push_async_callback(server.close)
            ticking = asyncio.ensure_future(self.run_world(server))
            stack.push_async_callback(end_task, ticking)
            self.say(f"{len(plan.names)} drones start, on this machine")
            if self.options.speed != 1.0:
                self.say(
                    f"the world runs {self.options.speed:g} times as fast as the clock; findings are in its seconds"
                )
            await self.start_nodes(server, stack)
            self.client = await stack.enter_async_context(stigmergy.connect(self.url, fleet=FLEET, within_s=20))
            self._answers = stack.enter_context((folder / "placed.jsonl").open("a", encoding="utf-8"))
            await self.commission()
            self.say(f"they are in service in {len(plan.zones())} zones; the page: {self.url}/")
            await self._fly(faults, ticking, stack)
            await end_task(ticking)
            self.world.close()
            found = await self.judge()
            return {**to_builtins(self.outcome), **self._telemetry, **found}

    async def _stay(self) -> None:
        """Until Ctrl-C."""
        asked, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, asked.set)
        self.say(f"the page stays open at {self.url}/ ; Ctrl-C ends it, and then the findings come")
        await asked.wait()
        loop.remove_signal_handler(signal.SIGINT)

    async def _fly(
        self, faults: Callable[[Swarm], Any], ticking: asyncio.Task[None], stack: contextlib.AsyncExitStack
    ) -> None:
        self._began_s, self._began_t = time.monotonic(), self.world.now_t()
        before_s = self.cpu_s()
        breaking = asyncio.ensure_future(faults(self))
        watching = asyncio.ensure_future(self._watch(ticking))
        stack.push_async_callback(end_task, watching)
        stack.push_async_callback(end_task, breaking)
        sampling = asyncio.ensure_future(self._sample())
        stack.push_async_callback(end_task, sampling)
        await self.place_jobs()
        await breaking
        await sampling
        self.say(f"all {self.outcome.placed} jobs are placed; what is under way is finished")
        await self.drain()
        if self.options.stay:
            await self._stay()
        outcome = self.outcome
        outcome.wall_s = time.monotonic() - self._began_s
        outcome.world_s = self.world.now_t() - self._began_t
        outcome.real_time_factor = outcome.world_s / outcome.wall_s
        after_s = self.cpu_s()
        outcome.busy_share = {name: (after_s[name] - before_s.get(name, 0.0)) / outcome.wall_s for name in after_s}
        watching.cancel()

    async def _sample(self) -> None:
        """Feeds the airframes of all regions for as long as customers place jobs."""
        if self._fed:
            self._telemetry = await fly_telemetry(
                self._fed, seconds=60 * self.options.minutes, rate_hz=self.options.telemetry_hz, seed=self.plan.seed
            )

    async def start_nodes(self, server: WorldServer, stack: contextlib.AsyncExitStack) -> None:
        """Starts the broker and all nodes."""
        regions = [f"r{number + 1}" for number in range(self.plan.area.regions)]
        if self.options.telemetry_hz:
            rings = Path(stack.enter_context(ring_folder()))
            self._fed = [fed_node(rings, region, self.plan.names) for region in regions]
        self.broker = stack.enter_context(start_single(self.folder / "broker", sync_always=False))
        stack.push_async_callback(self.stop_nodes)
        self.link = LinkProxy(self.broker.servers[0].plan.port)
        await self.link.start()
        stack.push_async_callback(self.link.close)
        for name in (GROUND, *DISPATCHERS, *regions):
            url = f"nats://127.0.0.1:{self.link.port}" if name == regions[-1] else self.broker.url
            arguments = ["--world", server.url, "--bus", url, "--ledger", f"{url}?replicas=1"]
            arguments += ["--journal", self.options.journal]
            if name == GROUND:
                arguments += ["--serve", self.options.serve]
            if self._fed:
                arguments += ["--rings", str(self._fed[0].ring.parent)]
            self.nodes[name] = NodeProcess(name, self.folder, "apps.drones.node", arguments)
        await self.nodes[GROUND].start()  # makes the key that all of them sign with
        self.url = self.nodes[GROUND].url
        await asyncio.gather(*(node.start() for name, node in self.nodes.items() if name != GROUND))

    async def commission(self) -> None:
        """Nodes have put their own agents into service when they are ready."""

    def signal_process(self, name: str, number: signal.Signals) -> None:
        """Of a cluster: signals one of its processes."""
        raise Trouble(f"{name}: this run has no cluster; add --cluster")

    def busiest_worker(self) -> str:
        """Of a cluster: the one that has computed most."""
        raise Trouble("this run has no workers; add --cluster")

    async def leading_server(self) -> str:
        """Of a cluster: the one that leads the workers' leases."""
        raise Trouble("this run has no servers; add --cluster")

    async def judge(self) -> dict[str, Any]:
        """Stops everything, and has the checker read what is left."""
        await self.stop_nodes()
        self._read_reports()
        self.say("the nodes have stopped; the checker reads journals and witness")
        return await asyncio.to_thread(check, self.folder)

    async def stop_nodes(self) -> None:
        """Stops those that run."""
        running = [node for node in self.nodes.values() if node.is_running]
        codes = await asyncio.gather(*(node.stop() for node in running))
        self.outcome.exit_codes |= {node.name: code for node, code in zip(running, codes, strict=True)}

    async def _watch(self, ticking: asyncio.Task[None]) -> None:
        """Says every few seconds how it goes."""
        while True:
            await asyncio.sleep(10.0)
            if ticking.done():
                ticking.result()
            for node in [node for node in self.nodes.values() if node.has_failed]:
                self.outcome.restarts += 1
                self.say(f"{node.name} has ended by itself, and is started again: {node.said()[-300:]}")
                await node.start()
            flying = int((~self.world.physics.down).sum())
            factor = self.passed_s / (time.monotonic() - self._began_s)
            jobs = f"{self.outcome.placed:4} jobs placed, {self.world.parcels.delivered} delivered"
            self.say(f"{jobs}, {flying} drones in the air; world at {self.passed_s:.0f} s, x{factor:.2f}")

    def cpu_s(self) -> dict[str, float]:
        """Processor time of each process up to now."""
        found = {"world": time.process_time()}
        if self.broker is not None:
            found["broker"] = cpu_s_of(self.broker.servers[0].pid)
        for name in self.nodes:
            found[name] = sum(report["cpu_s"] for report in read_reports(self.folder, name))
        return found

    def _read_reports(self) -> None:
        for name in self.nodes:
            for report in read_reports(self.folder, name):
                self.outcome.frames_dropped += report["frames_dropped"]
                self.outcome.lag_s_max = max(self.outcome.lag_s_max, report["lag_s_max"])
                self.outcome.dead_letters += report["dead_letters"]


def read_reports(folder: Path, name: str) -> list[dict[str, Any]]:
    """The last report of each life of a node."""
    return read_lives(folder / f"{name}.reports")


def cpu_s_of(pid: int) -> float:
    """Processor time that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check(folder: Path, logs: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the checker finds, in a process that imports nothing of this application."""
    return printed("rigs.swarm_checker", str(folder), *(part for log in logs for part in ("--log", log)))
