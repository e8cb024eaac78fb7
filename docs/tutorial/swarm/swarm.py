"""Drones that deliver parcels."""

import asyncio  # for the actuators, below

import stigmergy as st


class Take(st.Command):
    drone: str


class PutBack(st.Command):
    drone: str


class Close(st.Command):
    pass


class Assigned(st.Event):
    drone: str  # "" if it is put back


class Closed(st.Event):
    pass


class Job(st.Agent):
    steps: st.Steps = st.Steps()  # workflows may command it
    drone: str = ""
    closed: bool = False

    @st.decide
    def take(self, command: Take) -> st.Events:
        if self.drone:
            st.reject(f"taken by {self.drone}")
        yield Assigned(drone=command.drone)

    @st.decide
    def put_back(self, command: PutBack) -> st.Events:
        if command.drone == self.drone and not self.closed:
            yield Assigned(drone="")

    @st.decide
    def close(self, command: Close) -> st.Events:
        yield Closed()

    @st.evolve
    def on_assigned(self, event: Assigned) -> None:
        self.drone = event.drone

    @st.evolve
    def on_closed(self, event: Closed) -> None:
        self.closed = True


PLACES = {"depot": (0.0, 0.0), "harbour": (3.0, 1.0), "hill": (1.0, 4.0)}


class Deliver(st.Command):
    drone: str
    job: str
    to: str


class Carry(st.Command):
    to: str


class Departed(st.Event):
    to: str


class Arrived(st.Event):
    drone: str
    place: str


class FlyTo(st.Action):
    place: str


class Bill(st.Action):
    job: str


class Charge(st.Action):
    drone: str


class Board(st.Agent):
    places: st.Shared[st.ORMap[str, st.LWWRegister[str]]] = st.shared(by="swarm")

    @st.decide
    def seen(self, event: Arrived) -> st.Events:
        yield self.places[event.drone].set(event.place)


class Drone(st.Agent):
    steps: st.Steps = st.Steps()
    place: str = "depot"
    flies: bool = False

    @st.decide
    def carry(self, command: Carry) -> st.Events:
        if self.flies:
            st.reject("it flies already")
        if command.to not in PLACES:
            st.reject(f"{command.to} is not on the map")
        yield Departed(to=command.to)

    @st.evolve
    def departed(self, event: Departed) -> None:
        self.flies = True

    @st.react
    def fly(self, event: Departed) -> st.Effects:
        yield FlyTo(place=event.to)

    @st.decide
    def flown(self, done: st.Done[FlyTo]) -> st.Events:  # when the actuator has returned
        yield Arrived(drone=self.id, place=done.action.place)

    @st.evolve
    def arrived(self, event: Arrived) -> None:
        self.place, self.flies = event.place, False

    @st.react
    def tell_board(self, event: Arrived) -> st.Effects:
        zone = self.id.partition("-")[0]  # north-1 is beside Board/north
        yield st.Tell(f"Board/{zone}", event)


delivery = st.Workflow(
    "Delivery",
    Deliver,
    st.Step(Take, done=Assigned, undo=PutBack, to="Job/{job}", within_s=30),
    st.Step(Carry, done=Arrived),
    st.Step(Close, done=Closed, to="Job/{job}"),
    st.Step(Bill),
    st.Step(st.Holding("pad", for_s=10, wait_s=600), name="Pad"),
    st.Step(Charge),
    to="Drone/{drone}",
)


def of_job(_: st.Event, origin: st.Origin) -> str | None:
    return origin.id if origin.agent.startswith("Job/") else None


class Jobs(st.View):
    job: st.Key[str]
    drone: str = ""
    closed: bool = False

    @st.project(key=of_job)
    def assigned(self, event: Assigned) -> None:
        self.drone = event.drone

    @st.project(key=of_job)
    def ended(self, event: Closed) -> None:
        self.closed = True


fleet = st.Fleet("swarm", agents=[Job, Drone, Board], workflows=[delivery], views=[Jobs], shards=4)
fleet.map(Drone, at=lambda drone: PLACES[drone.place], plane="xy")


@fleet.actuator(FlyTo)
async def fly_to(order: st.Order[FlyTo]) -> None:
    print(f"{order.agent} flies to {order.effect.place}", flush=True)
    await asyncio.sleep(3)


@fleet.actuator(Charge)
async def charge(order: st.Order[Charge]) -> None:
    print(f"{order.effect.drone} charges", flush=True)
    await asyncio.sleep(1)


BANK: dict[str, str] = {}


@fleet.actuator(Bill)
async def bill(order: st.Order[Bill]) -> None:
    BANK[order.key] = order.effect.job
    await asyncio.sleep(2)
