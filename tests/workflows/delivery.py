"""A delivery by drone, as a workflow: what the tests of workflows fly."""

import stigmergy as st


class Deliver(st.Command):
    drone: str
    parcel: str


class PlanRoute(st.Work):
    drone: str


class RoutePlanned(st.Event):
    legs: int


class TakeOff(st.Command):
    parcel: str


class LandHere(st.Command):
    pass


class FlyTo(st.Command):
    legs: int


class ReleaseParcel(st.Command):
    parcel: str


class ReturnParcel(st.Command):
    parcel: str


class FlyHome(st.Command):
    pass


class Airborne(st.Event):
    pass


class Arrived(st.Event):
    pass


class ObstacleDetected(st.Event):
    what: str


class ParcelDropped(st.Event):
    parcel: str


class ParcelReturned(st.Event):
    parcel: str


class Landed(st.Event):
    pass


class Flying(st.Event):
    pass


class Drone(st.Agent):
    steps: st.Steps = st.Steps()
    state: str = "ground"
    dropped: tuple[str, ...] = ()

    @st.decide
    def take_off(self, command: TakeOff) -> st.Events:
        if self.state != "ground":
            st.reject("not on the ground")
        yield Airborne()

    @st.decide
    def land(self, command: LandHere) -> st.Events:
        yield Landed()

    @st.decide
    def fly(self, command: FlyTo) -> st.Events:
        yield Flying()

    @st.decide
    def release(self, command: ReleaseParcel) -> st.Events:
        if command.parcel == "stuck":
            st.reject("the hook does not open")
        yield ParcelDropped(parcel=command.parcel)

    @st.decide
    def take_back(self, command: ReturnParcel) -> st.Events:
        yield ParcelReturned(parcel=command.parcel)

    @st.decide
    def home(self, command: FlyHome) -> st.Events:
        yield Landed()

    @st.evolve
    def airborne(self, event: Airborne) -> None:
        self.state = "air"

    @st.evolve
    def drop(self, event: ParcelDropped) -> None:
        self.dropped = (*self.dropped, event.parcel)

    @st.evolve
    def landed(self, event: Landed) -> None:
        self.state = "ground"


delivery = st.Workflow(
    "Delivery",
    Deliver,
    st.Step(PlanRoute, done=RoutePlanned, at="gateway"),
    st.Step(TakeOff, done=Airborne, undo=LandHere, undone=Landed, within_s=30),
    st.Step(FlyTo, done=Arrived, again_from=PlanRoute, on=ObstacleDetected, tries=3, within_s=600),
    st.Step(ReleaseParcel, done=ParcelDropped, undo=ReturnParcel),
    st.Step(FlyHome, done=Landed),
    to="Drone/{drone}",
)

fleet = st.Fleet("delivery", agents=[Drone], workflows=[delivery])


@fleet.worker(PlanRoute)
async def plan(order: st.Order[PlanRoute]) -> RoutePlanned:
    return RoutePlanned(legs=3)
