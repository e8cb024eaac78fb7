"""Jobs and dispatchers on running nodes, with the solver as a worker and drones that only pretend to fly."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from apps.drones import dispatcher, job, matching
from apps.drones.area import CELL_M, Area, zone_of
from apps.drones.dispatcher import Dispatcher
from apps.drones.job import Job
from apps.drones.messages import (
    BOX_FULL,
    ArmBox,
    CancelJob,
    DroneBusy,
    DroneReady,
    DroneSilent,
    JobAccepted,
    JobDelivered,
    JobEnded,
    JobPicked,
    JobReturned,
    JobTaken,
    Match,
    Matched,
    OpenDesk,
    PlaceJob,
    Release,
    RevokeJob,
    Site,
    TakeJob,
)
from apps.drones.views import VIEWS, Jobs, ZoneLoad
from stigmergy import (
    Agent,
    Command,
    DeviceRefused,
    Done,
    Effects,
    Event,
    Events,
    Failed,
    Fleet,
    Live,
    Order,
    Refused,
    Tell,
    Unreachable,
    decide,
    evolve,
    react,
)
from stigmergy.serve.embedded import Running
from stigmergy.testing.bus_rig import wait_until

AREA = Area(columns=2, rows=1, zone_m=3000.0, regions=1)
HERE, BESIDE = AREA.zones()


class StartShift(Command):
    """The drone is ready."""

    x: float = 1500.0


class ComeBack(Command):
    """It was silent, and goes on where it was."""


class ShiftStarted(Event):
    x: float


class Declined(Event):
    job: str
    token: int


class CameBack(Event):
    pass


class Courier(Agent, kind="Drone"):
    """Delivers at once; `…-9nn` declines everything, `…-8nn` falls silent before it delivers."""

    job: str = ""
    token: int = 0
    x: float = 0.0

    @decide
    def start(self, command: StartShift) -> Events:
        yield ShiftStarted(x=command.x)

    @evolve
    def started(self, event: ShiftStarted) -> None:
        self.x = event.x

    @react
    def say_ready(self, event: ShiftStarted) -> Effects:
        yield from self._ready()

    @decide
    def take(self, command: TakeJob) -> Events:
        if self.job or self.id[-3] == "9":
            yield Declined(command.job, command.token)
        else:
            yield JobTaken(command.job, command.token, command.pickup, command.drop, command.kg)

    @react
    def decline(self, event: Declined) -> Effects:
        yield Tell(f"Job/{event.job}", JobReturned(token=event.token, drone=self.id, why="not today"))

    @evolve
    def took(self, event: JobTaken) -> None:
        self.job, self.token = event.job, event.token

    @react
    def fly(self, event: JobTaken) -> Effects:
        for desk in "ab":
            yield Tell(f"Dispatcher/{zone_of(self.id)}.{desk}", DroneBusy(drone=self.id, why="flying"))
        yield Tell(f"Job/{self.job}", JobAccepted(token=self.token, drone=self.id))
        yield Tell(f"Job/{self.job}", JobPicked(token=self.token, drone=self.id))
        if self.id[-3] != "8":
            yield Release(job=self.job, token=self.token)

    @decide
    def revoke(self, command: RevokeJob) -> Events:
        return ()

    @decide
    def come_back(self, command: ComeBack) -> Events:
        yield CameBack()

    @react
    def go_on(self, event: CameBack) -> Effects:
        yield Release(job=self.job, token=self.token)

    @decide
    def delivered(self, done: Done[Release]) -> Events:
        yield JobEnded(done.action.job, done.action.token, "")

    @decide
    def refused(self, failed: Failed[Release]) -> Events:
        yield JobEnded(failed.action.job, failed.action.token, failed.reason)

    @evolve
    def ended(self, event: JobEnded) -> None:
        self.job, self.token = "", 0

    @react
    def report(self, event: JobEnded) -> Effects:
        if event.why:
            yield Tell(f"Job/{event.job}", JobReturned(token=event.token, drone=self.id, why=event.why))
        else:
            yield Tell(f"Job/{event.job}", JobDelivered(token=event.token, drone=self.id))
        yield from self._ready()

    def _ready(self) -> Iterator[Tell]:
        ready = DroneReady(drone=self.id, x=self.x, y=1500.0, battery=95.0, capacity_kg=2.5)
        for desk in "ab":
            yield Tell(f"Dispatcher/{zone_of(self.id)}.{desk}", ready)


class Boxes:
    """All boxes. The first try to arm one fails."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.full: dict[str, str] = {}
        self.tried: Counter[str] = Counter()
        self.refused: list[str] = []

    def arm(self, box: ArmBox) -> None:
        self.tried[box.job] += 1
        if self.tried[box.job] == 1:
            raise Unreachable("no answer")
        if box.job in self.full:
            raise DeviceRefused(f"{box.job}: {BOX_FULL}")
        self.tokens[box.job] = max(box.token, self.tokens.get(box.job, 0))

    def release(self, drone: str, parcel: Release) -> None:
        if parcel.job in self.full or parcel.token != self.tokens.get(parcel.job):
            self.refused.append(drone)
            raise DeviceRefused(f"it waits for {self.tokens.get(parcel.job)}, not for {parcel.token}")
        self.full[parcel.job] = drone


def make_fleet(boxes: Boxes) -> Fleet:
    fleet = Fleet("ground", agents=[Job, Dispatcher, Courier], views=VIEWS)

    @fleet.actuator(ArmBox)
    async def arm(order: Order[ArmBox]) -> None:
        boxes.arm(order.effect)

    @fleet.actuator(Release)
    async def release(order: Order[Release]) -> None:
        boxes.release(order.agent.partition("/")[2], order.effect)

    @fleet.worker(Match)
    async def match(order: Order[Match]) -> Matched:
        return await matching.match(order)

    return fleet


def order(number: int) -> PlaceJob:
    pickup, drop = Site((number + 0.5) * CELL_M, 0.5 * CELL_M), Site((number + 0.5) * CELL_M, 3.5 * CELL_M)
    return PlaceJob(pickup=pickup, drop=drop, kg=1.0, area=AREA)


@pytest.fixture(autouse=True)
def solver() -> None:
    matching.load()


async def job_rows(live: Live) -> list[tuple[str, str, str]]:
    return [(row.job, row.status, row.drone) for row in await live.view(Jobs).order("job").all()]


async def view_says(ask: Callable[[], Awaitable[list[Any]]], expected: list[Any]) -> None:
    """Views follow the log, each by itself."""
    async with asyncio.timeout(240):
        while await ask() != expected:  # noqa: ASYNC110 - asked again and again
            await asyncio.sleep(0.02)


async def test_jobs_are_given_away_once_and_delivered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One drone declines everything, and all boxes are armed at the second try."""
    monkeypatch.setattr(job, "BACKOFF_S_MAX", 0.2)
    monkeypatch.setattr(dispatcher, "ROUND_S", 0.3)
    boxes, names = Boxes(), [f"{HERE}.J{n}" for n in range(6)]
    async with make_fleet(boxes).running(journal="memory:", ledger=f"memory:{uuid4()}") as live:
        for zone in (HERE, BESIDE):
            for desk in "ab":
                await live.send(f"Dispatcher/{zone}.{desk}", OpenDesk(area=AREA))
        for number in (1, 2, 3, 901):
            await live.send(f"Drone/{HERE}-{number:03d}", StartShift())
        for number, name in enumerate(names):
            assert await live.send(f"Job/{name}", order(number))
        again = await live.send(f"Job/{names[0]}", order(0))
        assert isinstance(again, Refused)
        await wait_until(lambda: all(live.query(f"Job/{name}", Job).status == "delivered" for name in names))
        assert sorted(boxes.full) == names
        assert boxes.refused == [], "a drone had its token before the box"
        cancel = await live.send(f"Job/{names[0]}", CancelJob())
        assert isinstance(cancel, Refused)
        assert "delivered already" in cancel.reason
        delivered = [(name, "delivered", boxes.full[name]) for name in names]
        await view_says(lambda: live.view(ZoneLoad).all(), [ZoneLoad(zone=HERE, delivered=len(names))])
        await view_says(lambda: job_rows(live), delivered)
        assert live.dead_letters() == []


async def test_a_drone_that_comes_back_does_not_deliver_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a job without a drone in its zone is handed over to the next one."""
    monkeypatch.setattr(dispatcher, "PATIENCE_S", 1.0)
    monkeypatch.setattr(dispatcher, "ROUND_S", 0.3)
    boxes, name, lost = Boxes(), f"{HERE}.J0", f"{HERE}-801"
    async with make_fleet(boxes).running(journal="memory:", ledger=f"memory:{uuid4()}") as live:
        for zone in (HERE, BESIDE):
            await live.send(f"Dispatcher/{zone}.a", OpenDesk(area=AREA))
        await live.send(f"Drone/{lost}", StartShift())
        await live.send(f"Job/{name}", order(0))
        await wait_until(lambda: live.query(f"Job/{name}", Job).status == "picked")
        await live.observe(f"Job/{name}", DroneSilent(drone=lost, job=name, token=1, last_t=0.0))
        await live.observe(f"Job/{name}", DroneSilent(drone=lost, job=name, token=1, last_t=0.0))
        await live.send(f"Drone/{BESIDE}-001", StartShift(x=4500.0))
        await wait_until(lambda: live.query(f"Job/{name}", Job).status == "delivered")
        await live.send(f"Drone/{lost}", ComeBack())
        await wait_until(lambda: boxes.refused == [lost])
        await wait_until(lambda: not live.query(f"Drone/{lost}", Courier).job)
        assert boxes.full == {name: f"{BESIDE}-001"}
        known = live.query(f"Job/{name}", Job)
        assert (known.status, known.token, known.zone, known.reopened) == ("delivered", 2, BESIDE, 1)


async def test_the_second_dispatcher_takes_over_when_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one was restarted while it waited for the desk. The first one comes back and waits in turn."""
    monkeypatch.setattr(dispatcher, "DESK_S", 1.0)
    boxes, bus, ledger = Boxes(), f"memory:{uuid4()}", f"sqlite:{tmp_path}/ledger.db"
    fleet, key = make_fleet(boxes), tmp_path / "node.key"

    def node(name: str, *agents: str) -> Running:
        journal = f"sqlite:{tmp_path}/{name}.db"
        return fleet.running(journal=journal, key=key, bus=bus, ledger=ledger, node=name, agents=agents)

    def holds(live: Live, desk: str) -> bool:
        return live.query(f"Dispatcher/{HERE}.{desk}", Dispatcher).desk.until_ns > 0

    async def deliver(number: int) -> int:
        name = f"Job/{HERE}.J{number}"
        await ground.send(name, order(number))
        await wait_until(lambda: ground.query(name, Job).status == "delivered")
        return ground.query(name, Job).desks[HERE]

    first, second = f"Dispatcher/{HERE}.a", f"Dispatcher/{HERE}.b"
    async with contextlib.AsyncExitStack() as stack:
        ground = await stack.enter_async_context(node("ground", "Job/*", "Drone/*"))
        await ground.send(f"Drone/{HERE}-001", StartShift())
        async with node("dispatch-a", first) as one:
            await one.send(first, OpenDesk(area=AREA))
            await wait_until(lambda: holds(one, "a"))
            async with node("dispatch-b", second) as other:
                await other.send(second, OpenDesk(area=AREA))
                before = await deliver(0)
                assert not holds(other, "b")
            other = await stack.enter_async_context(node("dispatch-b", second))
        after = await deliver(1)
        assert holds(other, "b")
        assert after > before
        async with node("dispatch-a", first) as one:
            assert await deliver(2) == after
            assert not holds(one, "a")
            await wait_until(lambda: not one.query(first, Dispatcher).jobs)
