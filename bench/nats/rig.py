"""What the benchmarks on NATS run: a fleet's shards, each on a log of its own on three servers, and feeds for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.rig import SEED
from bench.workload import DRONES, Descend, Drone, Feed, Land, Report, reports
from stigmergy.agents.effects import Order
from stigmergy.base.system import SystemClock
from stigmergy.cluster.standby import Standby
from stigmergy.journal.port import JournalIdentity, ShardLog
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.nats.address import parse_address
from stigmergy.nats.journal.shard_log import open_shard_log
from stigmergy.nats.link import REQUEST_S, Ack, NatsLink
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings

SERVERS = 3
SHARDS = 16
OPEN_S = 20.0
FLEET = "bench"
STOCK_EVENTS = 50_000


class HeardLink(NatsLink):
    """A link that remembers what is written to logs, while it is told to."""

    written: list[tuple[str, bytes]] | None = None

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, within_s: float = REQUEST_S
    ) -> Ack:
        """Publishes, and remembers it."""
        if self.written is not None and ".log." in subject:
            self.written.append((subject, payload))
        return await super().publish(subject, payload, headers, within_s)


async def open_heard(url: str, name: str) -> HeardLink:
    """A link to all servers of a URL, with logs on as many of them as there are."""
    link = HeardLink(parse_address(f"{url}?replicas={SERVERS}"), name=name)
    link.start()
    await link.wait_up(OPEN_S)
    return link


def declare(act: Callable[[Order[Any]], None], shards: int = SHARDS, name: str = FLEET) -> Declaration:
    """The drones; `act` is called for each action that is released."""
    fleet = Declaration(name, agents=[Drone], shards=shards)
    fleet.actuator(Descend)(act)
    fleet.actuator(Land)(act)
    return fleet


async def open_log(link: NatsLink, fleet: Declaration, shard: int) -> ShardLog:
    """The log of a shard."""
    return await open_shard_log(link, JournalIdentity(fleet.name, fleet.shards, 1, (shard, shard)))


def standby_of(log: ShardLog, fleet: Declaration) -> Standby:
    """Somebody who follows a log and may own it."""
    return Standby(log, fleet.plans, Ed25519Verifier(), fleet.settings.limits)


class Owned:
    """All shards of a fleet in one process, as a worker has them that is alone."""

    def __init__(self, link: NatsLink, fleet: Declaration) -> None:
        self._link = link
        self._fleet = fleet
        self.hosts: list[Host] = []
        self._logs: list[ShardLog] = []

    async def start(self, settings: Settings | None = None) -> None:
        """Claims every log, and starts a host on each."""
        for shard in range(self._fleet.shards):
            log = await open_log(self._link, self._fleet, shard)
            self._logs.append(log)
            claimed = await standby_of(log, self._fleet).claim("bench")
            signer = Ed25519Signer(SEED)
            host = Host(
                claimed.recovered,
                self._fleet,
                claimed.journal,
                signer,
                Ed25519Verifier(),
                SystemClock(),
                settings,
                claim=claimed.number,
            )
            await host.start()
            self.hosts.append(host)

    async def stop(self) -> None:
        """Ends them all, with everything written."""
        for host in self.hosts:
            await host.stop()
        for log in self._logs:
            await log.close()


def feeds(fleet: Declaration, batch_events: int, seed: int = 1) -> list[Feed]:
    """For each shard a feed of envelopes for drones that live there."""
    stock: list[list[Report]] = [[] for _ in range(fleet.shards)]
    for report in reports(seed, STOCK_EVENTS, drones=DRONES):
        stock[fleet.homes.of(report.address)].append(report)
    return [
        Feed(f"feed/{shard}", own[: max(1, len(own) // batch_events) * batch_events], batch_events)
        for shard, own in enumerate(stock)
    ]
