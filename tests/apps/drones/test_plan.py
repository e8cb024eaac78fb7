"""Plans: enough stands and pads for every drone, and jobs that can be placed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from apps.drones.area import PADS_PER_ZONE, cell_of, is_reserved, pad_of, zone_of
from apps.drones.job import Job
from apps.drones.plan import HEAVY_KG, Customers, home_of, load_plan, make_plan
from stigmergy.testing import given


@pytest.mark.parametrize("drones", [1, 2, 20, 50, 500, 5_000, 10_000])
def test_every_drone_has_a_cell_of_its_own(drones: int) -> None:
    plan = make_plan(drones, seed=7, start_t=0.0)
    assert len(plan.names) == len(set(plan.names)) == drones
    homes = {cell_of(*home_of(plan.area, name)) for name in plan.names}
    pads = {cell_of(*pad_of(plan.area, zone, number)) for zone in plan.zones() for number in range(PADS_PER_ZONE)}
    assert len(homes) == drones
    assert len(pads) == PADS_PER_ZONE * len(plan.zones())
    assert not homes & pads
    for name in plan.names:
        x, y = home_of(plan.area, name)
        assert plan.area.zone_at(x, y) == zone_of(name)
        assert is_reserved(plan.area, x, y)
    for zone in plan.zones():
        assert all(is_reserved(plan.area, *pad_of(plan.area, zone, number)) for number in range(PADS_PER_ZONE))


@pytest.mark.parametrize("drones", [20, 500])
def test_both_regions_have_drones(drones: int) -> None:
    plan = make_plan(drones, seed=7, start_t=0.0)
    regions = [name.partition("-")[0] for name in plan.names]
    assert regions.count("r1") == pytest.approx(drones / 2, abs=drones / 10)


def test_jobs_can_be_placed_unless_they_are_too_heavy() -> None:
    plan = make_plan(200, seed=7, start_t=0.0)
    customers = Customers(plan)
    jobs = [customers.next_job() for _ in range(400)]
    assert len({name for name, _ in jobs}) == 400
    heavy = [job for _, job in jobs if job.kg == HEAVY_KG]
    assert 0 < len(heavy) < 20
    for name, job in jobs[:50]:
        placed = given(Job, id=name).when(job)
        if job.kg == HEAVY_KG:
            placed.refused("kg")
        else:
            placed.state(status="arming")


def test_the_same_seed_gives_the_same_jobs() -> None:
    one, again, other = (Customers(make_plan(50, seed, 0.0)) for seed in (1, 1, 2))
    jobs = [one.next_job() for _ in range(20)]
    assert jobs == [again.next_job() for _ in range(20)]
    assert jobs != [other.next_job() for _ in range(20)]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(30, seed=3, start_t=12.5)
    plan.save(tmp_path)
    assert load_plan(tmp_path) == plan
    assert len(list(plan.commissions("r1-"))) + len(list(plan.commissions("r2-"))) == 30
    assert len(list(plan.desks("a"))) == len(plan.zones())
    assert math.isclose(plan.jobs_per_s(0.6) * 2, make_plan(60, 3, 0.0).jobs_per_s(0.6))
