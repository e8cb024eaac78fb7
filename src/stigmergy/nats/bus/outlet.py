"""Publishes into streams, many at once: sent in the order of the calls, each with its own answer.

When a call returns, the connection has the message, so later calls come after it; the returned future is done when
JetStream has stored or refused the message.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from stigmergy.base.errors import StigmergyError
from stigmergy.nats.errors import JetStreamRefused, NoResponders, Unanswered
from stigmergy.nats.link import NO_RESPONDERS, NatsLink

ANSWER_S_MAX = 5.0
"""A publish without an answer for this long has failed, or its outcome is unknown."""
LOOK_S = 0.5
MSG_ID = "Nats-Msg-Id"
"""JetStream drops a second message with the same id within two minutes."""


class _Problem(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(Struct):
    stream: str = ""
    seq: int = 0
    error: _Problem | None = None


class _Posted(Struct, eq=False):
    subject: str
    done: asyncio.Future[None]
    since_s: float


_answers = msgspec.json.Decoder(_Answer)


class Outlet:
    """The unanswered publishes of one bus."""

    def __init__(self, link: NatsLink, inbox: str) -> None:
        self._link = link
        self._inbox = inbox
        self._numbers = itertools.count(1)
        self._posted: dict[str, _Posted] = {}
        self._end: Callable[[], Awaitable[None]] | None = None
        self._look: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        return len(self._posted)

    @property
    def size_bytes_max(self) -> int:
        """The server's limit, headers included."""
        return self._link.max_payload_bytes

    async def open(self) -> None:
        """Subscribes to the answers."""
        if self._end is None:
            self._end = await self._link.subscribe(f"{self._inbox}.*", self._answered)

    async def post(self, subject: str, payload: bytes, headers: Mapping[str, str] | None) -> asyncio.Future[None]:
        """Sends. Raises LinkDown or TooLarge if it was not sent; the future raises JetStreamRefused, or LinkDown."""
        loop = asyncio.get_running_loop()
        number = str(next(self._numbers))
        posted = _Posted(subject, loop.create_future(), loop.time())
        self._posted[number] = posted
        try:
            await self._link.tell(subject, payload, f"{self._inbox}.{number}", headers)
        except BaseException:
            del self._posted[number]
            raise
        if self._look is None:
            self._look = loop.call_later(LOOK_S, self._look_after)
        return posted.done

    def fail(self, error: StigmergyError, subject: str | None = None) -> None:
        """Fails all pending publishes, or those on one subject; the case of `subject` is ignored."""
        for number, posted in list(self._posted.items()):
            if subject is None or subject.lower() == posted.subject.lower():
                del self._posted[number]
                _fail(posted.done, error)

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        end, self._end = self._end, None
        if end is not None:
            await end()

    async def _answered(self, message: Msg) -> None:
        posted = self._posted.pop(message.subject.rpartition(".")[2], None)
        if posted is None or posted.done.done():
            return
        if not message.data:
            status = (message.headers or {}).get("Status")
            what = "no stream captures this subject" if status == NO_RESPONDERS else "an empty answer"
            _fail(posted.done, NoResponders(f"{posted.subject}: {what}; nothing was stored, publish it again"))
            return
        try:
            answer = _answers.decode(message.data)
        except msgspec.DecodeError:
            answer = _Answer()
        if answer.error is not None:
            code = answer.error.err_code or answer.error.code
            _fail(posted.done, JetStreamRefused(code, answer.error.description))
        elif answer.stream and answer.seq > 0:
            posted.done.set_result(None)
        else:  # any other JSON is not an acknowledgement: nothing was stored
            _fail(posted.done, Unanswered(f"{posted.subject}: the answer is not JetStream's"))

    def _look_after(self) -> None:
        self._look = None
        now_s = asyncio.get_running_loop().time()
        for number, posted in list(self._posted.items()):
            if now_s - posted.since_s < ANSWER_S_MAX:
                break
            del self._posted[number]
            _fail(posted.done, Unanswered(f"{posted.subject}: no answer in {ANSWER_S_MAX:g} s; it may have arrived"))
        if self._posted:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_after)


def _fail(done: asyncio.Future[None], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # the waiter may have been cancelled: mark the exception as retrieved
