"""Simulated fleets as users write them: what holds is silent, what does not is said, and the seed is everything."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stigmergy import (
    Accepted,
    Action,
    Agent,
    Effects,
    Event,
    Fleet,
    Order,
    Refused,
    Tell,
    WhenStale,
    evolve,
    react,
    within,
)
from stigmergy.base.errors import ConfigError, UnknownKind
from stigmergy.devices.staleness import Staleness
from stigmergy.node.committer import Committer
from stigmergy.shard.marks import Marks
from stigmergy.sim import ALL, CRASH, DELAY, NETWORK, NONE, POWER, SimulationFailed, World, simulate
from stigmergy.sim.campaign import Options, Shrinking
from stigmergy.sim.fleet import Setup
from stigmergy.sim.scenarios import missions
from stigmergy.sim.simulation import Scenario, Simulation, run_seed
from tests.sim.fleet.lights import Blink, Dim, Lamp, Seen, Station, Switch, Switched, declare, fleet


def work(world: World) -> None:
    numbers = iter(range(1, 1_000_000))
    world.each(1.0, lambda lamp: world.observe(lamp, Seen(number=next(numbers))))
    world.every(2.5, lambda: world.ask(world.chance.choice(world.agents), Switch(on=world.chance.random() < 0.5)))
    world.eventually(world.converged, 110)


SETUP = Setup(fleet=fleet, agents=6, nodes=3, for_s=15.0)


# What users write.


@simulate(fleet, agents=6, nodes=3, seeds=6, faults=ALL, for_s=15.0)
def test_whatever_goes_wrong_every_promise_holds(world: World) -> None:
    work(world)
    world.always(lambda: world.count("on", True) <= 6)


@simulate(fleet, agents=3, seeds=2, faults="none", for_s=5.0)
async def test_a_script_runs_in_virtual_time(world: World) -> None:
    assert isinstance(await world.send("Lamp/1", Switch(on=True)), Accepted)
    again = await world.send("Lamp/1", Switch(on=True))
    assert isinstance(again, Refused)
    assert "already" in again.reason
    await world.wait_observed("Lamp/1", Seen(number=1))
    assert world.state("Lamp/1", Lamp).seen == 1
    before_s = world.now_s
    await asyncio.sleep(3.0)
    assert world.now_s == before_s + 3.0
    assert [order.agent for order in world.orders(Dim)] == ["Lamp/1"]
    assert [order.effect.number for order in world.orders(Blink)] == [1]


def test_work_ends_with_the_faults_at_a_moment_or_with_the_run() -> None:
    told = {"heal": 0, "end": 0, "12.5": 0, "slowly": 0}

    def one(world: World, how: str, lamp: str) -> None:
        told[how] += 1
        world.observe(lamp, Seen(number=1))

    async def slowly(world: World) -> None:
        await asyncio.sleep(0.25)
        one(world, "slowly", "Lamp/1")

    def test(world: World) -> None:
        world.each(1.0, lambda lamp: one(world, "heal", lamp))
        world.each(1.0, lambda lamp: one(world, "end", lamp), until="end")
        world.every(1.0, lambda: one(world, "12.5", "Lamp/2"), until=12.5)
        world.every(0.75, lambda: slowly(world), until="end")
        world.eventually(lambda: world.now_s >= 20, 60)

    outcome = run_seed(Setup(fleet=fleet, agents=2, nodes=2, faults=(), for_s=5.0), 1, test)
    assert not outcome.violations, "the fleet has come to rest after all"
    assert told["heal"] == 2 * 5
    assert 2 * 20 <= told["end"] <= 2 * 21
    assert told["12.5"] == 13
    assert 19 <= told["slowly"] <= 21


def test_work_that_never_ends_is_refused() -> None:
    def test(world: World) -> None:
        world.each(1.0, lambda lamp: world.observe(lamp, Seen(number=1)), until="never")  # type: ignore[arg-type]

    (violation,) = run_seed(SETUP, 1, test).violations
    assert 'ConfigError: until=\'never\': give "heal", "end" or a number of virtual seconds' in violation


@simulate(fleet, agents=["Lamp/1", "Lamp/2", "Station/main"], nodes=3, seeds=1, faults=NONE, for_s=6.0)
async def test_agents_on_other_nodes_hear_over_the_bus(world: World) -> None:
    await asyncio.sleep(1.0)  # until everybody has subscribed
    for number in range(1, 9):
        await world.wait_observed("Lamp/1", Seen(number=number))
        await world.wait_observed("Lamp/2", Seen(number=number))
    world.eventually(lambda: world.state("Station/main", Station).passed == 4, 5)


@simulate(fleet, agents={Lamp: 4, Station: 1}, nodes=2, seeds=1, faults=NONE, for_s=4.0)
async def test_states_are_counted_together_and_apart(world: World) -> None:
    assert world.agents == ("Lamp/1", "Lamp/2", "Lamp/3", "Lamp/4", "Station/1")
    assert [node.agents for node in world.nodes] == [("Lamp/1", "Lamp/3", "Station/1"), ("Lamp/2", "Lamp/4")]
    for number in (1, 2, 3, 4):
        await world.wait_observed(f"Lamp/{number}", Seen(number=number))
    for number in (1, 3, 4):
        _ = await world.send(f"Lamp/{number}", Switch(on=True))
    assert world.count("on", True) == 3
    assert world.count("on", True, per="street") == 2
    assert world.count("on", True, per=lambda lamp: lamp.id) == 1
    assert [lamp.on for lamp in world.states(Lamp)] == [True, False, True, True]
    with pytest.raises(ConfigError, match="no agent of this run has such a field"):
        world.count("colour", "red")
    with pytest.raises(UnknownKind, match="Lamp/9"):
        world.observe("Lamp/9", Seen(number=1))
    with pytest.raises(UnknownKind, match="Station"):
        world.state("Lamp/1", Station)


@simulate(fleet, agents=4, nodes=2, seeds=3, faults=NONE, for_s=20.0, journal="sqlite")
async def test_nodes_can_be_broken_by_hand(world: World) -> None:
    one, other = world.nodes
    await world.wait_observed("Lamp/1", Seen(number=1))
    await one.lose_power()
    assert [node.is_up for node in world.nodes] == [False, True]
    assert world.state("Lamp/1", Lamp).seen == 1
    await world.wait_observed("Lamp/1", Seen(number=2))
    assert [node.is_up for node in world.nodes] == [True, True]
    other.pause(5.0)
    before_s = world.now_s
    await world.wait_observed("Lamp/2", Seen(number=1))
    assert world.now_s >= before_s + 5.0
    one.cut()
    told = asyncio.ensure_future(world.wait_observed("Lamp/1", Seen(number=3)))
    await asyncio.sleep(3.0)
    assert not told.done()
    one.restore()
    await told


def test_other_fixtures_come_behind_the_world(tmp_path: Path) -> None:
    @simulate(fleet, agents=1, seeds=1, faults=NONE, for_s=1.0)
    def check(world: World, folder: Path) -> None:
        (folder / "seed").write_text(str(world.seed))

    check(tmp_path)
    assert (tmp_path / "seed").read_text() == "1"


def test_the_fixture_runs_a_world_from_within_a_test(simulation: Simulation) -> None:
    outcomes = simulation(fleet, work, agents=2, seeds=[7, 8], faults=[CRASH, DELAY], for_s=5.0)
    assert [outcome.seed for outcome in outcomes] == [7, 8]
    assert all(outcome.messages > 0 for outcome in outcomes)


def test_the_environment_says_which_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    @simulate(fleet, agents=1, seeds=2, faults=NONE, for_s=1.0)
    def check(world: World) -> None:
        seeds.append(world.seed)

    check()
    monkeypatch.setenv("STIGMERGY_SIM_SEEDS", "3")
    check()
    monkeypatch.setenv("STIGMERGY_SIM_SEED", "8123")
    check()
    assert seeds == [1, 2, 1, 2, 3, 8123]
    monkeypatch.setenv("STIGMERGY_SIM_SEED", "many")
    with pytest.raises(ConfigError, match="STIGMERGY_SIM_SEED='many'"):
        check()


# What does not hold is said.


def fails(test: Callable[[World], Any], **options: Any) -> str:
    usual: dict[str, Any] = {"agents": 2, "seeds": 1, "faults": NONE, "for_s": 3.0}
    with pytest.raises(SimulationFailed) as failed:
        simulate(fleet, **(usual | options))(test)()
    return str(failed.value)


def test_a_failure_names_seed_findings_timeline_and_command() -> None:
    def never_on(world: World) -> None:
        world.every(1.0, lambda: world.ask("Lamp/2", Switch(on=True)), after_s=1.0)
        world.always(lambda: world.count("on", True) == 0, name="all lamps are off")

    text = fails(never_on, seeds=[4])
    assert "seed 4, trace " in text
    assert "at 1.0" in text
    assert "always all lamps are off: it does not hold" in text
    assert "= Lamp/2 Switched(on=True)" in text
    assert text.splitlines()[-1].startswith("again: pytest '")
    assert text.splitlines()[-1].endswith("--sim-seed 4")


def test_a_check_may_assert() -> None:
    def never(world: World) -> None:
        world.observe("Lamp/1", Seen(number=1))

        def check() -> None:
            assert world.state("Lamp/1", Lamp).seen == 0, "it has seen somebody"

        world.always(check)

    assert "always check: it has seen somebody" in fails(never)


def test_what_never_comes_is_said() -> None:
    def hope(world: World) -> None:
        world.eventually(lambda: world.count("on", True) == 2, 4)

    text = fails(hope)
    assert "at 7.0" in text or "at 7.1" in text or "at 7.2" in text or "at 7.3" in text or "at 7.4" in text
    assert "world.count(" in text
    assert "not within 4 s after the faults were over" in text


def test_what_never_comes_is_said_although_it_had_longer_than_the_heal() -> None:
    """It was passed over in silence: nobody looked any more when its time was over."""

    def hope(world: World) -> None:
        world.eventually(lambda: world.count("on", True) == 2, 30)

    outcome = run_seed(Setup(fleet=fleet, agents=2, nodes=1, faults=(), for_s=3.0, heal_s=10.0), 1, hope)
    assert len(outcome.violations) == 1
    assert "not within 30 s" in outcome.violations[0]


def test_a_script_that_fails_or_does_not_end_is_said() -> None:
    async def wrong(world: World) -> None:
        answer = await world.send("Lamp/1", Switch(on=False))
        assert isinstance(answer, Accepted)

    async def endless(world: World) -> None:
        await asyncio.sleep(10_000)

    assert "the script failed" in fails(wrong)
    assert "has not ended" in fails(endless)


def test_an_error_of_the_test_itself_is_raised_with_its_seed() -> None:
    @simulate(fleet, agents=1, seeds=[5], faults=NONE, for_s=1.0)
    def broken(world: World) -> None:
        raise KeyError("oops")

    with pytest.raises(KeyError) as raised:
        broken()
    assert raised.value.__notes__ == ["in the simulation with seed 5"]


def test_wrong_options_are_refused() -> None:
    def nothing(world: World) -> None: ...

    for wrong in ({"agents": 0}, {"agents": ["Car/1"]}, {"nodes": 0}, {"seeds": 0}, {"faults": "rain"}):
        with pytest.raises(ConfigError):
            simulate(fleet, **wrong)(nothing)()


# The seed is everything.


def test_the_same_seed_has_the_same_trace_with_and_without_a_chronicle() -> None:
    first, again, told = (run_seed(SETUP, 3, work, chronicle=chronicle) for chronicle in (False, False, True))
    assert first.trace == again.trace == told.trace
    assert first.plan == told.plan
    assert told.chronicle is not None
    assert run_seed(SETUP, 4, work).trace != first.trace


@pytest.mark.parametrize("hash_seed", [pytest.param("0", marks=pytest.mark.prove), "4711"])
def test_the_same_seed_has_the_same_trace_under_another_hash_seed(hash_seed: str) -> None:
    program = (
        "from tests.sim.test_simulate import SETUP, work\n"
        "from stigmergy.sim.simulation import run_seed\n"
        "print(run_seed(SETUP, 5, work).trace)"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, cwd=root
    )
    assert there.stdout.strip() == run_seed(SETUP, 5, work).trace


def test_only_some_of_what_a_seed_draws_can_be_kept() -> None:
    whole = run_seed(SETUP, 6, work)
    numbers = tuple(one.number for one in whole.plan[1:3])
    part = run_seed(Setup(fleet=fleet, agents=6, nodes=3, for_s=15.0, keep=numbers), 6, work)
    assert part.plan == whole.plan[1:3]


def test_nodes_run_different_versions_and_change_them() -> None:
    versions = (declare(), declare())
    outcome = run_seed(Setup(fleet=fleet, agents=4, nodes=3, for_s=20.0, versions=versions), 2, work)
    assert not outcome.violations, str(outcome)
    counts = [
        run_seed(Setup(fleet=fleet, agents=4, nodes=3, for_s=10.0, versions=versions), seed, work).counts
        for seed in (3, 4)
    ]
    assert any(count.get("versions") for count in counts)


def test_a_node_whose_disk_is_damaged_is_replaced() -> None:
    outcomes = [run_seed(SETUP, seed, work) for seed in range(20, 32)]
    assert all(not outcome.violations for outcome in outcomes)
    assert any(outcome.counts["replaced"] for outcome in outcomes)
    assert all(len(outcome.replaced) == outcome.counts["replaced"] for outcome in outcomes)


def test_a_check_over_all_history_can_tell_that_a_journal_was_replaced() -> None:
    seen: list[tuple[int, int, list[float]]] = []

    def test(world: World) -> None:
        work(world)
        most = dict.fromkeys(world.agents, 0)

        def nothing_is_forgotten() -> None:
            for lamp in world.agents:
                count = world.state(lamp, Lamp).seen
                assert count >= most[lamp] or world.replaced(lamp), f"{lamp} has forgotten something"
                most[lamp] = max(most[lamp], count)

        def look() -> bool:
            per_node = sum(len(world.replaced(node.name)) for node in world.nodes)
            assert [node.incarnation for node in world.nodes] == [
                1 + len(world.replaced(node.name)) for node in world.nodes
            ]
            seen.append((len(world.replaced()), per_node, [one.at_s for one in world.replaced()]))
            return True

        world.always(nothing_is_forgotten)
        world.eventually(look, 100)

    outcome = next(
        one for one in (run_seed(SETUP, seed, test, chronicle=True) for seed in range(20, 32)) if one.replaced
    )
    assert not outcome.violations
    everywhere, per_node, moments = seen[-1]
    assert everywhere == per_node == len(outcome.replaced) > 0
    assert moments == sorted(one.at_s for one in outcome.replaced)
    assert f"journals that were replaced:\n  {outcome.replaced[0]}" in str(outcome)
    assert outcome.chronicle is not None
    lives = [entry for entry in outcome.chronicle.entries if entry.kind == "life"]
    assert any("journal replaced: " in entry.text and entry.node == outcome.replaced[0].node for entry in lives)


def test_seed_142_of_the_drones_takes_photographs_again_after_a_journal_was_replaced() -> None:
    outcome = run_seed(missions.scenario.setup, 142, missions.scenario.test)
    assert not outcome.violations
    assert outcome.replaced


# A check that cannot fail checks nothing: each bug below must be found within a few seeds.


def repeated_inputs_are_taken(patch: pytest.MonkeyPatch) -> None:
    admit = Marks.admit
    patch.setattr(Marks, "admit", lambda self, *place: min(0, admit(self, *place)))


def acknowledged_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "notify", lambda self, ticket, *, written: ticket.resolve())


def silence_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Staleness, "due", lambda self, monotonic_ns: self._watches.clear() or [])


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (repeated_inputs_are_taken, "nothing_is_doubled"),
        (acknowledged_before_the_journal, "nothing_acknowledged_is_lost"),
        (silence_goes_unnoticed, "safe_action_in_time"),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    setup = Setup(fleet=fleet, agents=4, nodes=2, for_s=10.0, faults=(*NETWORK, CRASH, POWER))
    found = (violation for seed in range(1, 20) for violation in run_seed(setup, seed, work).violations)
    assert any(finding in violation for violation in found)


@pytest.mark.parametrize("found", [False, [], 0, "", {}])
def test_a_check_that_finds_nothing_does_not_hold(found: object) -> None:
    def ends_late(world: World) -> None:
        world.eventually(lambda: found if world.now_s < 9 else [1], 60, name="something")

    def never_ends(world: World) -> None:
        world.eventually(lambda: found, 4, name="something")

    setup = Setup(fleet=fleet, agents=1, nodes=1, faults=(), for_s=2.0)
    assert (
        run_seed(setup, 1, never_ends)
        .violations[0]
        .endswith("eventually something: not within 4 s after the faults were over")
    )
    late = run_seed(setup, 1, ends_late)
    assert not late.violations
    assert late.simulated_ns >= 9_000_000_000


def test_a_check_of_assertions_holds_when_it_raises_none() -> None:
    asked: list[float] = []

    def test(world: World) -> None:
        def look() -> None:
            asked.append(world.now_s)
            assert world.now_s >= 9

        world.eventually(look, 60)

    assert not run_seed(Setup(fleet=fleet, agents=1, nodes=1, faults=(), for_s=2.0), 1, test).violations
    assert max(asked) >= 9


class Reported(Event, keep=within(seconds=1)):
    number: int


class Alive(Event, keep=within(seconds=1)):
    number: int


class Close(Action):
    pass


class Pump(Agent):
    @react
    def report(self, event: Reported) -> Effects:
        yield Tell(to="Valve/1", message=Alive(number=event.number))


class Valve(Agent):
    number: int = 0
    closes = WhenStale(Alive, after_s=20, then=Close())

    @evolve
    def alive(self, event: Alive) -> None:
        self.number = event.number


pumps = Fleet("pumps", agents=[Pump, Valve], shards=8)


@pumps.actuator(Close)
async def close(order: Order[Close]) -> None:
    del order


def report_until_power_fails(world: World) -> None:
    async def fail() -> None:
        await asyncio.sleep(23.3 + 0.5 * world.seed)
        await world.nodes[0].lose_power()

    world.every(3.0, lambda: world.observe("Pump/1", Reported(number=1)))
    world.script(fail)
    world.eventually(lambda: len(world.orders(Close)) > 0, within_s=60)


PUMPS = Setup(fleet=pumps, agents=("Pump/1", "Valve/1"), nodes=1, faults=(), for_s=30.0)


@pytest.mark.parametrize("seed", [2, 4, 8])
def test_a_safe_action_after_a_tell_that_came_after_a_start_is_in_time(seed: int) -> None:
    assert not run_seed(PUMPS, seed, report_until_power_fails).violations


@pytest.mark.parametrize("seed", [2, 4, 8])
def test_a_safe_action_that_is_late_after_such_a_tell_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = Staleness.refresh

    def refresh_ahead(self: Staleness, agent: str, event: Any, monotonic_ns: int) -> None:
        refresh(self, agent, event, monotonic_ns + 3_000_000_000)

    monkeypatch.setattr(Staleness, "refresh", refresh_ahead)
    (violation,) = run_seed(PUMPS, seed, report_until_power_fails).violations
    assert "safe_action_in_time: Valve/1: silent since" in violation


PLACES = {"north": ["Pump/*", "Valve/1"], "south": ["Valve/s-*"]}


@simulate(pumps, agents=["Pump/1", "Valve/1", "Valve/s-1", "Valve/s-2"], nodes=PLACES, seeds=2, faults=ALL, for_s=5.0)
def test_agents_live_where_they_are_placed(world: World) -> None:
    assert {node.name: node.agents for node in world.nodes} == {
        "north": ("Pump/1", "Valve/1"),
        "south": ("Valve/s-1", "Valve/s-2"),
    }
    world.every(1.0, lambda: world.observe("Pump/1", Reported(number=7)))
    world.eventually(lambda: world.state("Valve/1", Valve).number == 7, 60)
    world.eventually(world.converged, 100)


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ({"north": ["Pump/1"]}, "Valve/1 is on no node"),
        ({"north": ["Pump/1", "Valve/1"], "south": ["Valve/*"]}, "Valve/1 is on north and south"),
        ({"north": ["Pump/1", "Valve/*"], "south": []}, "south runs none of the agents"),
        ({"north": ["Pump/1", "Valve/*"], "south": ["Valve/9"]}, "south runs none of the agents"),
        ({"north": ["Pump"]}, "'Pump'"),
        ({"no/rth": ["*"]}, "node"),
    ],
)
def test_places_that_do_not_fit_the_agents_are_refused(places: dict[str, list[str]], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        run_seed(Setup(fleet=pumps, agents=("Pump/1", "Valve/1"), nodes=places, faults=()), 1, lambda world: None)


def test_named_nodes_stay_when_a_failure_is_made_smaller() -> None:
    def test(world: World) -> None:
        world.every(1.0, lambda: world.observe("Pump/1", Reported(number=7)))
        world.always(lambda: world.state("Valve/1", Valve).number == 0, name="closed")

    setup = Setup(fleet=pumps, agents=("Pump/1", "Valve/1"), nodes={"a": ["Pump/1", "Valve/1"]}, for_s=5.0)
    scenario = Scenario(setup=setup, test=test)
    outcome = run_seed(setup, 1, test)
    assert "always closed" in outcome.violations[0]
    assert Shrinking(scenario, Options(), outcome).run().options.nodes is None


def test_an_agent_that_does_what_it_must_not_is_found() -> None:
    def one_at_a_time(world: World) -> None:
        work(world)
        world.always(lambda: world.count("on", True) <= 1, name="one lamp at a time")

    found = [run_seed(SETUP, seed, one_at_a_time).violations for seed in range(1, 4)]
    assert all("one lamp at a time" in violations[0] for violations in found)


def test_fleets_are_not_changed_by_being_simulated() -> None:
    mine = declare("mine")
    before = {name: id(value) for name, value in vars(mine).items()}
    simulate(mine, agents=1, seeds=1, faults=NONE, for_s=1.0)(lambda world: None)()
    assert {name: id(value) for name, value in vars(mine).items()} == before
    assert isinstance(mine, Fleet)
    assert Switched(on=True).on


def test_a_fault_that_was_not_drawn_cannot_be_kept() -> None:
    setup = Setup(fleet=fleet, agents=2, faults=ALL, for_s=3.0, keep=(99,))
    with pytest.raises(ConfigError, match=r"keep 99: this seed draws \d+ faults"):
        run_seed(setup, 1)
