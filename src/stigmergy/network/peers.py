"""The other processes of a fleet, as one of them sees them: which shards each owns, and how tells get there."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stigmergy.network.peer_port import PeerChannel, PeerNetwork
from stigmergy.network.shares import Share
from stigmergy.network.tell_receiver import TellReceiver, TellReceiverCounters
from stigmergy.network.tell_sender import TellSender, TellSenderCounters
from stigmergy.node.host import Host
from stigmergy.shard.outbox import Pending


class PeerProcesses:
    """Makes a host one of several. Make it before the host starts, which releases then what is still owed; `start` it
    right behind that, before the host takes its first turn."""

    def __init__(self, host: Host, peer_network: PeerNetwork, share: Share) -> None:
        self._host = host
        self._peer_network = peer_network
        self._share = share
        self._sent = TellSenderCounters()
        self._received = TellReceiverCounters()
        self._sendings = {
            process: TellSender(host, peer_network, share, process, self._sent) for process in share.others
        }
        host.shards.owner_of = self.owner_of
        host.tells.elsewhere = self

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
        self._sendings[self._share.process_of(target)].release(shard, epoch, target, pendings)

    def owner_of(self, shard: int) -> str:
        """The owner of a shard, for people."""
        share = self._share
        if not 0 <= shard < share.shards:
            return "nobody"
        return f"process {share.process_of(shard)} of {share.processes}"

    def counters(self) -> dict[str, int]:
        """What came and went."""
        return {**structs.asdict(self._sent), **structs.asdict(self._received)}

    def troubles(self) -> list[str]:
        """Peers that refuse us, and why."""
        return [sending.trouble for sending in self._sendings.values() if sending.trouble]

    async def _serve(self, channel: PeerChannel) -> None:
        await TellReceiver(self._host, self._share, channel, self._received).serve()
