"""A failing run is made smaller while it fails in the same way, and what is left fails by itself."""

from stigmergy.sim.campaign import Options, Shrinking, kind_of
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import Scenario, run_seed
from stigmergy.sim.world import World
from tests.sim.fleet.lights import Lamp, Seen, fleet


def never_far_apart(world: World) -> None:
    world.each(1.0, lambda lamp: world.observe(lamp, Seen(number=1)))

    def close() -> None:
        counts = [lamp.seen for lamp in world.states(Lamp)]
        assert max(counts) - min(counts) < 8, f"apart: {counts}"

    world.always(close)


HOUR_S = 3600.0
"""No matter how busy the machine is."""
SCENARIO = Scenario(setup=Setup(fleet=fleet, agents=6, nodes=3, for_s=20.0), test=never_far_apart)


def test_faults_agents_and_time_are_left_out_as_long_as_it_fails() -> None:
    setup = SCENARIO.setup
    seed, outcome = next(
        (seed, outcome)
        for seed in range(1, 30)
        for outcome in [run_seed(setup, seed, never_far_apart)]
        if outcome.violations and len(outcome.plan) > 8
    )
    tried: list[int] = []
    shrunk = Shrinking(SCENARIO, Options(), outcome, tried=tried.append, seconds_max=HOUR_S).run()
    assert tried == list(range(1, shrunk.runs + 1))
    assert 0 < len(shrunk.outcome.plan) <= 3
    assert shrunk.options.agents is not None
    assert shrunk.options.agents < 6
    assert shrunk.options.until_s is not None
    assert shrunk.options.until_s < 20
    assert "close: apart" in shrunk.outcome.violations[0]
    words = shrunk.options.words()
    assert words[words.index("--keep") + 1] == ",".join(str(one.number) for one in shrunk.outcome.plan)
    again = shrunk.options.apply(SCENARIO)
    assert run_seed(again.setup, seed, again.test).trace == shrunk.outcome.trace


def test_it_stops_at_its_bounds() -> None:
    outcome = next(
        outcome
        for seed in range(1, 30)
        for outcome in [run_seed(SCENARIO.setup, seed, never_far_apart)]
        if outcome.violations
    )
    assert Shrinking(SCENARIO, Options(), outcome, runs_max=3, seconds_max=HOUR_S).run().runs == 3
    assert Shrinking(SCENARIO, Options(), outcome, seconds_max=0).run().runs == 0


def test_another_failure_is_not_the_same() -> None:
    assert kind_of("at 3.141 s: always close: apart") == "always close"
    assert kind_of("nothing_is_doubled: node-1 took") == "nothing_is_doubled"
