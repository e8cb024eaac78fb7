"""Deliveries in the simulator, whatever goes wrong: each ends, and its parcel is where the run says."""

from functools import partial

import pytest

import stigmergy as st
from stigmergy.base.errors import UnknownKind
from stigmergy.sim import ALL, World, simulate
from tests.workflows.delivery import (
    Airborne,
    Arrived,
    Deliver,
    FlyHome,
    Flying,
    FlyTo,
    Landed,
    LandHere,
    ObstacleDetected,
    ParcelDropped,
    ParcelReturned,
    PlanRoute,
    ReleaseParcel,
    ReturnParcel,
    RoutePlanned,
    TakeOff,
)

DRONES, RUNS = 3, 6


class Flyer(st.Agent):
    """A drone that takes one job after the other, and now and then cannot release its parcel."""

    steps: st.Steps = st.Steps()
    dropped: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @st.decide
    def take_off(self, command: TakeOff) -> st.Events:
        yield Airborne()

    @st.decide
    def land(self, command: LandHere) -> st.Events:
        yield Landed()

    @st.decide
    def fly(self, command: FlyTo) -> st.Events:
        yield Flying()

    @st.decide
    def release(self, command: ReleaseParcel) -> st.Events:
        if command.parcel.endswith("3"):
            st.reject("the hook does not open")
        yield ParcelDropped(parcel=command.parcel)

    @st.decide
    def take_back(self, command: ReturnParcel) -> st.Events:
        yield ParcelReturned(parcel=command.parcel)

    @st.decide
    def home(self, command: FlyHome) -> st.Events:
        yield Landed()

    @st.evolve
    def drop(self, event: ParcelDropped) -> None:
        self.dropped = (*self.dropped, event.parcel)

    @st.evolve
    def get_back(self, event: ParcelReturned) -> None:
        self.returned = (*self.returned, event.parcel)


delivery = st.Workflow(
    "Delivery",
    Deliver,
    st.Step(PlanRoute, done=RoutePlanned, at=("gateway", "here"), within_s=5, tries=50),
    st.Step(TakeOff, done=Airborne, undo=LandHere, undone=Landed, within_s=60),
    st.Step(FlyTo, done=Arrived, again_from=PlanRoute, on=ObstacleDetected, tries=50, within_s=60),
    st.Step(ReleaseParcel, done=ParcelDropped, undo=ReturnParcel, undone=ParcelReturned, within_s=60),
    st.Step(FlyHome, done=Landed, within_s=60),
    to="Flyer/{drone}",
)
fleet = st.Fleet("flyers", agents=[Flyer], workflows=[delivery])


@fleet.worker(PlanRoute)
async def plan(order: st.Order[PlanRoute]) -> RoutePlanned:
    return RoutePlanned(legs=3)


AGENTS = [f"Flyer/{number}" for number in range(DRONES)] + [f"Delivery/{number}" for number in range(RUNS)]


@simulate(fleet, agents=AGENTS, nodes=3, seeds=5, faults=ALL, for_s=20.0)
def test_every_delivery_ends_and_no_parcel_is_dropped_twice(world: World) -> None:
    deliver(world)


@simulate(fleet, agents=AGENTS, nodes={"n": ["Flyer/*", "Delivery/*", "Place/*"]}, seeds=1, faults="none", for_s=5.0)
async def test_runs_are_seen_by_their_base_class(world: World) -> None:
    assert await world.send("Delivery/0", Deliver(drone="0", parcel="P0"))
    assert world.state("Delivery/0", st.WorkflowRun).status == "running"
    assert [run.status for run in world.states(st.WorkflowRun)] == ["running", *["new"] * (RUNS - 1)]
    with pytest.raises(UnknownKind, match="Delivery/0 is no Flyer"):
        world.state("Delivery/0", Flyer)
    with pytest.raises(UnknownKind, match="Other is no class of agents of this fleet"):
        list(world.states(Other))


class Other(st.Agent):
    pass


def deliver(world: World) -> None:
    for number in range(RUNS):
        world.ask(f"Delivery/{number}", Deliver(drone=str(number % DRONES), parcel=f"P{number}"))
    for number in range(DRONES):
        flyer = f"Flyer/{number}"
        world.every(1.5, partial(world.observe, flyer, Arrived()), until="end")
        world.every(7.0, partial(world.observe, flyer, ObstacleDetected(what="crane")))

    def runs() -> list[tuple[st.WorkflowRun, Flyer | None]]:
        """The runs that are kept, each with its drone; a journal that had to be replaced is gone with all in it."""
        found: list[tuple[st.WorkflowRun, Flyer | None]] = []
        for number in range(RUNS):
            run, flyer = f"Delivery/{number}", f"Flyer/{number % DRONES}"
            if not world.replaced(run):
                found.append((world.state(run), None if world.replaced(flyer) else world.state(flyer, Flyer)))
        return found

    def parcels_are_dropped_once() -> bool:
        dropped = [parcel for number in range(DRONES) for parcel in world.state(f"Flyer/{number}", Flyer).dropped]
        return len(dropped) == len(set(dropped))

    def ends_are_true() -> bool:
        for run, flyer in runs():
            parcel = run.last(Deliver).parcel
            out = flyer is not None and parcel in flyer.dropped and parcel not in flyer.returned
            if flyer is not None and run.status in ("done", "undone") and out != (run.status == "done"):
                return False
        return True

    world.always(parcels_are_dropped_once)
    world.eventually(lambda: all(run.ended for run, _ in runs()), 600, name="every run ends")
    world.eventually(ends_are_true, 600)
