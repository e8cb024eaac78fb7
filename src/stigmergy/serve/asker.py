"""Sends control requests for programs that speak HTTP or gRPC.

They go to the node of this process, to one beside it, or to the workers of a fleet; all three answer alike. `ask`
returns the one answer and raises what the node refuses with. A command whose answer did not come raises NoAnswer: it
may have been done, and with the same command id it may be sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stigmergy.app.cluster_client import ClusterServer, InDoubt, Workers
from stigmergy.base.errors import JournalUnknown, LinkDown, NoAnswer, NotRunning, Overloaded, TooLarge
from stigmergy.control.protocol import (
    REPLY_BYTES_MAX,
    REQUEST_S_MAX,
    ControlHandler,
    ObserveManyRequest,
    ObserveRequest,
    Reply,
    Request,
    SendRequest,
    StatusRequest,
    checked,
    note_missing,
    read_reply,
    write_request,
)
from stigmergy.control.replies import MissingPart
from stigmergy.control.socket import connected, reason
from stigmergy.control.withheld import Withholding

R = TypeVar("R")
CONNECTIONS_MAX = 8
"""To the socket of a node, which takes 16: the command line has room beside us."""
WAITING_MAX = 256
"""So many requests wait for one of these connections; further ones are refused."""
ASK_S_MAX = REQUEST_S_MAX + 5.0


class Asker(Protocol):
    """Where requests go."""

    waits_max: int
    """How many logs of other nodes may be followed at once: each takes a request that waits."""

    async def ask(self, request: Request[R]) -> R:
        """The one answer to a request. Raises what the node refuses with, NotRunning where nobody took it, Overloaded,
        and NoAnswer where it may have been taken."""
        ...

    async def items(self, request: Request[R], missing: list[MissingPart] | None = None) -> list[R]:
        """All items that answer a request whose answer is a stream; who has not answered is added to `missing`. Raises
        as `ask` does."""
        ...

    def parts(self, shards: int) -> Sequence[int | None]:
        """Who waits for events by itself: each shard of a fleet on workers, or None for all shards of a node."""
        ...

    async def servers(self) -> list[ClusterServer]:
        """The servers below a fleet on workers; none below a node. Raises LinkDown."""
        ...

    async def close(self) -> None:
        """Asks nobody any more."""
        ...


class OtherFleet(NotRunning):
    """The node at a socket runs another fleet than the one that is served."""


class NodeAsker:
    """Asks the node that runs in this process: nothing is encoded on the way."""

    waits_max = 64

    def __init__(self, handler: ControlHandler) -> None:
        self._handler = handler

    async def ask(self, request: Request[R]) -> R:
        for reply in await self._answers(request):
            if not isinstance(reply, bytes) and (found := checked(reply).ok) is not None:
                return found
        raise NotRunning("the node has not answered; ask again")

    async def items(self, request: Request[R], missing: list[MissingPart] | None = None) -> list[R]:
        found: list[R] = []
        for reply in await self._answers(request):
            if isinstance(reply, bytes):
                await asyncio.sleep(0)
            elif (item := checked(reply).item) is not None:
                found.append(item)
            else:
                note_missing(reply, missing)
        return found

    def parts(self, shards: int) -> Sequence[int | None]:
        return (None,)

    async def servers(self) -> list[ClusterServer]:
        return []

    async def close(self) -> None:
        """There is nothing to close: the node ends by itself."""

    async def _answers(self, request: Request[R]) -> Iterator[Reply[R] | bytes]:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                return await self._handler.answer(request)  # type: ignore[arg-type]
        except TimeoutError:
            raise _in_doubt(request, f"no answer within {REQUEST_S_MAX:g} s") from None


class WithheldAsker:
    """Asks by another asker, and takes out of the answers what is raw: a caller may be anywhere."""

    def __init__(self, asker: Asker, withholding: Withholding) -> None:
        self._asker = asker
        self._withholding = withholding
        self.waits_max = asker.waits_max

    async def ask(self, request: Request[R]) -> R:
        self._withholding.check(request)
        found: R = self._withholding.of(await self._asker.ask(request))
        return found

    async def items(self, request: Request[R], missing: list[MissingPart] | None = None) -> list[R]:
        return [self._withholding.of(one) for one in await self._asker.items(request, missing)]

    def parts(self, shards: int) -> Sequence[int | None]:
        return self._asker.parts(shards)

    async def servers(self) -> list[ClusterServer]:
        return await self._asker.servers()

    async def close(self) -> None:
        await self._asker.close()


class SocketAsker:
    """Asks the node that listens at a socket. A few connections are kept; each carries one request at a time.

    A node of another fleet is never asked: `ask` and `items` raise OtherFleet until the right one listens there.
    """

    waits_max = CONNECTIONS_MAX // 2

    def __init__(self, path: Path, fleet: str) -> None:
        self._path = path
        self._fleet = fleet
        self._checked: tuple[int, int, int] | None = None
        """The socket file of a node that runs this fleet; another node makes another file."""
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        self._waiting = 0

    async def ask(self, request: Request[R]) -> R:
        async with contextlib.aclosing(self._replies(request)) as replies:
            async for reply in replies:
                if reply.ok is not None:
                    return reply.ok
        raise NotRunning(f"{self._path}: the node has not answered; ask again")

    async def items(self, request: Request[R], missing: list[MissingPart] | None = None) -> list[R]:
        found: list[R] = []
        async with contextlib.aclosing(self._replies(request)) as replies:
            async for reply in replies:
                found += [] if reply.item is None else [reply.item]
                note_missing(reply, missing)
        return found

    def parts(self, shards: int) -> Sequence[int | None]:
        return (None,)

    async def servers(self) -> list[ClusterServer]:
        return []

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    async def _replies(self, request: Request[R]) -> AsyncGenerator[Reply[R], None]:
        """The replies up to the last; the connection is used again if they were all read."""
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests wait for the node already; try again in a moment")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            line = write_request(request)
            reader, writer = await self._connection()
            is_whole = False
            try:
                async for answer in self._lines(reader, writer, line, request):
                    is_last = b'"item":' not in answer[:20]
                    is_whole = is_last
                    yield read_reply(answer, request)
                    if is_last:
                        return
            finally:
                if is_whole:
                    self._idle.append((reader, writer))
                else:
                    writer.close()
        finally:
            self._free.release()

    async def _lines(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes, request: Request[Any]
    ) -> AsyncGenerator[bytes, None]:
        try:
            writer.write(line)
            while True:
                async with asyncio.timeout(ASK_S_MAX):
                    answer = await reader.readline()
                if not answer.endswith(b"\n"):
                    raise _in_doubt(request, f"{self._path}: the node ended before it had answered")
                yield answer
        except TimeoutError:
            raise _in_doubt(request, f"{self._path}: the node does not answer") from None
        except ValueError:
            raise TooLarge(f"{self._path}: an answer of more than {REPLY_BYTES_MAX} bytes") from None
        except OSError as error:
            raise _in_doubt(request, f"{self._path}: the connection broke ({reason(error)})") from None

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is idle and that the node has not closed meanwhile, or a new one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        reader, writer = await asyncio.open_unix_connection(sock=connected(self._path, 0), limit=REPLY_BYTES_MAX + 1)
        try:
            await self._check_fleet(reader, writer)
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _check_fleet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Asks a node that is new to us which fleet it runs. Raises OtherFleet."""
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise NotRunning(f"{self._path}: the node has left ({reason(error)}); ask again") from None
        identity = (status.st_dev, status.st_ino, status.st_ctime_ns)
        if identity == self._checked:
            return
        asked = StatusRequest()
        async with contextlib.aclosing(self._lines(reader, writer, write_request(asked), asked)) as lines:
            found = read_reply(await anext(lines), asked).ok
        if found is None or found.fleet != self._fleet:
            runs = "another fleet" if found is None else f"the fleet {found.fleet!r}"
            raise OtherFleet(
                f"the node at {self._path} runs {runs}, not {self._fleet!r}; give its own MODULE:FLEET, or --socket "
                "with the place of another node"
            )
        self._checked = identity


class WorkersAsker:
    """Asks the owners of the shards of a fleet on workers."""

    waits_max = 0

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def ask(self, request: Request[R]) -> R:
        try:
            return await self._workers.ask(request)
        except (InDoubt, JournalUnknown, LinkDown) as error:
            raise _in_doubt(request, str(error)) from None

    async def items(self, request: Request[R], missing: list[MissingPart] | None = None) -> list[R]:
        return await self._workers.items(request, missing)

    def parts(self, shards: int) -> Sequence[int | None]:
        return range(shards)

    async def servers(self) -> list[ClusterServer]:
        return await self._workers.servers()

    async def close(self) -> None:
        await self._workers.close()


def _in_doubt(request: Request[Any], why: str) -> NoAnswer | NotRunning:
    """What is said where an answer did not come: whether a command or an observation was taken is not known."""
    match request:
        case SendRequest():
            return NoAnswer(
                f"{why}; whether the command was done is not known: send it again with the same id",
                command_id=request.command_id or "",
            )
        case ObserveRequest() | ObserveManyRequest():
            return NoAnswer(f"{why}; whether the observation was taken is not known")
        case _:
            return NotRunning(f"{why}; ask again")
