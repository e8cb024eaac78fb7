"""A shard that this worker owns: its host and its services, started and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct, structs

from stigmergy.audit.blob_references import ReferenceTeller
from stigmergy.base.clock import Clock, Entropy
from stigmergy.base.errors import Bug, NotOwned, NotRunning, StigmergyError
from stigmergy.base.trust import Signer, Verifier
from stigmergy.bus.port import Bus
from stigmergy.cluster.records import WorkerRecord
from stigmergy.cluster.standby import ClaimedShard
from stigmergy.control.live import Live, RunningModels, RunningPolicy
from stigmergy.journal.port import Guard, ShardLog
from stigmergy.network.bus_link import BusLink
from stigmergy.network.peers import PeerProcesses
from stigmergy.network.replication import Replication
from stigmergy.node.declaration import Declaration
from stigmergy.node.device_tasks import Devices
from stigmergy.node.host import Connected, Connections, Host, connections_of
from stigmergy.node.settings import Settings
from stigmergy.node.tells import AskModels
from stigmergy.shard.inputs import EnrollSigner
from stigmergy.store.blobs import Blobs

# Services of a shard's host, started and stopped in order: peers, devices, bus, replication, control. The host connects
# to them when it is made. Missing ones are left out.


class ShardControlServer(Protocol):
    """Where operators ask the host of a shard."""

    async def start(self) -> None:
        """Begins to answer."""
        ...

    async def close(self) -> None:
        """Answers nobody any more."""
        ...


class ConnectedPolicy(RunningPolicy, Connected, Protocol):
    """The policy of a worker, as its hosts see it."""


class ShardServices:
    """The surroundings of one host."""

    def __init__(
        self,
        *,
        peers: PeerProcesses | None = None,
        devices: Devices | None = None,
        link: BusLink | None = None,
        bus: Bus | None = None,
        replication: Replication | None = None,
        control_server: Callable[[Live], ShardControlServer] | None = None,
        blobs: Blobs | None = None,
        references: ReferenceTeller | None = None,
        models: RunningModels | None = None,
        asks: AskModels | None = None,
        policy: ConnectedPolicy | None = None,
    ) -> None:
        """`models` and `policy` are those of the worker; `asks` asks the models for this host."""
        self.models = models
        self._asks = asks
        self.policy = policy
        self.peers = peers
        self.devices = devices
        self.link = link
        self._bus = bus
        """The connection of the link, which is closed whatever way it ends."""
        self.replication = replication
        self._blobs = blobs
        self.references = references
        self._make_control_server = control_server
        self._control_server: ShardControlServer | None = None
        self._started: list[PeerProcesses | Devices | BusLink | Replication] = []

    @property
    def connections(self) -> Connections:
        """What the host calls of them."""
        found = connections_of(self.peers, self.link, self.replication, self.policy)
        return structs.replace(found, blobs=self._blobs, models=self._asks)

    async def start(self, live: Live) -> None:
        """Right behind the start of the host, before its first turn. Raises, with all of it ended again."""
        try:
            # Side by side: each way to the servers and back is time in which the shard has no owner.
            await asyncio.gather(self._start_peers(), self._start_control_server(live))
            if self.devices is not None:
                self._started.append(self.devices)
                self.devices.start()
            if self.link is not None:
                self._started.append(self.link)
                await self.link.start()
            if self.replication is not None:
                self._started.append(self.replication)
                await self.replication.start()
            if self.references is not None:
                self.references.start()
        except BaseException:
            await self.kill()
            raise

    async def _start_peers(self) -> None:
        if self.peers is not None:
            self._started.append(self.peers)
            await self.peers.start()

    async def _start_control_server(self, live: Live) -> None:
        if self._make_control_server is not None:
            self._control_server = self._make_control_server(live)
            await self._control_server.start()

    async def stop(self) -> None:
        """Before the host stops: nothing more is taken, what is owed leaves if it can."""
        if self.references is not None:
            await self.references.stop()
        leaving = [part for part in self._started if isinstance(part, PeerProcesses)]
        await asyncio.gather(self._close_control_server(), *(part.stop() for part in leaving))
        for part in _in_order(self._started, (Devices, Replication, BusLink)):
            await part.stop()
        self._started.clear()

    async def kill(self) -> None:
        """Ends all of it as it is, without a word to anybody. Raises Bug if a part does not end, after all others."""
        ends: list[Callable[[], Awaitable[None]]] = [self._close_control_server]
        for part in _in_order(self._started, (Devices, Replication, BusLink, PeerProcesses)):
            ends.append(part.stop if isinstance(part, PeerProcesses) else part.kill)
        if self._bus is not None:
            ends.append(self._bus.close)
        if self.references is not None:
            ends.append(self.references.stop)
        stuck: Bug | None = None
        for end in ends:
            try:
                await end()
            except Bug as error:
                stuck = stuck or error
            except StigmergyError:
                continue
        self._started.clear()
        if stuck is not None:
            raise stuck

    async def _close_control_server(self) -> None:
        control_server, self._control_server = self._control_server, None
        if control_server is not None:
            try:
                await control_server.close()
            except Bug:
                raise
            except StigmergyError:
                pass  # nobody is told


ShardService = PeerProcesses | Devices | BusLink | Replication


def _in_order(parts: Sequence[ShardService], kinds: Sequence[type[ShardService]]) -> list[ShardService]:
    return [part for kind in kinds for part in parts if isinstance(part, kind)]


class ClusterBackend(Protocol):
    """What a worker needs of the world for a shard; the composition root gives it."""

    async def open_log(self, shard: int) -> ShardLog:
        """The log of a shard, made if there is none. Raises LinkDown, JournalForeign, ConfigError."""
        ...

    def make_services(self, host: Host, shard: int, claim: int) -> ShardServices:
        """The services of a shard's host, not yet started. `claim` is the number by which we own it."""
        ...


class WorkerContext(Struct, frozen=True):
    """What all shards of a worker run with."""

    declaration: Declaration
    backend: ClusterBackend
    signer: Signer
    verifier: Verifier
    clock: Clock
    entropy: Entropy
    settings: Settings
    trusted: Sequence[bytes] = ()
    """Other workers' keys: whose end of a log we believe, and who may sign ours."""
    has_bus: bool = False
    has_ledger: bool = False
    """Whether the estate brings them; a fleet that needs one that is missing is refused."""
    agents: Sequence[str] = ()
    """Which agents the fleet's workers run, the same for all of them; without any, all."""


class OwnedShard:
    """One host of one shard, on a log that was claimed for it."""

    def __init__(self, shard: int, context: WorkerContext, claimed: ClaimedShard, guard: Guard) -> None:
        self._shard = shard
        self._context = context
        self._claimed = claimed
        self.host = Host(
            claimed.recovered,
            context.declaration,
            claimed.journal,
            context.signer,
            context.verifier,
            context.clock,
            context.settings,
            context.trusted,
            agents=context.agents,
            guard=guard,
            claim=claimed.number,
            connect=self._connect,
        )
        self.live: Live | None = None

    def _connect(self, host: Host) -> Connections:
        self.services = self._context.backend.make_services(host, self._shard, self._claimed.number)
        return self.services.connections

    @property
    def claim(self) -> int:
        """The number of our claim."""
        return self._claimed.number

    async def begin(self, over: Callable[[], None]) -> None:
        """Starts the host and all around it. `over` is called when the host ends by itself. Raises as they do."""
        await self.host.start()
        services = self.services
        self.live = Live(
            self.host,
            self._context.entropy,
            services.devices,
            link=services.link,
            peers=services.peers,
            replication=services.replication,
            references=services.references,
            models=services.models,
            policy=services.policy,
        )
        await self.services.start(self.live)
        asyncio.ensure_future(self.host.wait_failure()).add_done_callback(lambda _: over())

    async def finish(self) -> Exception | None:
        """Ends in good order: what was taken is finished and written. Returns what went wrong on the way."""
        try:
            await self.services.stop()
            await self.host.stop()
        except StigmergyError as error:
            return error
        return None if isinstance(self.host.failure, NotRunning) else self.host.failure

    async def abandon(self) -> None:
        """Ends as it is: nothing more is written, and the world hears nothing. Raises Bug if something does not end."""
        self.host.retire(NotOwned("this worker has given up the shard; another may have it: ask again"))
        try:
            await self.services.kill()
        finally:
            await self.host.kill()
            with contextlib.suppress(StigmergyError, TimeoutError):
                async with asyncio.timeout(self._context.settings.drain_s):
                    await self._claimed.journal.close()

    def enrol(self, members: Sequence[WorkerRecord]) -> None:
        """Lets the keys of members that we trust sign this log, so that each of them may own it next."""
        known = [(signer.algorithm, signer.public_key) for signer in self.host.shards.signers.state.signers]
        for member in members:
            key = (member.algorithm, key_of(member))
            if key[1] in self._context.trusted and key not in known:
                known.append(key)
                if not self._context.verifier.acceptable(*key):  # it says what is wrong with it
                    self.host.intake.put_inside(self._shard, EnrollSigner(*key))


def key_of(member: WorkerRecord) -> bytes:
    """The key that a member says it signs with; empty if it says nonsense."""
    try:
        return bytes.fromhex(member.public_key)
    except ValueError:
        return b""
