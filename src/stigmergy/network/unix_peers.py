"""The peer port over Unix sockets beside the journals: one file for each process.

A frame is its length in four bytes, big-endian, and then its bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from stigmergy.base.errors import LinkDown, StigmergyError, TooLarge
from stigmergy.base.unix_socket import bound, connected, reason
from stigmergy.network.peer_port import FRAME_BYTES_MAX, Answer, PeerChannel

LENGTH_BYTES = 4
CONNECTIONS_MAX = 512
"""One more connection is closed at once: there are twice as many as processes can be, for those that come again."""
ACCEPTING_ROUNDS = 10
REMEDY = "make room for it, or move the journal's folder"


class SocketChannel:
    """One connection over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, frame: bytes) -> None:
        """Sends a frame; waits while the other side does not read."""
        _check_length(len(frame))
        if self._writer.is_closing():
            raise LinkDown("the connection to a neighbour is over")
        try:
            self._writer.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
            await self._writer.drain()
        except OSError as error:
            raise LinkDown(f"the connection to a neighbour broke ({reason(error)})") from None

    async def receive(self) -> bytes:
        """The next frame."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            _check_length(length)
            return await self._reader.readexactly(length)
        except asyncio.IncompleteReadError:
            raise LinkDown("the neighbour has ended the connection") from None
        except OSError as error:
            raise LinkDown(f"the connection to a neighbour broke ({reason(error)})") from None

    def close(self) -> None:
        """Ends the connection; what the other side has not made room for is dropped."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        self._writer.close()


class SocketPeerNetwork:
    """The sockets of all processes of one fleet; this one listens on its own."""

    def __init__(self, process: int, path_of: Callable[[int], Path]) -> None:
        self._process = process
        self._path_of = path_of
        self._server: asyncio.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._answer: Answer | None = None
        self._connections: dict[asyncio.Task[None], PeerChannel] = {}

    async def open(self, answer: Answer) -> None:
        """Listens beside the journal."""
        path = self._path_of(self._process)
        listening = bound(path, CONNECTIONS_MAX, REMEDY)
        status = os.stat(path)
        self._identity = (status.st_dev, status.st_ino)
        self._answer = answer
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=FRAME_BYTES_MAX)

    async def connect(self, process: int) -> PeerChannel:
        """Calls a neighbour."""
        try:
            calling = connected(self._path_of(process), 0)
        except StigmergyError as error:
            raise LinkDown(f"process {process} does not answer: {error}") from None
        try:
            return SocketChannel(*await asyncio.open_unix_connection(sock=calling, limit=FRAME_BYTES_MAX))
        except OSError as error:
            calling.close()
            raise LinkDown(f"process {process} does not answer: {reason(error)}") from None

    async def close(self) -> None:
        """Listens no more."""
        server, self._server = self._server, None
        if server is None:
            return
        # A server that is closed while it accepts somebody leaves that connection open for ever (CPython 3.11). So it
        # first stops listening, then finishes accepting, which takes a few rounds of the loop, and only then closes.
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(ACCEPTING_ROUNDS):
            await asyncio.sleep(0)
        server.close()
        path = self._path_of(self._process)
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) == self._identity:
                os.unlink(path)
        connections = dict(self._connections)
        for task, channel in connections.items():
            channel.close()
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = SocketChannel(reader, writer)
        task = asyncio.current_task()
        if task is None or self._answer is None or self._server is None or len(self._connections) >= CONNECTIONS_MAX:
            channel.close()
            return
        self._connections[task] = channel
        try:
            await self._answer(channel)
        except asyncio.CancelledError:
            pass
        finally:
            channel.close()
            self._connections.pop(task, None)


def _check_length(length: int) -> None:
    if length > FRAME_BYTES_MAX:
        raise TooLarge(f"a frame of {length} bytes between neighbours, {FRAME_BYTES_MAX} at most")
