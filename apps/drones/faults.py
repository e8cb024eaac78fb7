"""What breaks in a run, each from a plan that the seed makes: drones, radios, links, processes, airspace.

drones      5 % of them lose their motors
radio       5 % of them lose their link, for 10 to 40 s
cut         the link of the last region to the broker is cut, for two minutes or a fifth of the run
dispatcher  kill -9 of dispatch-a or -b, which comes back after 15 s, as under systemd
node        kill -9 of the first region's node, which is started again at once
zone        a zone closes that drones fly through, with some of them inside

A cluster has no regions of its own; there, instead of cut, dispatcher and node:

frozen      a worker stands still for two minutes or a fifth of the run, as one that is cut off
worker      kill -9 of the worker that has more to do, with all that its shards have: dispatchers, sectors, drones
server      kill -9 of the server that leads the workers' leases: none can be renewed until another one leads
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
from collections.abc import Awaitable, Callable

from apps.drones.area import CELL_M, FLOOR_M, LEVELS_M, Point
from apps.drones.messages import ClosedZone
from apps.drones.node import DISPATCHERS
from apps.drones.run import Swarm, read_reports

FAILING_SHARE = RADIO_SHARE = 0.05
RADIO_S = (10.0, 40.0)
CUT_S_MAX, CUT_SHARE = 120.0, 0.2
BACK_S = 15.0
NOTICE_S, CLOSED_S_MIN = 20.0, 40.0
"""A zone is announced so long before it is closed, and closed for half a run, or so long."""
ZONE_M = 250.0
"""How far its corners are from its middle."""


async def break_drones(swarm: Swarm, chance: random.Random) -> None:
    """Motors fail, of drones that fly, spread over the run."""
    count = max(1, round(len(swarm.plan.names) * FAILING_SHARE))
    await _spread(swarm, chance, count, lambda drone: swarm.world.fail(drone, "motor"))
    swarm.say_fault(f"the last of {count} drones has lost its motors")


async def break_two(swarm: Swarm, chance: random.Random) -> None:
    """Motors of two drones that fly fail."""

    def harm(drone: str) -> None:
        swarm.world.fail(drone, "motor")
        swarm.say_fault(f"{drone} loses its motors in the air")

    await _spread(swarm, chance, 2, harm)


async def break_radios(swarm: Swarm, chance: random.Random) -> None:
    """Links are lost for a while."""
    count = max(1, round(len(swarm.plan.names) * RADIO_SHARE))
    await _spread(swarm, chance, count, lambda drone: swarm.world.fail(drone, "radio", chance.uniform(*RADIO_S)))
    swarm.say_fault(f"the last of {count} drones has lost its link")


async def _spread(swarm: Swarm, chance: random.Random, count: int, harm: Callable[[str], None]) -> None:
    """Harms so many drones, each once, one after the other between a tenth and nine tenths of the run."""
    run_s, harmed = swarm.options.minutes * 60, set[str]()
    times = sorted(chance.uniform(0.1, 0.9) * run_s for _ in range(count))
    for due_s in times:
        await _until(swarm, due_s)
        flying = [name for name, down in zip(swarm.plan.names, swarm.world.physics.down, strict=True) if not down]
        left = [name for name in flying or swarm.plan.names if name not in harmed]
        if left:
            drone = chance.choice(left)
            harmed.add(drone)
            harm(drone)


async def cut_region(swarm: Swarm, chance: random.Random) -> None:
    """The last region is on its own for a while."""
    assert swarm.link is not None
    run_s = swarm.options.minutes * 60
    for_s = min(CUT_S_MAX, run_s * CUT_SHARE)
    await _until(swarm, chance.uniform(0.2, 0.5) * run_s)
    region = f"r{swarm.plan.area.regions}"
    swarm.link.cut()
    swarm.world.announce_link(region, up=False)
    swarm.say_fault(f"the link of {region} to all others is cut, for {for_s:.0f} s")
    await swarm.sleep(for_s)
    swarm.link.restore()
    swarm.world.announce_link(region, up=True)
    swarm.say_fault(f"the link of {region} is back")


async def kill_dispatcher(swarm: Swarm, chance: random.Random) -> None:
    """One of two dispatchers of every zone dies: the node whose dispatchers give away the jobs of more zones."""
    await _until(swarm, chance.uniform(0.3, 0.6) * swarm.options.minutes * 60)
    last = {name: read_reports(swarm.folder, name)[-1:] for name in DISPATCHERS}
    zones = {name: sum(report["dispatching"] for report in reports) for name, reports in last.items()}
    name = max(DISPATCHERS, key=zones.__getitem__)
    (other,) = {*DISPATCHERS} - {name}
    node = swarm.nodes[name]
    await node.kill()
    swarm.say_fault(f"{name}, which serves {zones[name]} zones, is killed; {other} takes over")
    await asyncio.sleep(BACK_S)
    await node.start()
    swarm.say_fault(f"{node.name} is back")


async def kill_region(swarm: Swarm, chance: random.Random) -> None:
    """The computer of a whole region restarts; its aircraft do what they were told last."""
    await _until(swarm, chance.uniform(0.5, 0.8) * swarm.options.minutes * 60)
    node = swarm.nodes["r1"]
    await node.kill()
    swarm.world.announce_link("r1", up=False)
    swarm.say_fault(f"{node.name} is killed (kill -9) and starts again; its drones fly on as they were told last")
    began_t = swarm.world.now_t()
    await node.start()
    swarm.world.announce_link("r1", up=True)
    swarm.say_fault(f"{node.name} is back after {swarm.world.now_t() - began_t:.1f} s")


async def close_zone(swarm: Swarm, chance: random.Random) -> None:
    """A polygon with as many drones inside as there can be, and not over stands."""
    run_s = swarm.options.minutes * 60
    await _until(swarm, chance.uniform(0.25, 0.45) * run_s)
    middle = busiest(swarm)
    turned = chance.uniform(0.0, math.pi)
    corners = tuple(
        (
            middle[0] + ZONE_M * math.cos(turned + n * 2 * math.pi / 5),
            middle[1] + ZONE_M * math.sin(turned + n * 2 * math.pi / 5),
        )
        for n in range(5)
    )
    from_t = swarm.world.now_t() + NOTICE_S
    zone = ClosedZone("closed-1", corners, FLOOR_M, LEVELS_M[-1] + 5, from_t, from_t + max(run_s / 2, CLOSED_S_MIN))
    await swarm.close_zone(zone)
    size = f"{2 * ZONE_M:.0f} m of airspace around {middle[0]:.0f}, {middle[1]:.0f}"
    swarm.say_fault(f"{zone.name}: {size} are closed, with {NOTICE_S:.0f} s of notice")


def busiest(swarm: Swarm) -> Point:
    """Where most drones fly within the zone that closes, and no stand is below it; the border of zones if nobody is."""
    area, physics = swarm.plan.area, swarm.world.physics
    flying = physics.position[:2, ~physics.down & (physics.position[2] >= FLOOR_M)]
    away_m = (area.stands + 1) * CELL_M + ZONE_M
    from_middle = abs(flying % area.zone_m - area.zone_m / 2).max(axis=0)
    places = [(float(x), float(y)) for x, y in flying[:, from_middle > away_m].T]

    def near(place: Point) -> int:
        return int(((flying[0] - place[0]) ** 2 + (flying[1] - place[1]) ** 2 < (ZONE_M * 0.8) ** 2).sum())

    return max(places, key=near, default=(area.zone_m, area.zone_m / 2))


async def _until(swarm: Swarm, seconds: float) -> None:
    """Waits until so much of the run has passed."""
    await swarm.sleep(seconds - swarm.passed_s)


async def freeze_worker(swarm: Swarm, chance: random.Random) -> None:
    """Others take its shards over; when it goes on it has to find out before it does anything."""
    run_s = swarm.options.minutes * 60
    for_s = min(CUT_S_MAX, run_s * CUT_SHARE)
    await _until(swarm, chance.uniform(0.05, 0.1) * run_s)  # it is back before another one is killed
    name = swarm.busiest_worker()
    swarm.signal_process(name, signal.SIGSTOP)
    swarm.say_fault(f"{name} of the cluster stands still for {for_s:.0f} s")
    try:
        await swarm.sleep(for_s)
    finally:
        swarm.signal_process(name, signal.SIGCONT)


async def kill_worker(swarm: Swarm, chance: random.Random) -> None:
    """Its shards move to the other worker."""
    await _until(swarm, chance.uniform(0.35, 0.5) * swarm.options.minutes * 60)
    _kill(swarm, swarm.busiest_worker())


async def kill_server(swarm: Swarm, chance: random.Random) -> None:
    """Two of three servers go on."""
    await _until(swarm, chance.uniform(0.6, 0.8) * swarm.options.minutes * 60)
    _kill(swarm, await swarm.leading_server())


def _kill(swarm: Swarm, name: str) -> None:
    swarm.signal_process(name, signal.SIGKILL)
    swarm.say_fault(f"{name} of the cluster is killed (kill -9)")


FAULTS: dict[str, Callable[[Swarm, random.Random], Awaitable[None]]] = {
    "drones": break_drones,
    "two-drones": break_two,
    "radio": break_radios,
    "cut": cut_region,
    "dispatcher": kill_dispatcher,
    "node": kill_region,
    "zone": close_zone,
    "frozen": freeze_worker,
    "worker": kill_worker,
    "server": kill_server,
}
OF_NODES, OF_CLUSTER = ("cut", "dispatcher", "node"), ("frozen", "worker", "server")


def impossible(names: tuple[str, ...], is_cluster: bool) -> str:
    """Why these cannot be had, if they were named one by one; of all of them, those are taken that there can be."""
    left_out = OF_NODES if is_cluster else OF_CLUSTER
    wrong = ", ".join(name for name in names if name in left_out)
    if not wrong or set(OF_NODES + OF_CLUSTER) <= set(names):
        return ""
    instead = f"a cluster has {', '.join(OF_CLUSTER)} instead" if is_cluster else "add --cluster"
    return f"{wrong}: {instead}"


async def all_of(swarm: Swarm) -> None:
    """Everything that is to break, at the same time; each fault has its own dice."""
    left_out = OF_NODES if swarm.is_cluster else OF_CLUSTER
    wanted = [(name, fault) for name, fault in FAULTS.items() if name in swarm.options.faults and name not in left_out]
    await asyncio.gather(*(fault(swarm, random.Random(f"{swarm.plan.seed}.{name}")) for name, fault in wanted))
