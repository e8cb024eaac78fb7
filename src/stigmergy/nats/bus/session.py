"""A client's session: a durable consumer of a stream that one process at a time reads, from where the last one stopped.

The server keeps which messages were acknowledged. A new process takes over the consumer and resets it to the first
unacknowledged message: so messages in flight when a link or a process broke come again at once, before newer ones. A
repetition of a message that waits here, or was handled a moment ago, is recognised by its sequence in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from nats.aio.msg import Msg

from stigmergy.base.errors import ConfigError, LinkDown, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.inbox import Arrival, Reception
from stigmergy.bus.port import PAYLOAD_BYTES_MAX
from stigmergy.nats.bus.options import SESSION_S_MIN
from stigmergy.nats.bus.subjects import covers, message_of, prune
from stigmergy.nats.errors import CONSUMER_NOT_FOUND, JetStreamRefused, NoResponders
from stigmergy.nats.link import NatsLink

WINDOW_COUNT_MAX = 2_048
"""Messages of a session that were requested or wait here, not yet acknowledged. The server sends no more."""
WINDOW_BYTES_MAX = 32 * 1024 * 1024
"""Above it nothing more is requested until half of it is handled."""
PULL_COUNT_MAX = 512
PULL_BYTES_MAX = 8 * 1024 * 1024
GATHER_S = 0.003
"""Messages handled within this time are acknowledged together: a system call for each would cost more than the rest."""
PULL_S = 10.0
ASK_S = 2.0
"""A consumer without a leader does not answer: then the session starts again."""
HEARTBEAT_S = 2.0
"""The interval of the server's heartbeats for our request. After three missed ones the session starts again."""
READ_COUNT_MAX = 32
"""The most messages handled in one go; then other tasks have their turn."""
ACK_WAIT_S = 60.0
"""An unacknowledged message comes again after this time. Rarely needed: see above."""
PIN_S = 60.0
"""A reader that requests nothing for this long may be replaced by one that waits."""
SETTLED_COUNT_MAX = 2 * WINDOW_COUNT_MAX
SECOND_NS = 1_000_000_000
GROUP = "owner"
PIN = "Nats-Pin-Id"
"""The id that the server gives to the one reader it has pinned the consumer to."""
OWNER = "stig-owner"
SINCE = "stig-since"
EPOCH = "stig-epoch"
"""Keys of the consumer's metadata: the process that has it; each filter's first message; the owner's epoch."""
_HEARTBEAT = "100"
_WRONG_PIN = "423"
_OVER = ("404", "408", "409")
Glance = Callable[[int, str, bytes, Mapping[str, str]], None]
Diversion = Callable[[int, str, bytes, Mapping[str, str], Callable[[], None]], bool]
"""May handle a message, given its place, subject, payload, headers and what to call when it is handled; or decline."""
_Place = tuple[int, int]
_encode = msgspec.json.Encoder().encode
_since = msgspec.json.Decoder(dict[str, int])


class _Received:
    __slots__ = ("reply", "size_bytes")

    def __init__(self, reply: str, size_bytes: int) -> None:
        self.reply = reply
        self.size_bytes = size_bytes


class Session:
    """Reads one stream for one client. `begin` whenever the link is up, `pause` when it is not, `close` at the end."""

    def __init__(
        self,
        link: NatsLink,
        stream: str,
        name: str,
        owner: str,
        reception: Reception,
        doubt: Callable[[StigmergyError], None],
        *,
        session_s: float,
        epoch: int = 0,
        bare: Callable[[str], str | None] = lambda subject: subject,
        looks: Glance | None = None,
        takes: Diversion | None = None,
    ) -> None:
        """`owner` identifies this process; `bare` gives the topic's subject for a subject of the stream, None if the
        message is for nobody; `looks` sees every message; `takes` may handle one instead of the handlers; `doubt`
        is told to begin the session again."""
        self._link = link
        self.stream = stream
        self.name = name
        self._owner = owner
        self._reception = reception
        self._doubt = doubt
        self._session_s = session_s
        self._epoch = epoch
        self._bare = bare
        self._looks = looks
        self._takes = takes
        self._is_ours = False
        """This process had the consumer before: if another has it now, that one took it from us."""
        self._since: dict[str, int] = {}
        self._newest_since = 0
        self._era = 0
        """Counts new consumers: sequences may start again with one, so places of two eras differ."""
        self._waiting: dict[_Place, _Received] = {}
        self._waiting_bytes = 0
        self._settled: dict[_Place, None] = {}
        self._acks: list[str] = []
        self._asked = 0
        self._arrived_count = 0
        self._pin = ""
        """Comes with the first answer to our requests: until then there is only one request."""
        self._is_disputed = False
        self._inbox = ""
        self._begun_count = 0
        self._heard_s = 0.0
        self._wake = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._end_inbox: Callable[[], Awaitable[None]] | None = None

    # ------------------------------------------------------------------ life

    async def begin(self, filters: Iterable[str], last: int) -> bool:
        """Takes over the session, adds these filters, and reads on. `last` is the stream's newest message: a new filter
        starts after it. Returns whether the session that we had was lost. Raises ConfigError, LinkDown or
        JetStreamRefused."""
        await self.pause()
        era = self._era
        await self._own(filters, last)
        self._is_ours = True
        self._begun_count += 1
        self._asked, self._pin, self._is_disputed = 0, "", False
        self._inbox = f"_INBOX.{self._owner}.{self.stream}.{self._begun_count}"
        self._end_inbox = await self._link.subscribe(self._inbox, self._arrive)
        self._heard_s = asyncio.get_running_loop().time()
        self._wake.set()
        self._writing = asyncio.get_running_loop().create_task(self._write(), name=f"session {self.name}")
        return self._begun_count > 1 and self._era > era

    async def check(self) -> None:
        """Raises ConfigError if another process has the session: an idle session would not notice."""
        if self._writing is not None and (info := await self._find()) is not None:
            self._check_owner(info["config"].get("metadata") or {})

    async def trim(self, filters: Iterable[str]) -> None:
        """Removes all filters but these: older programs listened to more."""
        wanted = list(filters)
        if self._writing is not None and [one for one in self._since if one not in wanted]:
            self._note_since({one: since for one, since in self._since.items() if one in wanted})
            info = await self._find()
            if info is not None:
                await self._save(info["config"])

    async def pause(self) -> None:
        """Requests nothing more."""
        writing, self._writing = self._writing, None
        await end_tasks(writing)
        end, self._end_inbox = self._end_inbox, None
        if end is not None:
            await end()

    async def close(self) -> None:
        """Acknowledges handled messages, and leaves the rest to the next process."""
        await self.pause()
        with contextlib.suppress(LinkDown, JetStreamRefused):
            if self._session_s <= SESSION_S_MIN:
                await self._ask_server("DELETE")  # at once: another process may come before its time is over
                return
            await self._send_acks()
            await self._link.flush(HEARTBEAT_S)

    # ------------------------------------------------------------------ the consumer

    async def _find(self) -> dict[str, Any] | None:
        try:
            return await self._ask_server("INFO")
        except JetStreamRefused as refused:
            if refused.code == CONSUMER_NOT_FOUND:
                return None
            raise

    async def _own(self, filters: Iterable[str], last: int) -> None:
        info = await self._find()
        if info is None:
            self._era += 1
            self._note_since(dict.fromkeys(filters, last))
            await self._save({"deliver_policy": "by_start_sequence", "opt_start_seq": last + 1})
            return
        metadata: Mapping[str, str] = info["config"].get("metadata") or {}
        self._check_owner(metadata)
        with contextlib.suppress(msgspec.DecodeError):
            self._note_since(dict.fromkeys(filters, last) | _since.decode(metadata.get(SINCE, "{}")))
        await self._save(info["config"])
        with contextlib.suppress(JetStreamRefused):  # no reader was pinned
            await self._ask_server("UNPIN", {"group": GROUP})
        await self._ask_server("RESET", {})

    def _check_owner(self, metadata: Mapping[str, str]) -> None:
        found = metadata.get(EPOCH, "")
        if found.isdigit() and int(found) > self._epoch:
            raise ConfigError(f"session {self.name}: an owner with epoch {found} has taken it over from {self._epoch}")
        if self._is_ours and metadata.get(OWNER) != self._owner:
            self._is_ours = False  # the next try takes it back
            raise ConfigError(f"session {self.name}: another client has our id; give each node its own name")

    async def _save(self, config: Mapping[str, Any]) -> None:
        wanted = {
            **config,
            "durable_name": self.name,
            "ack_policy": "explicit",
            "ack_wait": int(ACK_WAIT_S * SECOND_NS),
            "max_ack_pending": WINDOW_COUNT_MAX,
            "inactive_threshold": int(self._session_s * SECOND_NS),
            "filter_subjects": prune(self._since),
            "priority_groups": [GROUP],
            "priority_policy": "pinned_client",
            "priority_timeout": int(PIN_S * SECOND_NS),
            "metadata": {
                **(config.get("metadata") or {}),
                OWNER: self._owner,
                EPOCH: str(self._epoch),
                SINCE: _encode(self._since).decode(),
            },
        }
        wanted.pop("filter_subject", None)
        await self._ask_server("CREATE", {"stream_name": self.stream, "config": wanted})

    async def _ask_server(self, call: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._link.api(f"CONSUMER.{call}.{self.stream}.{self.name}", body, ASK_S)

    def _note_since(self, since: dict[str, int]) -> None:
        self._since = since
        self._newest_since = max(since.values(), default=0)

    # ------------------------------------------------------------------ incoming

    async def _arrive(self, message: Msg) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if not message.reply:
            self._hear_status(message.headers or {})
            return
        self._arrived_count += 1
        if self._arrived_count % READ_COUNT_MAX == 0:
            # The client library passes on everything it has read, hundreds in a flood, without yielding.
            await asyncio.sleep(0)
        self._asked = max(0, self._asked - 1)
        if message.headers:
            self._pin = message.headers.get(PIN, self._pin)
        number = place_of(message.reply)
        place = (self._era, number)
        waiting = self._waiting.get(place)
        if waiting is not None:
            waiting.reply = message.reply
            self._reception.receipts.repeated += 1
        elif place in self._settled or not self._counts(number, message.subject):
            self._acks.append(message.reply)
        else:
            self._take(place, message)
        self._wake.set()

    def _counts(self, number: int, subject: str) -> bool:
        """Whether a message came after its filter was added."""
        return number > self._newest_since or any(
            number > since and covers(one, subject) for one, since in self._since.items()
        )

    def _take(self, place: _Place, message: Msg) -> None:
        subject = self._bare(message.subject)
        if subject is None or len(message.data) > PAYLOAD_BYTES_MAX:
            self._reception.receipts.refused += subject is not None
            self._acks.append(message.reply)
            return
        self._waiting[place] = _Received(message.reply, len(message.data))
        self._waiting_bytes += len(message.data)
        if self._looks is not None and message.headers:
            self._looks(place[1], subject, message.data, message.headers)
        settled = functools.partial(self._settle, place)
        if self._takes is not None and self._takes(place[1], subject, message.data, message.headers or {}, settled):
            return
        arrived = message_of(subject, message.data, message.headers)
        self._reception.take(Arrival(arrived, settled))

    def _settle(self, place: _Place) -> None:
        received = self._waiting.pop(place)
        self._waiting_bytes -= received.size_bytes
        self._settled[place] = None
        if len(self._settled) > SETTLED_COUNT_MAX:
            del self._settled[next(iter(self._settled))]
        self._acks.append(received.reply)
        self._wake.set()

    def _hear_status(self, headers: Mapping[str, str]) -> None:
        status, why = headers.get("Status", ""), headers.get("Description", "")
        left = headers.get("Nats-Pending-Messages", "")
        if status == _HEARTBEAT:
            return
        if status in _OVER and left.isdigit():
            self._asked = max(0, self._asked - int(left))
            self._wake.set()
        elif status == _WRONG_PIN:
            # A new leader does not know us, or another reader has our place.
            self._pin, self._asked, self._is_disputed = "", 0, True
            self._wake.set()
        else:
            self._doubt(LinkDown(f"session {self.name}: {status} {why}; starting again"))

    # ------------------------------------------------------------------ outgoing

    async def _write(self) -> None:
        """Acknowledges handled messages and requests more, both in batches."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
                await asyncio.sleep(GATHER_S)
                self._wake.clear()
                await self._send_acks()
                if self._is_disputed:
                    self._is_disputed = False
                    await self.check()
                await self._ask()
                silent_s = asyncio.get_running_loop().time() - self._heard_s
                if self._asked and silent_s > 3 * HEARTBEAT_S:
                    raise NoResponders(f"session {self.name}: no sign of life for {silent_s:.0f} s; starting again")
        except StigmergyError as error:
            self._doubt(error)
        except JetStreamRefused as refused:
            self._doubt(LinkDown(f"session {self.name}: {refused}; starting again"))

    async def _send_acks(self) -> None:
        acks, self._acks = self._acks, []
        for reply in acks:
            # An acknowledgement that is lost with the link is sent again when the message comes again.
            await self._link.tell(reply, b"+ACK")

    async def _ask(self) -> None:
        room = WINDOW_COUNT_MAX - len(self._waiting) - self._asked
        full = self._waiting_bytes > WINDOW_BYTES_MAX // (1 if self._asked else 2)
        enough = self._asked > WINDOW_COUNT_MAX // 2 if self._pin else self._asked > 0
        if full or enough or room <= 0 or (self._asked and room < PULL_COUNT_MAX):
            return
        count = min(room, PULL_COUNT_MAX)
        if not self._asked:
            self._heard_s = asyncio.get_running_loop().time()
        self._asked += count
        asked: dict[str, Any] = {
            "batch": count,
            "max_bytes": PULL_BYTES_MAX,
            "expires": int(PULL_S * SECOND_NS),
            "idle_heartbeat": int(HEARTBEAT_S * SECOND_NS),
            "group": GROUP,
        }
        if self._pin:
            asked["id"] = self._pin
        await self._link.tell(
            self._link.api_subject(f"CONSUMER.MSG.NEXT.{self.stream}.{self.name}"), _encode(asked), self._inbox
        )


def place_of(reply: str) -> int:
    """The sequence of a message in its stream, from its acknowledgement subject."""
    parts = reply.split(".")
    # $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>…; with a domain and an account before the stream's name.
    return int(parts[5] if len(parts) < 11 else parts[7])
