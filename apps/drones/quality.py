"""How good the assignment is: the application's rule against the nearest drone, and against what no rule can beat.

    python -m apps.drones.quality --seed 7 --json

Both rules get the same customers and the same drones, in a model of dispatching alone: no agents, no air. A job waits
in its zone; every `ROUND_S` the rule chooses among the drones that are ready there; a job that nobody takes is handed
over to the next zone. How long a flight takes and what it costs the battery is what drones and dispatchers believe
(`flight`), charging is that of the world (`physics`). So the difference is that of the rules, and nothing else.

A static instance is one round with many jobs: the sum of delivery times against `lower_bound_s`, the least that any
assignment of one job to each drone can reach. The application gives up some of that on purpose: it weighs priority,
deadlines and batteries too.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, structs

from apps.drones.area import CELL_M, PADS_PER_ZONE, zone_of
from apps.drones.dispatcher import PATIENCE_S, ROUND_S
from apps.drones.drone import CHARGE_BELOW, CHARGED_AT
from apps.drones.flight import flight_s, needed_percent
from apps.drones.job import GRACE_S
from apps.drones.matching import Pairs, delivery_s, lower_bound_s, nearest, solve, tour_m
from apps.drones.messages import DroneReady, JobOpened
from apps.drones.physics import CHARGE_FULL_SHARE, CHARGE_PERCENT_S, Conditions
from apps.drones.plan import Customers, Plan, home_of, make_plan

CAPACITY_KG = 2.5
LOADS = (0.6, 0.8, 1.0)
"""Shares of the drones that the customers would keep busy; charging comes on top, so the last is too much."""
STATIC_ROUNDS, STATIC_JOBS, STATIC_DRONES = 20, 30, 40

Rule = Callable[[Sequence[JobOpened], Sequence[DroneReady], float], Pairs]


def by_solver(jobs: Sequence[JobOpened], drones: Sequence[DroneReady], now_t: float) -> Pairs:
    """What the application does."""
    return solve(jobs, drones, now_t)[0]


def by_nearest(jobs: Sequence[JobOpened], drones: Sequence[DroneReady], _: float) -> Pairs:
    """First come, first served, by the nearest drone that can fly it."""
    return nearest(jobs, drones)[0]


class Served(Struct, frozen=True):
    """What became of a job."""

    job: JobOpened
    delivered_t: float
    """Infinite if it was given up."""

    @property
    def is_late(self) -> bool:
        """Whether the customer had it after the deadline, or never."""
        return self.delivered_t > self.job.deadline_t

    @property
    def took_s(self) -> float:
        """From the order to the box."""
        return self.delivered_t - self.job.since_t


class Yard:
    """The drones and pads of a zone."""

    def __init__(self, drones: list[DroneReady]) -> None:
        self._parked = {one.drone: one for one in drones}
        self._away: list[tuple[float, str, float]] = []
        self._pads_free_t = [0.0] * PADS_PER_ZONE

    def ready(self, now_t: float) -> list[DroneReady]:
        """Those that can take a job now."""
        while self._away and self._away[0][0] <= now_t:
            _, name, battery = heapq.heappop(self._away)
            self._parked[name] = structs.replace(self._parked[name], battery=battery)
        away = {name for _, name, _ in self._away}
        return [one for name, one in self._parked.items() if name not in away]

    def send(self, name: str, job: JobOpened, now_t: float) -> float:
        """One of them flies the job, comes home, and charges if it has to. When the parcel is in the box."""
        drone = self._parked[name]
        metres = tour_m(job, drone)
        back_t = now_t + flight_s(metres, stops=2)
        battery = drone.battery - needed_percent(metres, job.kg, stops=2)
        if battery < CHARGE_BELOW:
            there_s = flight_s(CELL_M)
            begin_t = max(back_t + there_s, heapq.heappop(self._pads_free_t))
            end_t = begin_t + charge_s(battery, CHARGED_AT)
            heapq.heappush(self._pads_free_t, end_t)
            back_t, battery = end_t + there_s, CHARGED_AT
        heapq.heappush(self._away, (back_t, name, battery))
        return now_t + delivery_s(job, drone)


def charge_s(percent: float, to_percent: float) -> float:
    """How long a pad takes: constant up to 80 %, then ever slower."""
    falls = (1.0 - CHARGE_FULL_SHARE) / 20.0
    fast = max(min(to_percent, 80.0) - percent, 0.0)
    first, last = max(percent - 80.0, 0.0), max(to_percent - 80.0, 0.0)
    slow_s = math.log((1.0 - falls * first) / (1.0 - falls * last)) / falls if last > first else 0.0
    return (fast + slow_s) / CHARGE_PERCENT_S


def orders(plan: Plan, busy_share: float, minutes: float) -> list[JobOpened]:
    """What the customers of this plan want, in the order in which they say so; without what no drone can carry."""
    customers, chance = Customers(plan), random.Random(f"orders/{plan.seed}")
    per_s = plan.jobs_per_s(busy_share)
    made: list[JobOpened] = []
    t = chance.expovariate(per_s)
    while t < minutes * 60:
        name, job = customers.next_job()
        if job.kg <= CAPACITY_KG:
            made.append(
                JobOpened(
                    job=name,
                    zone=zone_of(name),
                    token=1,
                    pickup=job.pickup,
                    drop=job.drop,
                    kg=job.kg,
                    deadline_t=t + job.deadline_s,
                    priority=job.priority,
                    since_t=t,
                )
            )
        t += chance.expovariate(per_s)
    return made


def drones_of(plan: Plan) -> dict[str, list[DroneReady]]:
    """The drones of each zone at the beginning: at home, charged as the world has them."""
    chance = random.Random(f"batteries/{plan.seed}")
    found: dict[str, list[DroneReady]] = {zone: [] for zone in plan.zones()}
    for name in plan.names:
        battery = chance.uniform(Conditions().battery_low, 100.0)
        found[zone_of(name)].append(DroneReady(name, *home_of(plan.area, name), battery, CAPACITY_KG))
    return found


def dispatch(plan: Plan, jobs: Sequence[JobOpened], rule: Rule) -> list[Served]:
    """Flies all these jobs by one rule."""
    yards = {zone: Yard(drones) for zone, drones in drones_of(plan).items()}
    waiting: dict[str, list[tuple[JobOpened, float]]] = {zone: [] for zone in yards}
    served: list[Served] = []
    coming, now_t = list(reversed(jobs)), 0.0
    while coming or any(waiting.values()):
        now_t += ROUND_S
        while coming and coming[-1].since_t <= now_t:
            job = coming.pop()
            waiting[job.zone].append((job, now_t))
        for zone, queue in waiting.items():
            if not queue:
                continue
            taken: set[str] = set()
            by_name = {job.job: job for job, _ in queue}
            for name, drone in rule(list(by_name.values()), yards[zone].ready(now_t), now_t):
                served.append(Served(by_name[name], yards[zone].send(drone, by_name[name], now_t)))
                taken.add(name)
            queue[:] = [one for one in queue if one[0].job not in taken]
        _hand_over(plan, waiting, served, now_t)
    return served


def _hand_over(
    plan: Plan, waiting: dict[str, list[tuple[JobOpened, float]]], served: list[Served], now_t: float
) -> None:
    """What nobody takes goes on to the next zone in turn; what is far too late is given up."""
    for zone in list(waiting):
        others = [one for one in plan.area.neighbours(zone) if one in waiting]
        for job, since_t in list(waiting[zone]):
            if now_t > job.deadline_t + GRACE_S:
                served.append(Served(job, math.inf))
            elif others and now_t - since_t >= PATIENCE_S:
                turn = int((now_t - job.since_t) // PATIENCE_S) % len(others)
                waiting[others[turn]].append((structs.replace(job, zone=others[turn]), now_t))
            else:
                continue
            waiting[zone].remove((job, since_t))


def figures_of(served: Sequence[Served], prefix: str = "") -> dict[str, Any]:
    """What customers notice."""
    took_s = sorted(one.took_s for one in served if math.isfinite(one.took_s))
    urgent = [one.took_s for one in served if one.job.priority >= 7 and math.isfinite(one.took_s)]
    return {
        f"{prefix}mean_delivery_s": round(statistics.fmean(took_s), 1) if took_s else None,
        f"{prefix}p95_delivery_s": round(took_s[len(took_s) * 95 // 100], 1) if took_s else None,
        f"{prefix}urgent_mean_delivery_s": round(statistics.fmean(urgent), 1) if urgent else None,
        f"{prefix}missed_deadlines": sum(one.is_late for one in served),
        f"{prefix}given_up": len(served) - len(took_s),
    }


def compare(drones: int, minutes: float, seed: int, busy_share: float) -> dict[str, Any]:
    """Both rules on the same jobs."""
    plan = make_plan(drones, seed, start_t=0.0)
    jobs = orders(plan, busy_share, minutes)
    own, other = dispatch(plan, jobs, by_solver), dispatch(plan, jobs, by_nearest)
    made = {"busy_share": busy_share, "jobs": len(jobs), **figures_of(own), **figures_of(other, "nearest_")}
    mean_s, nearest_s = made["mean_delivery_s"], made["nearest_mean_delivery_s"]
    return made | {"mean_ratio": round(mean_s / nearest_s, 3) if mean_s and nearest_s else None}


def static_instance(seed: int, jobs: int = STATIC_JOBS, drones: int = STATIC_DRONES) -> dict[str, Any]:
    """One round in one zone: what each rule makes of it, and the bound. Sums are of delivery times."""
    plan = make_plan(2 * drones, seed, start_t=0.0, regions=2)
    zone, ready = next(iter(drones_of(plan).items()))
    here = [one for one in orders(plan, 1.0, 600.0) if one.zone == zone][:jobs]
    open_jobs = [structs.replace(one, since_t=0.0, deadline_t=one.deadline_t - one.since_t) for one in here]
    most, bound_s = lower_bound_s(open_jobs, ready)
    found: dict[str, Any] = {"jobs": len(open_jobs), "bound_pairs": most, "bound_s": bound_s}
    by_job, by_drone = {one.job: one for one in open_jobs}, {one.drone: one for one in ready}
    for name, rule in (("solver", by_solver), ("nearest", by_nearest)):
        pairs = rule(open_jobs, ready, 0.0)
        found[f"{name}_pairs"] = len(pairs)
        found[f"{name}_s"] = sum(delivery_s(by_job[job], by_drone[drone]) for job, drone in pairs)
    return found


def static_figures(seed: int, rounds: int = STATIC_ROUNDS) -> dict[str, Any]:
    """Many static instances: how far above the bound each rule is, of those in which it serves as many jobs."""
    found = [static_instance(seed + number) for number in range(rounds)]

    def over(name: str) -> float | None:
        whole = [one for one in found if one[f"{name}_pairs"] == one["bound_pairs"]]
        if not whole:
            return None
        sum_s, bound_s = (sum(float(one[key]) for one in whole) for key in (f"{name}_s", "bound_s"))
        return round(sum_s / bound_s, 4)

    pairs = {
        f"static_{name}_pairs": sum(one[f"{name}_pairs"] for one in found) for name in ("bound", "solver", "nearest")
    }
    return {
        "static_instances": rounds,
        **pairs,
        "static_solver_over_bound": over("solver"),
        "static_nearest_over_bound": over("nearest"),
    }


def measure(drones: int = 200, minutes: float = 40.0, seed: int = 7, loads: Sequence[float] = LOADS) -> dict[str, Any]:
    """All of it; the figures by name are those of the load that the application has by default."""
    table = [compare(drones, minutes, seed, share) for share in loads]
    usual = {name: value for name, value in table[0].items() if name != "busy_share"}
    return {"seed": seed, "drones": drones, "minutes": minutes, **usual, **static_figures(seed), "loads": table}


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m apps.drones quality`."""
    parser = argparse.ArgumentParser(prog="python -m apps.drones quality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--drones", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    figures = measure(given.drones, given.minutes, given.seed)
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            if name != "loads":
                print(f"{name:28} {value}")
        for row in figures["loads"]:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
