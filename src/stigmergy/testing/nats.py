"""Real NATS servers for tests, proofs and benchmarks: one, a cluster, a hub with leaves; killed, paused, started again.

    with NatsCluster.start(tmp_path, nodes=3) as cluster:
        fleet.running(ledger=f"{cluster.url}?replicas=3")
        cluster.kill(cluster.leader_of("STIG_LEDGER_delivery"))

All of them listen on free loopback ports, and die with the process that started them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import structs

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.configuration import ServerPlan
from stigmergy.nats.servers.server import LOOPBACK, NatsServer, free_ports

READY_S_MAX = 120.0
"""Electing a leader takes seconds; on a busy machine, with a server that was killed at a bad moment, many of them."""
STARTS_MAX = 5
"""A port that was free may be taken before the server has it."""


class NatsCluster:
    """Servers that know each other; or one alone. A context manager that stops them."""

    def __init__(self, servers: list[NatsServer]) -> None:
        self.servers = servers

    @classmethod
    def start(cls, folder: Path, nodes: int = 3, **settings: Any) -> NatsCluster:
        """Starts so many servers and returns when they are ready. `settings` are those of ServerPlan, for each."""
        for number in range(STARTS_MAX):
            cluster = cls(_plan(folder, nodes, settings))
            try:
                for server in cluster.servers:
                    server.start()
                for server in cluster.servers:
                    server.wait_ready(READY_S_MAX)
            except (ConfigError, LinkDown) as error:
                cluster.stop()
                if number == STARTS_MAX - 1 or "in use" not in str(error):
                    raise
            except BaseException:
                cluster.stop()
                raise
            else:
                return cluster
        raise AssertionError("unreachable")

    @property
    def url(self) -> str:
        """All of them, as clients name them."""
        return "nats://" + ",".join(f"{server.plan.host}:{server.plan.port}" for server in self.servers)

    @property
    def urls(self) -> list[str]:
        """Each of them."""
        return [server.url for server in self.servers]

    def kill(self, number: int) -> None:
        """Ends one at once. They count from 0."""
        self.servers[number].kill()

    def pause(self, number: int) -> None:
        """SIGSTOP."""
        self.servers[number].pause()

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self.servers[number].resume()

    def start_again(self, number: int, *, wait: bool = True) -> None:
        """Starts one that was ended, on the same ports and data."""
        self.servers[number].start()
        if wait:
            self.servers[number].wait_ready(READY_S_MAX)

    def add(self, folder: Path) -> int:
        """Starts one more with an empty disk, that joins the others; returns its number."""
        first = self.servers[0].plan
        port, http_port, cluster_port = free_ports(3)
        name = f"n{len(self.servers) + 1}"
        plan = structs.replace(
            first, name=name, store=str(folder / name), port=port, http_port=http_port, cluster_port=cluster_port
        )
        plan = structs.replace(plan, routes=(*first.routes, f"{LOOPBACK}:{cluster_port}"))
        self.servers.append(NatsServer(plan, folder))
        self.servers[-1].start()
        self.servers[-1].wait_ready(READY_S_MAX)
        return len(self.servers) - 1

    def number_of(self, name: str) -> int:
        """Which of them has this name."""
        return [server.plan.name for server in self.servers].index(name)

    async def leader_of(self, stream: str) -> int | None:
        """Which of them leads a stream, as one that runs says; None while nobody does."""
        info = await self._ask(f"STREAM.INFO.{stream}")
        leader = (info.get("cluster") or {}).get("leader")
        return None if leader is None else self.number_of(leader)

    async def step_down(self, stream: str) -> None:
        """Makes the leader of a stream hand over."""
        await self._ask(f"STREAM.LEADER.STEPDOWN.{stream}")

    def leader_of_blocking(self, stream: str) -> int | None:
        """The same outside of an event loop."""
        return asyncio.run(self.leader_of(stream))

    async def _ask(self, call: str) -> dict[str, Any]:
        hosts = ",".join(f"{one.plan.host}:{one.plan.port}" for one in self.servers if one.is_running)
        link = await NatsLink.open(parse_address(f"nats://{hosts}"), name="rig")
        try:
            return await link.api(call)
        finally:
            await link.close()

    def stop(self) -> None:
        """Ends all of them at once: nothing of theirs is needed any more."""
        for server in self.servers:
            server.kill()

    def __enter__(self) -> NatsCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_single(folder: Path, **settings: Any) -> NatsCluster:
    """One server alone. `settings` are those of ServerPlan."""
    return NatsCluster.start(folder, nodes=1, **settings)


def _plan(folder: Path, nodes: int, settings: dict[str, Any]) -> list[NatsServer]:
    folder = folder.resolve()
    ports = iter(free_ports(nodes * 5))
    plans: list[ServerPlan] = []
    for number in range(1, nodes + 1):
        port, http_port, cluster_port, leaf_port, mqtt_port = (next(ports) for _ in range(5))
        own = dict(settings)
        if own.pop("leaf", False):
            own["leaf_port"] = leaf_port
        if own.pop("mqtt", False):
            own["mqtt_port"] = mqtt_port
        name = own.pop("name", "n") + (str(number) if nodes > 1 or "name" not in settings else "")
        plan = ServerPlan(name=name, store=str(folder / name), port=port, http_port=http_port, **own)
        plans.append(structs.replace(plan, cluster="rig", cluster_port=cluster_port) if nodes > 1 else plan)
    routes = tuple(f"{LOOPBACK}:{plan.cluster_port}" for plan in plans)
    return [NatsServer(structs.replace(plan, routes=routes if nodes > 1 else ()), folder) for plan in plans]
