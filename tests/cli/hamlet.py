"""A fleet whose shards each have an owner of their own, connected by NATS alone, as workers have it. Not a test.

Its journals are in memory: what is tried here are the ways between owners and from outside, not the logs.
"""

from __future__ import annotations

from functools import partial

from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.control.protocol import ControlEndpoint
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.nats.address import parse_address
from stigmergy.nats.control import NatsControlServer
from stigmergy.nats.link import NatsLink
from stigmergy.nats.peers import NatsPeerNetwork
from stigmergy.network.peers import PeerProcesses
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Connections, Host, open_host


class Owner:
    """The owner of one shard, and its log, which outlives it."""

    def __init__(self, link: NatsLink, fleet: Declaration, shard: int) -> None:
        self._link = link
        self._fleet = fleet
        self._shard = shard
        self._store = MemoryJournalStore(
            JournalIdentity(fleet.name, fleet.shards, 1, (shard, shard), fleet.homes.key_name)
        )
        self._signer = Ed25519Signer(bytes(32))
        self.lives = 0
        self.host: Host | None = None
        self._peers: PeerProcesses | None = None
        self._door: NatsControlServer | None = None

    async def start(self) -> None:
        """Begins a life: its rank is higher than any before."""
        self.lives += 1
        self._store.owner = None
        epoch = partial(int, self.lives)
        peer_network = NatsPeerNetwork(self._link, self._fleet.name, self._shard, epoch)

        def connect(host: Host) -> Connections:
            self._peers = PeerProcesses(host, peer_network)
            return self._peers.connections

        journal = MemoryJournal(self._store)
        host = open_host(self._fleet, journal, self._signer, Ed25519Verifier(), SystemClock(), connect=connect)
        assert self._peers is not None
        await host.start()
        await self._peers.start()
        live = Live(host, SystemEntropy(), peers=self._peers)
        desk = ControlService(live, Ed25519Verifier(), NodeDescription("1", "memory:", host.key), lambda: None)
        self._door = NatsControlServer(self._link, self._fleet.name, self._shard, ControlEndpoint(desk), epoch)
        await self._door.start()
        self.host = host

    async def stop(self) -> None:
        """Ends it, with what it has taken in its log."""
        if self._door is not None and self._peers is not None and self.host is not None:
            await self._door.close()
            await self._peers.stop()
            await self.host.stop()
            self.host = None


class Hamlet:
    """All owners of a fleet, on one link."""

    def __init__(self, link: NatsLink, fleet: Declaration) -> None:
        self._link = link
        self.owners = [Owner(link, fleet, shard) for shard in range(fleet.shards)]

    @classmethod
    async def start(cls, url: str, fleet: Declaration) -> Hamlet:
        """Connects, and starts them all."""
        hamlet = cls(await NatsLink.open(parse_address(url), name="hamlet"), fleet)
        for owner in hamlet.owners:
            await owner.start()
        return hamlet

    async def stop(self) -> None:
        """Ends them all."""
        for owner in self.owners:
            await owner.stop()
        await self._link.close()
