"""The blobs of a fleet by the URL of their store: made for a node, a worker, or the command line.

    at = BlobsAt("s3://maps?region=eu-central-1", "delivery", clock, SystemThreads())
    blob = await at.blobs.put(Path("map.bin"))
    await at.stop()

A node that names no store keeps its blobs in a folder beside its journal, `fleet.db-blobs`, made with the first one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from stigmergy.app.node_config import check_store, open_store, shown
from stigmergy.app.parts import journal_path
from stigmergy.base.clock import Clock, Threads
from stigmergy.base.errors import ConfigError
from stigmergy.nats.naming import blobs_bucket
from stigmergy.store.blobs import Blobs, BlobSettings
from stigmergy.store.memory import MemoryStore, MemoryStoreServer
from stigmergy.store.port import Objects, Store

BESIDE = "-blobs"
REPLICATED_SERVERS = 3
FOLDER = "folder:"
MEMORY = "memory:"


def blobs_url(named: str | None, journal: str) -> str:
    """The store that is named, or that of the journal: a folder beside it; `memory:` alone is the node's own memory."""
    if named is not None:
        check_store(named)
        return _replicated(named)
    path = journal_path(journal)
    if path is not None:
        return f"{FOLDER}{path}{BESIDE}"
    return MEMORY if journal.startswith(MEMORY) else ""


def _replicated(url: str) -> str:
    """Three servers keep three replicas unless the URL says otherwise: workers, nodes and the command line must agree
    on it, whoever makes the bucket."""
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or "replicas=" in parts.query:
        return url
    replicas = REPLICATED_SERVERS if len(parts.netloc.split(",")) >= REPLICATED_SERVERS else 1
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, f"replicas={replicas}")))))


class BlobsAt:
    """Opens a store for blobs when somebody needs it, and once: its connection mends itself."""

    def __init__(
        self,
        url: str,
        fleet: str,
        clock: Clock,
        threads: Threads,
        settings: BlobSettings | None = None,
        *,
        make_folder: bool = False,
        store: Store | None = None,
        open_other: Callable[[], Awaitable[Store]] | None = None,
    ) -> None:
        """`make_folder` makes the folder beside a journal. Any other must be there: it may have to be mounted first.
        A `store` that is open is used instead of the URL; `open_other` opens another connection to it for transfers,
        so that they do not delay what else uses that one."""
        self._url = url
        self._clock = clock
        self._threads = threads
        self._bucket = blobs_bucket(fleet)
        self._store = store
        self._open_other = open_other
        self._other: Store | None = None
        self._folder = Path(url.removeprefix(FOLDER))
        self._make_folder = make_folder and url.startswith(FOLDER)
        self.blobs = Blobs(shown(url), self._open, self._find, clock, threads, settings)

    async def _open(self) -> Objects:
        if self._open_other is not None:
            if self._other is None:
                self._other = await self._open_other()
            return await self._other.objects(self._bucket)
        if self._store is None:
            self._store = await self._open_store()
        return await self._store.objects(self._bucket)

    async def _find(self) -> Objects | None:
        """The bucket, if somebody has put something: who only looks makes nothing."""
        if self._store is None:
            if self._url in ("", MEMORY) or (self._make_folder and not await self._threads.run(self._folder.is_dir)):
                return None
            self._store = await self._open_store()
        return await self._store.find_objects(self._bucket)

    async def _open_store(self) -> Store:
        if not self._url:
            raise ConfigError(
                'this node has no store for blobs: its journal is no file; write blobs = "nats://hub:4222" under '
                "[fleet] in stigmergy.toml, or give --blobs or running(blobs=…)"
            )
        if self._url == MEMORY:
            return MemoryStore(MemoryStoreServer(self._clock), self._clock)
        if self._make_folder:
            await self._threads.run(lambda: self._folder.mkdir(mode=0o700, exist_ok=True))
        return await open_store(self._url, self._clock)

    async def stop(self) -> None:
        """Closes the store; what is under way ends with an error."""
        stores, self._store, self._other = (self._other, self._store), None, None
        for store in stores:
            if store is not None:
                await store.close()
