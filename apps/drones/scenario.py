"""A small swarm in the simulator: `stigmergy sim drones` breaks everything around it and looks at what really happens.

Two zones, one in each of two regions, with three drones and one charging pad each; two dispatchers for each zone; jobs
within a zone and across the border. Nodes crash, lose power and disks, are cut off from each other; drones lose motors,
radios and computers, and begin with low batteries; the radio of a whole zone is jammed; airspace closes at the border.
The world is not broken: it is the witness. What must hold is judged by where drones and parcels are.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

from msgspec import structs

from apps.drones.airspace import Airspace
from apps.drones.airways import closed, inside
from apps.drones.area import (
    FLOOR_M,
    LEVELS_M,
    SEPARATION_HEIGHT_M,
    SEPARATION_M,
    Area,
    cell_of,
    centre_of,
    is_reserved,
    stand_of,
)
from apps.drones.dispatcher import Dispatcher
from apps.drones.drone import Drone
from apps.drones.fleet import make_fleet
from apps.drones.flyer import PARKED
from apps.drones.job import ENDED, Job
from apps.drones.messages import ArmBox, ClosedZone, CloseZone, Commission, Fix, OpenDesk, PlaceJob, Site
from apps.drones.physics import Kind
from apps.drones.world import World
from stigmergy import Action, Unreachable
from stigmergy.sim import ALL, simulate
from stigmergy.sim import World as Simulated

AREA = Area(columns=2, rows=1, zone_m=840.0, regions=2, stands=3, pads=1)
DRONES_PER_ZONE = 3
JOBS = 5
FOR_S, HEAL_S = 60.0, 1500.0
DONE_S = 1400.0
"""So soon after the heal every job has ended."""
REFUSED_S = 60.0
"""A job that is not there so long after the heal was refused: all links are up, and it is asked for until then."""
STEP_S = 0.2
FAILING = 0.15
"""The chance of each drone to lose its motors, or its radio or computer for a while, during the run."""
LOW = 0.3
"""The chance of each drone to begin with a battery that it has to charge, or will have to."""
JAMMED, CLOSING = 0.4, 0.7
"""The chance that the radio of a zone is jammed, and that airspace closes."""
CLOSED_S, CLOSED_M = 240.0, 130.0
"""How long a zone is closed, and how far its corners are from its middle."""
LEAVE_S = 45.0
"""So soon after a drone could be told of a closed zone, with all links up, it is not in it any more."""
BRAKE_S = 15.0
"""So soon after a drone knows of a closed zone it does not enter it any more."""
CALM_S = 30.0
"""So long after the heal every node is back, and every drone and sector knows the others."""
NOTICED_S = 8.0
"""So soon after a drone has failed in the air its job knows, if nothing else is broken."""
START_T = 1_767_225_600.0
"""When the simulator's clocks begin."""
BREAKS: dict[Kind, float] = {"motor": math.inf, "radio": 30.0, "computer": 20.0}
"""What breaks in the air, and for how long."""


class Worlds:
    """The worlds of all simulations in this process, each found by its event loop."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, World] = {}

    def begin(self, world: World) -> None:
        """A simulation has this world. Those of simulations that are over go."""
        self._by_loop = {loop: kept for loop, kept in self._by_loop.items() if not loop.is_closed()}
        self._by_loop[asyncio.get_running_loop()] = world

    def _world(self) -> World:
        world = self._by_loop.get(asyncio.get_running_loop())
        if world is None:
            raise Unreachable("the world has not begun")
        return world

    def fix(self, drone: str) -> Fix | None:
        """As `Controllers` has it."""
        world = self._by_loop.get(asyncio.get_running_loop())
        return None if world is None else world.fix(drone)

    def now_t(self) -> float:
        """As `Controllers` has it."""
        return self._world().now_t()

    async def order(self, drone: str, action: Action, key: str, token: int) -> None:
        """As `Controllers` has it."""
        await self._world().order(drone, action, key, token)

    async def arm_box(self, action: ArmBox, key: str) -> None:
        """As `Controllers` has it."""
        await self._world().arm_box(action, key)


worlds = Worlds()
fleet = make_fleet(worlds, sensors=True)

ZONES = AREA.zones()
NAMES = [f"{zone}-{number:03d}" for zone in ZONES for number in range(DRONES_PER_ZONE)]
NODES = {
    "ground": ["Job/*", "Airspace/*", "Place/gateway*"],
    "dispatch-a": ["Dispatcher/*.a"],
    "dispatch-b": ["Dispatcher/*.b"],
    "r1": ["Drone/r1-*", "Sector/*@r1", "Delivery/r1-*", "Leg/r1-*"],
    "r2": ["Drone/r2-*", "Sector/*@r2", "Delivery/r2-*", "Leg/r2-*"],
}


def addresses(jobs: int) -> list[str]:
    """All agents that are there from the start, and so many jobs."""
    sectors = [f"Sector/{zone}@{region}" for zone in ZONES for region in ("r1", "r2")]
    dispatchers = [f"Dispatcher/{zone}.{desk}" for zone in ZONES for desk in "ab"]
    placed = [f"Job/{ZONES[number % len(ZONES)]}.J{number}" for number in range(jobs)]
    return [*(f"Drone/{name}" for name in NAMES), *sectors, *dispatchers, "Airspace/main", *placed]


class Flight:
    """One run: customers, what breaks in the air, and all that must hold."""

    def __init__(self, simulated: Simulated) -> None:
        self._simulated = simulated
        self._world = World(AREA, NAMES, simulated.seed, START_T)
        self._began_s = simulated.now_s
        self._jobs = [address for address in simulated.agents if address.startswith("Job/")]
        self._placed: list[str] = []
        self._healed_s: float | None = None
        self._closed: ClosedZone | None = None
        self._knows_s: dict[str, float] = {}
        """Since when each drone knows of the closed zone, by its log."""
        self._reached_s = dict.fromkeys(NAMES, 0.0)
        """When each drone was last to be told something in vain."""
        self._inside: set[str] = set()
        self._failed: list[tuple[float, str, str, int]] = []
        """When a drone has failed with everything else well, its job and its token."""
        self.findings: list[str] = []

    async def run(self) -> None:
        """Lets the world turn until every job has ended."""
        simulated, world, chance = self._simulated, self._world, self._simulated.chance
        worlds.begin(world)
        due_s = sorted(chance.uniform(5.0, FOR_S) for _ in self._jobs)
        breaks = sorted(
            (chance.uniform(20.0, FOR_S + 60.0), name, chance.choice(list(BREAKS)))
            for name in NAMES
            if chance.random() < FAILING
        )
        for i in range(len(NAMES)):
            if chance.random() < LOW:
                world.physics.battery[i] = chance.uniform(40.0, 60.0)
        jams_s = chance.uniform(20.0, FOR_S + 120.0) if chance.random() < JAMMED else math.inf
        jammed, jammed_s = chance.choice(ZONES), chance.uniform(20.0, 120.0)
        closes_s = chance.uniform(20.0, FOR_S + 180.0) if chance.random() < CLOSING else math.inf
        while not self._is_over():
            passed_s = simulated.now_s - self._began_s
            self._put_into_service()
            while due_s and due_s[0] <= passed_s:
                due_s.pop(0)
                self._place(self._jobs[len(self._placed)])
            while breaks and breaks[0][0] <= passed_s:
                _, name, kind = breaks.pop(0)
                self._note_failure(name)
                world.fail(name, kind, BREAKS[kind])
            if passed_s >= jams_s:
                jams_s = math.inf
                world.jam(jammed, jammed_s)
            if passed_s >= closes_s:
                closes_s = math.inf
                self._closed = self._zone()
            for _ in range(round(1.0 / STEP_S)):
                await asyncio.sleep(STEP_S)
                world.advance(START_T + simulated.now_s - self._began_s)
                self._look()

    def _put_into_service(self) -> None:
        """What an operator does: drones and dispatchers whose log knows nothing are told again."""
        known = {drone.id for drone in self._simulated.states(Drone) if drone.area is not None}
        for name in NAMES:
            if name not in known:
                zone, _, number = name.rpartition("-")
                home = Site(*stand_of(AREA, zone, int(number)))
                self._simulated.ask(f"Drone/{name}", Commission(AREA, home, 2.5))
        open_desks = {one.id for one in self._simulated.states(Dispatcher) if one.area is not None}
        for address in self._simulated.agents:
            kind, _, name = address.partition("/")
            if kind == "Dispatcher" and name not in open_desks:
                self._simulated.ask(address, OpenDesk(AREA))

        airspace = self._simulated.state("Airspace/main", Airspace)
        if self._closed is not None and closed(self._closed, self._world.now_t()) and not airspace.zones:
            self._simulated.ask("Airspace/main", CloseZone(AREA, self._closed))

    def _zone(self) -> ClosedZone:
        """A pentagon at the border of the two zones, beside the stands."""
        y, turned, now_t = self._simulated.chance.uniform(0.0, AREA.zone_m), 0.3, self._world.now_t()
        angles = [turned + n * 2 * math.pi / 5 for n in range(5)]
        corners = tuple((AREA.zone_m + CLOSED_M * math.cos(a), y + CLOSED_M * math.sin(a)) for a in angles)
        return ClosedZone("closed", corners, FLOOR_M, LEVELS_M[-1] + 5.0, now_t, now_t + CLOSED_S)

    def _place(self, address: str) -> None:
        zone = address.partition("/")[2].partition(".")[0]
        self._placed.append(address)
        order = PlaceJob(self._site(zone), self._site(""), kg=1.0, area=AREA, deadline_s=120.0)
        self._simulated.ask(address, order)

    def _site(self, zone: str) -> Site:
        """Where a customer lives: in this zone, or anywhere."""
        chance = self._simulated.chance
        while True:
            x = chance.uniform(0.0, AREA.columns * AREA.zone_m)
            y = chance.uniform(0.0, AREA.rows * AREA.zone_m)
            if not is_reserved(AREA, x, y) and zone in ("", AREA.zone_at(x, y)):
                return Site(*centre_of(x, y))

    # ------------------------------------------------------------------ what must hold

    def _note_failure(self, name: str) -> None:
        physics, i, now_s = self._world.physics, NAMES.index(name), self._simulated.now_s
        drone = self._simulated.state(f"Drone/{name}", Drone)
        is_well = physics.link[i] and not physics.computer_failed[i] and not physics.failed[i] and not physics.down[i]
        calm = self._healed_s is not None and now_s - self._healed_s > CALM_S
        if calm and is_well and drone.job and not drone.aborted and not drone.delivered:
            self._failed.append((now_s, name, drone.job, drone.token))

    def _look_for_failed(self) -> None:
        now_s = self._simulated.now_s
        for failed in [one for one in self._failed if now_s - one[0] > NOTICED_S]:
            self._failed.remove(failed)
            _, name, job, token = failed
            known = self._simulated.state(f"Job/{job}", Job)
            if (known.drone, known.token) == (name, token) and known.status not in ENDED:
                self.findings.append(f"{job} does not know after {NOTICED_S:g} s that {name} has failed")

    def _look(self) -> None:
        """Looks at where everybody really is."""
        physics, now_t = self._world.physics, self._world.now_t()
        places = [tuple(float(value) for value in physics.position[:, i]) for i in range(len(NAMES))]
        flying = [i for i in range(len(NAMES)) if not physics.down[i] and not physics.failed[i]]
        for n, i in enumerate(flying):
            for j in flying[n + 1 :]:
                (ax, ay, az), (bx, by, bz) = places[i], places[j]
                if math.hypot(ax - bx, ay - by) < SEPARATION_M and abs(az - bz) < SEPARATION_HEIGHT_M:
                    self.findings.append(f"{NAMES[i]} and {NAMES[j]} are too close at {now_t - START_T:.1f}")
        down = Counter(cell_of(x, y) for i, (x, y, _) in enumerate(places) if physics.down[i] and not physics.failed[i])
        self.findings += [
            f"{count} drones on cell {cell} at {now_t - START_T:.1f}" for cell, count in down.items() if count > 1
        ]
        self.findings += [
            f"{fact.drone}'s battery is empty in the air" for fact in self._world.facts if fact.fact == "battery_empty"
        ]

        self._look_for_failed()
        if self._closed is not None:
            self._look_into(self._closed, places, set(flying))

    def _look_into(self, zone: ClosedZone, places: list[tuple[float, ...]], flying: set[int]) -> None:
        """Who is in the closed zone, and since when they could know, or do know, that it is closed."""
        physics, now_t, now_s = self._world.physics, self._world.now_t(), self._simulated.now_s
        was, self._inside = self._inside, set()
        for i, name in enumerate(NAMES):
            if self._healed_s is None or not physics.link[i] or i not in flying or physics.computer_failed[i]:
                self._reached_s[name] = now_s
            knows = any(zone in known for known in self._simulated.state(f"Drone/{name}", Drone).zones.values())
            self._knows_s[name] = min(self._knows_s.get(name, math.inf), now_s) if knows else math.inf
            x, y, z = places[i]
            if i not in flying or not inside(zone, x, y, z, now_t):
                continue
            self._inside.add(name)
            could_s = max(self._reached_s[name], zone.from_t - START_T + self._began_s)
            if now_s - could_s > LEAVE_S:
                self.findings.append(f"{name} is in a closed zone at {now_t - START_T:.1f}")
            if name not in was and now_s - self._knows_s[name] > BRAKE_S:
                self.findings.append(f"{name} enters a zone at {now_t - START_T:.1f} that it knows to be closed")

    def nobody_too_close(self) -> bool:
        """Separation, cells, batteries, closed airspace: at every moment, seen from outside."""
        assert not self.findings, self.findings[0]
        return True

    def parcels_once(self) -> bool:
        """The box of a job has one parcel at most, and a job that says so has one."""
        drops = Counter(fact.job for fact in self._world.facts if fact.fact == "dropped")
        assert all(count == 1 for count in drops.values()), drops
        for job in self._simulated.states(Job):
            assert job.status != "delivered" or drops[job.id], f"{job.id} says that it was delivered, and was not"
        return True

    def jobs_end(self) -> bool:
        """After the heal every job ends; one whose log was lost is unknown."""
        if self._healed_s is None:
            self._healed_s = self._simulated.now_s
        if self._simulated.replaced("ground"):
            return True
        asked_s = self._simulated.now_s - self._healed_s
        over = (*ENDED, "") if asked_s > REFUSED_S else ENDED
        ended = {job.id for job in self._simulated.states(Job) if job.status in over}
        return all(address.partition("/")[2] in ended for address in self._jobs)

    def drones_are_down(self) -> bool:
        """In the end everybody is on the ground."""
        return all(drone.mode in PARKED for drone in self._simulated.states(Drone) if not self._is_lost(drone.id))

    def _is_lost(self, name: str) -> bool:
        return bool(self._world.physics.failed[NAMES.index(name)])

    def _is_over(self) -> bool:
        healed_s = self._healed_s
        if healed_s is None:
            return False
        return (self.jobs_end() and self.drones_are_down()) or self._simulated.now_s > healed_s + DONE_S


@simulate(
    fleet,
    agents=addresses(JOBS),
    nodes=NODES,
    seeds=200,
    faults=ALL,
    for_s=FOR_S,
    heal_s=HEAL_S,
    devices=True,
)
def fly(world: Simulated) -> None:
    """A small swarm: nobody too close, every parcel once, every job to its end, whatever breaks."""
    flight = Flight(world)
    world.script(flight.run)
    world.always(flight.nobody_too_close)
    world.always(flight.parcels_once)
    world.eventually(flight.jobs_end, within_s=DONE_S)
    world.eventually(flight.drones_are_down, within_s=DONE_S)


scenario: Any = structs.replace(vars(fly)["scenario"], names=addresses)
"""What `stigmergy sim drones` runs; `--agents` is the number of jobs."""
