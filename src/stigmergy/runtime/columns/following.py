"""What happens to tables when a commit has become durable: the rows that queries see follow."""

from __future__ import annotations

from typing import Any

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
