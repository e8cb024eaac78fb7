"""The model of dispatching is fair to both rules, and the application's is the better one."""

import json
import math

import pytest
from msgspec import structs

from apps.drones.area import PADS_PER_ZONE
from apps.drones.drone import CHARGE_BELOW, CHARGED_AT
from apps.drones.flight import flight_s, needed_percent
from apps.drones.matching import Pairs, delivery_s, tour_m
from apps.drones.messages import DroneReady, JobOpened, Site
from apps.drones.physics import CHARGE_PERCENT_S
from apps.drones.plan import make_plan
from apps.drones.quality import (
    Served,
    Yard,
    by_nearest,
    by_solver,
    charge_s,
    compare,
    dispatch,
    figures_of,
    main,
    orders,
    static_figures,
    static_instance,
)

JOB = JobOpened(
    job="r1-0000.J1",
    zone="r1-0000",
    token=1,
    pickup=Site(930.0, 930.0),
    drop=Site(1530.0, 930.0),
    kg=1.0,
    deadline_t=900.0,
    priority=5,
)
DRONE = DroneReady("r1-0000-000", 930.0, 330.0, 100.0, 2.5)


def test_a_drone_is_away_as_long_as_its_tour_takes_and_charges_when_it_has_to() -> None:
    yard = Yard([DRONE])
    assert yard.send(DRONE.drone, JOB, 10.0) == 10.0 + delivery_s(JOB, DRONE)
    metres = tour_m(JOB, DRONE)
    back_t, used = 10.0 + flight_s(metres, stops=2), needed_percent(metres, JOB.kg, stops=2)
    assert yard.ready(back_t - 0.1) == []
    assert [one.battery for one in yard.ready(back_t)] == [100.0 - used]
    low = Yard([structs.replace(DRONE, battery=CHARGE_BELOW + used - 1.0)])
    low.send(DRONE.drone, JOB, 10.0)
    assert low.ready(back_t + 60.0) == []
    assert [one.battery for one in low.ready(back_t + 300.0)] == [CHARGED_AT]


def test_pads_are_few_and_drones_wait_for_them() -> None:
    crowd = [structs.replace(DRONE, drone=f"r1-0000-{n:03d}", battery=60.0) for n in range(2 * PADS_PER_ZONE)]
    yard = Yard(crowd)
    for one in crowd:
        yard.send(one.drone, JOB, 0.0)
    ready = [len(yard.ready(t)) for t in range(0, 2_000, 10)]
    assert set(ready) == {0, PADS_PER_ZONE, 2 * PADS_PER_ZONE}


def test_charging_is_that_of_the_world() -> None:
    def stepped_s(percent: float, to_percent: float) -> float:
        step_s, t = 0.05, 0.0
        while percent < to_percent:
            percent += CHARGE_PERCENT_S * step_s * min(1.0, 1.0 - 0.85 * (percent - 80.0) / 20.0)
            t += step_s
        return t

    for percent in (10.0, 75.0, 80.0, 85.0):
        assert charge_s(percent, CHARGED_AT) == pytest.approx(stepped_s(percent, CHARGED_AT), abs=0.2)
    assert charge_s(20.0, 60.0) == pytest.approx(40.0 / CHARGE_PERCENT_S)
    assert charge_s(95.0, 92.0) == 0.0


def test_the_same_seed_gives_the_same_jobs_and_every_job_ends_once() -> None:
    plan = make_plan(40, 7, start_t=0.0)
    jobs = orders(plan, 0.8, 10.0)
    assert jobs == orders(plan, 0.8, 10.0)
    assert jobs != orders(structs.replace(plan, seed=8), 0.8, 10.0)
    assert [one.since_t for one in jobs] == sorted(one.since_t for one in jobs)
    for rule in (by_solver, by_nearest):
        served = dispatch(plan, jobs, rule)
        assert sorted(one.job.job for one in served) == sorted(one.job for one in jobs)
        assert all(one.took_s >= 0.0 for one in served)


def test_what_nobody_takes_is_handed_over_and_then_given_up() -> None:
    plan = make_plan(40, 7, start_t=0.0)
    jobs = orders(plan, 0.5, 2.0)
    asked: set[str] = set()

    def nobody(jobs: object, drones: object, now_t: float) -> Pairs:
        asked.update(job.zone for job in jobs)  # type: ignore[attr-defined]
        return ()

    (first, *_) = jobs
    served = dispatch(plan, [first], nobody)
    assert served == [Served(structs.replace(first, zone=served[0].job.zone), math.inf)]
    assert len(asked) > 1
    assert served[0].is_late
    found = figures_of(served)
    assert (found["missed_deadlines"], found["given_up"], found["mean_delivery_s"]) == (1, 1, None)


def test_the_solver_is_better_than_the_nearest_drone_when_drones_are_scarce() -> None:
    found = compare(80, 30.0, seed=7, busy_share=0.8)
    assert found["jobs"] > 200
    assert found["mean_ratio"] < 1.0
    assert found["missed_deadlines"] <= found["nearest_missed_deadlines"]
    assert found["urgent_mean_delivery_s"] < found["nearest_urgent_mean_delivery_s"]


def test_no_rule_is_below_the_bound() -> None:
    one = static_instance(7)
    assert one["bound_pairs"] >= max(one["solver_pairs"], one["nearest_pairs"]) > 0
    assert one["solver_pairs"] == one["bound_pairs"]
    assert one["bound_s"] <= one["solver_s"]
    found = static_figures(7, rounds=5)
    assert 1.0 <= found["static_solver_over_bound"] <= 1.02
    assert found["static_solver_over_bound"] <= found["static_nearest_over_bound"]


def test_it_prints_what_it_has_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--drones", "20", "--minutes", "5", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["seed"] == 7
    assert [row["busy_share"] for row in figures["loads"]] == [0.6, 0.8, 1.0]
    assert main(["--drones", "20", "--minutes", "5"]) == 0
    assert "static_solver_over_bound" in capsys.readouterr().out
