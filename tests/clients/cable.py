"""A way to a server that can be cut: a proxy in this process."""

import asyncio


class Cable:
    """A way to a server that can be cut."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.connections = 0

    async def __aenter__(self) -> "Cable":
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return self

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Breaks all connections, in the middle of whatever they carry."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(4096):
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
