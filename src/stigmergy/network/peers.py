"""The other owners of a fleet's shards, as one of them sees them. Each has one shard, and shard 0 is process 1."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stigmergy.network.peer_port import PeerChannel, PeerNetwork
from stigmergy.network.tell_receiver import TellReceiver, TellReceiverCounters
from stigmergy.network.tell_sender import TellSender, TellSenderCounters
from stigmergy.node.host import Connections, Host
from stigmergy.shard.outbox import Pending


class PeerProcesses:
    """Makes a host one of several. The host connects to it when it is made; `start` it right after the host, before the
    host takes its first turn."""

    def __init__(self, host: Host, peer_network: PeerNetwork) -> None:
        self._host = host
        self._peer_network = peer_network
        self._sent = TellSenderCounters()
        self._received = TellReceiverCounters()
        self._sendings = {
            shard: TellSender(host, peer_network, shard, self._sent)
            for shard in range(host.shards.total)
            if shard not in host.journal.identity.owned
        }

    @property
    def connections(self) -> Connections:
        """What the host calls of it."""
        return Connections(peers=self)

    async def start(self) -> None:
        """Calls the peers and listens for them. Raises ConfigError if it cannot listen."""
        for sending in self._sendings.values():
            sending.start()
        try:
            await self._peer_network.open(self._serve)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Takes and sends nothing more. What was not confirmed stays owed on either side."""
        await self._peer_network.close()
        for sending in self._sendings.values():
            await sending.stop()

    def release(self, shard: int, epoch: int, target: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells for a shard that a peer owns."""
        self._sendings[target].release(epoch, pendings)

    def counters(self) -> dict[str, int]:
        """What came and went."""
        return {**structs.asdict(self._sent), **structs.asdict(self._received)}

    def troubles(self) -> list[str]:
        """Peers that refuse us, and why."""
        return [sending.trouble for sending in self._sendings.values() if sending.trouble]

    async def _serve(self, channel: PeerChannel) -> None:
        await TellReceiver(self._host, channel, self._received).serve()
