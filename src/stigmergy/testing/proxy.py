"""A TCP proxy on loopback whose link can be cut, stalled and muted: for tests, proofs and demonstrations.

    proxy = LinkProxy(broker_port)
    port = await proxy.start()      # give this one to the client
    proxy.cut()                     # connections end at once, new ones are refused
    proxy.restore()

Call its methods on the event loop that it was started in.
"""

from __future__ import annotations

import asyncio

LOOPBACK = "127.0.0.1"


class _Side(asyncio.Protocol):
    """One end of a connection: hands on to the other end what it receives, no faster than that takes it."""

    def __init__(self, proxy: LinkProxy, *, is_client: bool) -> None:
        self._proxy = proxy
        self._is_client = is_client
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._proxy._joined(self, is_client=self._is_client)

    def join(self, other: _Side) -> None:
        """Both ends are there now."""
        self.other, other.other = other, self
        for data in self._early:
            self._pass_on(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if self._proxy._passes(len(data), from_client=self._is_client) and self.other and self.other.transport:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None and not self._proxy.is_stalled:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._proxy._left(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class LinkProxy:
    """Stands between clients and one server."""

    def __init__(self, server_port: int, *, server_host: str = LOOPBACK) -> None:
        self._server_host = server_host
        self._server_port = server_port
        self._listener: asyncio.Server | None = None
        self._sides: dict[_Side, None] = {}
        self._joining: dict[asyncio.Task[None], None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self.port = 0
        self.is_cut = False
        self.is_stalled = False
        self.is_muted = False
        self.connections = 0
        """How many there have been."""
        self.bytes_passed = 0

    async def start(self) -> int:
        """Listens on a free port, and says on which."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Side(self, is_client=True), LOOPBACK, 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        self.port = port
        return port

    def cut(self) -> None:
        """Ends every connection without a word; new ones end at once, until `restore`."""
        self.is_cut = True
        self.drop()

    def drop(self) -> None:
        """Ends every connection without a word; new ones may be made."""
        for side in list(self._sides):
            if side.transport is not None:
                side.transport.abort()

    def restore(self) -> None:
        """Everything passes again. A connection that was muted has lost bytes: drop it before."""
        self.is_cut = self.is_muted = False
        if self.is_stalled:
            self.is_stalled = False
            for side in self._sides:
                if side.transport is not None:
                    side.transport.resume_reading()

    def stall(self) -> None:
        """Nothing passes, and nobody is told: a link that hangs."""
        self.is_stalled = True
        for side in self._sides:
            if side.transport is not None:
                side.transport.pause_reading()

    def mute_server(self) -> None:
        """What the server says is lost; what it is told still arrives: acknowledgements that never come."""
        self.is_muted = True

    def half_close(self) -> None:
        """The client hears that the server will say no more; its own way stays open."""
        for side in self._sides:
            if side._is_client and side.transport is not None and side.transport.can_write_eof():
                side.transport.write_eof()

    async def close(self) -> None:
        """Ends everything."""
        self.cut()
        for task in list(self._joining):
            task.cancel()
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
        await self._empty.wait()

    # What the sides tell.

    def _joined(self, side: _Side, *, is_client: bool) -> None:
        assert side.transport is not None
        self._sides[side] = None
        self._empty.clear()
        if self.is_stalled:
            side.transport.pause_reading()
        if not is_client:
            return
        if self.is_cut:
            side.transport.abort()
            return
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._join_server(side), name="proxy connects")
        self._joining[task] = None
        task.add_done_callback(lambda done: self._joining.pop(done, None))

    async def _join_server(self, client: _Side) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, server = await loop.create_connection(
                lambda: _Side(self, is_client=False), self._server_host, self._server_port
            )
        except OSError:
            server = None
        if server is not None and server.transport is not None and (client.transport is None or self.is_cut):
            server.transport.abort()
        elif server is not None:
            client.join(server)
        if client.transport is not None and (server is None or self.is_cut):
            client.transport.abort()

    def _left(self, side: _Side) -> None:
        self._sides.pop(side, None)
        if not self._sides:
            self._empty.set()

    def _passes(self, size_bytes: int, *, from_client: bool) -> bool:
        if self.is_muted and not from_client:
            return False
        self.bytes_passed += size_bytes
        return True
