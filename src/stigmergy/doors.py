"""Asks a fleet that runs on several workers, from a program without an event loop. Names the adapter that carries it.

The link lives in a thread of its own, so that it goes on while the program does something else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

from stigmergy.core.errors import ConfigError, LinkDown, NotRunning
from stigmergy.runtime.declaration import Declaration
from stigmergy.runtime.patience import MOVED_S_MAX, PatientBranch
from stigmergy.runtime.switchboard import WORKERS, Switchboard

ASK_S_MAX = 65.0
"""No line of an answer takes so long, but for what is broken."""
CLOSE_S_MAX = 5.0
BUCKET_S_MAX = 1.0
"""A bucket that has a leader answers sooner."""


class ClusterClient:
    """Asks the owners of all shards of a fleet; used like the client of one node's socket."""

    def __init__(self, url: str, fleet: Declaration, *, timeout_s: float = ASK_S_MAX) -> None:
        """Connects. Raises ConfigError, also where the client library is missing, and NotRunning without a server."""
        try:
            from stigmergy.adapters.nats.address import parse_address
            from stigmergy.adapters.nats.threaded import BlockingLink
            from stigmergy.adapters.nats_control import NatsRoom
        except ModuleNotFoundError as error:
            raise ConfigError(f'--nats {url!r} needs {error.name}: pip install "stigmergy[nats]"') from None
        address = parse_address(url, ("replicas", "max_bytes"))
        self._fleet, self._shards = fleet.name, fleet.shards
        self._timeout_s = max(timeout_s, MOVED_S_MAX + 1.0)
        try:
            self._link = BlockingLink(address, name=f"stigmergy {fleet.name}")
        except LinkDown as error:
            raise NotRunning(str(error)) from None
        self._room = NatsRoom(self._link.link, fleet.name)
        about = {"fleet": fleet.name, "version": "", "pid": None, "up_s": 0.0, "journal": address.shown}
        shards = range(self._shards)
        branches = [PatientBranch(self._room.branch(shard), self._is_anybody_there) for shard in shards]
        self._board = Switchboard(fleet.homes, branches, lambda: about, _cannot_stop, WORKERS)

    async def _is_anybody_there(self) -> bool:
        for shard in range(self._shards):
            if await self._room.is_answered(shard):
                return True
        return await self._may_come_back()

    async def _may_come_back(self) -> bool:
        """Whether workers may be about to join again: when the server is killed that leads their bucket, all of them
        have lost their leases until it has another leader."""
        from stigmergy.adapters.nats.errors import JetStreamRefused
        from stigmergy.adapters.nats.naming import cluster_bucket

        bucket = cluster_bucket(self._fleet)
        try:
            asked = {"subjects_filter": f"$KV.{bucket}.worker.*"}
            found = await self._link.link.api(f"STREAM.INFO.KV_{bucket}", asked, within_s=BUCKET_S_MAX)
        except JetStreamRefused:
            return False
        except LinkDown:
            return True
        return bool(found["state"].get("subjects"))

    def ask(self, request: bytes) -> Generator[bytes, None, None]:
        """Sends a line; the lines that come back, for as long as the caller takes them. Raises NotRunning."""
        lines = self._run(self._board.answer(request))
        try:
            while (line := self._run(_next(lines))) is not None:
                if line:
                    yield line
        finally:
            close = getattr(lines, "aclose", None)
            if close is not None:
                self._run(close())
        raise NotRunning("the answer ended before it was whole; ask again")

    def close(self) -> None:
        """Ends the connection."""
        self._link.run(lambda _: self._room.close(), CLOSE_S_MAX)
        self._link.close()

    def _run(self, work: Any) -> Any:
        try:
            return self._link.run(lambda _: work, self._timeout_s)
        except LinkDown as error:
            raise NotRunning(f"{error}; is the fleet stopped or overloaded?") from None


async def _next(lines: Iterator[bytes] | AsyncIterator[bytes]) -> bytes | None:
    if isinstance(lines, AsyncIterator):
        try:
            return await anext(lines)
        except StopAsyncIteration:
            return None
    return next(lines, None)


def _cannot_stop() -> None:
    raise ConfigError("workers are stopped where they run, each by Ctrl-C or SIGTERM; the others take its shards over")
