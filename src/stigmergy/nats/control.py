"""The control endpoint on NATS: the owner of a shard answers at the shard's subject, and programs anywhere ask there.

Anybody who may publish there may control the fleet: restrict it with the servers' permissions. A request is one frame
of its own channel, and each line of the answer another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from stigmergy.base.errors import LinkDown, NotRunning, Overloaded, TooLarge
from stigmergy.control.protocol import REQUEST_BYTES_MAX, REQUEST_S_MAX, RequestHandler, answer_line
from stigmergy.nats.channels import Channels, NatsChannel
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import control_subject

REPLY_BYTES_MAX = 17 * 1024 * 1024
ASKING_MAX = 64
"""The bound of requests answered at once; further ones are refused."""

__all__ = ["NatsControlClient", "NatsControlServer", "NatsOwnerClient"]


class NatsControlServer:
    """Answers for one shard. `start` reads `epoch`: the epoch at which we own the shard."""

    def __init__(
        self,
        link: NatsLink,
        fleet: str,
        shard: int | str,
        handler: RequestHandler,
        epoch: Callable[[], int] = lambda: 0,
        *,
        request_s_max: float = REQUEST_S_MAX,
    ) -> None:
        self._subject = control_subject(fleet, shard)
        self._handler = handler
        self._epoch = epoch
        self._request_s_max = request_s_max
        self._channels = Channels(link, frame_bytes_max=REPLY_BYTES_MAX)
        self._asking = 0
        self.failed_requests = 0

    async def start(self) -> None:
        await self._channels.listen(self._subject, self._serve, self._epoch())

    async def close(self) -> None:
        """Ends all channels; clients that wait for an answer get LinkDown."""
        await self._channels.close()

    async def _serve(self, channel: NatsChannel) -> None:
        self._asking += 1
        try:
            async with asyncio.timeout(self._request_s_max):
                line = await channel.receive()
            if self._asking > ASKING_MAX:
                text = f"{ASKING_MAX} requests are answered already; try again in a moment"
                await self._write(channel, self._handler.refuse(Overloaded(text)))
            elif len(line) > REQUEST_BYTES_MAX:
                text = f"a request of more than {REQUEST_BYTES_MAX} bytes; send less, or large things by reference"
                await self._write(channel, self._handler.refuse(TooLarge(text)))
            else:
                await answer_line(self._handler, line, partial(self._write, channel), self._request_s_max)
        except (LinkDown, TimeoutError):
            pass  # the client has left
        except Exception:
            self.failed_requests += 1  # a request that breaks its handler ends its own channel only
        finally:
            self._asking -= 1

    async def _write(self, channel: NatsChannel, line: bytes) -> None:
        async with asyncio.timeout(self._request_s_max):
            await channel.send(line)


class NatsControlClient:
    """Sends requests to the owners of shards, over one link."""

    def __init__(self, link: NatsLink, fleet: str) -> None:
        self._channels = Channels(link, frame_bytes_max=REPLY_BYTES_MAX)
        self.fleet = fleet
        self.where = link.address.shown

    def branch(self, shard: int | str) -> NatsOwnerClient:
        """The client for one shard."""
        return NatsOwnerClient(self, shard)

    async def is_answered(self, shard: int | str) -> bool:
        """Whether an owner answers for a shard at this moment."""
        try:
            (await self.call(shard)).close()
        except LinkDown:
            return False
        return True

    async def call(self, shard: int | str) -> NatsChannel:
        """A channel to the owner of a shard. Raises LinkDown if nobody answers."""
        return await self._channels.call(control_subject(self.fleet, shard))

    async def close(self) -> None:
        await self._channels.close()


class NatsOwnerClient:
    """The control endpoint of the current owner of one shard."""

    def __init__(self, client: NatsControlClient, shard: int | str) -> None:
        self._client = client
        self._shard = shard

    async def ask(self, request: bytes) -> AsyncIterator[bytes]:
        """Yields the lines of the answer as they come; close it when you have enough.

        Raises NotRunning if nobody answers, and LinkDown if the connection broke: the request may have been accepted.
        """
        try:
            channel = await self._client.call(self._shard)
        except LinkDown as error:
            fleet, where = self._client.fleet, self._client.where
            raise NotRunning(
                f"nobody answers for shard {self._shard} of the fleet {fleet!r} at {where}: {error}"
            ) from None
        try:
            await channel.send(request)
            while True:
                yield await channel.receive()
        finally:
            channel.close()
