"""A run: its parts alone, and all of it with a few drones."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec import to_builtins
from rich.console import Console

from apps.drones import link, run
from apps.drones.__main__ import main, parse, read_faults
from apps.drones.drone import Drone
from apps.drones.faults import FAULTS, busiest
from apps.drones.findings import show
from apps.drones.link import RemoteWorld, WorldServer
from apps.drones.messages import Fix, Site, TakeJob
from apps.drones.node import FRAMES_MAX, Feed, Report, agents_of, send_all
from apps.drones.physics import FIELDS
from apps.drones.plan import make_plan
from apps.drones.run import NODES_BEHIND_S_MAX, Options, Outcome, Swarm, check, cpu_s_of, end_task, read_reports
from apps.drones.world import TICK_S
from rigs.swarm_checker import Findings
from stigmergy import Accepted, Client, Command, Event, NoAnswer, Overloaded, Refused
from stigmergy.agents.codec import open_envelope, tag_of
from stigmergy.testing import given
from stigmergy.testing.bus_rig import wait_until

ROOT = Path(__file__).resolve().parents[3]
START_T = 1_795_000_000.1


class SlowNode:
    """Takes envelopes as slowly as it is told."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, int, str]] = []
        self.observed: list[str] = []
        self.go_on = asyncio.Event()

    async def deliver(self, envelope: bytes) -> None:
        await self.go_on.wait()
        opened = open_envelope(envelope)
        tags = {tag_of(body) for _, body in opened.items}
        self.taken.append((opened.sequence, len(opened.items), opened.incarnation, ",".join(sorted(tags))))

    async def observe(self, address: str, event: Event) -> None:
        await self.go_on.wait()
        self.observed.append(address)

    def agents(self, kind: str) -> list[str]:
        return ["Sector/r1-0000@r1"]


def frame(count: int, silent: int = 0) -> Any:
    rows = np.zeros((count, len(FIELDS)), np.float32)
    rows[:silent] = np.nan
    return rows


async def test_a_slow_node_gets_the_newest_frames() -> None:
    node, report = SlowNode(), Report("r1", 0.0)
    feed = Feed(node, report)  # type: ignore[arg-type]
    names = tuple(f"r1-0000-{number:03d}" for number in range(3))
    for tick in range(5):
        feed.put(tick * 0.5, names, frame(3))
    running = asyncio.ensure_future(feed.run())
    await asyncio.sleep(0)
    node.go_on.set()
    await wait_until(lambda: report.frames == FRAMES_MAX)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert report.frames_dropped == 5 - FRAMES_MAX
    assert report.fixes == FRAMES_MAX * 3
    # The frames of 1.5 and 2.0 s are left: half a second apart, so only the first has a tick.
    assert [taken[3] for taken in node.taken] == ["Fix@1", "Fix@1"]
    assert node.observed == ["Sector/r1-0000@r1", "Drone/r1-0000-002"]


async def test_envelopes_are_numbered_without_gaps_and_silent_drones_say_nothing() -> None:
    node, report = SlowNode(), Report("r1", 0.0)
    node.go_on.set()
    feed = Feed(node, report)  # type: ignore[arg-type]
    names = tuple(f"r1-0000-{number:04d}" for number in range(2500))
    feed.put(10.0, names, frame(2500, silent=100))
    running = asyncio.ensure_future(feed.run())
    await wait_until(lambda: report.frames == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [taken[:2] for taken in node.taken] == [(1, 1000), (1001, 1000), (2001, 400)]
    assert len({taken[2] for taken in node.taken}) == 1
    assert report.lag_s_max >= 0.0


def test_which_node_has_which_agents() -> None:
    plan = make_plan(4, 1, 0.0)
    drones = ["Drone/r2-*", "Delivery/r2-*", "Leg/r2-*"]
    assert agents_of("r2", plan) == [*drones, "Sector/r1-0000@r2", "Sector/r2-0100@r2"]
    assert agents_of("dispatch-b", plan) == ["Dispatcher/r1-0000.b", "Dispatcher/r2-0100.b"]


class Ask(Command):
    number: int


async def test_commands_are_sent_until_they_are_answered() -> None:
    tries: dict[str, int] = {}

    async def send(to: str, command: Command) -> Accepted | Refused:
        assert isinstance(command, Ask)
        tries[to] = tries.get(to, 0) + 1
        if command.number % 3 == 0 and tries[to] == 1:
            raise Overloaded("later")
        return Refused("no") if command.number == 7 else Accepted(1)

    refused = await send_all(send, ((f"A/{number}", Ask(number)) for number in range(20)), at_a_time=4)
    assert refused == 1
    assert len(tries) == 20
    assert sum(tries.values()) == 27


async def test_customers_repeat_an_order_under_its_own_id_and_say_if_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run had 10,000 drones and 2,500 jobs: a node remembers so many ids that say nothing of their age."""
    monkeypatch.setattr(run, "RETRY_S", 0.0)
    asked: list[str | None] = []
    said: list[str] = []

    class Desk:
        async def send(self, address: str, command: Command, *, command_id: str | None) -> Accepted:
            asked.append(command_id)
            if len(asked) == 2:
                raise NoAnswer("not known", command_id="id-of-the-first-try")
            if len(asked) <= run.TRIES_SAID:
                raise Overloaded("later")
            return Accepted(1)

    swarm = Swarm(make_plan(4, 1, 0.0), tmp_path, Options(), said.append)
    swarm.client = cast("Client", Desk())
    assert await swarm.send("Job/J1", Ask(1))
    assert asked == [None, None, *["id-of-the-first-try"] * (run.TRIES_SAID - 1)]
    assert [line.partition("Job/J1 ")[2] for line in said] == [
        f"has not been answered for {run.TRIES_SAID} tries, and is tried again: later"
    ]
    swarm.world.close()


def test_reports_are_the_last_of_each_life(tmp_path: Path) -> None:
    lines = [{"started_s": 1.0, "cpu_s": 1.0}, {"started_s": 1.0, "cpu_s": 2.0}, {"started_s": 5.0, "cpu_s": 0.5}]
    (tmp_path / "r1.reports").write_text("\n".join(json.dumps(line) for line in lines) + '\n{"started')
    assert [report["cpu_s"] for report in read_reports(tmp_path, "r1")] == [2.0, 0.5]
    assert read_reports(tmp_path, "r9") == []


def test_the_processor_time_of_a_process() -> None:
    began_s = time.process_time()
    while time.process_time() - began_s < 0.05:
        pass
    assert cpu_s_of(os.getpid()) >= 0.05
    assert cpu_s_of(2**22 + 1) == 0.0


async def test_the_world_keeps_up_with_the_wall_or_slows_down(tmp_path: Path) -> None:
    swarm = Swarm(make_plan(4, 1, START_T), tmp_path, Options(), lambda _: None)
    ticking = asyncio.ensure_future(swarm.run_world(WorldServer(swarm.world)))
    began_s = time.monotonic()
    await wait_until(lambda: swarm.world.now_t() - START_T >= 1.0)
    passed = swarm.world.now_t() - START_T
    assert passed <= time.monotonic() - began_s + 0.1
    time.sleep(3.0)  # noqa: ASYNC251 - nothing runs meanwhile
    went_on_s = time.monotonic()
    await asyncio.sleep(0.05)
    # It does not make up for all that it missed.
    assert swarm.world.now_t() - START_T < passed + 1.45 + time.monotonic() - went_on_s
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    swarm.world.close()
    pairs = [json.loads(line) for line in (tmp_path / "clock.jsonl").read_text().splitlines()]
    assert pairs
    assert pairs == sorted(pairs, key=lambda pair: pair["t"])


async def test_while_it_waits_the_others_hear_their_last_fixes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their drones take their sensors for dead, and land, because another region is busy."""
    monkeypatch.setattr(link, "STUCK_S", 1e9)
    swarm = Swarm(make_plan(4, 1, START_T), tmp_path, Options(), lambda _: None)
    server = WorldServer(swarm.world)
    await server.open()
    busy, quick = RemoteWorld(server.url, "r1-"), RemoteWorld(server.url, "r2-")
    heard: list[float] = []

    def deal_with(t: float, _names: object, _frame: object) -> None:
        heard.append(t)
        quick.took(t)

    quick.each_frame(deal_with)
    for remote in (busy, quick):
        await remote.open()
        await remote.wait_heard()
    busy.took(START_T)
    await asyncio.sleep(0.05)
    ticking = asyncio.ensure_future(swarm.run_world(server))
    async with asyncio.timeout(240):
        while heard.count(heard[-1]) < 3:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)
    assert heard[-1] > START_T
    await end_task(ticking)
    for remote in (busy, quick):
        await remote.close()
    await server.close()
    swarm.world.close()


async def test_the_world_waits_for_a_region_that_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "STUCK_S", 1e9)
    plan = make_plan(4, 1, START_T)
    swarm = Swarm(plan, tmp_path, Options(), lambda _: None)
    server = WorldServer(swarm.world)
    await server.open()
    remote = RemoteWorld(server.url, "r1-")
    await remote.open()
    await remote.wait_heard()
    remote.took(START_T)
    await asyncio.sleep(0.05)
    ticking = asyncio.ensure_future(swarm.run_world(server))
    await asyncio.sleep(2.0)
    assert swarm.world.now_t() - START_T <= NODES_BEHIND_S_MAX + TICK_S
    remote.took(START_T + NODES_BEHIND_S_MAX)
    async with asyncio.timeout(240):
        while swarm.world.now_t() - START_T <= NODES_BEHIND_S_MAX + TICK_S:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)
    await end_task(ticking)
    await remote.close()
    await server.close()
    swarm.world.close()


async def test_the_world_may_run_faster_than_the_wall(tmp_path: Path) -> None:
    swarm = Swarm(make_plan(4, 1, START_T), tmp_path, Options(speed=3.0), lambda _: None)
    ticking = asyncio.ensure_future(swarm.run_world(WorldServer(swarm.world)))
    began_s = time.monotonic()
    while swarm.world.now_t() < START_T + 3.0:  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(0.01)
    assert time.monotonic() - began_s >= 0.95  # not all at once, and no faster than it was told
    await end_task(ticking)
    swarm.world.close()


def test_a_zone_closes_where_drones_fly_and_not_over_stands(tmp_path: Path) -> None:
    swarm = Swarm(make_plan(90, 1, 0.0), tmp_path, Options(), lambda _: None)
    area, physics = swarm.plan.area, swarm.world.physics
    assert busiest(swarm) == (area.zone_m, area.zone_m / 2)
    physics.down[:6] = False
    physics.position[:, :6] = np.array([[10.0, 30.0, 50.0, 2000.0, 900.0, 905.0], [900.0] * 6, [45.0] * 6])
    assert busiest(swarm) in ((10.0, 900.0), (30.0, 900.0), (50.0, 900.0))
    swarm.world.close()


def test_the_command_refuses_unknown_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*read_faults("all"), "two-drones"} == set(FAULTS)
    assert parse(["--faults", "zone,node"]).faults == ("zone", "node")
    with pytest.raises(SystemExit):
        parse(["--faults", "earthquake"])
    assert "earthquake" in capsys.readouterr().err


def test_the_command_refuses_a_world_that_is_too_fast(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--speed", "3"]).speed == 3.0
    for speed, why in (("4.5", "too old"), ("0.5", "no slower"), ("nan", "1 to 4"), ("fast", "invalid")):
        with pytest.raises(SystemExit):
            parse(["--speed", speed])
        assert why in capsys.readouterr().err
    assert main(["--speed", "3", "--cluster"]) == 2
    assert "leave out --cluster" in capsys.readouterr().err


def test_findings_say_what_was_promised_and_what_was_broken(capsys: pytest.CaptureFixture[str]) -> None:
    took = {"job": "r1-0000.J5", "failed": "r1-0000-003", "kind": "motor", "by": "r1-0000-004", "after_s": 4.2}
    alone = {"job": "r1-0000.J6", "failed": "r1-0000-007", "kind": "radio"}
    found = to_builtins(Findings(jobs=9, delivered=8, least_distance_m=41.3, take_overs=[]))
    found |= to_builtins(Outcome(drones=4, faults=["0:19  r1 is killed"], busy_share={"r1": 0.5, "world": 0.25}))
    show(Console(width=100), found)
    said = capsys.readouterr().out
    assert re.search(r"jobs lost +0 +must be 0", said)
    assert re.search(r"cores that were busy +0\.75 +r1 0\.50, world 0\.25", said)
    assert "0:19  r1 is killed" in said
    assert "Every promise was kept." in said
    broken = {"lost": 1, "violations": 1, "details": ["lost: J1: accepted, and no log has it"], "reassigned": 1}
    show(Console(width=100), {**found, **broken, "reassignment_p99_s": 12.0, "take_overs": [took, alone]})
    said = capsys.readouterr().out
    assert "lost: J1: accepted, and no log has it" in said
    assert "r1-0000-003 lost its motors while it had r1-0000.J5; r1-0000-004 got it 4.2 s later" in said
    assert "r1-0000-007 lost its link while it had r1-0000.J6\n" in said
    assert "Broken promises: 1." in said
    assert "kept" not in said


def test_the_checker_runs_in_its_own_process(tmp_path: Path) -> None:
    swarm = Swarm(make_plan(4, 1, 1000.0), tmp_path, Options(), lambda _: None)
    swarm.world.advance(1005.0)
    swarm.world.close()
    found = check(tmp_path)
    assert found["drones"] == 4
    assert found["violations"] == 0


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("faults", ["", "all"])
def test_a_small_swarm_keeps_every_promise(tmp_path: Path, faults: str) -> None:
    command = [sys.executable, "-m", "apps.drones", "--drones", "24", "--minutes", "2", "--json"]
    command += ["--keep", str(tmp_path), "--faults", faults]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1700)
    found = json.loads(ended.stdout)
    assert found["violations"] == 0, found["details"]
    assert found["delivered"] > 0
    assert found["drained"]
    assert ended.returncode == 0


def test_a_drone_that_takes_a_job_says_at_once_that_it_is_busy() -> None:
    """A run with 500 drones had jobs that were offered again and again to drones that flew others."""
    plan = make_plan(2, 1, 0.0)
    address, commission = next(plan.commissions("r1-"))
    drone = given(Drone, id=address.partition("/")[2]).when(commission)
    drone.when(Fix(t=1.0, x=commission.home.x, y=commission.home.y, z=0.0, vx=0, vy=0, vz=0, battery=99.0, down=True))
    drone.when(Fix(t=12.0, x=commission.home.x, y=commission.home.y, z=0.0, vx=0, vy=0, vz=0, battery=99.0, down=True))
    drone.state(ready=True)
    job = TakeJob(job="r1-0000.J1", token=1, pickup=Site(150.0, 150.0), drop=Site(210.0, 150.0), kg=1.0)
    drone.when(job).state(job="r1-0000.J1", ready=False)
