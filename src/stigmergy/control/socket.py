"""The control endpoint on a Unix socket: the server side for a node, the client side for a program beside it.

The socket's file has mode 0600: only who may write to the journal may control the node. The server carries lines; its
handler gives them meaning. The client blocks and is for programs without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stigmergy.base.errors import ConfigError, JournalLocked, NotRunning, Overloaded, StigmergyError, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.control.protocol import (
    REQUEST_BYTES_MAX,
    REQUEST_S_MAX,
    Reply,
    Request,
    RequestHandler,
    answer_line,
    read_reply,
    write_request,
)

R = TypeVar("R")
REPLY_BYTES_MAX = 17 * 1024 * 1024
CONNECTIONS_MAX = 16
"""One more connection is told so and closed."""
IDLE_S_MAX = 300.0
"""A connection without a request for so long is closed."""
ACCEPTING_ROUNDS = 10
CLOSING_S_MAX = 5.0
"""Requests under way when the server is closed get so long to be answered."""
OTHER_PLACE = "name another place with --socket"
_ADDRESS_BYTES_MAX = 107
_PROBE_S = 1.0


class ControlServer:
    """Listens on a socket until it is closed."""

    def __init__(
        self,
        path: Path,
        handler: RequestHandler,
        *,
        request_s_max: float = REQUEST_S_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self._path = path
        self._handler = handler
        self._request_s_max = request_s_max
        self._idle_s_max = idle_s_max
        self._server: asyncio.Server | None = None
        self._closing = False
        self._identity: tuple[int, int] | None = None
        self._connections: dict[asyncio.Task[None], bool] = {}
        """Each with whether it has a request under way."""
        self.failed_requests = 0

    async def start(self) -> None:
        """Binds and listens. Raises JournalLocked if another process answers there, ConfigError if it cannot be."""
        listening = bound(self._path)
        try:
            status = os.stat(self._path)
            self._identity = (status.st_dev, status.st_ino)
            self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=REQUEST_BYTES_MAX)
        except BaseException:  # also a start that is given up at its last step: the socket listens by then
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
            raise

    async def close(self) -> None:
        """Takes the socket away, lets requests under way end, and leaves who is connected. Nothing new is taken."""
        if self._server is None:
            return
        self._closing = True
        # A server that is closed while it accepts somebody leaves that connection open for ever (CPython 3.11). So it
        # first stops listening, then finishes accepting, which takes a few rounds of the loop, and only then closes.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        try:
            for _ in range(ACCEPTING_ROUNDS):
                await asyncio.sleep(0)
        finally:
            self._server.close()
        with contextlib.suppress(OSError):
            status = os.stat(self._path)
            if (status.st_dev, status.st_ino) == self._identity:
                os.unlink(self._path)
        connections = dict(self._connections)
        for connection, busy in connections.items():
            if not busy:
                connection.cancel()
        if connections:
            await asyncio.wait(connections, timeout=CLOSING_S_MAX)
        await end_tasks(*connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._connections[task] = False
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                text = f"{CONNECTIONS_MAX} programs are connected already; try again when one has left"
                await self._write(writer, self._handler.refuse(Overloaded(text)))
                return
            while not self._closing and (line := await self._read(reader, writer)) is not None:
                self._connections[task] = True
                if not await answer_line(self._handler, line, partial(self._write, writer), self._request_s_max):
                    break
                self._connections[task] = False
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the client has left, or we do: there is nobody to tell
        except Exception:
            self.failed_requests += 1  # a request that breaks its handler ends its own connection, and nothing else
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self._connections.pop(task, None)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """The next request; None when there is none to come."""
        try:
            async with asyncio.timeout(self._idle_s_max):
                return await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            text = f"a request of more than {REQUEST_BYTES_MAX} bytes; send less, or large things by reference"
            await self._write(writer, self._handler.refuse(TooLarge(text)))
            return None

    async def _write(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        writer.write(line)
        async with asyncio.timeout(self._request_s_max):
            await writer.drain()


class ControlClient:
    """One connection to a node."""

    def __init__(self, path: Path, *, timeout_s: float = REQUEST_S_MAX + 5.0) -> None:
        self._path = path
        self._socket = connected(path, timeout_s)
        self._file = self._socket.makefile("rb")

    def ask(self, request: Request[R]) -> Generator[Reply[R], None, None]:
        """The replies to a request, for as long as the caller takes them. Raises NotRunning, and refusals."""
        with contextlib.closing(self.lines(write_request(request))) as lines:
            for line in lines:
                yield read_reply(line, request)

    def lines(self, request: bytes) -> Generator[bytes, None, None]:
        """Sends a line; the lines that come back, for as long as the caller takes them. Raises NotRunning."""
        try:
            self._socket.sendall(request)
            while line := self._file.readline(REPLY_BYTES_MAX + 1):
                if len(line) > REPLY_BYTES_MAX:
                    raise TooLarge(f"{self._path}: an answer of more than {REPLY_BYTES_MAX} bytes")
                if not line.endswith(b"\n"):
                    break
                yield line
        except TimeoutError:
            raise NotRunning(f"{self._path}: the node does not answer; is it stopped or overloaded?") from None
        except OSError as error:
            raise NotRunning(f"{self._path}: the connection broke ({reason(error)}); has the node ended?") from None
        raise NotRunning(f"{self._path}: the node ended the connection before it had answered")

    def close(self) -> None:
        """Ends the connection."""
        self._file.close()
        self._socket.close()


class ControlCall:
    """Asks a node from within an event loop, with a connection for each request."""

    def __init__(self, path: Path, *, timeout_s: float = REQUEST_S_MAX + 5.0) -> None:
        self._path = path
        self._timeout_s = timeout_s

    async def ask(self, request: Request[Any]) -> AsyncIterator[bytes]:
        """The lines that answer a request, as they come. Raises NotRunning, at the first line or on the way.

        The caller says when it has enough, by closing it.
        """
        connection = connected(self._path, 0)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=REPLY_BYTES_MAX)
        try:
            writer.write(write_request(request))
            while True:
                async with asyncio.timeout(self._timeout_s):
                    line = await reader.readline()
                if not line.endswith(b"\n"):
                    raise NotRunning(f"{self._path}: the node ended the connection before it had answered")
                yield line
        except TimeoutError:
            raise NotRunning(f"{self._path}: the node does not answer; is it stopped or overloaded?") from None
        except ValueError:
            raise TooLarge(f"{self._path}: an answer of more than {REPLY_BYTES_MAX} bytes") from None
        except OSError as error:
            raise NotRunning(f"{self._path}: the connection broke ({reason(error)}); has the node ended?") from None
        finally:
            writer.close()


# The socket is a file. One that a dead process left behind is replaced; one that somebody answers on is respected. A
# path that is too long for a socket address is reached through its folder.


def answers_at(path: Path) -> bool:
    """Whether a process listens on this socket."""
    try:
        connected(path, _PROBE_S).close()
    except StigmergyError:
        return False
    return True


def bound(path: Path) -> socket.socket:
    """A listening socket at this path, for its owner only."""
    try:
        _make_way(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # On Linux the file gets the mode of the socket, so that it is never open to others, not even for a moment.
            os.fchmod(listening.fileno(), 0o600)
            with _short(path) as address:
                listening.bind(address)
            os.chmod(path, 0o600)
            listening.listen(CONNECTIONS_MAX)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(f"the control socket {str(path)!a} cannot be made ({reason(error)}); {OTHER_PLACE}") from None
    return listening


def _make_way(path: Path) -> None:
    """Removes the socket of a dead process; refuses to take the place of a living one, or of something else."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"{str(path)!a} is there and is no socket; {OTHER_PLACE}")
    if answers_at(path):
        raise JournalLocked(f"{str(path)!a}: another node answers there; stop it first, or {OTHER_PLACE}")
    os.unlink(path)


def connected(path: Path, timeout_s: float) -> socket.socket:
    """A connection to who listens at this path; with a timeout of 0 it never waits. Raises NotRunning."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_s)
        with _short(path) as address:
            connection.connect(address)
    except PermissionError:
        connection.close()
        raise ConfigError(f"{str(path)!a}: the node belongs to somebody else; run this as its owner") from None
    except OSError as error:
        connection.close()
        raise NotRunning(f"no node answers at {str(path)!a} ({reason(error)})") from None
    return connection


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path in a form that fits the address of a socket."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        address = f"/proc/self/fd/{folder}/{path.name}"
        if len(os.fsencode(address)) > _ADDRESS_BYTES_MAX:
            raise ConfigError(
                f"{path.name!a} is too long a name for a socket; give a shorter one with --socket, "
                f"{_ADDRESS_BYTES_MAX} bytes at most"
            )
        yield address
    finally:
        os.close(folder)


def reason(error: OSError) -> str:
    """What the operating system says, for people."""
    return error.strerror or str(error)
