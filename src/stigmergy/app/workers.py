"""Assembles workers: a fleet's shards on NATS, with logs, leases, peers, bus and control endpoints there.

    async with NatsWorker(fleet, "nats://hub:4222") as worker:
        await worker.run()

One connection carries all of a worker's logs, leases, tells and control; a bus has another one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import structs

from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.raw import CLUSTER, RawGuard
from stigmergy.app.blobs import BlobsAt, blobs_url
from stigmergy.app.config import Config
from stigmergy.app.fleet import installed_version, make_link, verifier
from stigmergy.app.keyring import SharedKey, read_key
from stigmergy.app.ledgers import SCHEMES as ON_NATS
from stigmergy.app.models import NodeModels, asker_of
from stigmergy.app.node_config import NodeConfig, check_store, open_exporter, open_ledger, open_ledgers
from stigmergy.app.policy import policy_of
from stigmergy.app.profiled_process import profiled_process
from stigmergy.app.signing import KnownNodes, node_signing
from stigmergy.audit.blob_references import ReferenceTeller
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemClock, SystemEntropy, SystemThreads
from stigmergy.base.trust import Signer
from stigmergy.bus.port import Bus
from stigmergy.bus.topics import safe_node_name
from stigmergy.cluster.fencing import LeasedService
from stigmergy.cluster.owned_shard import ShardControlServer, ShardServices, WorkerContext
from stigmergy.cluster.records import WorkerRecord
from stigmergy.cluster.worker import JOIN_PAUSE_S, PASSING, Tell, Worker
from stigmergy.control.live import Live
from stigmergy.control.protocol import ControlEndpoint
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.journal.port import JournalIdentity, ShardLog
from stigmergy.nats import naming
from stigmergy.nats.address import NatsAddress, parse_address
from stigmergy.network.bus_link import BusLink
from stigmergy.network.peers import PeerProcesses
from stigmergy.network.questions import Questions
from stigmergy.network.remote_ledger import MESH as LEDGER_MESH
from stigmergy.network.remote_ledger import gateways_of
from stigmergy.network.replication import Replication
from stigmergy.node.declaration import Declaration
from stigmergy.node.device_tasks import Devices, open_attachment
from stigmergy.node.host import Host
from stigmergy.node.needs import check_needs
from stigmergy.node.profiling import Profiler
from stigmergy.node.settings import Settings
from stigmergy.store.port import KeyValue

if TYPE_CHECKING:
    from stigmergy.nats.link import NatsLink
    from stigmergy.nats.store.store import NatsStore

OPTIONS = ("replicas", "max_bytes")
REPLICATED_SERVERS = 3
"""A URL that names so many servers wants its streams on so many of them, if it does not say otherwise."""
INCARNATION_BYTES = 6
RUN_BYTES = 4
OF_ONE_MACHINE = ("sqlite:", "memory:")
"""Ledgers that workers on several machines cannot share."""
MISSING = 'a worker needs the NATS client: pip install "stigmergy[nats]"'


class NatsWorker:
    """One worker on NATS, from its connection to its end."""

    def __init__(
        self,
        fleet: Declaration,
        url: str,
        config: Config,
        *,
        key: Path | None = None,
        trust: Sequence[str] = (),
        agents: Sequence[str] = (),
        node_config: NodeConfig | None = None,
        name: str | None = None,
        upgrade: bool = False,
        tell: Tell = lambda *_: None,
        metrics_url: Callable[[], str] = str,
    ) -> None:
        self._fleet = fleet
        self._metrics_url = metrics_url
        self.address = cluster_address(url)
        self._key = key or (Path(config.fleet.key) if config.fleet.key else Path(f"{fleet.name}.key"))
        self._trusted = [read_key(text).key for text in (*config.fleet.trust, *trust)]
        self._agents = tuple(agents) or config.fleet.agents
        self._node_config = node_config or NodeConfig()
        self._name = safe_node_name(name or socket.gethostname()).replace(".", "-")
        self._upgrade = upgrade
        self._tell = tell
        self._settings = config.settings or fleet.settings
        self._links: list[NatsLink] = []
        self._worker: Worker | None = None
        self._backend: NatsClusterBackend | None = None
        check_surroundings(self._node_config, config, self._settings.retention.archive)
        has_bus, has_ledger = self._node_config.bus is not None, self._node_config.ledger is not None
        check_needs(fleet, url_beside(self.address), bus=has_bus, ledger=has_ledger)
        RawGuard(fleet.plans, self._settings.raw_may_leave).check(CLUSTER)

    async def __aenter__(self) -> Worker:
        """Connects, and makes the worker; it begins with its `run`."""
        self._fleet.check_safe_actions()
        self._fleet.prepare(lambda sentence: self._tell("prepares", {"what": sentence}))
        signer = SharedKey(self._key)
        await self._check_ledgers()
        link = await self._connect(self.address, f"worker of {self._fleet.name}")
        try:
            return await self._make(link, signer)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for attachment in reversed(self._fleet.attachments):
            try:
                await attachment.close()
            except Exception as failed:
                self._tell("troubled", {"reason": f"{type(attachment).__name__} could not be closed: {failed}"})
        for link in reversed(self._links):
            await link.close()
        self._links.clear()
        if self._backend is not None:
            await self._backend.close()

    async def _make(self, link: NatsLink, signer: Signer) -> Worker:
        from stigmergy.nats.store.store import NatsStore

        clock, entropy = SystemClock(), SystemEntropy()
        store, bucket = NatsStore(link, clock), naming.cluster_bucket(self._fleet.name)
        keys = await self._wait_keys(store, bucket)
        bus_link = None
        if self._node_config.bus is not None:
            bus_link = await self._connect(parse_bus(self._node_config.bus), f"bus of {self._fleet.name}")
        for attachment in self._fleet.attachments:
            await open_attachment(attachment)
        worker = f"{self._name}-{os.getpid()}"
        self._backend = backend = NatsClusterBackend(
            self._fleet,
            link,
            self._node_config,
            signer,
            self.stop,
            self._settings,
            self._connect,
            worker,
            bus_link=bus_link,
            metrics_url=self._metrics_url,
            member=self._member,
            trusted=self._trusted,
            known=self._key.with_name(f"{self._key.name}-known"),
        )
        if backend.policy is not None:
            await backend.policy.start()
        if backend.models is not None:
            await backend.models.start(lambda sentence: self._tell("notice", {"what": sentence}))
        context = WorkerContext(
            declaration=self._fleet,
            backend=backend,
            signer=signer,
            verifier=verifier(),
            clock=clock,
            entropy=entropy,
            settings=self._settings,
            trusted=self._trusted,
            has_bus=self._node_config.bus is not None,
            has_ledger=self._node_config.ledger is not None,
            agents=self._agents,
        )
        about = WorkerRecord(id=worker, host=socket.gethostname(), pid=os.getpid(), version=installed_version())
        self._worker = Worker(
            keys, context, about, self._tell, upgrade=self._upgrade, reopen=lambda: store.key_value(bucket)
        )
        return self._worker

    async def _check_ledgers(self) -> None:
        """Refuses ledgers that are wrong, on a thread: shards come and go while the ledger is away, and to look at it
        then would cost the worker its lease."""
        where, fleet = self._node_config, self._fleet
        if not (where.ledger or "").startswith(ON_NATS):
            return
        ordered = any(plan.ordered for plan in fleet.plans.values())
        threads = SystemThreads()
        claims = await threads.run(lambda: open_ledger(where, fleet.name)) if ordered else None
        own = await threads.run(lambda: open_ledgers(where, fleet.name, list(fleet.ledgers)))
        for ledger in (claims, *own.values()):
            if ledger is not None:
                await ledger.close()

    async def _wait_keys(self, store: NatsStore, bucket: str) -> KeyValue:
        """The fleet's bucket, once a majority of the servers is there: after a power cut a worker may be up first."""
        told = ""
        while True:
            try:
                return await store.key_value(bucket)
            except PASSING as error:
                if str(error) != told:
                    told = str(error)
                    self._tell("waits", {"reason": told})
                await asyncio.sleep(JOIN_PAUSE_S)

    def _member(self) -> str:
        """The id under which it is a member, which is a new one each time that it joins; empty while it is none."""
        membership = None if self._worker is None else self._worker.membership
        return "" if membership is None else membership.me

    def stop(self) -> None:
        """Makes the worker hand over everything, and end."""
        if self._worker is not None:
            self._worker.stop()

    async def _connect(self, address: NatsAddress, name: str) -> NatsLink:
        try:
            from stigmergy.nats.link import NatsLink
        except ModuleNotFoundError:
            raise ConfigError(MISSING) from None
        link = await NatsLink.open(address, name=name)
        self._links.append(link)
        return link


class NatsClusterBackend:
    """What a worker needs on NATS for each of its shards."""

    def __init__(
        self,
        fleet: Declaration,
        link: NatsLink,
        node_config: NodeConfig,
        signer: Signer,
        stop: Callable[[], None],
        settings: Settings,
        connect: Callable[[NatsAddress, str], Awaitable[NatsLink]],
        worker: str = "",
        *,
        bus_link: NatsLink | None = None,
        metrics_url: Callable[[], str] = str,
        member: Callable[[], str] = str,
        trusted: Sequence[bytes] = (),
        known: Path | None = None,
    ) -> None:
        """`trusted` are keys of other workers, `known` is the file of the keys of other nodes."""
        self._worker = worker
        self._known = KnownNodes(known)
        self._bus_settings = settings.bus
        self._member = member
        self._metrics_url = metrics_url
        self._fleet = fleet
        self._link = link
        self._bus_link = bus_link
        self._node_config = node_config
        self._signer = signer
        self._stop = stop
        self._entropy = SystemEntropy()
        self._connect = connect
        self._threads = SystemThreads()
        self._blobs = self._open_blobs(settings)
        self._exporter = open_exporter(settings.traces, fleet.name, worker)
        self._hosts: WeakValueDictionary[int, Host] = WeakValueDictionary()
        """By shard, for profiles. Nobody keeps a host, with all its agents, whose shard has moved away."""
        clock, run = SystemClock(), f"{worker}/{self._entropy.token(RUN_BYTES).hex()}"
        about = (fleet, node_config, clock, self._threads, settings.models, signer, self._running)
        self.policy = policy_of(fleet, node_config, clock, self._threads, settings)
        """That of all shards of this worker. It has no disk of its own: what was in force is forgotten at its end."""
        self.models = NodeModels(*about, run=run, trusted=trusted, policy=self.policy) if fleet.models else None
        """Those of all shards of this worker: one thread, one copy of each model."""
        self._profiler = Profiler(self._running, profiled_process(f"worker {worker}"))

    def _running(self) -> list[Host]:
        return [host for host in self._hosts.values() if host.failure is None]

    def _open_blobs(self, settings: Settings) -> BlobsAt:
        """The blobs of all shards of this worker: on the store that is named, else on the servers of the logs."""
        from stigmergy.nats.store.store import NatsStore

        clock, named = SystemClock(), self._node_config.blobs
        if named is not None:
            return BlobsAt(blobs_url(named, ""), self._fleet.name, clock, self._threads, settings.blobs)

        async def connect() -> NatsStore:
            # Leases are renewed on the worker's own connection: a photo must not be in front of them.
            return NatsStore(await self._connect(self._link.address, f"blobs of {self._fleet.name}"), clock)

        store = NatsStore(self._link, clock)
        name, shown = self._fleet.name, self._link.address.shown
        return BlobsAt(shown, name, clock, self._threads, settings.blobs, store=store, open_other=connect)

    async def close(self) -> None:
        """Ends models and policy, and sends the spans that are left."""
        if self.models is not None:
            await self.models.stop()
        if self.policy is not None:
            await self.policy.stop()
        if self._exporter is not None:
            await self._threads.run(self._exporter.close)

    async def open_log(self, shard: int) -> ShardLog:
        """The log of a shard: a stream of its own."""
        from stigmergy.nats.journal.shard_log import open_shard_log

        fleet = self._fleet
        incarnation = int.from_bytes(self._entropy.token(INCARNATION_BYTES), "big") + 1
        identity = JournalIdentity(fleet.name, fleet.shards, incarnation, (shard, shard), fleet.homes.key_name)
        return await open_shard_log(self._link, identity)

    def make_services(self, host: Host, shard: int, claim: int) -> ShardServices:
        """Peers, devices, bus, replication and control of one shard."""
        from stigmergy.nats.control import NatsControlServer
        from stigmergy.nats.peers import NatsPeerNetwork

        fleet, link = self._fleet, self._link
        self._hosts[shard] = host
        host.trace_to(self._exporter, self._worker)
        peers = PeerProcesses(host, NatsPeerNetwork(link, fleet.name, shard, lambda: claim))
        where = structs.replace(self._node_config, node=shard_node(shard))
        bus = self._open_bus(where, shard, claim)
        bus_link = None if bus is None else make_link(host, bus, self._entropy, where)
        key = (self._signer.algorithm, self._signer.public_key)
        about = (installed_version(), link.address.shown, key, self._signer, self._member() or self._worker)
        node = NodeDescription(*about, role="worker", metrics_url=self._metrics_url)

        def control_server(live: Live) -> ShardControlServer:
            service = LeasedService(ControlService(live, verifier(), node, self._stop, self._profiler), host.may_act)
            return NatsControlServer(link, fleet.name, shard, ControlEndpoint(service), lambda: claim)

        return ShardServices(
            policy=self.policy,
            models=self.models,
            asks=None if self.models is None else asker_of(host, self.models.asks),
            peers=peers,
            devices=Devices(host, self._threads),
            link=bus_link,
            bus=bus,
            replication=self._replication(host, where, bus_link),
            control_server=control_server,
            blobs=self._blobs.blobs,
            references=ReferenceTeller(
                self._blobs.blobs,
                f"{where.site or 'local'}/{where.node}/{host.journal.identity.incarnation}",
                lambda: self._logs_of(shard),
                collects=host.settings.blobs.collect,
            ),
        )

    async def _logs_of(self, shard: int) -> list[ShardLog]:
        """The log of a shard for one more reader, which waits for nobody."""
        return [await self.open_log(shard)]

    def _open_bus(self, where: NodeConfig, shard: int, claim: int) -> Bus | None:
        if where.bus is None or self._bus_link is None:
            return None
        from stigmergy.nats.bus.bus import NatsBus
        from stigmergy.nats.bus.options import read_options
        from stigmergy.nats.bus.partition import Partition

        fleet = self._fleet
        client_id = f"{fleet.name}:{where.site}:{where.node}"
        bus = NatsBus(
            read_options(where.bus, client_id),
            client_id,
            self._entropy,
            link=self._bus_link,
            partition=Partition(shard, fleet.shards, fleet.homes.of),
            epoch=claim,
        )
        clock = SystemClock()
        signing = node_signing(
            where,
            fleet.name,
            self._bus_settings,
            self._signer,
            lambda: clock.monotonic_ns() / SECOND_NS,
            known=self._known,
        )
        return signing.wrap(bus, where.bus)

    def _replication(self, host: Host, where: NodeConfig, link: BusLink | None) -> Replication:
        """Those it shares fields with, over the bus; and the ledger, if agents claim something."""
        ordered = any(plan.ordered for plan in self._fleet.plans.values())
        ledger = open_ledger(where, self._fleet.name, look=False) if ordered else None
        trusted = [read_key(text).key for text in where.peers]
        return Replication(
            host,
            self._signer,
            self._entropy,
            link=link,
            ledger=ledger,
            trusted=trusted,
            ledgers=open_ledgers(where, self._fleet.name, list(self._fleet.ledgers), look=False),
            gateways=gateways_of(where.ledger or ""),
            questions=None if link is None else Questions(link.make_mesh(LEDGER_MESH), self._entropy),
        )


def cluster_address(url: str) -> NatsAddress:
    """Where a fleet's workers meet. Streams are kept three times where three servers are named, or as it says."""
    address = parse_address(url, OPTIONS)
    if not address.option("replicas"):
        copies = REPLICATED_SERVERS if len(address.servers) >= REPLICATED_SERVERS else 1
        address = structs.replace(address, options=(*address.options, ("replicas", str(copies))))
    _ = address.replicas
    return address


def parse_bus(url: str) -> NatsAddress:
    """Where the bus of a worker is, which must be on NATS too: the servers sort messages by shard."""
    scheme = url.partition(":")[0]
    if scheme not in ("nats", "tls"):
        raise ConfigError(
            f"bus {url!r}: workers share a bus on NATS, which sorts messages by shard; give nats://…, and let devices "
            "connect to the MQTT listener of its servers"
        )
    from stigmergy.nats.bus.options import OPTIONS as BUS_OPTIONS

    return parse_address(url, BUS_OPTIONS)


def url_beside(address: NatsAddress) -> str:
    """A URL for the bus or the ledger of a fleet whose logs are at this address, for people: without the password."""
    login = f"{address.user}:PASSWORD@" if address.password else f"{address.user}@" if address.user else ""
    scheme, _, hosts = address.shown.partition("://")
    named = (("ca", address.ca), ("cert", address.cert), ("key", address.key), ("domain", address.domain))
    options = "".join(f"&{name}={value}" for name, value in named if value)
    return f"{scheme}://{login}{hosts}?replicas={address.replicas}{options}"


def check_surroundings(node_config: NodeConfig, config: Config, archive: str | None) -> None:
    """Refuses what workers cannot do."""
    if config.fleet.rings:
        raise ConfigError(
            "rings feed a node on their own machine, and shards move; let the producer send to the bus, and take rings "
            "out"
        )
    if config.fleet.copies:
        raise ConfigError(
            "the logs of workers are on the servers, as often as replicas= says; take copies out, it is for a journal "
            "on a disk"
        )
    if node_config.ledger is not None and node_config.ledger.startswith(OF_ONE_MACHINE):
        raise ConfigError(
            f"ledger {node_config.ledger!r} orders the claims of one machine or one process, and shards move: two "
            "agents could hold the same; give a ledger that all workers reach, such as nats://hub:4222?replicas=3"
        )
    if node_config.blobs is not None:
        if node_config.blobs.startswith("memory:"):
            raise ConfigError(
                f"blobs {node_config.blobs!r} are in one process, and shards move; leave blobs out, then they are on "
                "the servers of the logs, or name a store that all workers reach"
            )
        check_store(node_config.blobs)
    if node_config.mesh is not None:
        raise ConfigError(
            f"mesh {node_config.mesh!r}: workers share fields over their bus; give --bus nats://… instead"
        )
    if node_config.uplink is not None or node_config.collects:
        raise ConfigError("uplink and collects are for nodes at a site and their gateways; leave them out for a worker")
    if archive is not None:
        raise ConfigError(
            f"workers do not archive flight logs ({archive}); take archive out of [settings.retention], the logs are "
            "on the servers"
        )


def shard_node(shard: int) -> str:
    """What a shard is called on the bus: the same wherever it is."""
    return f"shard-{shard}"


__all__ = ["NatsClusterBackend", "NatsWorker", "Worker", "cluster_address", "parse_bus", "shard_node"]
