"""The peer port on NATS: tells between the owners of a fleet's shards, on any machine.

Each shard counts as a separate process, shard 0 as process 1. Its owner listens at the shard's subject; a caller
reaches the newest owner, and never one that was replaced.
"""

from __future__ import annotations

from collections.abc import Callable

from stigmergy.base.errors import LinkDown
from stigmergy.nats.channels import Channels
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import tells_subject
from stigmergy.network.peer_port import FRAME_BYTES_MAX, Answer, PeerChannel

__all__ = ["NatsPeerNetwork"]


class NatsPeerNetwork:
    """Listens for the owners of other shards, and calls them.

    `epoch` is read by `open`: the epoch at which we own the shard. An owner with a higher one replaces us.
    """

    def __init__(self, link: NatsLink, fleet: str, shard: int, epoch: Callable[[], int] = lambda: 0) -> None:
        self._fleet = fleet
        self._shard = shard
        self._epoch = epoch
        self._channels = Channels(link, frame_bytes_max=FRAME_BYTES_MAX)

    async def open(self, answer: Answer) -> None:
        """Listens at the shard's subject."""

        async def serve(channel: PeerChannel) -> None:
            await answer(channel)

        await self._channels.listen(tells_subject(self._fleet, self._shard), serve, self._epoch())

    async def connect(self, process: int) -> PeerChannel:
        """Opens a channel to the owner of a shard."""
        try:
            return await self._channels.call(tells_subject(self._fleet, process - 1))
        except LinkDown as error:
            raise LinkDown(f"process {process} does not answer: {error}") from None

    async def close(self) -> None:
        await self._channels.close()
