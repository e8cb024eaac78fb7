"""Runs on workers of a cluster: they move with their shards, and a worker refuses those whose steps have changed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import stigmergy as st
from stigmergy.base.errors import JournalError, LinkDown, NotOwned, NotRunning
from stigmergy.control.live import Live
from stigmergy.shard.homes import shard_of
from stigmergy.sim.run import Run
from tests.cluster.town import SHARDS, Person, Town
from tests.workflows.delivery import Arrived, Deliver, Drone, FlyHome, Landed, PlanRoute, RoutePlanned, delivery

RUNS = 6
NOT_NOW = (NotOwned, NotRunning, JournalError, LinkDown, TimeoutError)


def declare(*workflows: st.Workflow) -> st.Fleet:
    fleet = st.Fleet("meters", agents=[Drone], workflows=list(workflows), shards=SHARDS)

    @fleet.worker(PlanRoute)
    async def plan(order: st.Order[PlanRoute]) -> RoutePlanned:
        return RoutePlanned(legs=3)

    return fleet


async def start(town: Town, name: str, *workflows: st.Workflow, **options: Any) -> Person:
    person = town.people[name] = Person(town, name)
    person.fleet = declare(*workflows)
    await person.start(**options)
    return person


def live_of(town: Town, address: str) -> Live:
    """Whoever runs the agent now."""
    for person in town.people.values():
        if person.worker is not None and shard_of(address, SHARDS) in person.owned:
            return person.worker.live(shard_of(address, SHARDS))
    raise NotOwned(f"nobody has {address} now")


def query(town: Town, address: str) -> Any:
    try:
        return live_of(town, address).query(address)
    except NOT_NOW:
        return None


async def until(condition: Callable[[], bool], within_s: float = 120.0) -> None:
    for _ in range(int(within_s / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not come")


async def begin(town: Town) -> None:
    for number in range(RUNS):
        command = Deliver(drone=f"D{number}", parcel=f"P{number}")
        assert await live_of(town, f"Delivery/{number}").send(f"Delivery/{number}", command)
    await until(lambda: all(flies(town, number) for number in range(RUNS)))


def flies(town: Town, number: int) -> bool:
    drone = query(town, f"Drone/D{number}")
    return drone is not None and any(one.step == "FlyTo" for one in drone.steps.open)


def has_status(town: Town, number: int, status: str) -> bool:
    run = query(town, f"Delivery/{number}")
    return run is not None and run.status == status


def play(main: Callable[[Town], Any]) -> None:
    world = Run(1, shuffle=True)
    town = Town(world)

    async def scene() -> None:
        await main(town)
        for person in list(town.people.values()):
            await person.stop()
        for person in town.killed:
            assert person.task is not None
            person.task.cancel()
            world.loop.release(person.name)
            await asyncio.gather(person.task, return_exceptions=True)

    world.run(scene())


def test_runs_move_with_their_shards_when_a_worker_comes_and_one_is_killed() -> None:
    async def main(town: Town) -> None:
        for name in ("a", "b"):
            await start(town, name, delivery)
        await town.settled()
        await begin(town)
        await start(town, "c", delivery)
        await town.settled()
        await town.people["a"].kill()
        await town.settled(within_s=120.0)
        for number in range(RUNS):
            await live_of(town, f"Drone/D{number}").observe(f"Drone/D{number}", Arrived())
        await until(lambda: all(has_status(town, number, "done") for number in range(RUNS)))
        dropped = [query(town, f"Drone/D{number}").dropped for number in range(RUNS)]
        assert dropped == [(f"P{number}",) for number in range(RUNS)]

    play(main)


@pytest.mark.parametrize("version", [1, 2])
def test_a_worker_without_the_steps_of_a_run_leaves_its_shard_to_one_that_has_them(version: int) -> None:
    changed = st.Workflow("Delivery", Deliver, st.Step(FlyHome, done=Landed), to="Drone/{drone}", version=version)
    gone = "has other steps now; put the steps back" if version == 1 else "is not there any more; put Workflow("

    def has_all(person: Person) -> bool:
        return {shard_of(f"Delivery/{number}", SHARDS) for number in range(RUNS)} <= set(person.owned)

    def unfit(person: Person) -> dict[int, str]:
        """What `stigmergy status` shows of it."""
        return (
            {} if person.worker is None else {n: one.unfit for n, one in person.worker.supervisors.items() if one.unfit}
        )

    async def main(town: Town) -> None:
        await start(town, "a", delivery)
        await town.settled()
        await begin(town)
        await town.people["a"].stop()
        person = await start(town, "b", changed)
        await until(lambda: any("its workflow was changed" in why for why in unfit(person).values()))
        assert any(f"version 1 {gone}" in why for why in unfit(person).values())
        assert not has_all(person)
        both = (delivery,) if version == 1 else (delivery, changed)
        await start(town, "c", *both, upgrade=True)
        for number in range(RUNS):
            await until(lambda number=number: flies(town, number))  # type: ignore[misc]
            await live_of(town, f"Drone/D{number}").observe(f"Drone/D{number}", Arrived())
        await until(lambda: all(has_status(town, number, "done") for number in range(RUNS)))

    play(main)
