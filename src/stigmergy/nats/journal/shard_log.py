"""The log of one shard on JetStream, shared by several processes: followed on the caller's event loop, and claimed.

Several logs share one link, which its opener closes. Any replica answers reads and may be a little behind; the claim is
a write, so it decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from nats.aio.msg import Msg

from stigmergy.base.errors import ConfigError, JournalConflict
from stigmergy.journal.port import READ_COUNT_MAX, Grown, Journal, JournalIdentity, SnapshotPart, StoredCommit
from stigmergy.nats.journal.journal import NatsJournal
from stigmergy.nats.journal.messages import Assembler, LogMessage, LogState
from stigmergy.nats.journal.opener import claim_log, prepare, read_further, read_state
from stigmergy.nats.journal.snapshots import SnapshotStore, StoredSnapshot
from stigmergy.nats.journal.stream import BEHIND_PAUSE_S, LogPlace, LogStream
from stigmergy.nats.link import NatsLink

BEHIND_TRIES = 20
TOLD_DIGITS_MAX = 20


class NatsShardLog:
    """The ShardLog port on a stream. Made by `open_shard_log`."""

    def __init__(self, link: NatsLink, place: LogPlace, identity: JournalIdentity) -> None:
        self._link = link
        self._place = place
        self._identity = identity
        self._shard = identity.owned[0]
        self._log = LogStream(link, place)
        self._snapshot_store = SnapshotStore(link, place.name)
        self._position = -1
        """The last returned commit; the next message to read; and messages fetched ahead."""
        self._sequence = 0
        self._told = 0
        """The last message of the log, as its owner announced."""
        self._waiting: list[StoredCommit] = []
        self._assembler = Assembler()
        self._known: LogState | None = None
        """The log's state at the last look: a claim then reads only later messages."""
        self._grown: list[Grown] = []
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None

    @property
    def identity(self) -> JournalIdentity:
        return self._identity

    async def first_position(self) -> int:
        return (await self._state()).firsts.get(self._shard, 1)

    async def snapshots(self) -> list[int]:
        return sorted(await self._stored())

    async def read_snapshot(self, position: int) -> Sequence[SnapshotPart]:
        stored = (await self._stored()).get(position)
        if stored is None:
            return []
        return [
            await self._snapshot_store.read(self._shard, position, stored.epoch, number)
            for number in range(stored.parts)
        ]

    async def read(self, after: int, count_max: int = READ_COUNT_MAX) -> Sequence[StoredCommit]:
        if after != self._position:
            await self._seek(after)
        count = min(count_max, READ_COUNT_MAX)
        while not self._waiting:
            entries = await self._log.fetch(self._sequence)
            if not entries and self._told >= self._sequence:
                # The owner has announced more: the answer came from a replica that is behind.
                entries = await self._fetch_again()
            if not entries:
                if self._known is None:
                    await self._state()
                return []
            self._take(entries, after)
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        self._position = found[-1].sealed.position
        return found

    def watch(self, grown: Grown) -> None:
        self._grown.append(grown)

    async def claim(self, after: int, owner: str) -> tuple[Journal, int]:
        state = await self._state()
        head = state.heads.get(self._shard)
        if (head.position if head else 0) != after:
            raise JournalConflict(
                f"shard {self._shard}: the log ends at {head.position if head else 0}, not at {after}; read on, then "
                "claim again"
            )
        opened = await claim_log(self._link, self._place, self._identity, state, owner)
        self._known = None  # the journal owns it now
        return NatsJournal(opened, link=self._link), opened.epoch

    async def close(self) -> None:
        self._grown.clear()
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            await unsubscribe()

    async def _listen(self) -> None:
        """Subscribes to the owner's announcements of new commits."""

        async def heard(message: Msg) -> None:
            if message.data.isdigit() and len(message.data) <= TOLD_DIGITS_MAX:
                self._told = max(self._told, int(message.data))
            for grown in list(self._grown):
                grown()

        self._unsubscribe = await self._link.subscribe(self._place.grown_subject, heard)

    async def _fetch_again(self) -> list[LogMessage]:
        for _ in range(BEHIND_TRIES):
            await asyncio.sleep(BEHIND_PAUSE_S)
            if entries := await self._log.fetch(self._sequence):
                return entries
        self._told = 0
        return []

    async def _state(self) -> LogState:
        if self._known is None:
            self._known = (await read_state(self._log))[0]
        else:
            await read_further(self._log, self._known)
        return self._known

    async def _stored(self) -> dict[int, StoredSnapshot]:
        return (await self._snapshot_store.catalogue(range(self._shard, self._shard + 1))).get(self._shard, {})

    async def _seek(self, after: int) -> None:
        """Finds the message where commits after this position begin."""
        info = await self._log.info()
        first, last = max(1, info.first_sequence), info.last_sequence
        self._sequence = await self._log.start_of(self._shard, after, first, last)
        self._position, self._waiting, self._assembler = after, [], Assembler()
        self._known = None  # a reader that seeks may have been far behind

    def _take(self, entries: Sequence[LogMessage], after: int) -> None:
        for entry in entries:
            self._sequence = entry.sequence + 1
            for stored in self._open(entry):
                if stored.sealed.position > after:
                    self._waiting.append(stored)

    def _open(self, entry: LogMessage) -> Sequence[StoredCommit]:
        """The commits that a message completes. Folds it into the known state, if any, to decode it only once."""
        if self._known is not None and entry.sequence == self._known.sequence + 1:
            self._assembler = Assembler()
            return self._known.take(entry)
        return (self._assembler.take(entry) or (0, []))[1]


async def open_shard_log(link: NatsLink, identity: JournalIdentity) -> NatsShardLog:
    """Opens the log of one shard to follow and to claim it; makes it if there is none. The link's address gives the
    replicas. Raises JournalForeign, ConfigError, LinkDown."""
    if len(identity.owned) != 1:
        raise ConfigError("a log that can move has one shard: give part=(k, k)")
    place, known = await prepare(link, identity)
    log = NatsShardLog(link, place, known)
    await log._listen()
    return log
