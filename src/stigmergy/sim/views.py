"""The views of a simulated node: a store that forgets what was not synced when power is lost, and a check of its rows.

At every stop of a node its views must have caught up, and their rows must be what a fold of the whole log makes of it.
The fold goes shard by shard: a view whose rows depend on the order between shards, which nobody promises, is found.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence

from msgspec import structs

from stigmergy.agents.view import ViewPlan, plan_of
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.shard.commit import Commit
from stigmergy.shard.commit_reader import learn
from stigmergy.shard.directory import Directory
from stigmergy.sim.logbook import Logbook
from stigmergy.views.fold import Fold
from stigmergy.views.memory import MemoryTables, MemoryViewStore
from stigmergy.views.port import Values, check_selection, shard_name
from stigmergy.views.service import HostLogs, ViewService

CAUGHT_UP_S_MAX = 600.0
"""Virtual seconds that a view may take to catch up when its node is about to stop."""


class SimViewDisk(MemoryTables):
    """Tables, and what they were when they were last synced."""

    def __init__(self) -> None:
        super().__init__()
        self._synced = copy.deepcopy(self.tables)

    def sync(self) -> None:
        """What is there survives loss of power from now on."""
        self._synced = {name: structs.replace(table, rows=dict(table.rows)) for name, table in self.tables.items()}

    def lose_power(self) -> None:
        """What was not synced is gone."""
        self.tables = {name: structs.replace(table, rows=dict(table.rows)) for name, table in self._synced.items()}


class SimViewStore(MemoryViewStore):
    """The store of one life of a node."""

    def __init__(self, disk: SimViewDisk) -> None:
        super().__init__(disk)
        self._disk = disk

    async def sync(self) -> None:
        self._disk.sync()


def check_declared_views(declaration: Declaration) -> None:
    """Raises ConfigError for a view that no simulated node could keep: each has the log of its own fleet."""
    for plan in map(plan_of, declaration.views):
        others = [repr(name) for name in plan.fleets if name != declaration.name]
        if others:
            raise ConfigError(
                f"view {plan.name} is of fleet {' and '.join(others)} too, and the simulator has the logs of "
                f"{declaration.name!r}: simulate a Fleet without this view, and test it with given(…).project(…)"
            )


def make_views(declaration: Declaration, host: Host, disk: SimViewDisk) -> ViewService | None:
    """The views of a fleet on a simulated node; None if it has none."""
    if not declaration.views:
        return None
    logs = [HostLogs(declaration.name, host.feed)]
    store = SimViewStore(disk)
    service = ViewService(declaration.name, declaration.views, store, logs, declaration.homes.of)
    host.housekeeper.safeguards.views = service
    return service


async def check_views(service: ViewService, host: Host, logbook: Logbook) -> None:
    """Compares the rows of all views with a fold of all that was ever durable; what differs is a finding."""
    ends = {shard_name(service.fleet, shard): at.position for shard, at in host.feed.positions().items()}
    for projector in service.projectors.values():
        plan = projector.plan
        try:
            await projector.wait_written(ends, CAUGHT_UP_S_MAX)
            found, positions = await _rows_of(service, plan)
            expected = fold_of(plan, service.fleet, logbook.commits, positions)
        except StigmergyError as error:
            if host.failure is None:
                logbook.findings.append(f"view {plan.name}: {type(error).__name__}: {error}")
            continue
        if sorted(map(repr, found)) != sorted(map(repr, expected)):
            differing = sorted(set(map(repr, found)) ^ set(map(repr, expected)))[:4]
            logbook.findings.append(f"view {plan.name} at {positions} is not what its log folds into: {differing}")


async def _rows_of(service: ViewService, plan: ViewPlan) -> tuple[list[Values], dict[str, int]]:
    """All rows from one moment, and which."""
    store = service.projector(plan).store
    # More than one answer may have: a simulated store is in memory.
    wanted = structs.replace(check_selection(plan, ()), limit=sys.maxsize)
    rows, known = await store.select(plan.name, plan.columns, wanted)
    return rows, {name: at.position for name, at in known.positions.items()}


def fold_of(
    plan: ViewPlan, fleet: str, logs: Sequence[Sequence[Commit]], positions: dict[str, int] | None = None
) -> list[Values]:
    """The rows that whole logs make, up to these positions, or all of them."""
    fold = Fold(plan, empty=True)
    for shard, commits in enumerate(logs):
        directory = Directory()
        last = len(commits) if positions is None else positions.get(shard_name(fleet, shard), 0)
        for commit in commits[:last]:
            learn(directory, commit)
            fold.gather(commit, directory, fleet)
        fold.apply()
    return fold.take_changes()[0]
