"""Our side of `bench workflows`: `python -m bench.workflow_runs FOLDER` carries out runs as it is asked to."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from bench.subjects import serve
from bench.workflows import STUCK, Flown, Fly
from stigmergy import (
    Agent,
    Command,
    Event,
    Events,
    Fleet,
    Live,
    Step,
    Steps,
    Workflow,
    WorkflowRun,
    decide,
    evolve,
    reject,
)
from stigmergy.agents.codec import tag_of
from stigmergy.agents.messages import spec_of
from stigmergy.app.fleet import Running
from stigmergy.base.system import make_process_ours
from stigmergy.shard.commit import Commit
from stigmergy.workflows.messages import RunEnded

DRONES = 1_000
WITHIN_S = 120.0
ENDED = spec_of(RunEnded).tag


class Deliver(Command):
    """Begins a run."""

    drone: str
    parcel: str


class PlanRoute(Command):
    """Asks for a route."""


class RoutePlanned(Event):
    """There is a route."""

    legs: int


class TakeOff(Command):
    """Asks for a start."""


class LandHere(Command):
    """Undoes it."""


class Airborne(Event):
    """It flies."""


class FlyTo(Command):
    """Asks for the flight."""

    legs: int


class Arrived(Event):
    """It is there."""


class ReleaseParcel(Command):
    """Asks for the drop."""

    parcel: str


class ReturnParcel(Command):
    """Undoes it."""

    parcel: str


class ParcelDropped(Event):
    """The parcel is there."""

    parcel: str


class FlyHome(Command):
    """Asks for the way back."""


class Landed(Event):
    """It is back."""


class BenchDrone(Agent, kind="Drone"):
    """Does at once what it is asked."""

    steps: Steps = Steps()
    dropped: int = 0

    @decide
    def plan(self, command: PlanRoute) -> Events:
        """At once."""
        yield RoutePlanned(legs=3)

    @decide
    def take_off(self, command: TakeOff) -> Events:
        """At once."""
        yield Airborne()

    @decide
    def land(self, command: LandHere | FlyHome) -> Events:
        """At once."""
        yield Landed()

    @decide
    def fly(self, command: FlyTo) -> Events:
        """At once."""
        yield Arrived()

    @decide
    def release(self, command: ReleaseParcel) -> Events:
        """At once, or not at all."""
        if command.parcel == STUCK:
            reject("the hook does not open")
        yield ParcelDropped(parcel=command.parcel)

    @decide
    def take_back(self, command: ReturnParcel) -> Events:
        """Nothing to do."""
        yield Landed()

    @evolve
    def drop(self, event: ParcelDropped) -> None:
        """Counts."""
        self.dropped += 1


delivery = Workflow(
    "Delivery",
    Deliver,
    Step(PlanRoute, done=RoutePlanned),
    Step(TakeOff, done=Airborne, undo=LandHere, within_s=30),
    Step(FlyTo, done=Arrived),
    Step(ReleaseParcel, done=ParcelDropped, undo=ReturnParcel),
    Step(FlyHome, done=Landed),
    to="Drone/{drone}",
)


def fleet() -> Fleet:
    """The fleet that is measured."""
    return Fleet("delivery", agents=[BenchDrone], workflows=[delivery])


class Flights:
    """A node on SQLite, and the runs that it has carried out."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._runner = asyncio.Runner()
        self._running: Running = fleet().running(journal=f"sqlite:{folder}/delivery.db", key=folder / "delivery.key")
        self._live: Live = self._runner.run(self._running.__aenter__())
        self._ended: dict[str, asyncio.Future[None]] = {}
        self._count = 0
        self._live.host.feed.listeners.append(self._look)

    def fly(self, request: Fly) -> Flown:
        """Carries out runs."""
        return self._runner.run(self._fly(request))

    async def _fly(self, request: Fly) -> Flown:
        numbers = iter(range(self._count, self._count + request.runs))
        self._count += request.runs
        took_s: list[float] = []
        ends = "undone" if request.fails else "done"

        async def runs() -> None:
            for number in numbers:
                began_s = time.perf_counter()
                run = f"Delivery/J-{number}"
                ended = self._ended[run] = asyncio.get_running_loop().create_future()
                parcel = STUCK if request.fails else f"P-{number}"
                accepted = await self._live.send(run, Deliver(drone=f"D-{number % DRONES}", parcel=parcel))
                if not accepted:
                    raise RuntimeError(f"{run} was refused: {accepted}")
                await ended
                if (status := self._live.query(run, WorkflowRun).status) != ends:
                    raise RuntimeError(f"{run} is {status}")
                took_s.append(time.perf_counter() - began_s)

        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(runs() for _ in range(request.at_a_time)))
        return Flown(time.perf_counter() - began_s, time.process_time() - began_cpu_s, took_s)

    def _look(self, commit: Commit) -> None:
        """Notes the runs that have ended, once that is on disk."""
        for address, body in commit.events:
            if address in self._ended and tag_of(body) == ENDED:
                self._ended.pop(address).set_result(None)

    def close(self) -> None:
        """Ends the node."""
        self._runner.run(self._running.__aexit__(None, None, None))
        self._runner.close()


def main(arguments: list[str]) -> None:
    """Has a node carry out what is asked for."""
    (folder,) = arguments
    flights = Flights(Path(folder))
    make_process_ours()
    try:
        serve(Fly, flights.fly)
    finally:
        flights.close()


if __name__ == "__main__":
    main(sys.argv[1:])
