"""NATS servers whose links all go through proxies of ours, so that each can be cut: between servers, and to clients.

    async with PartedCluster.start(folder, nodes=3) as cluster:
        cluster.part([leader])              # nobody reaches it, but its own clients
        cluster.cut_clients(0)
        cluster.heal()

The proxies live on the caller's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from msgspec import structs

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.servers.configuration import ServerPlan
from stigmergy.nats.servers.server import LOOPBACK, NatsServer, free_ports
from stigmergy.testing.nats import STARTS_MAX, NatsCluster
from stigmergy.testing.proxy import LinkProxy

START_S_MAX = 180.0
LOOK_S = 0.05


class PartedCluster:
    """Servers, and the proxies between them and before them. They count from 0."""

    def __init__(self, servers: list[NatsServer], between: dict[tuple[int, int], LinkProxy], before: list[LinkProxy]):
        self.rig = NatsCluster(servers)
        self._between = between
        self._before = before

    @classmethod
    async def start(cls, folder: Path, nodes: int = 3, **settings: object) -> PartedCluster:
        """Starts so many servers and returns when they are ready. `settings` are those of ServerPlan, for each."""
        for number in range(STARTS_MAX):
            try:
                return await cls._try(folder, nodes, settings)
            except ConfigError as error:
                if number == STARTS_MAX - 1 or "in use" not in str(error):
                    raise
        raise AssertionError("unreachable")

    @classmethod
    async def _try(cls, folder: Path, nodes: int, settings: dict[str, object]) -> PartedCluster:
        folder = folder.absolute()  # noqa: ASYNC240 - it asks for no file
        ports = free_ports(3 * nodes)
        cluster_ports = ports[:nodes]
        between = {(one, other): LinkProxy(cluster_ports[other]) for one in range(nodes) for other in range(nodes)}
        before = [LinkProxy(port) for port in ports[nodes : 2 * nodes]]
        for proxy in [*between.values(), *before]:
            await proxy.start()
        plan = ServerPlan(name="", store="", cluster="rig", is_behind_proxies=True, **settings)  # type: ignore[arg-type]
        servers: list[NatsServer] = []
        for number in range(nodes):
            name = f"n{number + 1}"
            routes = tuple(f"{LOOPBACK}:{between[number, other].port}" for other in range(nodes) if other != number)
            own = structs.replace(
                plan,
                name=name,
                store=str(folder / name),
                port=ports[nodes + number],
                http_port=ports[2 * nodes + number],
                cluster_port=cluster_ports[number],
                routes=routes,
            )
            servers.append(NatsServer(own, folder))
        cluster = cls(servers, between, before)
        try:
            for server in servers:
                server.start()
            deadline_s = asyncio.get_running_loop().time() + START_S_MAX
            while not all(server.is_healthy() for server in servers):
                for server in servers:
                    server.check(time.monotonic() + 1)
                if asyncio.get_running_loop().time() > deadline_s:
                    raise LinkDown("the servers are not ready in time")
                await asyncio.sleep(LOOK_S)  # the proxies need the loop
        except BaseException:
            await cluster.close()
            raise
        return cluster

    @property
    def url(self) -> str:
        """All of them, through the proxies."""
        return "nats://" + ",".join(f"{LOOPBACK}:{proxy.port}" for proxy in self._before)

    def part(self, group: Sequence[int]) -> None:
        """Nothing passes any more between these servers and the others."""
        for (one, other), proxy in self._between.items():
            if (one in group) != (other in group):
                proxy.cut()

    def cut_pair(self, one: int, other: int) -> None:
        """Nothing passes any more between two servers; a third may still reach both."""
        self._between[one, other].cut()
        self._between[other, one].cut()

    def cut_clients(self, number: int) -> None:
        """No client reaches this server any more."""
        self._before[number].cut()

    def stall_clients(self, number: int) -> None:
        """Nothing passes between clients and this server, and nobody is told."""
        self._before[number].stall()

    def heal(self) -> None:
        """Everything passes again."""
        for proxy in [*self._between.values(), *self._before]:
            proxy.restore()

    async def close(self) -> None:
        """Ends everything."""
        self.rig.stop()
        for proxy in [*self._between.values(), *self._before]:
            await proxy.close()

    async def __aenter__(self) -> PartedCluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
