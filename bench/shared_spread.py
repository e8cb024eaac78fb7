"""What a shared field costs the journals of a fleet: N agents a node, M nodes, one map that all of them write to.

Each replica of an object keeps what the others wrote as `Merged` events of its own, also those of agents on the same
node. So one write is kept once by its writer and up to N x M - 1 times by the others, fewer where several changes
arrive while the disk is busy. The second layout has one board agent a node, which is told by the agents beside it and
is the only replica there. Counted in the simulator, in virtual time and without faults: the same on every machine.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from stigmergy.agents.agent import Agent, decide, react
from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.effects import Effects, Events, Tell
from stigmergy.agents.messages import Event, spec_of
from stigmergy.agents.shared import Merged, Shared, SharedChanged, shared
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.node.declaration import Declaration
from stigmergy.sim.fleet import Setup, SimFleet
from stigmergy.sim.run import Run
from stigmergy.sim.world import World

EVERY_S = 1.0
"""How often each agent writes."""
SETTLE_S = 5.0
DEADLINE_S = 3_600.0
STEPS_MAX = 20_000_000


class Parked(Event):
    """Where a cart is."""

    bay: str


class Reported(Event):
    """What a cart tells the board of its node."""

    cart: str
    bay: str


class Cart(Agent):
    """Has the map itself."""

    board: Shared[ORMap[str, LWWRegister[str]]] = shared(by="site")

    @decide
    def parked(self, event: Parked) -> Events:
        yield event
        yield self.board[self.id].set(event.bay)


class Tug(Agent):
    """Tells the board of its node."""

    @react
    def report(self, event: Parked) -> Effects:
        yield Tell(to=f"Board/{self.id.partition('-')[0]}", message=Reported(cart=self.id, bay=event.bay))


class Board(Agent):
    """The one replica of a node."""

    board: Shared[ORMap[str, LWWRegister[str]]] = shared(by="site")

    @decide
    def reported(self, event: Reported) -> Events:
        yield self.board[event.cart].set(event.bay)


class Layout(Struct, frozen=True):
    """Which agents there are: a map in every agent, or one board a node."""

    name: str
    fleet: Declaration
    kind: str
    boards: bool

    def addresses(self, agents: int, nodes: int) -> list[str]:
        """In the order in which they are dealt out to nodes, so that a board is beside its agents."""
        boards = [f"Board/{node}" for node in range(nodes)] if self.boards else []
        return boards + [f"{self.kind}/{node}-{number}" for number in range(agents) for node in range(nodes)]


LAYOUTS = (
    Layout("every agent", Declaration("bench-spread", agents=[Cart]), "Cart", False),
    Layout("one board a node", Declaration("bench-boards", agents=[Tug, Board]), "Tug", True),
)


def measure_spread(grid: tuple[tuple[int, int], ...], for_s: float) -> list[dict[str, Any]]:
    """For each layout, and each number of agents a node and of nodes: what one write costs all journals together."""
    return [_measure(layout, agents, nodes, for_s) for agents, nodes in grid for layout in LAYOUTS]


def _measure(layout: Layout, agents: int, nodes: int, for_s: float) -> dict[str, Any]:
    run = Run(1, shuffle=False, deadline_s=DEADLINE_S, steps_max=STEPS_MAX)
    setup = Setup(fleet=layout.fleet, agents=layout.addresses(agents, nodes), nodes=nodes, faults=(), journal="memory")
    fleet = SimFleet(run, setup)
    run.run(_work(fleet, layout.kind, for_s))
    counts = _count(fleet)
    written = counts["written"]
    return {
        "layout": layout.name,
        "agents_per_node": agents,
        "nodes": nodes,
        "writes": written,
        "merged_per_write": round(counts["merged"] / written, 2),
        "bytes_per_write": round(counts["bytes"] / written),
        "shared_share": round((counts["merged_bytes"] + counts["written_bytes"]) / counts["bytes"], 2),
    }


async def _work(fleet: SimFleet, kind: str, for_s: float) -> None:
    await fleet.start()
    world = World(fleet)
    bays = 0

    def park(address: str) -> None:
        nonlocal bays
        if address.startswith(f"{kind}/"):
            bays += 1
            world.observe(address, Parked(bay=f"bay-{bays % 40}"))

    world.each(EVERY_S, park)
    await asyncio.sleep(for_s)
    world.heal()
    await asyncio.sleep(SETTLE_S)
    await fleet.stop()


def _count(fleet: SimFleet) -> dict[str, int]:
    """Events and bytes in all journals."""
    names = {spec_of(SharedChanged).tag: "written", spec_of(Merged).tag: "merged"}
    counts = {"written": 0, "written_bytes": 0, "merged": 0, "merged_bytes": 0, "bytes": 0}
    logbooks = [machine.logbook for machine in fleet.machines.values()]
    for commit in (commit for logbook in logbooks for commits in logbook.commits for commit in commits):
        counts["bytes"] += len(encode(commit))
        for _, body in commit.events:
            name = names.get(tag_of(body))
            if name is not None:
                counts[name] += 1
                counts[f"{name}_bytes"] += len(body)
    return counts
