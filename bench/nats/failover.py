"""How long shards do not answer when a worker ends or dies, or a server does that leads their logs.

Real workers, each a process of its own, and a client that asks every shard again and again, one durable command after
the other. A gap is the longest time between two answers of one shard around the event, with all that a client must do
to find the next owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import NotRunning, StigmergyError
from stigmergy.control.protocol import SendRequest, read_reply, write_request
from stigmergy.nats.address import parse_address
from stigmergy.nats.control import NatsControlClient
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import cluster_bucket
from stigmergy.shard.homes import Homes
from stigmergy.testing.nats import NatsCluster

MODULE = "counting"
FLEET = "counting"
PROGRAM = """
from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve


class Count(Command):
    pass


class Counted(Event):
    pass


class Counter(Agent):
    count: int = 0

    @decide
    def one_more(self, command: Count) -> Events:
        yield Counted()

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1


fleet = Fleet("counting", agents=[Counter], shards=SHARDS)
"""
START_S_MAX = 60.0
BEFORE_S = 1.5
"""Answers are watched so long before something happens."""
ASK_S_MAX = 2.0
MOVES_MAX = 30
PAUSE_S = 0.01
AGAIN_S = 0.005
"""After an answer, and after none."""
MB = 1_000_000
FIRST_ID_NS = 1_700_000_000 * 10**9


class Failover(Struct, frozen=True):
    """Gaps are the longest of any shard that was concerned."""

    quiet_gap_ms: float
    """While nothing happened: so much is the machine's."""
    planned_gap_ms: float
    planned_others_gap_ms: float
    """Of shards that stayed where they were."""
    worker_killed_gap_s: float
    worker_killed_others_gap_ms: float
    """Of shards that had another owner."""
    worker_mb: float
    """Resident memory of a worker that has all shards."""
    commands: int
    server_killed_gap_s: float | None = None
    server_killed_others_gap_ms: float | None = None
    """Of shards whose logs another server led, where the dead one did not lead the list of members either."""
    members_server_killed_gap_s: float | None = None
    """Of any shard, where the dead server led the list of members, too: nobody can prove to own anything then."""


class Probe:
    """Asks every shard again and again, and remembers when each has answered."""

    def __init__(self, link: NatsLink, shards: int) -> None:
        homes = Homes(shards)
        self._room = NatsControlClient(link, FLEET)
        self._agents = [
            next(f"Counter/c{n}" for n in range(10_000) if homes.of(f"Counter/c{n}") == shard)
            for shard in range(shards)
        ]
        self.answered_s: list[list[float]] = [[] for _ in range(shards)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins."""
        self._tasks = [asyncio.ensure_future(self._ask(shard)) for shard in range(len(self._agents))]

    async def stop(self) -> None:
        """Ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._room.close()

    async def wait_answers(self, since_s: float) -> None:
        """Waits until every shard has answered a question that was asked after this."""
        until_s = asyncio.get_running_loop().time() + START_S_MAX
        while not all(times and times[-1] > since_s for times in self.answered_s):
            if asyncio.get_running_loop().time() > until_s:
                silent = [shard for shard, times in enumerate(self.answered_s) if not times or times[-1] <= since_s]
                raise NotRunning(f"shards {silent} do not answer after {START_S_MAX:g} s")
            await asyncio.sleep(0.05)

    def gaps_s(self, since_s: float) -> list[float]:
        """For each shard the longest time between two answers, of which the later came after this."""
        return [
            max(after - before for before, after in itertools.pairwise(times) if after > since_s)
            for times in self.answered_s
        ]

    async def _ask(self, shard: int) -> None:
        number = 0
        while True:
            command_id = new_command_id(FIRST_ID_NS + number * 10**6, shard.to_bytes(RANDOM_BYTES, "big"))
            send = SendRequest(agent=self._agents[shard], command="Count", command_id=command_id)
            try:
                async with asyncio.timeout(ASK_S_MAX):
                    lines = self._room.branch(shard).ask(write_request(send))
                    try:
                        read_reply(await anext(lines), send)
                    finally:
                        await lines.aclose()  # type: ignore[attr-defined]
            except (StigmergyError, TimeoutError):
                await asyncio.sleep(AGAIN_S)
                continue
            number += 1
            self.answered_s[shard].append(asyncio.get_running_loop().time())
            await asyncio.sleep(PAUSE_S)


class Workers:
    """Processes that run `stigmergy worker`."""

    def __init__(self, folder: Path, url: str, shards: int) -> None:
        self._folder = folder
        self._url = url
        (folder / f"{MODULE}.py").write_text(PROGRAM.replace("SHARDS", str(shards)), encoding="utf-8")
        self._running: list[asyncio.subprocess.Process] = []

    async def start(self) -> asyncio.subprocess.Process:
        """One more."""
        command = [sys.executable, "-m", "stigmergy", "worker", f"{MODULE}:fleet", "--nats", self._url, "--json"]
        with (self._folder / f"worker-{len(self._running) + 1}.log").open("wb") as said:
            process = await asyncio.create_subprocess_exec(*command, cwd=self._folder, stdout=said, stderr=said)
        self._running.append(process)
        return process

    def released(self, number: int) -> list[int]:
        """The shards that a worker has handed over; they count from 1."""
        lines = (self._folder / f"worker-{number}.log").read_bytes().splitlines()
        said = [msgspec.json.decode(line) for line in lines if line.startswith(b"{")]
        return [one["shard"] for one in said if one.get("event") == "released"]

    def last_words(self) -> str:
        """What the workers said last."""
        logs = [self._folder / f"worker-{number}.log" for number in range(1, len(self._running) + 1)]
        lines = [line for log in logs for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]]
        return " / ".join(line[:200] for line in lines)

    async def stop(self) -> None:
        """Ends all that still run."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def measure_failover(
    cluster: NatsCluster, folder: Path, shards: int, settle_s: float, *, kill_servers: bool = True
) -> Failover:
    """One worker, then two; one ends, one dies; then, if that is wanted, two servers do, one after the other."""
    url = f"{cluster.url}?replicas={len(cluster.servers)}"
    # The client stays on one server, and that one lives: what is measured is the fleet's gap, not the client's.
    link = await NatsLink.open(parse_address(cluster.urls[0]), name="probe")
    workers, probe = Workers(folder, url, shards), Probe(link, shards)
    try:
        first = await workers.start()
        probe.start()
        await probe.wait_answers(0.0)
        worker_mb = resident_mb(first.pid)
        second = await workers.start()
        await asyncio.sleep(settle_s)
        quiet = await _watch(probe, settle_s, lambda: None)
        planned = await _watch(probe, settle_s, lambda: second.send_signal(signal.SIGTERM))
        await asyncio.wait_for(second.wait(), START_S_MAX)
        handed_over = workers.released(2)
        third = await workers.start()
        await asyncio.sleep(settle_s)
        killed = await _watch(probe, settle_s, third.kill)
        servers = await _kill_servers(cluster, probe, shards, settle_s) if kill_servers else {}
    except NotRunning as error:
        raise NotRunning(f"{error}: {workers.last_words()}") from None
    finally:
        await probe.stop()
        await workers.stop()
        await link.close()
    return Failover(
        quiet_gap_ms=1e3 * max(quiet),
        planned_gap_ms=1e3 * max((planned[shard] for shard in handed_over), default=0.0),
        planned_others_gap_ms=1e3
        * max((gap for shard, gap in enumerate(planned) if shard not in handed_over), default=0.0),
        worker_killed_gap_s=max(killed),
        worker_killed_others_gap_ms=1e3 * max(sorted(killed)[: shards // 2]),
        worker_mb=worker_mb,
        commands=sum(len(times) for times in probe.answered_s),
        **servers,
    )


async def _kill_servers(cluster: NatsCluster, probe: Probe, shards: int, settle_s: float) -> dict[str, float]:
    """The gaps when a server dies that leads logs, and when one does that leads the list of members."""
    members = await _move_members(cluster)
    leaders = [await cluster.leader_of(f"STIG_LOG_{FLEET}_{shard}_{shard}") for shard in range(shards)]
    other = next(number for number in range(1, len(cluster.servers)) if number != members)
    dead = await _watch(probe, settle_s, lambda: cluster.kill(other))
    cluster.start_again(other)
    await asyncio.sleep(settle_s)
    silenced = await _watch(probe, settle_s, lambda: cluster.kill(members))
    cluster.start_again(members)
    led = [gap for gap, leader in zip(dead, leaders, strict=True) if leader == other]
    not_led = [gap for gap, leader in zip(dead, leaders, strict=True) if leader != other]
    return {
        "server_killed_gap_s": max(led, default=0.0),
        "server_killed_others_gap_ms": 1e3 * max(not_led, default=0.0),
        "members_server_killed_gap_s": max(silenced),
    }


async def _watch(probe: Probe, settle_s: float, happens: Callable[[], None]) -> list[float]:
    """The gaps of all shards around something that happens now."""
    since_s = asyncio.get_running_loop().time()
    await asyncio.sleep(BEFORE_S)
    try:
        happens()
    except ProcessLookupError:
        raise NotRunning("a worker has ended by itself") from None
    await asyncio.sleep(settle_s)
    await probe.wait_answers(asyncio.get_running_loop().time())
    return probe.gaps_s(since_s)


async def _move_members(cluster: NatsCluster) -> int:
    """Which server leads the list of members; not the first, on which our client is."""
    stream = f"KV_{cluster_bucket(FLEET)}"
    for _ in range(MOVES_MAX):
        leader = await cluster.leader_of(stream)
        if leader:
            return leader
        if leader == 0:
            await cluster.step_down(stream)
        await asyncio.sleep(1.0)
    raise NotRunning(f"{stream} has no leader but the first server; see how the cluster stands")


def resident_mb(pid: int) -> float:
    """The memory that a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB
