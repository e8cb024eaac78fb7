"""What breaks in a run, each from a plan that the seed makes: drones, radios, links, processes, airspace.

drones      5 % of them lose their motors
radio       5 % of them lose their link, for 10 to 40 s
cut         the link of the last region to the broker is cut, for two minutes or a fifth of the run
dispatcher  kill -9 of dispatch-a, which comes back after 15 s, as under systemd
node        kill -9 of the first region's node, which is started again at once
zone        a zone closes that drones fly through, with some of them inside
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable

from apps.drones.area import CELL_M, FLOOR_M, LEVELS_M, Point
from apps.drones.messages import ClosedZone
from apps.drones.node import DISPATCHERS
from apps.drones.run import Swarm

FAILING_SHARE = RADIO_SHARE = 0.05
RADIO_S = (10.0, 40.0)
CUT_S_MAX, CUT_SHARE = 120.0, 0.2
BACK_S = 15.0
NOTICE_S = 20.0
"""A zone is announced so long before it is closed."""
ZONE_M = 250.0
"""How far its corners are from its middle."""


async def break_drones(swarm: Swarm, chance: random.Random) -> None:
    """Motors fail, of drones that fly, spread over the run."""
    count = max(1, round(len(swarm.plan.names) * FAILING_SHARE))
    await _spread(swarm, chance, count, lambda drone: swarm.world.fail(drone, "motor"))
    swarm.outcome.faults.append(f"{count} drones lost their motors")


async def break_two(swarm: Swarm, chance: random.Random) -> None:
    """Motors of two drones that fly fail."""
    await _spread(swarm, chance, 2, lambda drone: swarm.world.fail(drone, "motor"))
    swarm.outcome.faults.append("2 drones lost their motors")


async def break_radios(swarm: Swarm, chance: random.Random) -> None:
    """Links are lost for a while."""
    count = max(1, round(len(swarm.plan.names) * RADIO_SHARE))
    await _spread(swarm, chance, count, lambda drone: swarm.world.fail(drone, "radio", chance.uniform(*RADIO_S)))
    swarm.outcome.faults.append(f"{count} drones lost their links")


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
    swarm.link.cut()
    swarm.say(f"the link of the last region is cut for {for_s:.0f} s")
    await swarm.sleep(for_s)
    swarm.link.restore()
    swarm.outcome.faults.append(f"the link of the last region was cut for {for_s:.0f} s")


async def kill_dispatcher(swarm: Swarm, chance: random.Random) -> None:
    """One of two dispatchers of every zone dies."""
    await _until(swarm, chance.uniform(0.3, 0.6) * swarm.options.minutes * 60)
    node = swarm.nodes[DISPATCHERS[0]]
    await node.kill()
    swarm.say(f"kill -9 of {node.name}")
    await asyncio.sleep(BACK_S)
    await node.start()
    swarm.outcome.faults.append(f"{node.name} was killed and was back after {BACK_S:.0f} s")


async def kill_region(swarm: Swarm, chance: random.Random) -> None:
    """The computer of a whole region restarts; its aircraft do what they were told last."""
    await _until(swarm, chance.uniform(0.5, 0.8) * swarm.options.minutes * 60)
    node = swarm.nodes["r1"]
    await node.kill()
    swarm.say(f"kill -9 of {node.name}")
    began_t = swarm.world.now_t()
    await node.start()
    swarm.outcome.faults.append(f"{node.name} was killed and was back after {swarm.world.now_t() - began_t:.1f} s")


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
    now_t = swarm.world.now_t()
    zone = ClosedZone("closed-1", corners, FLOOR_M, LEVELS_M[-1] + 5, now_t + NOTICE_S, now_t + run_s / 2)
    await swarm.close_zone(zone)
    swarm.say(f"{zone.name} closes around {middle[0]:.0f}, {middle[1]:.0f}")
    swarm.outcome.faults.append("a zone was closed")


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


async def kill_worker(swarm: Swarm, chance: random.Random) -> None:
    """Half of the shards move to the other worker."""
    await _kill_in_cluster(swarm, "worker-1", chance.uniform(0.3, 0.5))


async def kill_server(swarm: Swarm, chance: random.Random) -> None:
    """Two of three servers go on."""
    await _kill_in_cluster(swarm, "n2", chance.uniform(0.6, 0.8))


async def _kill_in_cluster(swarm: Swarm, name: str, share: float) -> None:
    await _until(swarm, share * swarm.options.minutes * 60)
    swarm.kill_process(name)
    swarm.say(f"kill -9 of {name}")
    swarm.outcome.faults.append(f"{name} of the cluster was killed")


FAULTS: dict[str, Callable[[Swarm, random.Random], Awaitable[None]]] = {
    "drones": break_drones,
    "two-drones": break_two,
    "radio": break_radios,
    "cut": cut_region,
    "dispatcher": kill_dispatcher,
    "node": kill_region,
    "zone": close_zone,
    "worker": kill_worker,
    "server": kill_server,
}
OF_NODES, OF_CLUSTER = ("cut", "dispatcher", "node"), ("worker", "server")


async def all_of(swarm: Swarm) -> None:
    """Everything that is to break, at the same time; each fault has its own dice."""
    left_out = OF_NODES if swarm.is_cluster else OF_CLUSTER
    wanted = [(name, fault) for name, fault in FAULTS.items() if name in swarm.options.faults and name not in left_out]
    await asyncio.gather(*(fault(swarm, random.Random(f"{swarm.plan.seed}.{name}")) for name, fault in wanted))
