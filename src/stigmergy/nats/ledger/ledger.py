"""The ledger on a JetStream stream: one order, decided by a majority of servers, for writers that sign their entries.

    ledger = open_ledger("nats://hub-1:4222,hub-2:4222,hub-3:4222?replicas=3", "fleet", signer=…)

A connection reads the whole log, or what is left of it after a cut, and folds it (`records.py`): who may write, which
messages are repetitions, and the position of each entry. `reader.py` brings the messages in, `writer.py` out.

It is opened without an event loop: it checks that a ledger of this name with these settings exists, and makes one if it
has a key. If no server answers, it opens anyway, and connects as soon as one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Any

from stigmergy.base.errors import Bug, ConfigError, LedgerError, LedgerForeign, LedgerUnavailable, LinkDown
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer, Verifier
from stigmergy.claims.port import (
    READ_COUNT_MAX,
    Heard,
    LedgerCheckpoint,
    LedgerEntry,
    check_checkpoint,
    check_entries,
)
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.nats.errors import JetStreamRefused, Unanswered
from stigmergy.nats.ledger.checkpoints import read_checkpoint, read_head, store_checkpoint
from stigmergy.nats.ledger.reader import Reader
from stigmergy.nats.ledger.records import (
    INCARNATION_BYTES,
    SESSION_BYTES,
    START,
    Cut,
    Enrol,
    Genesis,
    LedgerBody,
    LedgerState,
    Revoke,
    base_of,
    write_record,
)
from stigmergy.nats.ledger.streams import NOT_THERE, PAYLOAD_BYTES_MIN, LedgerAddress, find_place, refused, to_compare
from stigmergy.nats.ledger.writer import LedgerWriter
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import StreamFound, ensure_stream, find_stream
from stigmergy.nats.threaded import BlockingLink

OPEN_S = 3.0
"""How long opening waits for a server; a node must also start while there is none."""
UP_S = 1.0
"""How long a call waits for a link that is down."""
PREPARE_S = 15.0
PURGE_S = 10.0


def open_ledger(
    url: str,
    name: str,
    *,
    signer: Signer | None = None,
    verifier: Verifier | None = None,
    trusted: Sequence[bytes] = (),
    look: bool = True,
) -> NatsLedger:
    """Opens `nats://host:port[,…][/place][?replicas=3]`. With a key it makes a missing ledger; `trusted` are the other
    keys that may write from the beginning. Without a key it is read-only, until `sign_with` gives it one. To look at it
    blocks for up to `OPEN_S`; without `look` the first call finds what is wrong.

    Raises ConfigError (the URL, no JetStream, another configuration) and LedgerForeign.
    """
    place = find_place(url, name)
    ledger = NatsLedger(place, verifier or Ed25519Verifier())
    if signer is not None:
        ledger.sign_with(signer, trusted)
    if not look:
        return ledger
    # No server answers, or the ledger does not exist: readers and writers get the error, and try again.
    with contextlib.suppress(LinkDown, LedgerUnavailable):
        blocking = BlockingLink(place.address, name=f"{place.shown}, looking", open_s=OPEN_S)
        try:
            blocking.run(ledger.prepare, PREPARE_S)
        finally:
            blocking.close()
    return ledger


class NatsLedger:
    """The Ledger port on a JetStream stream: one connection."""

    def __init__(self, place: LedgerAddress, verifier: Verifier) -> None:
        self._place = place
        self._verifier = verifier
        self._signer: Signer | None = None
        self._trusted: frozenset[bytes] = frozenset()
        self._link: NatsLink | None = None
        self._reader: Reader | None = None
        self._writer: LedgerWriter | None = None
        self._is_prepared = False
        self._is_caught_up = False
        self._starting = asyncio.Lock()
        self._write_lock = asyncio.Lock()
        self._is_appending = False
        self._is_closed = False
        self._watching: list[Heard] = []
        self._waking: asyncio.Task[None] | None = None
        self._told = 0

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def state(self) -> LedgerState:
        """The folded log, as far as it was read: positions, writers, and counts of skipped messages."""
        return LedgerState() if self._reader is None else self._reader.state

    @property
    def shown(self) -> str:
        """The ledger's name and address, for people."""
        return self._place.shown

    async def wait_end(self) -> LedgerState:
        """The folded log, with everything that was acknowledged before this call. Raises LedgerError."""
        self._check_open()
        reader = await self._started()
        await reader.wait_end()
        self._is_caught_up = True
        reader.check()
        return reader.state

    async def look(self) -> LedgerState:
        """The folded log as some server has it, which may be behind. Writes nothing. Raises LedgerError."""
        self._check_open()
        reader = await self._started()
        try:
            while await reader.fetch():
                pass
        except NOT_THERE as error:
            raise LedgerUnavailable(f"{self._place.shown}: {error}") from None
        reader.check()
        return reader.state

    async def checkpoint_position(self) -> int:
        """The position of the newest checkpoint, without reading it; 0 if there is none."""
        self._check_open()
        await self._started()
        head, _ = await read_head(self._place, self._needed_link())
        return 0 if head is None else head.position

    def sign_with(self, signer: Signer, trusted: Sequence[bytes] = ()) -> None:
        """Gives the connection its key, before the first call. `trusted` are the other keys, if known: a ledger that we
        make lets them write too, and one that other keys began is refused."""
        if self._reader is not None:
            raise Bug("the ledger is in use; give it its key before the first call")
        if (fault := self._verifier.acceptable(signer.algorithm, signer.public_key)) is not None:
            raise ConfigError(f"{self._place.shown}: this key cannot be used: {fault}")
        self._signer = signer
        self._trusted = frozenset({signer.public_key, *trusted}) if trusted else frozenset()

    # ------------------------------------------------------------------ the port

    async def append(self, entries: Sequence[bytes]) -> int:
        self._check_open()
        check_entries(entries, under_way=self._is_appending)
        self._is_appending = True
        # A caller that is cancelled does not take the entries back: they are written or not, and the next append waits
        # for it.
        task = asyncio.ensure_future(self._append(tuple(entries)))
        task.add_done_callback(self._appended)
        return await asyncio.shield(task)

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        self._check_open()
        reader = await self._started()
        # A checkpoint that another node has stored may be ahead of what we have read: only the end of the log tells.
        if fresh or not self._is_caught_up or after > reader.state.position:
            await reader.wait_end()
            self._is_caught_up = True
        return await reader.read(after, min(count_max, READ_COUNT_MAX))

    def watch(self, heard: Heard) -> None:
        self._check_open()
        self._watching.append(heard)
        # Connect for the watchers too; readers get the errors that happen meanwhile.
        self._waking = asyncio.ensure_future(self._wake())

    async def checkpoint(self) -> LedgerCheckpoint | None:
        self._check_open()
        reader = await self._started()
        return await read_checkpoint(self._place, self._needed_link(), reader.state.cut)

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        self._check_open()
        reader = await self._caught_up()
        check_checkpoint(checkpoint, reader.state.position)
        await store_checkpoint(self._place, self._needed_link(), checkpoint)

    async def cut(self, upto: int) -> None:
        self._check_open()
        reader, link = await self._caught_up(), self._needed_link()
        async with self._write_lock:
            head, _ = await read_head(self._place, link)
            if head is None or head.position < upto:
                raise Bug(f"{self._place.shown}: no checkpoint covers {upto}; store one before the log is cut")
            state = reader.state_before(upto)
            if upto > reader.state.cut:
                await self._needed_writer().do(Cut(upto, base_of(state)))
            if not state.sequence:
                return
            try:
                await link.api(f"STREAM.PURGE.{self._place.stream}", {"seq": state.sequence + 1}, PURGE_S)
            except JetStreamRefused as error:
                raise refused(self._place, error) from None
            except NOT_THERE as error:
                raise LedgerUnavailable(f"{self._place.shown}: was not cut ({error}); try again") from None

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watching.clear()
        await end_tasks(self._waking)
        if self._reader is not None:
            await self._reader.end()
        if self._link is not None:
            await self._link.close()

    # ------------------------------------------------------------------ who may write

    async def enrol(self, keys: Sequence[bytes]) -> None:
        """Lets these keys write too. Every writer may do that; the signed change is in the log."""
        await self._change(Enrol(self._acceptable(keys)))

    async def revoke(self, keys: Sequence[bytes]) -> None:
        """Revokes these keys from here on; the last one stays."""
        await self._change(Revoke(tuple(keys)))

    async def _change(self, change: Enrol | Revoke) -> None:
        self._check_open()
        await self._caught_up()
        async with self._write_lock:
            await self._needed_writer().do(change)

    def _acceptable(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        for key in keys:
            algorithm = 1 if self._signer is None else self._signer.algorithm
            if (fault := self._verifier.acceptable(algorithm, key)) is not None:
                raise ConfigError(f"{self._place.shown}: the key {key.hex()} cannot be enrolled: {fault}")
        return tuple(keys)

    # ------------------------------------------------------------------ internals

    async def _wake(self) -> None:
        with contextlib.suppress(LedgerError, ConfigError, Bug):
            await self._started()

    async def _append(self, entries: tuple[bytes, ...]) -> int:
        await self._caught_up()
        async with self._write_lock:
            self._check_open()
            return await self._needed_writer().append(entries)

    def _appended(self, task: asyncio.Task[int]) -> None:
        self._is_appending = False
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the waiter may have been cancelled

    async def _started(self) -> Reader:
        """The reader on this event loop, connected or connecting."""
        async with self._starting:
            self._check_open()
            if self._link is None:
                self._link = NatsLink(self._place.address, name=self._place.shown)
                self._link.start()
            if self._reader is None:
                if not self._is_prepared:
                    await self._prepare_here(self._link)
                reader = Reader(self._place, self._link, self._verifier.verify, self._trusted)
                if self._signer is not None:
                    self._writer = LedgerWriter(self._place, self._link, reader, self._signer)
                    reader.taken = self._writer.taken
                reader.grown = self._tell
                await reader.start()
                self._reader = reader
        await self._wait_up(self._link)
        return self._reader

    async def _wait_up(self, link: NatsLink) -> None:
        try:
            await link.wait_up(UP_S)
        except NOT_THERE as error:  # a server that rejects us now may accept us later
            raise LedgerUnavailable(f"{self._place.shown}: {error}") from None

    async def _caught_up(self) -> Reader:
        """The reader, once it has read everything that existed when it began."""
        reader = await self._started()
        if not self._is_caught_up:
            await reader.wait_end()
            self._is_caught_up = True
        reader.check()
        return reader

    def _tell(self, position: int) -> None:
        if position > self._told or (self._reader is not None and self._reader.failed is not None):
            self._told = max(position, self._told)
            for heard in list(self._watching):
                heard(self._told)

    async def _prepare_here(self, link: NatsLink) -> None:
        await self._wait_up(link)
        try:
            await self.prepare(link)
        except LinkDown as error:
            raise LedgerUnavailable(f"{self._place.shown}: {error}") from None
        except ConfigError as error:  # nobody could see it at opening, and it will not go away
            raise LedgerForeign(str(error)) from None

    async def prepare(self, link: NatsLink) -> None:
        """Checks that the ledger exists and is ours; makes it if it does not and we have a key.

        Raises ConfigError, LedgerError and LinkDown.
        """
        place = self._place
        if link.max_payload_bytes < PAYLOAD_BYTES_MIN:
            raise ConfigError(
                f"{place.shown}: the server accepts messages of {link.max_payload_bytes} bytes at most; set "
                f"max_payload to {PAYLOAD_BYTES_MIN} or more, 1 MiB is usual"
            )
        try:
            await self._ensure(link, place.checkpoints, place.checkpoint_settings())
            found = await self._ensure(link, place.stream, place.log_settings())
            if found.last_sequence == 0:
                await self._begin(link)
            await self._check_first(link)
        except JetStreamRefused as error:
            raise refused(place, error) from None
        self._is_prepared = True

    async def _ensure(self, link: NatsLink, stream: str, settings: dict[str, Any]) -> StreamFound:
        found = await find_stream(link, stream)
        if found is None and self._signer is None:
            raise LedgerUnavailable(f"{self._place.shown}: does not exist yet; a node with a key makes it")
        return await ensure_stream(link, stream, settings if found is None else to_compare(self._place, settings))

    async def _begin(self, link: NatsLink) -> None:
        """Writes the first message; if several try, one succeeds."""
        signer = self._signer
        if signer is None:
            raise LedgerUnavailable(f"{self._place.shown}: is still empty; a node with a key writes to it first")
        change = Genesis(
            self.name, os.urandom(INCARNATION_BYTES), self._acceptable(sorted({signer.public_key, *self._trusted}))
        )
        body = LedgerBody(os.urandom(SESSION_BYTES), 0, 1, 0, START, change)
        payload = write_record(self.name, change.incarnation, signer.algorithm, signer.public_key, body, signer.sign)
        try:
            await link.publish(self._place.log_subject, payload, {"Nats-Expected-Last-Sequence": "0"})
        except JetStreamRefused as error:
            if not error.is_fence:
                raise
        except Unanswered:
            pass  # `_check_first` finds out whether it was written

    async def _check_first(self, link: NatsLink) -> None:
        """Refuses a stream with other content or another ledger. A cut log is checked later."""
        reader = Reader(self._place, link, self._verifier.verify, self._trusted)
        with contextlib.suppress(LedgerUnavailable):
            await reader.fetch(count=1)
        reader.check()

    def _needed_link(self) -> NatsLink:
        assert self._link is not None
        return self._link

    def _needed_writer(self) -> LedgerWriter:
        if self._writer is None:
            raise LedgerUnavailable(f"{self._place.shown}: was opened without a key and is read-only")
        return self._writer

    def _check_open(self) -> None:
        if self._is_closed:
            raise Bug("the ledger is closed; open it again")
