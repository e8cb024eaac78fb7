"""The peer port in memory, for tests and the simulator: processes are objects in one event loop.

`MemoryPeerHub` connects them and outlives them: a test can cut off or kill a process.
"""

from __future__ import annotations

import asyncio
from collections import deque

from stigmergy.base.errors import LinkDown, TooLarge
from stigmergy.network.peer_port import FRAME_BYTES_MAX, Answer, PeerChannel

FRAMES_WAITING_MAX = 16
"""Who sends more waits until the other side has read some."""


class MemoryChannel:
    """One end of a connection."""

    def __init__(self) -> None:
        self._arrived: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self.other: MemoryChannel | None = None
        self.closed = False

    async def send(self, frame: bytes) -> None:
        """Sends a frame; waits while the other side does not read."""
        if len(frame) > FRAME_BYTES_MAX:
            raise TooLarge(f"a frame of {len(frame)} bytes between neighbours, {FRAME_BYTES_MAX} at most")
        other = self._other_end()
        while len(other._arrived) >= FRAMES_WAITING_MAX and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        if self.closed:
            raise LinkDown("the connection to a neighbour is over")
        other._arrived.append(frame)
        other._changed.set()

    async def receive(self) -> bytes:
        """The next frame."""
        while not self._arrived:
            if self.closed:
                raise LinkDown("the neighbour has ended the connection")
            self._changed.clear()
            await self._changed.wait()
        self._other_end()._changed.set()
        return self._arrived.popleft()

    def close(self) -> None:
        """Ends the connection, at both ends."""
        for end in (self, self._other_end()):
            end.closed = True
            end._changed.set()

    def _other_end(self) -> MemoryChannel:
        return self.other or self


class MemoryPeerHub:
    """Where the processes of a fleet find each other."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self._served: dict[int, dict[asyncio.Task[None], MemoryChannel]] = {}
        self._channels: list[tuple[int, int, MemoryChannel]] = []

    def peer_network(self, process: int) -> MemoryPeerNetwork:
        """The street as one process sees it."""
        return MemoryPeerNetwork(self, process)

    def connect(self, caller: int, process: int) -> MemoryChannel:
        """Connects two of them."""
        answer = self.answers.get(process)
        if answer is None:
            raise LinkDown(f"process {process} does not answer")
        near, far = MemoryChannel(), MemoryChannel()
        near.other, far.other = far, near
        self._channels = [known for known in self._channels if not known[2].closed]
        self._channels.append((caller, process, near))
        task = asyncio.ensure_future(_served(answer, far))
        served = self._served.setdefault(process, {})
        served[task] = far
        task.add_done_callback(lambda done: served.pop(done, None))
        return near

    def cut(self, process: int) -> None:
        """Breaks all connections of a process; it may be called again at once."""
        for caller, called, channel in self._channels:
            if process in (caller, called):
                channel.close()

    async def leave(self, process: int) -> None:
        """A process is there no more."""
        self.answers.pop(process, None)
        self.cut(process)
        tasks = list(self._served.pop(process, {}))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class MemoryPeerNetwork:
    """The Neighbourhood port over a street."""

    def __init__(self, hub: MemoryPeerHub, process: int) -> None:
        self._hub = hub
        self._process = process

    async def open(self, answer: Answer) -> None:
        """Listens."""
        self._hub.answers[self._process] = answer

    async def connect(self, process: int) -> PeerChannel:
        """Calls a neighbour."""
        return self._hub.connect(self._process, process)

    async def close(self) -> None:
        """Listens no more."""
        await self._hub.leave(self._process)


async def _served(answer: Answer, channel: MemoryChannel) -> None:
    try:
        await answer(channel)
    finally:
        channel.close()
