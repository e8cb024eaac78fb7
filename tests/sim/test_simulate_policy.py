"""Policies in simulated fleets: nothing passes that no rule allows, whatever fails; and safety always does."""

import random

import stigmergy as st
from stigmergy.policy.rego import RegoPolicy
from stigmergy.sim import World, simulate
from stigmergy.sim.faults import ALL, NONE, POLICY_FAULTS, draw_plan
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import run_seed
from tests.policy.drones import DATA, REGO, Charge, Drone, Erase, Land, StartMission

fleet = st.Fleet("delivery", agents=[Drone])
POLICY = RegoPolicy((("drones.rego", REGO),), DATA)


def order_often(world: World) -> None:
    world.each(0.4, lambda address: world.ask(address, Charge(percent=50.0)))
    world.each(0.5, lambda address: world.ask(address, StartMission(mission="M13")))
    world.each(0.7, lambda address: world.ask(address, Erase()))
    world.each(0.9, lambda address: world.ask(address, Land()))
    world.always(lambda: not any(drone.missions for drone in world.states(Drone)), name="no rule allows it")
    world.eventually(
        lambda: world.now_s > 5 and all(one.landed and one.battery == 50.0 for one in world.states(Drone)), within_s=60
    )


@simulate(fleet, agents=4, seeds=5, faults=ALL, for_s=10, policy=POLICY)
def test_19_nothing_passes_that_no_rule_allows_whatever_fails(world: World) -> None:
    order_often(world)


@simulate(fleet, agents=2, seeds=2, faults=NONE, for_s=5)
def test_without_a_policy_everything_passes(world: World) -> None:
    world.each(0.5, lambda address: world.ask(address, StartMission(mission="M13")))
    world.eventually(lambda: all(drone.missions for drone in world.states(Drone)), within_s=60)


def test_the_same_seed_gives_the_same_trace_with_an_engine_that_fails() -> None:
    setup = Setup(fleet=fleet, agents=4, for_s=10, faults=(POLICY_FAULTS,), policy=POLICY)
    names = [f"node-{number}" for number in range(1, 5)]
    plans = (
        draw_plan((POLICY_FAULTS,), random.Random(f"stigmergy.sim/{seed}/plan"), names, 10_000, has=["disk", "policy"])
        for seed in range(100)
    )
    seed = next(seed for seed, plan in enumerate(plans) if len(plan) >= 2)
    first, second = run_seed(setup, seed, order_often), run_seed(setup, seed, order_often)
    assert first.violations == second.violations == []
    assert first.trace == second.trace
    # The faults reach the engine: without them the same seed tells another story.
    calm = run_seed(Setup(fleet=fleet, agents=4, for_s=10, faults=NONE, policy=POLICY), seed, order_often)
    assert calm.trace != first.trace
