"""The simulator measured: a fleet of 50 nodes and 1,000 agents through one simulated hour, on one core.

Each agent is told something every 10 s, on nodes with journals in memory and the default settings, presence on the bus
included; all checkers look at it at the end. `together`: a node's agents share a beat, as where a device reads its
sensors in one go. `apart`: each has a beat of its own, so that each message is a commit and a signature of its own;
that is measured over a part of the hour. Seconds are those of the processor. A message is one that an agent was told,
or that went from one node to another.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from msgspec import Struct

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.targets import Target
from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event
from stigmergy.node.declaration import Declaration
from stigmergy.sim.faults import NONE
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import Outcome, Test, find_scenario, run_seed
from stigmergy.sim.world import World

EVERY_S = 10.0
HOUR_S = 3600.0
TARGETS = (Target("hour_s", "50 nodes, 1,000 agents at 0.1 Hz for a simulated hour, seconds", 60.0),)


class Measured(Event):
    number: int


class Gauge(Agent):
    count: int = 0

    @evolve
    def measured(self, event: Measured) -> None:
        self.count += 1


class Sizes(Struct, frozen=True):
    """How much is measured."""

    agents: int = 1_000
    nodes: int = 50
    together_s: float = HOUR_S
    apart_s: float = HOUR_S / 12
    seeds: int = 20


FULL = Sizes()
QUICK = Sizes(agents=40, nodes=4, together_s=120.0, apart_s=60.0, seeds=2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench sim`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the figures by name."""
    sizes = QUICK if arguments.quick else FULL
    together_s, together = _time(sizes, sizes.together_s, together=True)
    apart_s, apart = _time(sizes, sizes.apart_s, together=False)
    begin_s = time.process_time()
    missions = find_scenario("missions")
    broken = [run_seed(missions.setup, seed, missions.test) for seed in range(1, sizes.seeds + 1)]
    broken_s = time.process_time() - begin_s
    outcomes = [together, apart, *broken]
    return {
        "hour_s": round(together_s * HOUR_S / sizes.together_s, 1),
        "messages_per_s": round(together.messages / together_s),
        "hour_messages": round(together.messages * HOUR_S / sizes.together_s),
        "apart_hour_s": round(apart_s * HOUR_S / sizes.apart_s, 1),
        "apart_messages_per_s": round(apart.messages / apart_s),
        "nodes": sizes.nodes,
        "agents": sizes.agents,
        "seeds_per_s_all_faults": round(sizes.seeds / broken_s, 2),
        "messages_per_s_all_faults": round(sum(outcome.messages for outcome in broken) / broken_s),
        "violations": sum(len(outcome.violations) for outcome in outcomes),
        "trace": together.trace,
    }


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Messages a second."""
    bars = [
        Bar("a beat for each node", figures["messages_per_s"]),
        Bar("a beat for each agent", figures["apart_messages_per_s"]),
        Bar("missions, all faults, on simulated disks", figures["messages_per_s_all_faults"]),
    ]
    return [Bars("simulated messages per second, one core", "1/s", bars)]


def _time(sizes: Sizes, for_s: float, *, together: bool) -> tuple[float, Outcome]:
    setup = Setup(
        fleet=Declaration("bench-sim", agents=[Gauge]),
        agents=sizes.agents,
        nodes=sizes.nodes,
        faults=NONE,
        for_s=for_s,
        journal="memory",
        remembers=False,
    )
    begin_s = time.process_time()
    outcome = run_seed(setup, 1, _work(together))
    return time.process_time() - begin_s, outcome


def _work(together: bool) -> Test:
    def work(world: World) -> None:
        told = Measured(number=1)
        world.each(EVERY_S, lambda gauge: world.observe(gauge, told), together=together)

    return work
