"""The views of a fleet: their projectors over one store, and the answers to questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stigmergy.agents.view import View, ViewPlan, plan_of
from stigmergy.base.errors import ConfigError
from stigmergy.diagnostics.codes import Trouble
from stigmergy.node.feed import FeedPosition, FeedReader, LogFeed
from stigmergy.node.tracer import SpanSink
from stigmergy.views.port import RowSelection, ViewStore, check_selection, cursor_of, shard_name
from stigmergy.views.projector import FleetLogs, Projector, ViewStatus
from stigmergy.views.query import V, ViewPage, ViewQuestion

_OF_LOG = re.compile(r"(?P<name>(?:[^/]+/)?\d{1,4})@(?P<log>[0-9a-f]{1,8})", re.ASCII)
"""A shard with the name of its log, as positions have it."""
SPARED_SHARE = 4
"""A device without room drops this part of what views have not read, at a time."""


class HostLogs:
    """The logs of a host, as FleetLogs."""

    def __init__(self, fleet: str, feed: LogFeed) -> None:
        self.fleet = fleet
        self._feed = feed

    def log_of(self, shard: int) -> str:
        """How positions name the log of a shard."""
        return self._feed.log

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
        self._sources = by_fleet = {source.fleet: source for source in sources}
        for plan in map(plan_of, views):
            wanted = plan.fleets or (fleet,)
            lacking = [name for name in wanted if name not in by_fleet]
            if lacking:
                raise ConfigError(
                    f"view {plan.name} is of fleet {lacking[0]!r}, and this process reads {', '.join(by_fleet)}; run "
                    "stigmergy project with all of its fleets"
                )
            self.projectors[plan.name] = Projector(plan, store, [by_fleet[name] for name in wanted])

    def trace(self, sink: SpanSink, wall_ns: Callable[[], int]) -> None:
        """Has the spans of what is written told to somebody. They are not in the log, which does not know when."""
        for one in self.projectors.values():
            one.on_traced = lambda plan, commits: sink.viewed(plan.name, plan.projections, commits, wall_ns())

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

    async def ask(self, view: type[V], question: ViewQuestion) -> tuple[list[V], str]:
        """The rows that are asked for, and the cursor that leads to the next ones."""
        plan, asked = plan_of(view), question
        wanted = check_selection(plan, asked.where, asked.order, asked.limit, asked.cursor)
        found = await self.page(plan, wanted, asked.after, asked.within_s)
        rows: list[Any] = [plan.row_of(values) for values in found.rows]
        return rows, found.cursor

    async def page(self, plan: ViewPlan, wanted: RowSelection, after: Mapping[str, int], within_s: float) -> ViewPage:
        """The wanted rows, once these positions are in them."""
        projector = self.projector(plan)
        projector.check()
        await projector.wait_written({self._checked(name, at): at for name, at in after.items()}, within_s)
        if projector.building and not await self._has_rows(plan):
            await projector.wait_built(within_s)
        before = {} if projector.building else projector.written
        rows, known = await self._store.select(plan.name, plan.columns, wanted)
        cursor = cursor_of(plan, wanted, rows[-1]) if len(rows) == wanted.limit else ""
        stored = {name: at.position for name, at in known.positions.items()}
        positions = {name: max(at, before.get(name, 0)) for name, at in {**before, **stored}.items()}
        return ViewPage(rows, cursor, {self._with_log(name): at for name, at in positions.items()})

    async def _has_rows(self, plan: ViewPlan) -> bool:
        """Whether rows of an earlier version answer while new ones are made."""
        known = await self._store.find(plan.name)
        return known is not None and known.shape == plan.shape

    def position_name(self, address: str) -> str:
        """How positions name the shard of an agent."""
        return shard_name(self.fleet, self._shard_of(address))

    def is_log(self, name: str) -> bool:
        """Whether positions of the views have this name: that of a shard, with or without its log."""
        found = _OF_LOG.fullmatch(name)
        fleet, _, shard = self._named(name if found is None else found["name"]).rpartition("/")
        return fleet in self._sources and shard.isdigit()

    def _checked(self, name: str, position: int) -> str:
        """The shard of a position. Raises ConfigError where it names another log than the one that is read here."""
        found = _OF_LOG.fullmatch(name)
        if found is None or not self.is_log(name):
            return self._named(name)
        short = self._named(found["name"])
        here = self._with_log(short).rpartition("@")[2]
        if position and here not in (found["log"], short):
            raise ConfigError(
                f"position {name}:{position} is of the log {found['log']}, and this view reads {short} from the log "
                f"{here}; ask the node that has that log, or name it with of_node"
            )
        return short

    def _with_log(self, name: str) -> str:
        fleet, _, shard = name.rpartition("/")
        log = self._sources[fleet].log_of(int(shard)) if fleet in self._sources else ""
        return f"{name}@{log}" if log else name

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

    async def lags(self) -> dict[str, int]:
        """How many commits are not in the rows of each view yet; the logs are looked at once for all."""
        read = dict.fromkeys(name for one in self.projectors.values() for name in one.plan.fleets or (self.fleet,))
        ends = {name: await self._sources[name].end_positions() for name in read}
        return {name: projector.behind(ends) for name, projector in self.projectors.items()}

    def troubles(self) -> list[Trouble]:
        """What does not work at present."""
        found = [one for one in self.projectors.values() if one.trouble and (one.failed or one.waits_long)]
        return [Trouble("view-failed" if one.failed else "view-waits", one.trouble) for one in found]

    def counters(self) -> dict[str, int]:
        """Counted since the start."""
        own = self.projectors.values()
        return {
            "view_events": sum(one.events for one in own),
            "view_rows_written": sum(one.rows_written for one in own),
        }
