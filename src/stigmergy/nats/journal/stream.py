"""The stream of a log: made or found, read in batches, written one message at a time, each fenced.

Every write names the message that it expects to be the last. So of all writes for one place at most one is kept, and a
write with an unknown outcome may simply be sent again: once the place is taken, its content gives the answer. Only a
found message is evidence: finding nothing may be an old leader's view, or the message may still arrive.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from stigmergy.base.errors import (
    ConfigError,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    JournalForeign,
    JournalFull,
    JournalUnknown,
    LinkDown,
    StigmergyError,
    TooLarge,
)
from stigmergy.nats import naming
from stigmergy.nats.errors import (
    NO_MESSAGE,
    STREAM_NOT_FOUND,
    WITHOUT_JETSTREAM,
    JetStreamRefused,
    Unanswered,
    no_jetstream,
)
from stigmergy.nats.journal.messages import KINDS, NOTE, LogMessage, decode_note
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import StreamFound, find_stream

T = TypeVar("T")
WRITE_WITHIN_S = 15.0
"""A killed leader of a stream is replaced in 4 to 8 s; a write still unknown after this is left to the next start."""
READ_WITHIN_S = 15.0
TRY_S = 2.0
PAUSE_S = 0.05
READ_COUNT_MAX = 256
READ_BYTES_MAX = 1024 * 1024
"""The size of one read: some milliseconds of work for the event loop."""
BEHIND_PAUSE_S = 0.005
SCAN_COUNT = 256
"""A search in the log stops when this many messages are left; they are read."""
EXPECTED_LAST = "Nats-Expected-Last-Sequence"


class LogPlace(Struct, frozen=True):
    """A log: its fleet and its shards."""

    name: str
    """The fleet's name, or the one in the URL."""
    first: int
    last: int

    @property
    def stream(self) -> str:
        return naming.log_stream(self.name, self.first, self.last)

    @property
    def subject(self) -> str:
        """Prefix of its messages' subjects."""
        return naming.log_subject(self.name, self.first, self.last)

    @property
    def owner_subject(self) -> str:
        """Where its owner answers that it is there."""
        return naming.log_owner_subject(self.name, self.first, self.last)

    @property
    def grown_subject(self) -> str:
        """Where its owner announces new commits."""
        return naming.log_grown_subject(self.name, self.first, self.last)


class LogStream:
    """A log over one link. Raises our errors: LinkDown if a read is not possible now."""

    def __init__(self, link: NatsLink, place: LogPlace, patience_s: float = READ_WITHIN_S) -> None:
        """Reads are retried for `patience_s` before they raise LinkDown."""
        self.link = link
        self.place = place
        self._patience_s = patience_s
        self._direct = f"$JS.{link.address.domain}.API." if link.address.domain else "$JS.API."
        self._direct += f"DIRECT.GET.{place.stream}"

    # ------------------------------------------------------------------ writing

    async def write(self, kind: str, payload: bytes, after: int) -> None:
        """Appends a message after this sequence; returns when it is stored there.

        Raises JournalConflict (another owner's message is there: ours never will be), JournalFull (nothing was stored),
        JournalUnknown (not known in time).
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WRITE_WITHIN_S
        subject, headers = f"{self.place.subject}.{kind}", {EXPECTED_LAST: str(after)}
        may_have_arrived = False
        why = ""
        while loop.time() < until_s:
            try:
                ack = await self.link.publish(subject, payload, headers, within_s=TRY_S)
            except JetStreamRefused as refused:
                why = str(refused)
                if refused.is_full and not may_have_arrived:
                    raise self._full(refused) from None
                if (refused.is_fence or may_have_arrived) and await self._is_there(after + 1, kind, payload):
                    return
            except TooLarge as error:
                raise ConfigError(f"{self.place.stream}: {error}") from None
            except LinkDown as error:
                why = str(error)
                # A message that was surely not sent cannot arrive. Any other may, also later.
                may_have_arrived = may_have_arrived or not _was_not_sent(error)
            else:
                if ack.stream != self.place.stream or ack.sequence != after + 1:
                    raise JournalUnknown(f"written as message {ack.sequence} of {ack.stream}, which is the wrong place")
                return
            await self._pause(until_s)
        raise JournalUnknown(
            f"{self.place.stream}: unknown after {WRITE_WITHIN_S:g} s whether message {after + 1} is stored ({why}); "
            "a restart finds out by reading: check that a majority of the servers runs and has room"
        )

    async def _is_there(self, sequence: int, kind: str, payload: bytes) -> bool:
        """Whether this message is there. Raises JournalConflict if another one is."""
        try:
            found = await self.get(sequence, within_s=TRY_S)
        except LinkDown:
            return False
        if found is None:
            return False
        if found.kind == kind and found.payload == payload:
            return True
        raise JournalConflict(
            f"{self.place.stream}: message {sequence} is {self._said(found)}; another owner has the log now, reload "
            "and decide again"
        )

    @staticmethod
    def _said(found: LogMessage) -> str:
        if found.kind == NOTE:
            note = decode_note(found)
            return f"a claim of {note.owner!r}" if note.owner else f"another owner's {found.kind}"
        return f"another owner's {found.kind}"

    async def purge(self, before: int) -> None:
        """Deletes all messages before this one."""
        await self.retried(lambda: self.link.api(f"STREAM.PURGE.{self.place.stream}", {"seq": before}))

    # ------------------------------------------------------------------ reading

    async def find(self) -> StreamFound | None:
        """The stream as its leader sees it; None if it does not exist."""
        return await self.retried(lambda: find_stream(self.link, self.place.stream))

    async def info(self) -> StreamFound:
        """The stream as its leader sees it. Raises JournalForeign if it is gone."""
        found = await self.find()
        if found is None:
            raise self._gone()
        return found

    async def get(self, sequence: int, within_s: float | None = None) -> LogMessage | None:
        """One message from the stream's leader; None if it does not exist."""
        return await self._ask_leader({"seq": sequence}, within_s)

    async def last_note(self) -> LogMessage | None:
        """The newest note, from the stream's leader."""
        return await self._ask_leader({"last_by_subj": f"{self.place.subject}.{NOTE}"})

    async def next_note(self, sequence: int) -> LogMessage | None:
        """The first note from this message on."""
        return await self._ask_leader({"seq": sequence, "next_by_subj": f"{self.place.subject}.{NOTE}"})

    async def fetch(self, sequence: int, count_max: int = READ_COUNT_MAX) -> list[LogMessage]:
        """Messages from this one on, in order, from any replica: there may be more. The first may have a higher
        sequence, if earlier ones were dropped."""
        asked = msgspec.json.encode({"seq": sequence, "batch": count_max, "max_bytes": READ_BYTES_MAX})
        found = await self.retried(lambda: self.link.collect(self._direct, asked, count_max, within_s=TRY_S))
        return [self._entry(message) for message in found]

    async def fetch_some(self, sequence: int, upto: int, count_max: int = READ_COUNT_MAX) -> list[LogMessage]:
        """The same, if messages up to `upto` are known to exist: waits for a replica that is behind."""
        until_s = asyncio.get_running_loop().time() + self._patience_s
        while not (found := await self.fetch(sequence, count_max)):
            if asyncio.get_running_loop().time() > until_s:
                raise LinkDown(f"{self.place.stream}: no replica has message {upto} yet; try again")
            await asyncio.sleep(BEHIND_PAUSE_S)
        return found

    async def start_of(self, shard: int, after: int, first: int, last: int) -> int:
        """A message, between these two, at or before the shard's first commit after this position."""
        low, high = first, last
        while high - low > SCAN_COUNT:
            middle = (low + high) // 2
            entry = await self.next_note(middle)
            if entry is None or entry.sequence > high:
                high = middle
                continue
            stands = [one.position for one in decode_note(entry).shards if one.shard == shard]
            if not stands or stands[0] <= after:
                low = entry.sequence + 1
            else:
                high = middle
        return low

    async def _ask_leader(self, asked: dict[str, Any], within_s: float | None = None) -> LogMessage | None:
        try:
            answer = await self.retried(
                lambda: self.link.api(f"STREAM.MSG.GET.{self.place.stream}", asked, within_s=TRY_S), within_s
            )
        except _Absent:
            return None
        message = answer["message"]
        payload = base64.b64decode(message.get("data", ""))
        return LogMessage(int(message["seq"]), self._kind(str(message["subject"])), payload)

    def _entry(self, message: Msg) -> LogMessage:
        headers = message.headers or {}
        return LogMessage(int(headers["Nats-Sequence"]), self._kind(headers["Nats-Subject"]), message.data)

    def _kind(self, subject: str) -> str:
        kind = subject.rpartition(".")[2]
        if kind not in KINDS:
            raise JournalCorrupt(
                f"{self.place.stream} holds a message on {subject}, which is not ours; another program writes to it"
            )
        return kind

    async def retried(self, work: Callable[[], Awaitable[T]], within_s: float | None = None) -> T:
        """Retries work that may be repeated until the server answers. Raises LinkDown, or the meaning of a refusal."""
        until_s = asyncio.get_running_loop().time() + (self._patience_s if within_s is None else within_s)
        while True:
            try:
                return await work()
            except JetStreamRefused as refused:
                if refused.code == NO_MESSAGE:
                    raise _Absent from None
                if not refused.is_passing or asyncio.get_running_loop().time() > until_s:
                    raise self._explain(refused) from None
            except LinkDown:
                if asyncio.get_running_loop().time() > until_s:
                    raise
            await self._pause(until_s)

    async def _pause(self, until_s: float) -> None:
        """Waits a moment, or until the link is up again."""
        if not self.link.is_up:
            left_s = until_s - asyncio.get_running_loop().time()
            try:
                await self.link.wait_up(max(0.0, left_s))
            except StigmergyError:
                return
        await asyncio.sleep(PAUSE_S)

    def _explain(self, refused: JetStreamRefused) -> Exception:
        if refused.code in WITHOUT_JETSTREAM:
            return no_jetstream(self.link.address.shown)
        if refused.code == STREAM_NOT_FOUND:
            return self._gone()
        if refused.is_passing:
            # Like no answer: whether a write under way is stored is just as unknown.
            return LinkDown(
                f"{self.place.stream} at {self.link.address.shown}: {refused}; does a majority of servers run?"
            )
        return JournalError(f"{self.place.stream} at {self.link.address.shown}: the server refuses: {refused}")

    def _gone(self) -> JournalForeign:
        return JournalForeign(
            f"{self.link.address.shown} has no stream {self.place.stream}; name the right server, or restore it"
        )

    def _full(self, refused: JetStreamRefused) -> JournalFull:
        return JournalFull(
            f"{self.place.stream}: no room at {self.link.address.shown} ({refused.description}); drop old commits, or "
            "raise the stream's max_bytes or the server's max_file"
        )


class _Absent(Exception):
    """There is no such message."""


def _was_not_sent(error: LinkDown) -> bool:
    return not isinstance(error, Unanswered)
