"""Which agents there are in a simulated fleet, and on which machine each of them lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stigmergy.core.agent import Agent
from stigmergy.core.errors import ConfigError
from stigmergy.runtime.declaration import Declaration

NODES_DEFAULT_MAX = 4
NODES_MAX = 1_000
AGENTS_MAX = 100_000
Agents = int | Sequence[str] | Mapping[type[Agent], int]
"""A number of agents of the fleet's first class; addresses; or how many of each class."""


def name_agents(fleet: Declaration, agents: Agents) -> list[str]:
    """The addresses of all agents: given, or `Drone/1` to `Drone/16`."""
    if isinstance(agents, bool) or (isinstance(agents, int) and not 1 <= agents <= AGENTS_MAX):
        raise ConfigError(f"agents={agents!r}: give 1 to {AGENTS_MAX}, a list of addresses, or how many of each class")
    if isinstance(agents, int):
        kind = next(iter(fleet.plans))
        return [f"{kind}/{number}" for number in range(1, agents + 1)]
    if isinstance(agents, Mapping):
        named = [f"{kind.__agent_kind__}/{number}" for kind, count in agents.items() for number in range(1, count + 1)]
    else:
        named = list(dict.fromkeys(agents))
    for address in named:
        kind, _, name = address.partition("/")
        if kind not in fleet.plans or not name:
            raise ConfigError(f"agents has {address!r}; give addresses like 'Drone/1', of {', '.join(fleet.plans)}")
    if not named:
        raise ConfigError("agents=…: give at least one")
    return named


def place_agents(addresses: Sequence[str], nodes: int | None) -> dict[str, tuple[str, ...]]:
    """Deals the agents out to machines, one after the other. Without a number: one each, and at most four machines."""
    count = min(len(addresses), NODES_DEFAULT_MAX) if nodes is None else nodes
    if not 1 <= count <= NODES_MAX:
        raise ConfigError(f"nodes={count}: give 1 to {NODES_MAX}")
    wide = len(str(count))
    names = [f"node-{number:0{wide}d}" for number in range(1, count + 1)]
    return {name: tuple(addresses[place::count]) for place, name in enumerate(names)}
