"""Which drone for which job. Pure: figures in, pairs out; the same figures always give the same pairs.

The cost of a pair is in seconds: how long until the parcel is picked up, how late it would be, weighed by priority, and
a little for a battery that is left with no margin. What a drone would refuse is never a pair: a parcel too heavy for
it, a tour that its battery does not last for (`flight.needed_percent`, which the drone goes by itself), a job that it
has returned lately.

If there are more jobs than drones, it matters which of them wait. So each job has an urgency, which is taken off the
cost of all its pairs: by priority, by how little time is left, and by how long it has waited, so that none waits for
ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from apps.drones.area import Point
from apps.drones.flight import RESERVE_PERCENT, flight_s, length_m, needed_percent
from apps.drones.messages import DroneReady, JobOpened, Match, Matched, Site
from stigmergy import Order

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float64]]

LATE_SHARE = 1.0
"""A second too late costs so many seconds for each step of priority."""
MARGIN_PERCENT = 20.0
"""With more than this to spare, the battery does not matter."""
PERCENT_S = 3.0
"""A percent below it costs so many seconds."""
PRIORITY_S = 60.0
"""A step of priority is worth so many seconds of flight."""
HURRY_S = 600.0
"""A job becomes more urgent, second by second, when it has less time to spare than this; up to twice as much."""
GREEDY_JOBS_MAX = 50
"""The greedy rule runs inside a handler, and blocks its shard meanwhile."""

Pairs = tuple[tuple[str, str], ...]
"""Names of jobs and of drones."""


def tour_m(job: JobOpened, drone: DroneReady) -> float:
    """To the pick-up, to the customer, and back."""
    return length_m([(drone.x, drone.y), _at(job.pickup), _at(job.drop), (drone.x, drone.y)])


def spare_percent(job: JobOpened, drone: DroneReady) -> float:
    """What the tour leaves in the battery, above the reserve. A drone refuses a job if it is less than nothing."""
    return drone.battery - RESERVE_PERCENT - needed_percent(tour_m(job, drone), job.kg, stops=2)


def can_fly(job: JobOpened, drone: DroneReady) -> bool:
    """Whether the drone would take the job, as far as a dispatcher knows."""
    return job.kg <= drone.capacity_kg and drone.drone not in job.not_by and spare_percent(job, drone) >= 0.0


def reach_s(job: JobOpened, drone: DroneReady) -> float:
    """How long it takes until the drone is above the pick-up."""
    return flight_s(math.dist((drone.x, drone.y), _at(job.pickup)))


def delivery_s(job: JobOpened, drone: DroneReady) -> float:
    """How long it takes until the parcel is in the box."""
    return flight_s(length_m([(drone.x, drone.y), _at(job.pickup), _at(job.drop)]), stops=1)


def urgency_s(job: JobOpened, now_t: float) -> float:
    """What it is worth, in seconds of flight, that this job and not another one gets a drone now."""
    left_s = job.deadline_t - now_t - flight_s(math.dist(_at(job.pickup), _at(job.drop)), stops=1)
    hurry_s = min(max(HURRY_S - left_s, 0.0), 2.0 * HURRY_S)
    return job.priority * (PRIORITY_S + hurry_s) + max(now_t - job.since_t, 0.0)


def cost_s(job: JobOpened, drone: DroneReady, now_t: float) -> float:
    """The cost of a pair; infinite if the drone would refuse."""
    if not can_fly(job, drone):
        return math.inf
    late_s = max(now_t + delivery_s(job, drone) - job.deadline_t, 0.0)
    thin = max(MARGIN_PERCENT - spare_percent(job, drone), 0.0)
    return reach_s(job, drone) + LATE_SHARE * job.priority * late_s + PERCENT_S * thin


def solve(jobs: Sequence[JobOpened], drones: Sequence[DroneReady], now_t: float) -> tuple[Pairs, float]:
    """The best matching there is, and what its pairs cost: as many pairs as can be, of the least cost together."""
    costs = _costs(jobs, drones, now_t)
    worth = [[urgency_s(job, now_t)] for job in jobs]
    chosen = _assign(costs, costs - worth if jobs else costs)
    pairs = tuple((jobs[i].job, drones[j].drone) for i, j in chosen)
    return pairs, float(sum(costs[i, j] for i, j in chosen))


def greedy(jobs: Sequence[JobOpened], drones: Sequence[DroneReady], now_t: float) -> tuple[Pairs, float]:
    """The most urgent job first, each with the drone that costs it least. Quick enough for a handler."""
    urgent = sorted(jobs, key=lambda job: (-urgency_s(job, now_t), job.job))[:GREEDY_JOBS_MAX]
    return _one_by_one(urgent, drones, lambda job, drone: cost_s(job, drone, now_t))


def nearest(jobs: Sequence[JobOpened], drones: Sequence[DroneReady]) -> tuple[Pairs, float]:
    """What others are measured against: first come, first served, by the nearest drone that can fly it."""
    return _one_by_one(
        sorted(jobs, key=lambda job: (job.since_t, job.job)),
        drones,
        lambda job, drone: reach_s(job, drone) if can_fly(job, drone) else math.inf,
    )


def lower_bound_s(jobs: Sequence[JobOpened], drones: Sequence[DroneReady]) -> tuple[int, float]:
    """How many of these jobs can be flown at once, one by each drone, and the least sum of `delivery_s` for so many.

    No rule that gives each drone one job at most can serve more, or as many in less.
    """
    table = [[delivery_s(job, drone) if can_fly(job, drone) else math.inf for drone in drones] for job in jobs]
    if not table or not drones:
        return 0, 0.0
    import numpy as np

    costs = np.array(table)
    chosen = _assign(costs, costs)
    return len(chosen), float(sum(costs[i, j] for i, j in chosen))


async def match(order: Order[Match]) -> Matched:
    """The worker. It runs in place: 200 jobs and 200 drones take some milliseconds. Call `load` beforehand."""
    work = order.effect
    pairs, cost = solve(work.jobs, work.drones, work.now_t)
    return Matched(round=work.round, pairs=pairs, by="solver", cost=cost)


def load() -> None:
    """Imports the solver, which takes a second: do it before agents run."""
    import scipy.optimize  # noqa: F401


def _one_by_one(
    jobs: Sequence[JobOpened], drones: Sequence[DroneReady], cost: Callable[[JobOpened, DroneReady], float]
) -> tuple[Pairs, float]:
    left, pairs, total = list(drones), [], 0.0
    for job in jobs:
        best, least = -1, math.inf
        for place, drone in enumerate(left):
            if (here := cost(job, drone)) < least:
                best, least = place, here
        if best >= 0:
            pairs.append((job.job, left.pop(best).drone))
            total += least
    return tuple(pairs), total


def _assign(costs: Matrix, ranks: Matrix) -> list[tuple[int, int]]:
    """The assignment of least rank among those with the most pairs of finite cost."""
    if not costs.size:
        return []
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    possible = np.isfinite(costs)
    if not possible.any():
        return []
    known = ranks[possible]
    # One pair that cannot be has to outweigh all the rest: then there are as few of them as there can be.
    never = (known.max() - known.min() + 1.0) * (min(costs.shape) + 1)
    rows, columns = linear_sum_assignment(np.where(possible, ranks - known.min(), never))
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if possible[i, j]]


def _costs(jobs: Sequence[JobOpened], drones: Sequence[DroneReady], now_t: float) -> Matrix:
    """`cost_s` of all pairs at once."""
    import numpy as np

    if not jobs or not drones:
        return np.empty((len(jobs), len(drones)))
    at = np.array([(drone.x, drone.y) for drone in drones])
    pickup, drop = np.array([_at(job.pickup) for job in jobs]), np.array([_at(job.drop) for job in jobs])
    there = np.hypot(*(pickup[:, None, :] - at[None, :, :]).transpose(2, 0, 1))
    back = np.hypot(*(drop[:, None, :] - at[None, :, :]).transpose(2, 0, 1))
    between = np.hypot(*(drop - pickup).T)[:, None]
    kg, priority, deadline_t = np.array([(job.kg, job.priority, job.deadline_t) for job in jobs]).T[:, :, None]
    # The functions of `flight` are sums and products: they take a matrix as well as a number.
    flying: Any = flight_s
    needs: Any = needed_percent
    spare = np.array([drone.battery for drone in drones]) - RESERVE_PERCENT - needs(there + between + back, kg, 2)
    late_s = np.maximum(now_t + flying(there + between, 1) - deadline_t, 0.0)
    costs = flying(there) + LATE_SHARE * priority * late_s + PERCENT_S * np.maximum(MARGIN_PERCENT - spare, 0.0)
    allowed = (spare >= 0.0) & (kg <= np.array([drone.capacity_kg for drone in drones]))
    column = {drone.drone: j for j, drone in enumerate(drones)}
    for i, job in enumerate(jobs):
        for name in job.not_by:
            if name in column:
                allowed[i, column[name]] = False
    return np.where(allowed, costs, np.inf)


def _at(site: Site) -> Point:
    return site.x, site.y
