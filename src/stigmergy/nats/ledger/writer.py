"""Writes into the log of a ledger on NATS: signed, numbered, one change at a time, and never twice.

A change is done when the fold has counted it, and only then: an acknowledgement says where to read. Without an answer
it is sent again with the same bytes, which JetStream deduplicates for two minutes and the fold forever. A change
without an answer in time is unknown; the same entries again are the same change again, and other entries make it void,
because a later number counts. Without a leader, or with one that has lost the others, nothing is sent at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

from msgspec import Struct

from stigmergy.base.errors import LedgerError, LedgerUnavailable, LedgerUnknown, LinkDown, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer
from stigmergy.nats.errors import JetStreamRefused, NoResponders, Unanswered
from stigmergy.nats.ledger.reader import Reader
from stigmergy.nats.ledger.records import (
    SESSION_BYTES,
    Cut,
    Entries,
    LedgerBody,
    LedgerChange,
    MessageOutcome,
    write_record,
)
from stigmergy.nats.ledger.streams import NOT_THERE, LedgerAddress, refused
from stigmergy.nats.link import Ack, NatsLink

WRITE_S = 5.0
"""How long one call tries."""
ATTEMPT_S = 1.5
PAUSE_S = 0.05
QUORUM_ASK_S = 1.0
ACTIVE_S_MAX = 3.0
"""A replica that its leader has not heard from for this long does not count: they talk every second."""
SESSIONS_TRIED_MAX = 3
PART_BYTES_MAX = 512 * 1024
OVERHEAD_BYTES = 1_024
"""The overhead of a message beside its entries."""


class _Forgotten(Exception):
    """Too many others have written since: this session no longer counts."""


class _Doubt(Struct):
    """An append with an unknown outcome."""

    entries: tuple[bytes, ...]
    number: int
    payloads: list[bytes]


class LedgerWriter:
    """Writes over one connection, one call at a time."""

    def __init__(self, place: LedgerAddress, link: NatsLink, reader: Reader, signer: Signer) -> None:
        self._place = place
        self._link = link
        self._reader = reader
        self._signer = signer
        self._session = b""
        self._began = 0
        self._number = 0
        self._doubt: _Doubt | None = None
        self._landed: dict[int, int | None] = {}
        """Pending changes by number: the position of the first entry, once counted."""
        self._is_passed_over = False
        """Our last message was read, and does not count."""
        self._news = asyncio.Event()
        self._is_troubled = False
        """The last call ended with an unknown outcome: check for a majority before the next."""

    def taken(self, found: MessageOutcome) -> None:
        """Called for every folded message."""
        if found.session != self._session or found.number not in self._landed:
            return
        if found.counted:
            self._landed[found.number] = found.entries[0].position if found.entries else found.state.position
        self._is_passed_over = not found.counted
        self._news.set()

    async def append(self, entries: tuple[bytes, ...]) -> int:
        """Writes entries; returns the position of the first. The caller has read to the end at least once."""
        doubt, self._doubt = self._doubt, None
        is_again = doubt is not None and doubt.entries == entries and self._is_open(doubt.number)
        for _ in range(SESSIONS_TRIED_MAX):
            if doubt is None or not is_again:
                self._check_writer()
                changes = _parts(entries, min(PART_BYTES_MAX, self._link.max_payload_bytes) - OVERHEAD_BYTES)
                number = self._next_number()
                doubt = _Doubt(entries, number, [self._record(number, change) for change in changes])
            try:
                return await self._write(self._place.log_subject, doubt.number, doubt.payloads, was_sent=is_again)
            except LedgerUnknown:
                self._doubt = doubt
                raise
            except _Forgotten:
                is_again = False
        raise LedgerUnavailable(f"{self._place.shown}: too many writers at once; nothing was written, try again")

    async def do(self, change: LedgerChange) -> None:
        """Writes any change but entries."""
        self._doubt = None
        self._check_writer()
        number = self._next_number()
        subject = self._place.cut_subject if isinstance(change, Cut) else self._place.log_subject
        try:
            await self._write(subject, number, [self._record(number, change)], was_sent=False)
        except _Forgotten:
            raise LedgerUnavailable(f"{self._place.shown}: too many writers at once; nothing was written") from None

    # ------------------------------------------------------------------ one change

    def _next_number(self) -> int:
        """The next number of this session; a new session if the fold has forgotten this one."""
        state = self._reader.state
        is_known = self._session in state.sessions
        if not self._session or (not is_known and self._began < state.floor):
            self._session, self._began, self._number = os.urandom(SESSION_BYTES), state.sequence, 0
        self._number += 1
        self._landed = {self._number: None}
        self._is_passed_over = False
        return self._number

    def _is_open(self, number: int) -> bool:
        """Whether a change with an unknown outcome may still count, or has."""
        mark = self._reader.state.sessions.get(self._session)
        return self._landed.get(number) is not None or (0 if mark is None else mark.number) < number

    def _check_writer(self) -> None:
        if self._signer.public_key not in self._reader.state.writers:
            raise LedgerUnavailable(
                f"{self._place.shown}: the key {self._signer.public_key.hex()} may not write; have "
                "a node that may enrol it (stigmergy ledger enrol), or give all nodes the same peers before it is made"
            )

    def _record(self, number: int, change: LedgerChange) -> bytes:
        state, signer = self._reader.state, self._signer
        body = LedgerBody(self._session, self._began, number, state.sequence, state.chain, change)
        return write_record(state.name, state.incarnation, signer.algorithm, signer.public_key, body, signer.sign)

    async def _write(self, subject: str, number: int, payloads: Sequence[bytes], *, was_sent: bool) -> int:
        """Sends until the change is counted or refused, or time is up."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + WRITE_S
        why = "nobody answers"
        while True:
            self._reader.check()
            if (position := self._landed.get(number)) is not None:
                self._is_troubled = False
                return position
            if self._is_passed_over:
                self._check_passed_over()
            if loop.time() > deadline_s:
                self._is_troubled = True
                if was_sent:
                    raise LedgerUnknown(
                        f"{self._place.shown}: {why}; it may have been written, read or append it again"
                    )
                raise LedgerUnavailable(f"{self._place.shown}: {why}; nothing was written, try again")
            if self._is_troubled and (lost := await self._why_no_majority()):
                why = lost
                if not was_sent:
                    raise LedgerUnavailable(f"{self._place.shown}: {why}; nothing was written, try again")
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                acks = await self._send(subject, number, payloads)
            except Unanswered as error:
                was_sent, why = True, str(error)
                self._is_troubled = True
            except (NoResponders, LinkDown) as error:
                # Earlier tries may have arrived; this one has not.
                why = str(error)
                if not was_sent:
                    raise LedgerUnavailable(f"{self._place.shown}: {why}") from None
            except JetStreamRefused as error:
                why = str(error)
                if not was_sent and not error.is_passing:
                    raise refused(self._place, error) from None
            except TooLarge as error:
                raise LedgerUnavailable(f"{self._place.shown}: {error}; nothing was written") from None
            else:
                was_sent = True
                with contextlib.suppress(LedgerError):
                    await self._reader.wait_read(max(acks, default=0), deadline_s)
                if self._landed.get(number) is not None or not acks:
                    continue
                why = "it is stored, but does not count"
            await asyncio.sleep(PAUSE_S)

    def _check_passed_over(self) -> None:
        """Ends a change that can no longer count: its key may not write, or its session is forgotten for good."""
        self._check_writer()
        state = self._reader.state
        if self._session not in state.sessions and self._began < state.floor:
            raise _Forgotten

    async def _send(self, subject: str, number: int, payloads: Sequence[bytes]) -> list[int]:
        """Publishes all parts in order; returns their sequences. Ends early when the change is counted."""
        sequences: list[int] = []
        for part, payload in enumerate(payloads):
            headers = {"Nats-Msg-Id": f"{self._session.hex()}.{number}.{part}"}
            ack = await self._publish(subject, payload, headers, number)
            if ack is None:
                return []
            sequences.append(ack.sequence)
        return sequences

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str], number: int) -> Ack | None:
        """Publishes one message; None if its change was folded before the answer came."""
        sending = asyncio.ensure_future(self._link.publish(subject, payload, headers, within_s=ATTEMPT_S))
        self._news.clear()
        news = asyncio.ensure_future(self._news.wait())
        try:
            while not sending.done() and self._landed.get(number) is None:
                await asyncio.wait({sending, news}, return_when=asyncio.FIRST_COMPLETED)
                if news.done():
                    self._news.clear()
                    news = asyncio.ensure_future(self._news.wait())
            if self._landed.get(number) is not None:
                return None
            return sending.result()
        finally:
            await end_tasks(sending, news)

    async def _why_no_majority(self) -> str:
        """Why no majority would store a message now; empty if one would, as far as we know."""
        try:
            info = await self._link.api(f"STREAM.INFO.{self._place.stream}", within_s=QUORUM_ASK_S)
        except (*NOT_THERE, JetStreamRefused) as error:
            return f"it has no leader ({error})"
        replicas = (info.get("cluster") or {}).get("replicas") or []
        heard = sum(not one.get("offline") and one.get("active", 0) < ACTIVE_S_MAX * 1e9 for one in replicas)
        if (1 + heard) * 2 <= 1 + len(replicas):
            return f"{1 + heard} of {1 + len(replicas)} servers answer, which is no majority"
        return ""


def _parts(entries: tuple[bytes, ...], bytes_max: int) -> list[Entries]:
    """An append as one change, or, if that is too large, as several."""
    groups: list[list[bytes]] = [[]]
    size_bytes = 0
    for entry in entries:
        if groups[-1] and size_bytes + len(entry) + 8 > bytes_max:
            groups.append([])
            size_bytes = 0
        groups[-1].append(entry)
        size_bytes += len(entry) + 8
    return [Entries(tuple(group), part, len(groups)) for part, group in enumerate(groups)]
