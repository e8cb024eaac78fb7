"""The views of a fleet: their projectors over one store, and the answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stigmergy.agents.view import View, ViewPlan, plan_of
from stigmergy.base.errors import ConfigError
from stigmergy.node.feed import FeedPosition, FeedReader, LogFeed
from stigmergy.views.port import RowSelection, ViewStore, cursor_of, shard_name
from stigmergy.views.projector import FleetLogs, Projector, ViewStatus
from stigmergy.views.query import ViewPage

SPARED_SHARE = 4
"""A device without room drops this part of what views have not read, at a time."""


class HostLogs:
    """The logs of a host, as FleetLogs."""

    def __init__(self, fleet: str, feed: LogFeed) -> None:
        self.fleet = fleet
        self._feed = feed

    async def first_positions(self) -> dict[int, int]:
        """The first position of each shard that is still there."""
        return {shard: at.position + 1 for shard, at in self._feed.first_positions().items()}

    async def end_positions(self) -> dict[int, int]:
        """Where each shard ends."""
        return {shard: at.position for shard, at in self._feed.positions().items()}

    async def reader(self, start: Mapping[int, FeedPosition]) -> FeedReader:
        """Reads behind these positions."""
        return self._feed.reader(start)


class ViewService:
    """Keeps and answers the views of one process. `start` it when the logs can be read, `stop` it before they close."""

    def __init__(
        self,
        fleet: str,
        views: Sequence[type[View]],
        store: ViewStore,
        sources: Sequence[FleetLogs],
        shard_of: Callable[[str], int],
    ) -> None:
        """`fleet` is the one whose shards need not be named; `shard_of` says where its agents live."""
        self.fleet = fleet
        self._store = store
        self._shard_of = shard_of
        self.projectors: dict[str, Projector] = {}
        by_fleet = {source.fleet: source for source in sources}
        for plan in map(plan_of, views):
            wanted = plan.fleets or (fleet,)
            lacking = [name for name in wanted if name not in by_fleet]
            if lacking:
                raise ConfigError(
                    f"view {plan.name} is of fleet {lacking[0]!r}, and this process reads {', '.join(by_fleet)}; run "
                    "stigmergy project with all of its fleets"
                )
            self.projectors[plan.name] = Projector(plan, store, [by_fleet[name] for name in wanted])

    async def start(self) -> None:
        """Begins to follow. Raises ViewChanged."""
        for projector in self.projectors.values():
            await projector.start()

    async def stop(self) -> None:
        """Ends, and closes the store."""
        for projector in self.projectors.values():
            await projector.stop()
        await self._store.close()

    async def kill(self) -> None:
        """Ends at once, as a crash would; the store stays as it is. For simulations."""
        for projector in self.projectors.values():
            await projector.stop()

    def plan(self, name: str) -> ViewPlan:
        """The view of this name. Raises ConfigError."""
        if name not in self.projectors:
            known = ", ".join(sorted(self.projectors)) or "none: list them in Fleet(…, views=[…])"
            raise ConfigError(f"there is no view {name!r} here; there are {known}")
        return self.projectors[name].plan

    def projector(self, plan: ViewPlan) -> Projector:
        """The projector of a view. Raises ConfigError for another one of its name."""
        if self.plan(plan.name).cls is not plan.cls:
            raise ConfigError(f"{plan.cls!r} is not the view {plan.name} of fleet {self.fleet!r}; import that one")
        return self.projectors[plan.name]

    async def page(self, plan: ViewPlan, wanted: RowSelection, after: Mapping[str, int], within_s: float) -> ViewPage:
        """The wanted rows, once these positions are in them."""
        projector = self.projector(plan)
        projector.check()
        await projector.wait_written({self._named(name): at for name, at in after.items()}, within_s)
        if projector.building and not await self._has_rows(plan):
            await projector.wait_built(within_s)
        before = {} if projector.building else projector.written
        rows, known = await self._store.select(plan.name, plan.columns, wanted)
        cursor = cursor_of(plan, wanted, rows[-1]) if len(rows) == wanted.limit else ""
        stored = {name: at.position for name, at in known.positions.items()}
        positions = {name: max(at, before.get(name, 0)) for name, at in {**before, **stored}.items()}
        return ViewPage(rows, cursor, positions)

    async def _has_rows(self, plan: ViewPlan) -> bool:
        """Whether rows of an earlier version answer while new ones are made."""
        known = await self._store.find(plan.name)
        return known is not None and known.shape == plan.shape

    def position_name(self, address: str) -> str:
        """How positions name the shard of an agent."""
        return shard_name(self.fleet, self._shard_of(address))

    def position_names(self) -> list[str]:
        """All logs that the views are made from, as positions name them."""
        return sorted({name for one in self.projectors.values() for name in one.written})

    def _named(self, name: str) -> str:
        return shard_name(self.fleet, int(name)) if name.isdigit() else name

    def floor(self, shard: int) -> int:
        """The last position of this fleet's shard that no view needs any more."""
        own = [one for one in self.projectors.values() if not one.plan.fleets or self.fleet in one.plan.fleets]
        return min((one.floor(self.fleet, shard) for one in own), default=2**62)

    def spare(self, shard: int, first: int, upto: int) -> int:
        """How far a device without room may drop: what no view needs, else some of the rest. A view that has not read
        that yet stops, and says so."""
        floor = min(upto, self.floor(shard))
        return floor if floor >= first else min(upto, first + (upto - first) // SPARED_SHARE)

    async def statuses(self) -> list[ViewStatus]:
        """Where each view stands."""
        return [await projector.status() for projector in self.projectors.values()]

    def troubles(self) -> list[str]:
        """What does not work at present."""
        return [projector.trouble for projector in self.projectors.values() if projector.trouble]

    def counters(self) -> dict[str, int]:
        """Counted since the start."""
        own = self.projectors.values()
        return {
            "view_events": sum(one.events for one in own),
            "view_rows_written": sum(one.rows_written for one in own),
        }
