"""All logs of a simulated run as one that can be played back: each shard of each node is a shard of its own.

The commits are those of the logbooks, numbered and chained anew; nothing else about them changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity, StoredCommit
from stigmergy.node.declaration import Declaration
from stigmergy.shard.commit import genesis_of, seal
from stigmergy.shard.homes import Homes
from stigmergy.sim.node import SimNode


class JoinedLog(Struct, frozen=True):
    """What all nodes of a fleet have kept in a run."""

    fleet: Declaration
    journal: MemoryJournal
    homes: Homes
    """In which of its shards an agent lives: that of the node that has run it."""


def join_logs(nodes: Sequence[SimNode]) -> JoinedLog | None:
    """The logs of one fleet: the first that shows something on a map, else the first. None if nothing was kept.

    Of a journal that was replaced the last is shown: an agent lives in one shard.
    """
    fleet = next((node.declaration for node in nodes if node.declaration.map_layers), nodes[0].declaration)
    books = [node.logbook for node in nodes if node.declaration.name == fleet.name]
    logs = [(commits, book.states[shard]) for book in books for shard, commits in enumerate(book.commits) if commits]
    if not logs:
        return None
    store = MemoryJournalStore(JournalIdentity(fleet.name, len(logs), 0))
    homes = Homes(len(logs))
    for shard, (commits, state) in enumerate(logs):
        previous = genesis_of(fleet.name, shard)
        stored: list[StoredCommit] = []
        for commit in commits:
            sealed = seal(structs.replace(commit, shard=shard, previous=previous))
            stored.append(StoredCommit(sealed, None))
            previous = sealed.digest
        store.commits[shard] = stored
        homes.settle(state.agents, shard)
        for kind, table in state.tables.items():
            homes.settle((f"{kind}/{table.name(row)}" for row in range(len(table))), shard)
    return JoinedLog(fleet, MemoryJournal(store), homes)
