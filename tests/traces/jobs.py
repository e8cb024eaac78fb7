"""A fleet with a job that goes through everything: a tower tells a drone, which flies and says that it has."""

import asyncio

import stigmergy as st


class Dispatch(st.Command):
    drone: str
    job: str


class Dispatched(st.Event):
    drone: str
    job: str


class Go(st.Event):
    job: str


class Fly(st.Action):
    job: str


class Flown(st.Event):
    job: str


class Tower(st.Agent):
    jobs: int = 0
    flown: tuple[str, ...] = ()

    @st.decide
    def dispatch(self, command: Dispatch) -> st.Events:
        if command.job == "never":
            st.reject("no such job")
        if command.job == "broken":
            raise RuntimeError("over its own feet")
        yield Dispatched(drone=command.drone, job=command.job)

    @st.evolve
    def dispatched(self, event: Dispatched) -> None:
        self.jobs += 1

    @st.react
    def go(self, event: Dispatched) -> st.Effects:
        yield st.Tell(event.drone, Go(job=event.job))

    @st.evolve
    def done(self, event: Flown) -> None:
        self.flown = (*self.flown, event.job)


class Drone(st.Agent):
    flying: str = ""
    flown: int = 0

    @st.evolve
    def going(self, event: Go) -> None:
        self.flying = event.job

    @st.react
    def fly(self, event: Go) -> st.Effects:
        yield Fly(job=event.job)

    @st.decide
    def has_flown(self, done: st.Done[Fly]) -> st.Events:
        yield Flown(job=done.action.job)

    @st.evolve
    def landed(self, event: Flown) -> None:
        self.flying, self.flown = "", self.flown + 1

    @st.react
    def tell(self, event: Flown) -> st.Effects:
        yield st.Tell("Tower/t", event)
        yield st.Publish("flown", event)


class Flights(st.View):
    job: st.Key[str]
    count: int = 0

    @st.project
    def flown(self, event: Flown) -> None:
        self.count += 1


def make_fleet(settings: st.Settings | None = None, *, shards: int = 1) -> st.Fleet:
    fleet = st.Fleet("jobs", agents=[Tower, Drone], shards=shards, settings=settings or st.Settings(), views=[Flights])

    @fleet.actuator(Fly)
    async def fly(order: st.Order[Fly]) -> None:
        await asyncio.sleep(0.02)

    return fleet


fleet = make_fleet()

JOB = [
    "Tower Dispatch",
    "commit",
    "tell Go",
    "Drone Go",
    "commit",
    "action Fly",
    "actuator Fly",
    "Drone Done.Fly",
    "commit",
    "tell Flown",
    "publish Flown",
    "Tower Flown",
    "commit",
]
"""The spans of one job."""
