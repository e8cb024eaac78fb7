"""Models in simulated fleets: every question is answered once, by the model or its rule, whatever fails."""

from __future__ import annotations

import random
from collections.abc import Callable

import stigmergy as st
from stigmergy.sim import World, simulate
from stigmergy.sim.faults import ALL, MODEL_FAULTS, NONE, Planned, draw_plan
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import run_seed


class Twice(st.Model, within_s=0.02):
    value: float

    @classmethod
    def fallback(cls, inputs: st.Inputs) -> Twice:
        return cls(value=-inputs[0])


class Read(st.Event):
    value: float


class Meter(st.Agent):
    read: int = 0
    answered: int = 0
    by_rule: int = 0
    by_model: int = 0
    wrong: int = 0

    @st.evolve
    def count(self, event: Read) -> None:
        self.read += 1

    @st.react
    def ask(self, event: Read) -> st.Effects:
        yield Twice.ask([event.value])

    @st.evolve
    def answer(self, result: st.Inferred[Twice]) -> None:
        self.answered += 1
        if result.source.fallback:
            self.by_rule += 1
            self.wrong += result.answer.value > 0
        else:
            self.by_model += 1
            self.wrong += result.answer.value < 0


fleet = st.Fleet("meters", agents=[Meter])


def twice(inputs: st.Inputs) -> Twice:
    return Twice(value=2 * inputs[0])


def all_are(world: World, holds: Callable[[Meter], bool]) -> bool:
    """Whether it holds of all meters, after the heal: there are some then, and nothing more is read."""
    meters = list(world.states(Meter))
    return world.now_s > 5 and bool(meters) and all(map(holds, meters))


def read_often(world: World) -> None:
    world.each(0.3, lambda address: world.observe(address, Read(value=1.5)))
    world.always(lambda: not any(meter.wrong for meter in world.states(Meter)), name="who answered is told")
    world.eventually(lambda: all_are(world, lambda one: one.answered == one.read), within_s=60, name="answered")


@simulate(fleet, agents=5, seeds=5, faults=ALL, for_s=10, models={Twice: twice})
def test_every_question_is_answered_once_whatever_fails(world: World) -> None:
    read_often(world)


@simulate(fleet, agents=3, seeds=2, faults=NONE, for_s=5)
def test_without_a_function_the_rule_answers(world: World) -> None:
    read_often(world)
    world.eventually(lambda: all_are(world, lambda one: one.by_rule > 10 and not one.by_model), within_s=60)


@simulate(fleet, agents=3, seeds=2, faults=NONE, for_s=5, models={Twice: twice})
def test_without_faults_the_model_answers(world: World) -> None:
    read_often(world)
    world.eventually(lambda: all_are(world, lambda one: one.by_model > 10 and not one.by_rule), within_s=60)


def test_the_same_seed_gives_the_same_trace_and_the_faults_show() -> None:
    setup = Setup(fleet=fleet, agents=4, for_s=10, faults=(MODEL_FAULTS,), models={Twice: twice})
    seed = next(seed for seed in range(100) if len(plan(seed)) >= 2)
    found: list[int] = []

    def look(world: World) -> None:
        read_often(world)
        world.every(0.5, lambda: found.append(sum(one.by_rule for one in world.states(Meter))))

    first, second = run_seed(setup, seed, look), run_seed(setup, seed, look)
    assert first.violations == second.violations == []
    assert first.trace == second.trace
    assert max(found) > 0


def plan(seed: int) -> list[Planned]:
    names = [f"node-{number}" for number in range(1, 5)]
    chance = random.Random(f"stigmergy.sim/{seed}/plan")
    return draw_plan((MODEL_FAULTS,), chance, names, 10_000, has=["disk", "models"])


def test_where_no_model_runs_none_fails() -> None:
    drawn = draw_plan(ALL, random.Random(1), ["a"], 30_000, has=["disk", "versions"])
    assert MODEL_FAULTS.name not in [one.fault for one in drawn]
