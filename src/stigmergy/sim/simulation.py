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
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Concatenate, ParamSpec

import msgspec
from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.assignment import home_of
from stigmergy.agents.codec import tag_of
from stigmergy.agents.effects import REMOTE_SINKS
from stigmergy.agents.messages import SECOND_NS, Event, Keeping, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import SHARD_ADDRESS, InputFailed, InputsSkipped
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.ingress import bus_source
from stigmergy.policy.engine import LoadedPolicy
from stigmergy.shard.commit_reader import KeptEvent, walk
from stigmergy.shard.facts import TOLD_SOURCES
from stigmergy.shard.outbox import read_told
from stigmergy.shard.state import ShardReading
from stigmergy.sim.checkers import (
    AcknowledgedInput,
    SignedLog,
    TakenMessage,
    ToldPair,
    Watched,
    chain_is_valid,
    everything_makes_progress,
    nothing_acknowledged_is_lost,
    nothing_is_doubled,
    one_holder_at_a_time,
    safe_action_in_time,
    tells_arrive,
)
from stigmergy.sim.errors import SimulationError
from stigmergy.sim.faults import ALL, Fault, Planned, read_faults
from stigmergy.sim.fleet import FOR_S, HEAL_S, Nodes, Setup, SimFleet
from stigmergy.sim.joined_log import JoinedLog, join_logs
from stigmergy.sim.logbook import Logbook
from stigmergy.sim.models import Answers
from stigmergy.sim.node import SITE, Machine, Replaced
from stigmergy.sim.run import Run
from stigmergy.sim.timeline import Chronicle, render
from stigmergy.sim.views import check_declared_views
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

    def __post_init__(self) -> None:
        for fleet in (self.setup.fleet, *self.setup.versions):
            check_declared_views(fleet)

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
    log: JoinedLog | None = None
    """With a chronicle: what all nodes have kept, to be played back."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, trace {self.trace}", "violations:"]
        lines += [f"  {violation}" for violation in self.violations] or ["  none"]
        lines += ["faults:", *(f"  {one.number}: at {one.at_ms} ms {one}" for one in self.plan)]
        if self.replaced:
            lines += ["journals that were replaced:", *(f"  {one}" for one in self.replaced)]
        if self.chronicle is not None:
            lines += ["the end of the timeline:", render(self.chronicle, about=self.violations)]
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
        self.violations += _check_replication(fleet)
        self._shut_out = _count_shut_out(fleet)
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
        violations = ([] if world is None else world.violations) + self.violations + _check_fleet(fleet)
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
            None if fleet.chronicle is None else join_logs(list(fleet.machines.values())),
        )


def _count(fleet: SimFleet) -> dict[str, int]:
    machines = list(fleet.machines.values())
    logbooks = [logbook for machine in machines for logbook in (*machine.past, machine.logbook)]
    told = sum(machine.feed.acknowledged_count for machine in machines)
    carried = fleet.broker.carried_count + fleet.network.counters.delivered_count
    return {
        "nodes": len(machines),
        "messages": told + carried,
        "told": told,
        "between nodes": carried,
        "lives": sum(logbook.lives for logbook in logbooks),
        "replaced": sum(len(machine.past) for machine in machines),
        "groups": sum(logbook.groups for logbook in logbooks),
        "events": sum(state.events_count for logbook in logbooks for state in logbook.states),
        "orders": sum(len(receiver.carried) for machine in machines for receiver in machine.receivers),
        "records": fleet.run.trace.count,
        **dict(sorted(fleet.breaking.counts.items())),
    }


# ------------------------------------------------------------------ what a run left behind, as input of the checkers
#
# Everything in it was seen from outside.

SIGNATURES_MAX = 50
"""So many signatures of a shard are checked, at equal distances, the last one among them."""
DOUBT_NS = 6 * SECOND_NS
"""What came by another way than from outside was heard at most so long before it was durable: a write that takes longer
is given up."""


def _check_fleet(fleet: SimFleet) -> list[str]:
    """All that can be said about a run once it is over."""
    found: list[str] = []
    for machine in fleet.machines.values():
        found += machine.findings
        for logbook in (*machine.past, machine.logbook):
            found += [f"{machine.name}: {finding}" for finding in logbook.findings]
            found += [f"chain_is_valid: {finding}" for finding in _check_chain(machine, logbook)]
        found += [f"{machine.name}: {finding}" for receiver in machine.receivers for finding in receiver.findings]
    if any(machine.logbook.findings for machine in fleet.machines.values()):
        return found  # the rest would say the same in other words
    for machine in fleet.machines.values():
        found += [f"nothing_acknowledged_is_lost: {finding}" for finding in _check_acknowledged(machine)]
        found += [f"nothing_is_doubled: {finding}" for finding in _check_doubled(machine)]
    found += [f"tells_arrive: {finding}" for finding in tells_arrive(_told_pairs(fleet))]
    holds = fleet.holding.finish(fleet.run.loop.time_ns())
    found += [f"one_holder_at_a_time: {finding}" for finding in one_holder_at_a_time(holds)]
    found += [f"safe_action_in_time: {finding}" for finding in safe_action_in_time(_watched(fleet))]
    return found


def _check_replication(fleet: SimFleet) -> list[str]:
    """While nodes still run: replicas are equal; nobody is shut out but liars, and nothing has diverged but by them."""
    found = [f"replicas_converge: {finding}" for finding in fleet.apart()]
    liars, lies = fleet.keys_of_liars(), fleet.lies.objects
    for name, shared in fleet.honest_standings():
        diverged = [one for one in shared.diverged if one not in lies]
        found += [f"replicas_converge: {name} says that {one} has diverged" for one in diverged]
        shut_out = [key for key in shared.quarantined if key not in liars]
        found += [f"only_liars_are_shut_out: {name} has quarantined {key[:16]}…, which never lied" for key in shut_out]
    return found


def _count_shut_out(fleet: SimFleet) -> int:
    """How many keys honest nodes take nothing from any more."""
    return sum(len(shared.quarantined) for _, shared in fleet.honest_standings())


def _events_of(logbook: Logbook, shard: int) -> Iterator[tuple[int, KeptEvent]]:
    """All events in the log of one shard, with their positions."""
    reading = ShardReading(logbook.states[shard])
    for commit in logbook.commits[shard]:
        for kept in walk(commit, reading):
            yield commit.position, kept


def _check_chain(machine: Machine, logbook: Logbook) -> list[str]:
    found: list[str] = []
    verify = Ed25519Verifier().verify
    for shard in range(len(logbook.commits)):
        digests = [logbook.digest(shard, position) for position in range(1, len(logbook.commits[shard]) + 1)]
        signatures = [one for one in logbook.signatures if any(head.shard == shard for head in one.heads)]
        # The heads of a later one stand for all before it; to check each of very many takes longer than the run did.
        step = max(1, len(signatures) // SIGNATURES_MAX)
        signatures = signatures[::-1][::step][::-1]
        log = SignedLog(
            machine.name,
            logbook.identity.fleet,
            shard,
            logbook.commits[shard],
            digests,
            signatures,
            machine.signer.public_key,
        )
        found += chain_is_valid(log, verify)
    return found


def _is_kept(plan: AgentPlan, tag: str) -> bool:
    """Whether an observed event of this type is in the log as it came, once it was consumed."""
    for message, handled in plan.plans.items():
        if issubclass(message, Event) and handled.tag == tag:
            return handled.decide is None and handled.promise in (Keeping.DURABLE, Keeping.WITHIN)
    return False


def _check_acknowledged(machine: Machine) -> list[str]:
    """Only of the present incarnation: what a lost disk had acknowledged is lost, and an operator knows it."""
    kept: dict[tuple[str, str, bytes], None] = {}
    skipped: list[tuple[str, str, int, int]] = []
    failed_tag, skipped_tag = spec_of(InputFailed).tag, spec_of(InputsSkipped).tag
    for shard in range(len(machine.logbook.commits)):
        for _, event in _events_of(machine.logbook, shard):
            kept[machine.name, event.address, event.body] = None
            if event.tag == failed_tag:
                failure = msgspec.msgpack.decode(event.body, type=InputFailed)
                kept[machine.name, failure.to, failure.input] = None
            elif event.tag == skipped_tag and event.address == SHARD_ADDRESS:
                skip = msgspec.msgpack.decode(event.body, type=InputsSkipped)
                skipped.append((machine.name, skip.source, skip.first, skip.last))
    plans, source = machine.fleet.plans, machine.feed.source
    known: dict[tuple[str, str], bool] = {}
    told: list[AcknowledgedInput] = []
    for one in machine.feed.told:
        kind = one.address.partition("/")[0]
        key = (kind, tag_of(one.body))
        if key not in known:
            known[key] = _is_kept(plans[kind], key[1])
        if one.source == source and known[key]:
            told.append(AcknowledgedInput(machine.name, one.source, one.number, one.address, one.body))
    return nothing_acknowledged_is_lost(told, kept, skipped)


def _check_doubled(machine: Machine) -> list[str]:
    """What came from outside is in the log as often as it was said, and not once more."""
    source = machine.feed.source
    said = machine.feed.said()
    seen: dict[tuple[str, bytes], int] = {}
    taken: list[TakenMessage] = []
    for shard in range(len(machine.logbook.commits)):
        for position, event in _events_of(machine.logbook, shard):
            if event.source != source:
                continue
            key = (event.address, event.body)
            seen[key] = seen.get(key, 0) + 1
            what = f"{event.tag} at position {position}"
            number = min(seen[key], said.get(key, 0))
            taken.append(TakenMessage(event.address, f"{source} {event.body.hex()}", number, what))
    return nothing_is_doubled(one for one in taken if one.number)


def _told_pairs(fleet: SimFleet) -> Iterator[ToldPair]:
    """What agents told agents of other machines, if the log of the receiver has it as it came. Of a machine whose
    journal was replaced nothing is said: what was in the old one is gone."""
    whole = [machine for machine in fleet.machines.values() if not machine.past]
    taken: dict[tuple[str, str], list[bytes]] = {}
    given_up: dict[tuple[str, str], list[bytes]] = {}
    for machine in whole:
        for shard in range(len(machine.logbook.commits)):
            for _, event in _events_of(machine.logbook, shard):
                if event.tag == spec_of(InputFailed).tag:
                    failure = msgspec.msgpack.decode(event.body, type=InputFailed)
                    if failure.source.startswith(TOLD_SOURCES):
                        given_up.setdefault((f"{machine.name}/{shard}", failure.to), []).append(failure.input)
                    else:
                        taken.setdefault((failure.source, failure.to), []).append(failure.input)
                else:
                    taken.setdefault((event.source, event.address), []).append(event.body)
    for machine in whole:
        for shard, commits in enumerate(machine.logbook.commits):
            told: dict[str, list[bytes]] = {}
            for owed in (owed for commit in commits for owed in commit.owed if owed.sink.startswith(REMOTE_SINKS)):
                one = read_told(owed.body)
                told.setdefault(one.to, []).append(one.message)
            owing = machine.logbook.states[shard].outbox.owed()
            still = [read_told(pending.body) for pending in owing if pending.sink.startswith(REMOTE_SINKS)]
            for to, bodies in told.items():
                receiver = fleet.machines.get(home_of(fleet.assigned, to) or "")
                if receiver is None or receiver.past:
                    continue
                plan = receiver.fleet.plans[to.partition("/")[0]]
                kept = [body for body in bodies if _is_kept(plan, tag_of(body))]
                # What the receiver decided because of a tell has the same source: only what was told counts.
                tags = {tag_of(body) for body in kept}
                source = bus_source(f"tells {machine.fleet.name}/{SITE}/{machine.name}/{shard} {to}")
                yield ToldPair(
                    f"{machine.name}/{shard}",
                    to,
                    kept,
                    [body for body in taken.get((source, to), []) if tag_of(body) in tags],
                    given_up.get((f"{machine.name}/{shard}", to), []),
                    [one.message for one in still if one.to == to],
                )


def _watched(fleet: SimFleet) -> Iterator[Watched]:
    """Every agent that has a rule about silence, with all that was heard of it."""
    for machine in fleet.machines.values():
        rules = {
            kind: {spec_of(rule.event).tag: int(rule.after_s * SECOND_NS) for rule in plan.stale_rules}
            for kind, plan in machine.fleet.plans.items()
            if plan.stale_rules
        }
        if not rules or machine.past or fleet.setup.devices or fleet.setup.versions:
            continue  # of a machine that was replaced the times of several lives would be mixed
        known: dict[str, int] = {}
        for one in fleet.freshness.get(machine.name, ()):
            known.setdefault(one.agent, one.time_ns)
        for address, known_ns in known.items():
            state = machine.logbook.states[machine.fleet.homes.of(address)]
            if address in state.stopped:
                continue
            for tag, after_ns in rules.get(address.partition("/")[0], {}).items():
                yield _watch(fleet, machine, address, tag, after_ns, known_ns)


def _watch(fleet: SimFleet, machine: Machine, address: str, tag: str, after_ns: int, known_ns: int) -> Watched:
    told = [one for one in fleet.maybe_fresh.get(machine.name, ()) if (one.agent, one.tag) == (address, tag)]
    first_told: dict[bytes, list[int]] = {}
    for one in told:
        first_told.setdefault(one.body, []).append(one.time_ns)
    starts = fleet.starts[machine.name]
    fresh = [start for start in starts if start[0] > known_ns]
    for one in fleet.freshness.get(machine.name, ()):
        if (one.agent, one.tag) == (address, tag):
            before = [time_ns for time_ns in first_told.pop(one.body, []) if time_ns <= one.time_ns]
            # What came by another way, such as a tell, was heard by the life that has kept it.
            begun_ns = max((start[0] for start in starts if start[0] <= one.time_ns), default=0)
            fresh.append((before[0] if before else max(one.time_ns - DOUBT_NS, begun_ns), one.time_ns))
    tries = sorted(machine.receiver.safe_tries.get(address, ()))
    maybe = [one.time_ns for one in told]
    return Watched(address, after_ns, sorted(fresh), maybe, tries, fleet.up_of(machine.name))


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
    nodes: Nodes | None = None,
    seeds: int | Iterable[int] = SEEDS,
    faults: Sequence[Fault] | str = ALL,
    for_s: float = FOR_S,
    heal_s: float = HEAL_S,
    versions: Sequence[Declaration] = (),
    devices: bool = False,
    journal: str | None = None,
    models: Answers | None = None,
    policy: LoadedPolicy | None = None,
) -> Callable[[Callable[Concatenate[World, P], Coroutine[Any, Any, None] | None]], Callable[P, None]]:
    """Makes a function that takes a World a test that runs it in a simulated fleet, for each of these seeds.

    `agents`: how many of the fleet's first class, or how many of each class, or their addresses. `nodes`: on how many
    machines they live, or which of them on each: `{"north": ["Valve/1", "Pump/*"], …}`. `faults`: what may go wrong,
    drawn anew for each seed. `versions`: other versions of the same fleet, which some nodes run. `devices`: whether the
    fleet's own sensors and actuators run, or simulated ones. `models`: functions that answer in the place of
    models, in a rollout one for each version; without one, the rule of a model answers. `policy`: what is asked before
    agents decide, such as `RegoPolicy(modules, data)`; its rulings must depend on nothing else.
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
        models=models or {},
        policy=policy,
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
        nodes: Nodes | None = None,
        seeds: int | Iterable[int] = SEEDS,
        faults: Sequence[Fault] | str = ALL,
        for_s: float = FOR_S,
        heal_s: float = HEAL_S,
        versions: Sequence[Declaration] = (),
        devices: bool = False,
        journal: str | None = None,
        models: Answers | None = None,
        policy: LoadedPolicy | None = None,
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
            models=models or {},
            policy=policy,
        )
        return run_seeds(setup, seeds_of(seeds), test, lambda seed: f"pytest '{self._where}' --sim-seed {seed}")


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: give a number") from None
