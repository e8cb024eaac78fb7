"""Rollouts in simulated fleets: a bad version is taken back by itself, and who was away comes back to the right one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

import stigmergy as st
from stigmergy.base.errors import ConfigError
from stigmergy.models.rollout import in_canary
from stigmergy.sim import ALL, NONE, World, simulate
from stigmergy.sim.faults import MODEL_FAULTS
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import run_seed
from tests.models.gas import GasLevel, GasLevelSampled, GasSensor, gas_fleet

ROLLOUT = "ModelRollout/gas-level"
SENSORS = [f"GasSensor/s{number}" for number in range(8)]
AGENTS = [ROLLOUT, *SENSORS]
NODES = {"hub": ["ModelRollout/*"], "a": SENSORS[:4], "b": SENSORS[4:]}
fleet = gas_fleet()


def above(limit: float) -> Callable[[st.Inputs], GasLevel]:
    """A version that says that there is too much above a limit. 10 is the truth."""
    return lambda inputs: GasLevel(risk=float(inputs[0] > limit))


GOOD = {GasLevel: {"1.2.0": above(10), "1.3.0": above(9)}}
BAD = {GasLevel: {"1.2.0": above(10), "1.3.0": above(5)}}


def rule(shadow_s: float, canary_s: float = 2.0, **changed: float) -> st.RolloutRule:
    """Faults are the same for both versions, and they make answers late: neither is to decide here."""
    return st.RolloutRule(
        shadow_s=shadow_s, canary=0.5, canary_s=canary_s, asks_min=20, judged_min=5, report_s=0.2,
        failures_max=1.0, latency_ratio_max=1e9, **changed,
    )  # fmt: skip


def measure(world: World, told: st.RolloutRule) -> None:
    """All sensors measure 7 again and again, while the new version is rolled out; none may have it who should not."""
    world.ask(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=told))
    for sensor in SENSORS:
        world.every(0.2, partial(world.observe, sensor, GasLevelSampled(co=7.0)), until="end")
    world.always(lambda: not any(map(misplaced, world.states(GasSensor))), name="nobody else has the new version")


def misplaced(sensor: GasSensor) -> bool:
    """Whether the new version has answered an agent that is not in the canary, and nothing was promoted."""
    return sensor.version == "1.3.0" and bool(sensor.arm) and not in_canary("gas-level/1", sensor.address, 0.5)


async def reach(check: Callable[[], bool]) -> None:
    while not check():  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.1)


def rollout(world: World) -> st.ModelRollout:
    return world.state(ROLLOUT, st.ModelRollout)


def came_to(world: World, stage: str, version: str) -> bool:
    """A hub whose disk was replaced has lost the rollout: the others keep what the store says."""
    if world.replaced(ROLLOUT):
        return True
    found = rollout(world)
    return found.stage == stage and all(world.state(one, GasSensor).version == version for one in SENSORS)


@simulate(fleet, agents=AGENTS, nodes=NODES, seeds=3, faults=NONE, for_s=20, models=BAD)
def test_a_canary_that_raises_false_positives_is_rolled_back(world: World) -> None:
    measure(world, rule(0, 3_600))
    world.eventually(lambda: came_to(world, "rolled back", "1.2.0"), 60)
    world.eventually(lambda: "false positives" in rollout(world).reason, 60)
    world.eventually(lambda: 0 < sum(one.alarms > 0 for one in world.states(GasSensor)) < len(SENSORS), 60)


@simulate(fleet, agents=AGENTS, nodes=NODES, seeds=3, faults=NONE, for_s=20, models=BAD)
def test_a_shadow_that_contradicts_is_rolled_back_and_nobody_alarms(world: World) -> None:
    measure(world, rule(3_600, disagreement_max=0.5))
    world.eventually(lambda: came_to(world, "rolled back", "1.2.0"), 60)
    world.eventually(lambda: "differ from the old version's" in rollout(world).reason, 60)
    world.always(lambda: not any(one.alarms for one in world.states(GasSensor)))


@simulate(fleet, agents=AGENTS, nodes=NODES, seeds=3, faults=NONE, for_s=30, models=GOOD)
def test_a_node_that_was_away_comes_back_to_the_version_of_today(world: World) -> None:
    (away,) = [node for node in world.nodes if node.name == "b"]
    measure(world, rule(1))

    async def go() -> None:
        await reach(lambda: all(one.version for one in world.states(GasSensor)))
        away.cut()
        await reach(lambda: rollout(world).stage == "promoted")
        await away.crash()
        await reach(lambda: away.is_up)
        assert {world.state(one, GasSensor).version for one in SENSORS[4:]} == {"1.2.0"}, "it has not heard of it"
        away.restore()

    world.script(go)
    world.eventually(lambda: came_to(world, "promoted", "1.3.0"), 60)


@simulate(fleet, agents=AGENTS, nodes=NODES, seeds=5, faults=ALL, for_s=15, heal_s=120, models=BAD)
def test_a_bad_version_is_rolled_back_whatever_fails(world: World) -> None:
    measure(world, rule(1, 3_600, disagreement_max=1.0))
    world.eventually(lambda: came_to(world, "rolled back", "1.2.0"), 100)


@simulate(fleet, agents=AGENTS, nodes=NODES, seeds=5, faults=ALL, for_s=15, heal_s=120, models=GOOD)
def test_a_good_version_comes_to_everybody_whatever_fails(world: World) -> None:
    measure(world, rule(1))
    world.eventually(lambda: came_to(world, "promoted", "1.3.0"), 100)


def test_the_same_seed_gives_the_same_trace() -> None:
    setup = Setup(fleet=fleet, agents=AGENTS, nodes=NODES, for_s=5, faults=(MODEL_FAULTS,), models=GOOD)
    first, second = (run_seed(setup, 7, lambda world: measure(world, rule(1))) for _ in range(2))
    assert first.violations == second.violations == []
    assert first.trace == second.trace


def test_a_rollout_without_versions_is_refused_with_a_sentence() -> None:
    for models in ({}, {GasLevel: above(10)}, {GasLevel: {"1.2.0": above(10)}}):
        setup = Setup(fleet=fleet, agents=AGENTS, nodes=NODES, for_s=1, models=models)
        with pytest.raises(ConfigError, match="give a function for each"):
            run_seed(setup, 1, lambda world: None)
    setup = Setup(fleet=fleet, agents=AGENTS, nodes=NODES, for_s=1, models={GasLevel: {"newest": above(1)}})
    with pytest.raises(ConfigError, match="three numbers"):
        run_seed(setup, 1, lambda world: None)
