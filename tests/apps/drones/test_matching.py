"""Which drone for which job: the solver, the rules beside it, and what none of them may do."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from typing import Any

import numpy as np
import pytest

from apps.drones import matching
from apps.drones.flight import CRUISE_M_S, RESERVE_PERCENT, needed_percent
from apps.drones.matching import can_fly, cost_s, delivery_s, greedy, lower_bound_s, nearest, solve, spare_percent
from apps.drones.messages import DroneReady, JobOpened, Match, Matched, Site
from stigmergy import Order

NOW = 5000.0


def job(name: str, x: float = 0.0, y: float = 0.0, to: tuple[float, float] = (0.0, 1000.0), **more: Any) -> JobOpened:
    known = {"kg": 1.0, "deadline_t": NOW + 1800.0, "priority": 1, "since_t": NOW} | more
    return JobOpened(job=name, zone="r1-0000", token=1, pickup=Site(x, y), drop=Site(*to), **known)


def drone(name: str, x: float = 0.0, y: float = 0.0, battery: float = 100.0, capacity_kg: float = 2.5) -> DroneReady:
    return DroneReady(drone=name, x=x, y=y, battery=battery, capacity_kg=capacity_kg)


def instance(seed: int, jobs: int, drones: int) -> tuple[list[JobOpened], list[DroneReady]]:
    """Some that fit and some that do not, from a seed."""
    draw = random.Random(seed)
    wanted = [
        job(
            f"J{i}",
            draw.uniform(0, 3000),
            draw.uniform(0, 3000),
            (draw.uniform(0, 3000), draw.uniform(0, 3000)),
            kg=draw.uniform(0.1, 3.5),
            deadline_t=NOW + draw.uniform(-300, 1800),
            priority=draw.randint(1, 9),
            since_t=NOW - draw.uniform(0, 300),
            not_by=tuple(f"D{draw.randrange(drones)}" for _ in range(draw.randrange(3))),
        )
        for i in range(jobs)
    ]
    there = [
        drone(
            f"D{i}", draw.uniform(0, 3000), draw.uniform(0, 3000), draw.uniform(30, 100), draw.choice((1.0, 2.5, 5.0))
        )
        for i in range(drones)
    ]
    return wanted, there


def check(pairs: matching.Pairs, jobs: list[JobOpened], drones: list[DroneReady]) -> None:
    """Nobody twice, and nothing that would be refused."""
    assert len({one for one, _ in pairs}) == len(pairs) == len({one for _, one in pairs})
    by_job, by_drone = {one.job: one for one in jobs}, {one.drone: one for one in drones}
    assert all(can_fly(by_job[a], by_drone[b]) for a, b in pairs)


def pairs_max(jobs: list[JobOpened], drones: list[DroneReady]) -> int:
    """The largest number of pairs, by augmenting paths: another way than the solver's."""
    taken: dict[str, JobOpened] = {}

    def place(one: JobOpened, seen: set[str]) -> bool:
        for other in drones:
            if other.drone in seen or not can_fly(one, other):
                continue
            seen.add(other.drone)
            if other.drone not in taken or place(taken[other.drone], seen):
                taken[other.drone] = one
                return True
        return False

    return sum(place(one, set()) for one in jobs)


def test_the_solver_finds_what_the_greedy_rule_does_not() -> None:
    """The first job takes the drone that the second one needs more."""
    jobs = [job("J1", 500.0), job("J2", 1500.0)]
    drones = [drone("D1", 1000.0 - 1.0), drone("D2", -100.0)]
    assert dict(nearest(jobs, drones)[0]) == {"J1": "D1", "J2": "D2"}
    pairs, cost = solve(jobs, drones, NOW)
    assert dict(pairs) == {"J1": "D2", "J2": "D1"}
    assert cost == pytest.approx(sum(cost_s(a, b, NOW) for a, b in ((jobs[0], drones[1]), (jobs[1], drones[0]))))
    assert cost < greedy(jobs, drones, NOW)[1]


@pytest.mark.parametrize("seed", range(30))
def test_the_costs_of_all_pairs_are_those_of_each(seed: int) -> None:
    jobs, drones = instance(seed, 9, 7)
    each = np.array([[cost_s(a, b, NOW) for b in drones] for a in jobs])
    np.testing.assert_allclose(matching._costs(jobs, drones, NOW), each, rtol=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_matched_twice_and_nothing_that_would_be_refused(seed: int) -> None:
    jobs, drones = instance(seed, 3 + seed % 9, 2 + seed % 7)
    for pairs, cost in (solve(jobs, drones, NOW), greedy(jobs, drones, NOW), nearest(jobs, drones)):
        check(pairs, jobs, drones)
        assert math.isfinite(cost)
    assert len(solve(jobs, drones, NOW)[0]) == pairs_max(jobs, drones)


@pytest.mark.parametrize("seed", range(25))
def test_no_other_matching_is_better_than_the_solvers(seed: int) -> None:
    """Against all others there are."""
    jobs, drones = instance(seed, 4, 5)
    by_drone = {one.drone: one for one in drones}
    worth = {one.job: matching.urgency_s(one, NOW) for one in jobs}

    def value(pairs: matching.Pairs) -> tuple[int, float]:
        ranks = [cost_s(next(j for j in jobs if j.job == a), by_drone[b], NOW) - worth[a] for a, b in pairs]
        return -len(pairs), sum(ranks)

    every = [
        tuple((one.job, other.drone) for one, other in zip(jobs, order, strict=False) if can_fly(one, other))
        for order in itertools.permutations(drones, len(jobs))
    ]
    fewest, least = value(solve(jobs, drones, NOW)[0])
    best = min(value(pairs) for pairs in every)
    assert fewest == best[0]
    assert least == pytest.approx(best[1])


@pytest.mark.parametrize("seed", range(25))
def test_no_rule_is_below_the_lower_bound(seed: int) -> None:
    jobs, drones = instance(seed, 6, 8)
    count, least_s = lower_bound_s(jobs, drones)
    assert count == pairs_max(jobs, drones)
    by_job, by_drone = {one.job: one for one in jobs}, {one.drone: one for one in drones}
    for pairs in (solve(jobs, drones, NOW)[0], greedy(jobs, drones, NOW)[0], nearest(jobs, drones)[0]):
        if len(pairs) == count:
            assert sum(delivery_s(by_job[a], by_drone[b]) for a, b in pairs) >= least_s - 1e-6


def test_with_too_few_drones_the_urgent_ones_go_first() -> None:
    """And not those that are nearest: an urgent or a late job would wait for ever otherwise."""
    one = [drone("D1")]
    calm, urgent, late = job("calm", 100.0), job("urgent", 500.0, priority=9), job("late", 500.0, deadline_t=NOW + 60)
    assert solve([calm, urgent], one, NOW)[0] == (("urgent", "D1"),)
    assert solve([calm, late], one, NOW)[0] == (("late", "D1"),)
    assert greedy([calm, late], one, NOW)[0] == (("late", "D1"),)
    old = job("old", 500.0, since_t=NOW - 600)
    assert solve([calm, old], one, NOW)[0] == (("old", "D1"),)
    assert solve([calm, job("like it", 500.0)], one, NOW)[0] == (("calm", "D1"),)


def test_a_pair_is_refused_by_weight_by_battery_and_by_what_was_returned() -> None:
    assert can_fly(job("J", kg=2.5), drone("D"))
    assert not can_fly(job("J", kg=2.6), drone("D"))
    assert not can_fly(job("J", not_by=("C", "D")), drone("D"))
    needed = RESERVE_PERCENT + needed_percent(2000.0, 1.0, stops=2)
    assert can_fly(job("J"), drone("D", battery=needed + 0.01))
    assert not can_fly(job("J"), drone("D", battery=needed - 0.01))
    assert spare_percent(job("J"), drone("D", battery=needed)) == pytest.approx(0.0)
    assert cost_s(job("J"), drone("D", battery=needed - 0.01), NOW) == math.inf


def test_the_drone_with_more_charge_is_taken_if_it_is_hardly_farther() -> None:
    thin = RESERVE_PERCENT + needed_percent(2000.0, 1.0, stops=2) + 1.0
    near, far = drone("thin", battery=thin), drone("full", 0.0, -3 * CRUISE_M_S)
    assert solve([job("J")], [near, far], NOW)[0] == (("J", "full"),)
    assert nearest([job("J")], [near, far])[0] == (("J", "thin"),)


def test_nothing_comes_of_nothing() -> None:
    for jobs, drones in (([], []), ([job("J")], []), ([], [drone("D")]), ([job("J", kg=4.0)], [drone("D")])):
        for rule in (lambda a, b: solve(a, b, NOW), lambda a, b: greedy(a, b, NOW), nearest):
            assert rule(jobs, drones) == ((), 0.0)
        assert lower_bound_s(jobs, drones) == (0, 0.0)


def test_the_greedy_rule_looks_at_so_many_jobs_only() -> None:
    jobs, drones = instance(1, 80, 80)
    assert 0 < len(greedy(jobs, drones, NOW)[0]) <= matching.GREEDY_JOBS_MAX


def test_the_worker_answers_with_its_round_and_soon_enough() -> None:
    matching.load()
    jobs, drones = instance(3, 200, 200)
    work = Match(zone="r1-0000", round=7, jobs=tuple(jobs), drones=tuple(drones), now_t=NOW)
    order = Order(effect=work, key="k", agent="Dispatcher/r1-0000.a", sequence=1, token=1, attempt=1)
    asyncio.run(matching.match(order))
    begin_s = time.perf_counter()
    matched = asyncio.run(matching.match(order))
    assert time.perf_counter() - begin_s < 0.5
    assert isinstance(matched, Matched)
    assert (matched.round, matched.by) == (7, "solver")
    check(matched.pairs, jobs, drones)
    assert len(matched.pairs) == pairs_max(jobs, drones)
