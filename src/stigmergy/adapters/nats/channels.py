"""Channels over one link: whoever listens at a subject can be called there, and each call is a channel of its own.

Several may listen at one subject for a while, when an owner is replaced and does not know it yet. Each has a rank. Who
comes with a higher one says so, and those with a lower one fall silent; whoever has spoken with a higher one takes no
answer of a lower. So an owner of the past is not reached again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from nats.aio.msg import Msg

from stigmergy.adapters.nats.channel import NatsChannel
from stigmergy.adapters.nats.errors import NoResponders
from stigmergy.adapters.nats.link import NO_RESPONDERS, NatsLink
from stigmergy.adapters.nats.pieces import (
    FORMAT,
    HEAD,
    OVER,
    REASON_CHARS_MAX,
    Answered,
    Call,
    Declined,
    Owned,
    read_said,
    write_said,
)
from stigmergy.core.codec import printable
from stigmergy.core.errors import LinkDown, Malformed, StigmergyError

CALL_S_MAX = 1.0
"""Who listens and does not answer for so long is not there."""
BEAT_S = 0.5
"""An end that has said nothing for so long says that it is there."""
SILENCE_S_MAX = 3.0
"""An end that was not heard for so long is gone."""
CHANNELS_MAX = 1_024
"""One more who calls is told so."""

Serve = Callable[[NatsChannel], Coroutine[Any, Any, None]]


class Channels:
    """The channels of one who calls and listens. Close it at the end; calling needs nothing before."""

    def __init__(self, link: NatsLink, *, frame_bytes_max: int, call_s_max: float = CALL_S_MAX) -> None:
        self._link = link
        self._frame_bytes_max = frame_bytes_max
        self._call_s_max = call_s_max
        self._instance = secrets.token_hex(11)
        self._inbox = f"_INBOX.{self._instance}"
        self._numbers = 0
        self._channels: dict[str, NatsChannel] = {}
        """By where we hear them."""
        self._places: dict[str, str] = {}
        """Where the other side of each hears us."""
        self._unheard: list[str] = []
        """Who has not heard that its channel was lost with the link."""
        self._serving: dict[asyncio.Task[None], NatsChannel] = {}
        self._saying: dict[asyncio.Future[Any], None] = {}
        self._ranks: dict[str, int] = {}
        """The highest rank that ever answered at a subject."""
        self._endings: list[Callable[[], Awaitable[None]]] = []
        self._hears = False
        self._subject = ""
        self._serve: Serve | None = None
        self._rank = 0
        self._beating: asyncio.Task[None] | None = None
        self._is_closed = False
        self._link_ending = link.on_link(self._on_link)

    # ------------------------------------------------------------------ life

    async def listen(self, subject: str, serve: Serve, rank: int = 0) -> None:
        """Answers those who call at this subject, and silences who did so with a lower rank."""
        self._subject, self._serve, self._rank = subject, serve, rank
        await self._hear()
        self._endings.append(await self._link.subscribe(subject, self._on_said, drains=True))
        with contextlib.suppress(LinkDown):
            await self._link.flush()
            await self._announce()

    async def call(self, subject: str) -> NatsChannel:
        """A channel to whoever listens there. Raises LinkDown if nobody answers now."""
        if self._is_closed:
            raise LinkDown("nobody is called any more")
        await self._hear()
        where = self._next_place()
        call = Call(FORMAT, where, self._ranks.get(subject, 0))
        channel = self._make(where)
        try:
            message = await self._link.request(subject, write_said(call), within_s=self._call_s_max)
            answer = _read_answer(message.data)
            if isinstance(answer, Declined):
                raise LinkDown(f"it takes no calls: {answer.why}")
            if answer.rank < self._ranks.get(subject, 0):
                raise LinkDown("an owner of the past has answered; the present one does not yet")
        except NoResponders:
            channel.lose("nobody is there")
            raise LinkDown("nobody is there") from None
        except BaseException:
            channel.lose("the call was given up")
            raise
        self._ranks[subject] = answer.rank
        self._connect(channel, where, answer.subject)
        return channel

    async def close(self) -> None:
        """Listens no more, and ends all channels."""
        self._is_closed = True
        self._link_ending()
        endings, self._endings = self._endings, []
        for end in endings[1:]:
            await end()
        channels, serving = list(self._channels.values()), list(self._serving)
        for channel in channels:
            channel.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.gather(*self._saying, return_exceptions=True)
        for end in endings[:1]:
            await end()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    # ------------------------------------------------------------------ those who call

    async def _on_said(self, message: Msg) -> None:
        try:
            said = read_said(message.data)
        except Malformed:
            return  # somebody else's; nothing is owed to it
        match said:
            case Call():
                await self._answer(said, message.reply)
            case Owned():
                if said.rank > self._rank:
                    self._retire()
                elif said.rank < self._rank and said.instance != self._instance:
                    await self._announce()
            case _:
                return

    async def _answer(self, call: Call, reply: str) -> None:
        if call.rank > self._rank:
            self._retire()
            return
        if self._serve is None or not reply:
            return
        why = ""
        if self._is_closed:
            why = "it has just ended; call again"  # who calls us just now must not wait for an answer in vain
        elif call.format != FORMAT:
            why = f"it speaks format {call.format}, this one {FORMAT}; run the same version everywhere"
        elif len(self._channels) >= CHANNELS_MAX:
            why = f"{CHANNELS_MAX} channels are open already; try again when one has ended"
        if why:
            await self._try(reply, write_said(Declined(printable(why, REASON_CHARS_MAX))))
            return
        where = self._next_place()
        channel = self._make(where)
        self._connect(channel, where, call.subject)
        if await self._try(reply, write_said(Answered(where, self._rank))):
            self._serving[task := asyncio.ensure_future(self._served(self._serve, channel))] = channel
            task.add_done_callback(lambda done: self._serving.pop(done, None))
        else:
            channel.lose("its call could not be answered")

    async def _served(self, serve: Serve, channel: NatsChannel) -> None:
        try:
            await serve(channel)
        finally:
            channel.close()

    async def _announce(self) -> None:
        if self._serve is not None:
            await self._try(self._subject, write_said(Owned(self._rank, self._instance)))

    def _retire(self) -> None:
        """Somebody newer answers here: we do not, and whoever is connected with us calls again."""
        self._serve = None
        for channel in list(self._serving.values()):
            channel.close()
        endings, self._endings = self._endings[1:], self._endings[:1]
        for end in endings:
            # Not from here: this is called by the very subscription that is to end.
            self._keep(asyncio.ensure_future(end()))

    # ------------------------------------------------------------------ channels

    async def _hear(self) -> None:
        """One subscription for all channels; the first who needs it makes it."""
        if not self._hears:
            self._hears = True
            self._endings.insert(0, await self._link.subscribe(f"{self._inbox}.*", self._on_channel))

    def _next_place(self) -> str:
        self._numbers += 1
        return f"{self._inbox}.{self._numbers}"

    def _make(self, where: str) -> NatsChannel:
        channel = NatsChannel(asyncio.get_running_loop().time, self._frame_bytes_max)
        channel.on_over = lambda: self._forget(where)
        self._channels[where] = channel
        return channel

    def _connect(self, channel: NatsChannel, here: str, there: str) -> None:
        self._places[here] = there
        # With a place to answer, the server says at once that nobody hears us any more.
        channel.connect(
            lambda data: self._link.tell(there, data, here),
            lambda data: self._keep(asyncio.ensure_future(self._try(there, data, here))),
            self._link.max_payload_bytes,
        )
        if self._beating is None or self._beating.done():
            self._beating = asyncio.ensure_future(self._beat())

    def _forget(self, where: str) -> None:
        self._channels.pop(where, None)
        self._places.pop(where, None)

    async def _on_channel(self, message: Msg) -> None:
        channel = self._channels.get(message.subject)
        if channel is None:
            # It was lost with a link, and the other side has not heard of it. Who says that it is over needs no answer.
            if message.reply and message.data[:1] != bytes([OVER]):
                await self._try(message.reply, HEAD.pack(OVER, 0))
            return
        if message.headers and message.headers.get("Status") == NO_RESPONDERS:
            channel.lose("the other side is gone")
        else:
            channel.take(message.data)

    def _on_link(self, up: bool) -> None:
        if self._is_closed:
            return
        if not up:
            self._unheard += [there for where in self._channels if (there := self._places.get(where))]
            for channel in list(self._channels.values()):
                channel.lose("the link to NATS broke")
        else:
            self._keep(asyncio.ensure_future(self._come_back()))

    async def _come_back(self) -> None:
        """Says that we listen again, and to those whom we lost that they need not wait for us."""
        if self._serve is not None:
            await self._announce()
        unheard, self._unheard = self._unheard, []
        for there in unheard:
            await self._try(there, HEAD.pack(OVER, 0))

    async def _beat(self) -> None:
        """Says that we are there, and notices who is not; as long as there are channels."""
        while self._channels:
            await asyncio.sleep(BEAT_S)
            now_s = asyncio.get_running_loop().time()
            for channel in list(self._channels.values()):
                if now_s - channel.heard_s > SILENCE_S_MAX:
                    channel.lose(f"the other side was not heard for {SILENCE_S_MAX:g} s")
                elif now_s - channel.said_s >= BEAT_S:
                    channel.beat()

    def _keep(self, task: asyncio.Future[Any]) -> None:
        self._saying[task] = None
        task.add_done_callback(lambda done: self._saying.pop(done, None))

    async def _try(self, subject: str, data: bytes, reply: str = "") -> bool:
        try:
            await self._link.tell(subject, data, reply)
        except StigmergyError:
            return False
        return True


def _read_answer(data: bytes) -> Answered | Declined:
    try:
        said = read_said(data)
    except Malformed as error:
        raise LinkDown(f"somebody else has answered there: {error}") from None
    if not isinstance(said, Answered | Declined):
        raise LinkDown("somebody else has answered there; nothing was sent")
    return said
