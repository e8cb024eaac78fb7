"""Projects the views of fleets on workers: one process reads the logs of all shards on NATS, and answers for them.

    async with ClusterProjection([fleet], "nats://hub:4222", "sqlite:fleet.views") as projection: ...

Workers keep no views: each has only some of the shards. Several such processes may run on one store: one writes, and
another takes its place when it has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from stigmergy.app.node_config import open_exporter
from stigmergy.app.parts import shown_url
from stigmergy.app.views import open_view_store
from stigmergy.app.workers import OPTIONS, cluster_address
from stigmergy.audit.directories import Directories
from stigmergy.base.errors import ConfigError, JournalForeign, LinkDown
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.control.protocol import ControlEndpoint
from stigmergy.control.view_service import ViewsHandler
from stigmergy.diagnostics.codes import Trouble
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.nats.address import parse_address
from stigmergy.nats.journal import inspect_journals
from stigmergy.nats.naming import VIEWS
from stigmergy.node.declaration import Declaration
from stigmergy.node.feed import FeedPosition, FeedReader, FollowedLog, log_name
from stigmergy.node.settings import TraceSettings
from stigmergy.views.service import ViewService

if TYPE_CHECKING:
    from stigmergy.nats.control import NatsControlServer
    from stigmergy.nats.link import NatsLink

T = TypeVar("T")
Logs = Mapping[int, Journal]
LOOKS_MAX = 4
"""Views that may look for their place in the logs at the same time."""


class ClusterLogs:
    """The logs of a fleet's shards on NATS, as FleetLogs."""

    def __init__(self, fleet: Declaration, url: str, link: NatsLink) -> None:
        self._declared = fleet
        servers, mark, options = url.partition("?")
        named = parse_address(url, OPTIONS).path
        self._url = url if named else f"{servers.rstrip('/')}/{fleet.name}{mark}{options}"
        self._link = link
        self._threads = SystemThreads(LOOKS_MAX)
        self._log_names: dict[int, str] = {}

    @property
    def fleet(self) -> str:
        """Its name."""
        return self._declared.name

    def log_of(self, shard: int) -> str:
        """Known once the logs were looked at."""
        return self._log_names.get(shard, "")

    async def first_positions(self) -> dict[int, int]:
        """As the streams say at present."""
        return await self._look(lambda logs: {shard: log.first_position(shard) for shard, log in logs.items()})

    async def end_positions(self) -> dict[int, int]:
        """As the streams say at present."""
        return await self._look(
            lambda logs: {head.shard: head.position for log in logs.values() for head in log.heads()}
        )

    async def reader(self, start: Mapping[int, FeedPosition]) -> FeedReader:
        """Follows all shards."""
        from stigmergy.nats.journal.shard_log import open_shard_log

        def learn(logs: Logs) -> dict[int, tuple[JournalIdentity, Directories]]:
            found = {shard: (log.identity, Directories(log)) for shard, log in logs.items()}
            for shard, (_, directories) in found.items():
                if self._declared.has_compiled:  # from there on, commits say themselves how they are read
                    directories.begin(shard, start[shard].position)
            return found

        feeds: list[FollowedLog] = []
        try:
            for identity, directories in (await self._look(learn)).values():
                feeds.append(FollowedLog(await open_shard_log(self._link, identity), directories))
        except BaseException:
            for feed in feeds:
                await feed.close()
            raise
        return FeedReader(feeds, start)

    async def _look(self, use: Callable[[Logs], T]) -> T:
        """Looks at the logs as they are. Raises JournalForeign, and LinkDown where they are not there yet."""
        try:
            found = await self._threads.run(lambda: inspect_journals(self._url))
        except ConfigError as error:
            raise LinkDown(f"waits for workers, which make the logs when they start ({error})") from None
        try:
            logs = {log.identity.owned[0]: log for log in found}
            self._log_names = {shard: log_name(log.identity.incarnation) for shard, log in logs.items()}
            identity, fleet = found[0].identity, self._declared
            if (identity.fleet, identity.shards) != (fleet.name, fleet.shards) or identity.part is None:
                raise JournalForeign(
                    f"{shown_url(self._url)} has logs of fleet {identity.fleet!r} with {identity.shards} shards, and "
                    f"{fleet.name!r} has {fleet.shards}, with one log each on workers; name the right servers"
                )
            if len(logs) < fleet.shards:
                raise LinkDown(
                    f"waits for workers, which make the logs when they start: {len(logs)} of {fleet.shards} are there"
                )
            return await self._threads.run(lambda: use(logs))
        finally:
            for log in found:
                await log.close()


class ClusterProjection:
    """The views of some fleets, kept and answered by this process."""

    def __init__(
        self, fleets: Sequence[Declaration], nats: str, store: str, traces: TraceSettings | None = None
    ) -> None:
        if not any(fleet.views for fleet in fleets):
            raise ConfigError("no fleet here has views; list them in Fleet(…, views=[…])")
        self._fleets = tuple(fleets)
        self._nats = nats
        self._store_url = store
        self._link: NatsLink | None = None
        self._logs: list[ClusterLogs] = []
        self._servers: list[NatsControlServer] = []
        self.services: list[ViewService] = []
        self._exporter = open_exporter(traces or fleets[0].settings.traces, fleets[0].name, "views")

    async def __aenter__(self) -> ClusterProjection:
        """Connects, and begins to project."""
        from stigmergy.nats.control import NatsControlServer
        from stigmergy.nats.link import NatsLink

        names = ", ".join(fleet.name for fleet in self._fleets)
        for fleet in self._fleets:
            fleet.prepare(lambda _: None)
        self._link = link = await NatsLink.open(cluster_address(self._nats), name=f"views of {names}")
        try:
            self._logs = [ClusterLogs(fleet, self._nats, link) for fleet in self._fleets]
            for fleet in self._fleets:
                if not fleet.views:
                    continue
                store = open_view_store(self._store_url)
                service = ViewService(fleet.name, fleet.views, store, self._logs, fleet.homes.of)
                self.services.append(service)
                if self._exporter is not None:
                    service.trace(self._exporter, SystemClock().wall_ns)
                await service.start()
                server = NatsControlServer(link, fleet.name, VIEWS, ControlEndpoint(ViewsHandler(service)))
                await server.start()
                self._servers.append(server)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            await server.close()
        for service in self.services:
            await service.stop()
        if self._link is not None:
            await self._link.close()
        if self._exporter is not None:
            await SystemThreads(1).run(self._exporter.close)

    def troubles(self) -> list[Trouble]:
        """What does not work at present."""
        return [trouble for service in self.services for trouble in service.troubles()]

    def has_failed(self) -> bool:
        """Whether a view stands still for good."""
        return any(one.failed for service in self.services for one in service.projectors.values())
