"""Runs a test in a simulated fleet: one seed, or many until one fails, and says how to reproduce the failure.

    @simulate(fleet, agents=16, seeds=200, faults=ALL)
    def test_never_two_greens(world: World) -> None:
        world.always(lambda: world.count("phase", GREEN, per="crossing") <= 1)
        world.eventually(world.converged, within_s=30)

The test function is called at the beginning of each run; its conditions are checked while the run goes on. An `async`
one is a script that runs in virtual time. Work and faults last `for_s` seconds; then everything is healed, and
everything must finish.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import random
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Concatenate, ParamSpec

from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.node.declaration import Declaration
from stigmergy.sim.checkers import everything_makes_progress
from stigmergy.sim.errors import SimulationError
from stigmergy.sim.evidence import check_fleet, check_replication, count_shut_out
from stigmergy.sim.faults import ALL, Fault, Planned, read_faults
from stigmergy.sim.fleet import FOR_S, HEAL_S, Setup, SimFleet
from stigmergy.sim.machine import Replaced
from stigmergy.sim.run import Run
from stigmergy.sim.timeline import Chronicle, render
from stigmergy.sim.world import World

# A scenario: a fleet, what happens to it, and what must hold, under a name that `stigmergy sim` can run.
#
#     scenario = Scenario(setup=Setup(fleet=fleet, agents=16), test=watch)
#
# `stigmergy sim module:scenario` runs it, and so it does any function that `@simulate` has decorated. A package that
# brings one for others names it in the entry point group `stigmergy.scenarios`.

GROUP = "stigmergy.scenarios"
Test = Callable[[World], Coroutine[Any, Any, None] | None]
"""Called at the beginning of each run."""


class Scenario(Struct, frozen=True, kw_only=True):
    """Everything that a run needs but its seed."""

    setup: Setup
    test: Test
    about: str = ""
    """What it is, in a sentence."""
    names: Callable[[int], Sequence[str]] | None = None
    """The addresses of so many agents, where it matters which they are. Otherwise they are counted from 1."""

    def with_agents(self, count: int) -> Scenario:
        """The same with so many agents."""
        if count < 1:
            raise ConfigError(f"{count} agents: give 1 or more")
        agents = count if self.names is None else tuple(self.names(count))
        return structs.replace(self, setup=structs.replace(self.setup, agents=agents))


def find_scenario(name: str) -> Scenario:
    """The scenario that a text names: `module:scenario`, or one that an installed package brings."""
    module, colon, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not colon:
        found = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name not in found:
            known = ", ".join(sorted(found)) or "none"
            raise ConfigError(f"{name!r} is no scenario; there are {known}; or give module:scenario")
        try:
            return _scenario(name, found[name].load())
        except ModuleNotFoundError as error:
            where = found[name].module
            raise ConfigError(f"{name!r}: there is no module {error.name!r}; run it where {where} is") from None
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name!r}: there is no module {error.name!r} here; run it where {module}.py is") from None
    if not hasattr(loaded, attribute):
        raise ConfigError(f"{name!r}: {module} has no {attribute!r}; name a Scenario, or a test with @simulate")
    return _scenario(name, getattr(loaded, attribute))


def _scenario(name: str, found: object) -> Scenario:
    scenario = getattr(found, "scenario", found)
    if not isinstance(scenario, Scenario):
        raise ConfigError(f"{name!r} is {type(found).__name__}; name a Scenario, or a test with @simulate")
    return scenario


P = ParamSpec("P")
SEEDS = 20
SEEDS_MAX = 10_000_000
VIOLATIONS_MAX = 20
STEPS_MAX = 20_000_000
"""An hour of fifty nodes takes a quarter of it. More is a loop that never lets time pass: see StepsExceeded."""
SEED_VARIABLE = "STIGMERGY_SIM_SEED"
"""The environment variable that gives all simulated tests one seed: to see a failure again."""
SEEDS_VARIABLE = "STIGMERGY_SIM_SEEDS"
"""The same for how many seeds each of them runs: few while one works, many at night."""


class Outcome(Struct, frozen=True):
    """What one run found. It is well if there are no violations."""

    seed: int
    trace: str
    """The hash over all that happened: the same for the same seed."""
    violations: list[str]
    plan: list[Planned]
    """What went wrong, and when."""
    counts: dict[str, int]
    simulated_ns: int
    messages: int
    """Inputs that were told, asked or published, and arrived."""
    chronicle: Chronicle | None = None
    replaced: list[Replaced] = []
    """Journals that were given up for fresh ones: invariants over all history have to count them."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, trace {self.trace}", "violations:"]
        lines += [f"  {violation}" for violation in self.violations] or ["  none"]
        lines += ["faults:", *(f"  {one.number}: at {one.at_ms} ms {one}" for one in self.plan)]
        if self.replaced:
            lines += ["journals that were replaced:", *(f"  {one}" for one in self.replaced)]
        if self.chronicle is not None:
            lines += ["the end of the timeline:", render(self.chronicle)]
        return "\n".join(lines)


class SimulationFailed(AssertionError):
    """A simulated test has failed. Its text names the seed and what to do with it."""

    def __init__(self, text: str, outcome: Outcome) -> None:
        super().__init__(text)
        self.outcome = outcome


def run_seed(setup: Setup, seed: int, test: Test | None = None, *, chronicle: bool = False) -> Outcome:
    """One run. With a chronicle it takes longer and ends the same."""
    run = Run(
        seed,
        shuffle=random.Random(f"stigmergy.sim.simulating/{seed}").randrange(2) == 1,
        deadline_s=setup.for_s + 2 * setup.heal_s + 600,
        steps_max=STEPS_MAX,
    )
    try:
        stage = _Stage(run, setup, test, chronicle)
    except BaseException:
        run.close()
        raise
    try:
        run.run(stage.main())
    except SimulationError as error:
        stage.violations.append(f"{type(error).__name__}: {error}")
    except StigmergyError as error:
        stage.violations.append(f"the run ended with {type(error).__name__}: {error}")
    except Exception as error:
        error.add_note(f"in the simulation with seed {seed}")
        raise
    return stage.outcome()


class _Stage:
    """One run from its beginning to its verdict."""

    def __init__(self, run: Run, setup: Setup, test: Test | None, chronicle: bool) -> None:
        self._run = run
        self._setup = setup
        self._test = test
        self._fleet = SimFleet(run, setup, chronicle=chronicle)
        self._world: World | None = None
        self._shut_out = 0
        self.violations: list[str] = []

    async def main(self) -> None:
        """Work and faults, then the heal, then the end."""
        setup, fleet = self._setup, self._fleet
        await fleet.start()
        world = self._world = World(fleet)
        self._begin(world)
        await asyncio.sleep(fleet.lasts_s)
        fleet.heal()
        world.heal()
        await fleet.breaking.wait_settled()
        await world.wait_met(setup.heal_s)
        await world.finish()
        self.violations += [
            f"everything_makes_progress: {setup.heal_s:g} s after the heal {finding}"
            for finding in (() if world.converged() else everything_makes_progress(world.settling()))
        ]
        self.violations += check_replication(fleet)
        self._shut_out = count_shut_out(fleet)
        await fleet.stop()

    def _begin(self, world: World) -> None:
        if self._test is None:
            return
        begun = self._test(world)
        if inspect.iscoroutine(begun):
            coroutine: Coroutine[Any, Any, None] = begun
            world.script(lambda: coroutine)

    def outcome(self) -> Outcome:
        """What is to be said about the run."""
        fleet, world, run = self._fleet, self._world, self._run
        violations = ([] if world is None else world.violations) + self.violations + check_fleet(fleet)
        counts = {**_count(fleet), "shut out": self._shut_out, "lies": fleet.lies.count}
        return Outcome(
            run.seed,
            run.trace.hexdigest(),
            violations[:VIOLATIONS_MAX],
            fleet.breaking.plan,
            counts,
            run.loop.time_ns(),
            counts["messages"],
            fleet.chronicle,
            [] if world is None else list(world.replaced()),
        )


def _count(fleet: SimFleet) -> dict[str, int]:
    machines = list(fleet.machines.values())
    nodes = [node for machine in machines for node in (*machine.past, machine.node)]
    told = sum(machine.feed.acknowledged_count for machine in machines)
    carried = fleet.broker.carried_count + fleet.network.counters.delivered_count
    return {
        "nodes": len(machines),
        "messages": told + carried,
        "told": told,
        "between nodes": carried,
        "lives": sum(node.lives for node in nodes),
        "replaced": sum(len(machine.past) for machine in machines),
        "groups": sum(node.logbook.groups for node in nodes),
        "events": sum(state.events_count for node in nodes for state in node.logbook.states),
        "orders": sum(len(receiver.carried) for machine in machines for receiver in machine.receivers),
        "records": fleet.run.trace.count,
        **dict(sorted(fleet.breaking.counts.items())),
    }


# ------------------------------------------------------------------ many seeds


def seeds_of(seeds: int | Iterable[int]) -> Sequence[int]:
    """The seeds to run: the first so many, or those given. The environment may say otherwise."""
    one, many = os.environ.get(SEED_VARIABLE), os.environ.get(SEEDS_VARIABLE)
    if one is not None:
        return [_number(SEED_VARIABLE, one)]
    if many is not None:
        seeds = _number(SEEDS_VARIABLE, many)
    if isinstance(seeds, int):
        if not 1 <= seeds <= SEEDS_MAX:
            raise ConfigError(f"seeds={seeds}: give 1 to {SEEDS_MAX}, or a list of seeds")
        return range(1, seeds + 1)
    return list(seeds)


def run_seeds(setup: Setup, seeds: Iterable[int], test: Test | None, reproduce: Callable[[int], str]) -> list[Outcome]:
    """Runs one seed after the other. The first that fails is run once more with its timeline, and raised."""
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcome = run_seed(setup, seed, test)
        if outcome.violations:
            raise failed(setup, outcome, test, reproduce(seed))
        outcomes.append(outcome)
    return outcomes


def failed(setup: Setup, outcome: Outcome, test: Test | None, command: str) -> SimulationFailed:
    """The failure of a seed, with the end of its timeline and the command that shows it again."""
    again = run_seed(setup, outcome.seed, test, chronicle=True)
    same = (
        "" if again.trace == outcome.trace else "\nthe second run was another: something in the test is not the seed's"
    )
    text = f"{again}\nagain: {command}{same}"
    return SimulationFailed(text, structs.replace(again, violations=outcome.violations))


def simulate(
    fleet: Declaration,
    *,
    agents: int | Sequence[str] | Mapping[type[Agent], int] = 8,
    nodes: int | None = None,
    seeds: int | Iterable[int] = SEEDS,
    faults: Sequence[Fault] | str = ALL,
    for_s: float = FOR_S,
    heal_s: float = HEAL_S,
    versions: Sequence[Declaration] = (),
    devices: bool = False,
    journal: str | None = None,
) -> Callable[[Callable[Concatenate[World, P], Coroutine[Any, Any, None] | None]], Callable[P, None]]:
    """Makes a function that takes a World a test that runs it in a simulated fleet, for each of these seeds.

    `agents`: how many of the fleet's first class, or how many of each class, or their addresses. `nodes`: on how many
    machines they live. `faults`: what may go wrong, drawn anew for each seed. `versions`: other versions of the same
    fleet, which some nodes run. `devices`: whether the fleet's own sensors and actuators run, or simulated ones.
    """
    wanted = read_faults(faults) if isinstance(faults, str) else tuple(faults)
    setup = Setup(
        fleet=fleet,
        agents=agents,
        nodes=nodes,
        faults=wanted,
        for_s=for_s,
        heal_s=heal_s,
        versions=tuple(versions),
        devices=devices,
        journal=journal,
    )
    chosen = seeds if isinstance(seeds, int) else tuple(seeds)

    def decorate(test: Callable[Concatenate[World, P], Coroutine[Any, Any, None] | None]) -> Callable[P, None]:
        @functools.wraps(test)
        def run_all(*args: P.args, **kwargs: P.kwargs) -> None:
            __tracebackhide__ = True
            where = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0] or getattr(test, "__qualname__", "")
            run_seeds(
                setup,
                seeds_of(chosen),
                lambda world: test(world, *args, **kwargs),
                lambda seed: f"pytest '{where}' --sim-seed {seed}",
            )

        signature = inspect.signature(test)
        run_all.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(signature.parameters.values())[1:], return_annotation=None
        )
        del run_all.__wrapped__
        if len(signature.parameters) == 1:
            run_all.scenario = Scenario(setup=setup, test=test, about=test.__doc__ or "")  # type: ignore[attr-defined]
        return run_all

    return decorate


class Simulation:
    """What the pytest fixture `simulation` is: runs a test in a simulated fleet, for each seed, from within a test."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __call__(
        self,
        fleet: Declaration,
        test: Test,
        *,
        agents: int | Sequence[str] | Mapping[type[Agent], int] = 8,
        nodes: int | None = None,
        seeds: int | Iterable[int] = SEEDS,
        faults: Sequence[Fault] | str = ALL,
        for_s: float = FOR_S,
        heal_s: float = HEAL_S,
        versions: Sequence[Declaration] = (),
        devices: bool = False,
        journal: str | None = None,
    ) -> list[Outcome]:
        """The same options as `simulate`. Returns what each run found; raises SimulationFailed for one that failed."""
        __tracebackhide__ = True
        setup = Setup(
            fleet=fleet,
            agents=agents,
            nodes=nodes,
            faults=read_faults(faults) if isinstance(faults, str) else tuple(faults),
            for_s=for_s,
            heal_s=heal_s,
            versions=tuple(versions),
            devices=devices,
            journal=journal,
        )
        return run_seeds(setup, seeds_of(seeds), test, lambda seed: f"pytest '{self._where}' --sim-seed {seed}")


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: give a number") from None
