"""The links of gateways to each other and to the ledger's servers: cut and restored, and what passes is kept.

A gateway's TCP goes through a `Tap`, its gossip through a `Relay`. What leaves the gateway is written to a file, and
the checker looks there for raw readings.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Below those that the system gives to clients, which come and go while a gateway is down."""
READ_BYTES = 65_536


def quiet_ports(count: int) -> list[int]:
    """So many that nobody uses for datagrams."""
    found: list[int] = []
    for port in random.Random(time.time_ns()).sample(PORTS, len(PORTS)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            found.append(port)
        if len(found) == count:
            break
    return found


class Wire:
    """What one gateway says to the outside, in a file; and whether its links are up."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self.is_up = True
        self.bytes_left = 0
        self._taps: list[Tap] = []

    def left(self, data: bytes) -> None:
        """These bytes leave the gateway."""
        self.bytes_left += len(data)
        self._file.write(data)

    def cut(self) -> None:
        """All connections end, and datagrams are dropped, until `restore`."""
        self.is_up = False
        for tap in self._taps:
            tap.drop()

    def restore(self) -> None:
        """New connections are made again."""
        self.is_up = True

    async def tap(self, port: int) -> int:
        """A TCP port that leads to this one."""
        tap = Tap(self, port)
        self._taps.append(tap)
        return await tap.start()

    async def close(self) -> None:
        """Ends all connections."""
        self.cut()
        for tap in self._taps:
            await tap.close()
        self._file.close()


class Tap:
    """A TCP proxy in front of one server."""

    def __init__(self, wire: Wire, port: int) -> None:
        self._wire = wire
        self._to = port
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self) -> int:
        """Listens; says on which port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def drop(self) -> None:
        """Ends its connections without a word."""
        for writer in self._tasks.values():
            writer.transport.abort()

    async def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        try:
            if self._wire.is_up:
                there, out = await asyncio.open_connection(LOOPBACK, self._to)
                try:
                    back = asyncio.ensure_future(self._pass(there, writer, False))
                    await self._pass(reader, out, True)
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                finally:
                    out.transport.abort()
        except OSError:
            pass
        finally:
            del self._tasks[task]
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, leaves: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if leaves:
                    self._wire.left(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


class Relay(asyncio.DatagramProtocol):
    """Takes the datagrams for one gateway at a port of its own, and hands them on while both links are up."""

    def __init__(self, to: int, wires: dict[int, Wire]) -> None:
        """`wires` has the wire of each gateway, by the port that its mesh sends from."""
        self._to = to
        self._wires = wires
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        sender, receiver = self._wires.get(addr[1]), self._wires.get(self._to)
        if sender is None or receiver is None or self._transport is None or not sender.is_up:
            return
        sender.left(data)
        if receiver.is_up:
            self._transport.sendto(data, (LOOPBACK, self._to))

    def close(self) -> None:
        """Takes nothing more."""
        if self._transport is not None:
            self._transport.close()


async def start_relay(port: int, to: int, wires: dict[int, Wire]) -> Relay:
    """Listens there."""
    _, relay = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Relay(to, wires), local_addr=(LOOPBACK, port)
    )
    return relay
