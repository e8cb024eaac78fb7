"""The control endpoint on NATS: the owner of a shard answers at the shard's subject, and programs anywhere ask there.

Anybody who may publish there may control the fleet: restrict it with the servers' permissions. A request is one frame
of its own channel, and each line of the answer another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from stigmergy.base.errors import LinkDown, NotRunning, Overloaded, TooLarge
from stigmergy.control.protocol import RequestHandler
from stigmergy.nats.channels import Channels, NatsChannel
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import control_subject

REQUEST_BYTES_MAX = 256 * 1024
"""A longer request is refused."""
REPLY_BYTES_MAX = 17 * 1024 * 1024
ASKING_MAX = 64
"""So many are answered at once; one more is told so."""
REQUEST_S_MAX = 60.0
"""A request that takes longer is given up; a client that does not read its answer for so long is left."""
GIVE_WAY_LINES = 64
"""After so many lines of a stream the node gets its turn."""

__all__ = ["NatsControlClient", "NatsControlServer", "NatsOwnerClient"]


class NatsControlServer:
    """Answers for one shard. `rank` is asked at its start: the number of the claim by which the shard is owned."""

    def __init__(
        self,
        link: NatsLink,
        fleet: str,
        shard: int,
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
        """Begins to answer."""
        await self._channels.listen(self._subject, self._serve, self._epoch())

    async def close(self) -> None:
        """Answers nobody any more; who waits for an answer hears that it does not come."""
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
                await self._answer(channel, line)
        except (LinkDown, TimeoutError):
            pass  # the client has left: there is nobody to tell
        except Exception:
            self.failed_requests += 1  # a request that breaks its handler ends its own channel, and nothing else
        finally:
            self._asking -= 1

    async def _answer(self, channel: NatsChannel, line: bytes) -> None:
        try:
            async with asyncio.timeout(self._request_s_max):
                lines = await self._handler.answer(line)
        except TimeoutError:
            text = (
                f"no answer within {self._request_s_max:g} s, and nobody waits any longer; whether a command was taken "
                "is unknown: send it again with the same command id"
            )
            await self._write(channel, self._handler.refuse(Overloaded(text)))
            return
        if isinstance(lines, AsyncIterator):
            async for answer in lines:
                await self._write(channel, answer)
            return
        for number, answer in enumerate(lines, start=1):
            if answer:
                await self._write(channel, answer)
            if not answer or number % GIVE_WAY_LINES == 0:
                await asyncio.sleep(0)

    async def _write(self, channel: NatsChannel, line: bytes) -> None:
        async with asyncio.timeout(self._request_s_max):
            await channel.send(line)


class NatsControlClient:
    """From where the owners of shards are asked, over one link."""

    def __init__(self, link: NatsLink, fleet: str) -> None:
        self._channels = Channels(link, frame_bytes_max=REPLY_BYTES_MAX)
        self._fleet = fleet
        self.where = link.address.shown

    def branch(self, shard: int) -> NatsOwnerClient:
        """Who is asked for one shard."""
        return NatsOwnerClient(self._channels, self._fleet, shard, self.where)

    async def is_answered(self, shard: int) -> bool:
        """Whether somebody answers for a shard at this moment."""
        try:
            channel = await self._channels.call(control_subject(self._fleet, shard))
        except LinkDown:
            return False
        channel.close()
        return True

    async def close(self) -> None:
        """Asks nobody any more."""
        await self._channels.close()


class NatsOwnerClient:
    """The control endpoint of the present owner of one shard."""

    def __init__(self, channels: Channels, fleet: str, shard: int, where: str) -> None:
        self._channels = channels
        self._fleet = fleet
        self._shard = shard
        self._where = where

    async def ask(self, request: bytes) -> AsyncIterator[bytes]:
        """The lines that answer a request, as they come. Raises NotRunning if nobody was there to ask, and LinkDown if
        the connection broke on the way: then it may have been taken.

        The caller says when it has enough, by closing it.
        """
        try:
            channel = await self._channels.call(control_subject(self._fleet, self._shard))
        except LinkDown as error:
            raise NotRunning(
                f"nobody answers for shard {self._shard} of the fleet {self._fleet!r} at {self._where}: {error}"
            ) from None
        try:
            await channel.send(request)
            while True:
                yield await channel.receive()
        finally:
            channel.close()
