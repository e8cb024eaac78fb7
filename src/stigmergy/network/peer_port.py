"""The peer port: frames between the owners of a fleet's shards, on one machine or several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

FRAME_BYTES_MAX = 1024 * 1024
"""A longer frame is refused, and its connection closed."""


class PeerChannel(Protocol):
    """One connection between two processes.

    Ordering: frames arrive in the order in which they were sent.
    Durability: none. What was sent when a connection breaks may have arrived or not.
    Duplication: none within a connection.
    Concurrency: one sender and one receiver at a time on each side.
    Errors: LinkDown once the connection is over, TooLarge for a frame over FRAME_BYTES_MAX, in either direction.
    """

    async def send(self, frame: bytes) -> None:
        """Sends a frame; waits while the other side does not read."""
        ...

    async def receive(self) -> bytes:
        """The next frame."""
        ...

    def close(self) -> None:
        """Ends the connection; the other side hears of it. Closing twice does nothing."""
        ...


Answer = Callable[[PeerChannel], Awaitable[None]]
"""Serves one connection of a peer; the connection is closed when it is done."""


class PeerNetwork(Protocol):
    """Where a process listens for its peers, and from where it calls them. Processes are numbered from 1."""

    async def open(self, answer: Answer) -> None:
        """Listens; `answer` is called for each who connects. Raises ConfigError where it cannot be."""
        ...

    async def connect(self, process: int) -> PeerChannel:
        """Calls a peer. Raises LinkDown if it does not answer now; never waits for one that is not there."""
        ...

    async def close(self) -> None:
        """Listens no more, and closes what it has accepted."""
        ...
