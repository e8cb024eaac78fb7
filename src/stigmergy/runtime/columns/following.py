"""What happens to tables when a commit has become durable: the rows that queries see follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stigmergy.core.plans import AgentPlan
from stigmergy.core.ready import Ready
from stigmergy.core.state import ShardState


def follow(state: ShardState, ready: Ready) -> None:
    """A commit is on disk: its events enter the durable rows, and agents that it enrolled are there."""
    for kind, image in ready.images.items():
        if image is not None:
            state.tables[kind].adopt(image)
    for run in ready.commit.columns:
        if ready.images.get(run.kind) is None:
            state.tables[run.kind].follow(run.records, run.time_ns)
    state.enrolled.update(ready.enrolled)


def catch_up(state: ShardState) -> None:
    """After a replay everything is durable."""
    for kind, table in state.tables.items():
        table.catch_up()
        state.enrolled[kind] = len(table)


def durable_agent(state: ShardState, address: str) -> Any:
    """A compiled agent as it is on disk; None for one that is not there yet."""
    table, number = state.table_at(address)
    if table is None or not 0 <= number < state.enrolled.get(address.partition("/")[0], 0):
        return None
    return table.agent(number)


def durable_addresses(state: ShardState, kind: str) -> list[str]:
    """The addresses of the compiled agents of a kind that are on disk."""
    table = state.tables[kind]
    return [f"{kind}/{table.name(number)}" for number in range(state.enrolled.get(kind, 0))]


def addresses_of(state: ShardState, concerned: Callable[[AgentPlan], object]) -> Iterator[str]:
    """The addresses of all agents of kinds that this concerns, also of those that are not on disk yet: whether they
    are to be made safe does not wait for it. Without those at rest, which another node may run."""
    kinds = [kind for kind, plan in state.plans.items() if concerned(plan)]
    for address in list(state.agents):
        if address.partition("/")[0] in kinds and address not in state.at_rest:
            yield address
    for kind in kinds:
        table = state.tables.get(kind)
        if table is not None:
            yield from (f"{kind}/{table.name(number)}" for number in range(len(table)))
