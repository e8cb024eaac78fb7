"""Channels over one link: a listener at a subject can be called, and each call is a separate channel.

After a failover several owners may listen at one subject for a while, because the old one does not know yet that it was
replaced. Each has an epoch. A new owner announces its epoch, and owners with a lower one stop answering; a caller that
has seen a higher epoch accepts no answer with a lower one. So a caller never reaches a former owner again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from stigmergy.agents.codec import UNDECODABLE, printable
from stigmergy.base.errors import LinkDown, Malformed, StigmergyError, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.nats.errors import NoResponders
from stigmergy.nats.link import NO_RESPONDERS, NatsLink

# The bytes of channels on NATS: call messages, and the pieces that frames travel in. Pure.
#
# On a listening subject: a `ChannelRequest` with the caller's subject, answered by `ChannelAccepted` or
# `ChannelRefused`; and `OwnerAnnounced`, by which a newer owner silences an older one. On a channel every message
# begins with its kind in one byte and a number in eight, big-endian:
#
#     PIECE, LAST   the number of this piece, from 1; its bytes follow. A frame is its pieces up to the LAST.
#     TAKEN         how many pieces were received so far: the sender may send more.
#     ALIVE         nothing else.
#     OVER          the channel is closed.

FORMAT = 1
PIECE, LAST, TAKEN, ALIVE, OVER = range(1, 6)
HEAD = struct.Struct(">BQ")
REASON_CHARS_MAX = 300


class ChannelRequest(Struct, array_like=True, frozen=True, tag=1):
    """Asks for a channel. The caller receives at `subject`; `epoch` is the highest that has answered it before."""

    format: int
    subject: str
    epoch: int


class ChannelAccepted(Struct, array_like=True, frozen=True, tag=2):
    """The channel is open. The owner, which has this epoch, receives at `subject`."""

    subject: str
    epoch: int


class ChannelRefused(Struct, array_like=True, frozen=True, tag=3):
    """The owner opens no channel, and says why."""

    why: str


class OwnerAnnounced(Struct, array_like=True, frozen=True, tag=4):
    """A new owner answers from now on; owners with a lower epoch were replaced."""

    epoch: int
    instance: str


ChannelMessage = ChannelRequest | ChannelAccepted | ChannelRefused | OwnerAnnounced

_decoder: msgspec.msgpack.Decoder[ChannelMessage] = msgspec.msgpack.Decoder(ChannelMessage)
encode_message = msgspec.msgpack.Encoder().encode


def decode_message(data: bytes) -> ChannelMessage:
    """Decodes a message on a listening subject; raises Malformed."""
    try:
        return _decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"a message does not decode ({error}); run the same version everywhere") from None


# One end of a channel on NATS: frames in order, flow control, and a close that both sides notice.
#
# NATS itself drops messages that a slow reader has no room for, and does not report the death of the other side. So
# pieces are numbered, the reader acknowledges them, and both ends send heartbeats. A missing piece, a silent peer or a
# broken link ends the channel; it is never repaired: open another one.

PIECE_BYTES_MAX = 256 * 1024
"""A longer frame is sent in several pieces; the server's max_payload may lower this limit."""
PIECES_UNDER_WAY_MAX = 64
BYTES_UNDER_WAY_MAX = 2 * 1024 * 1024
"""The bound of sent and unacknowledged pieces; beyond it the sender waits."""
PIECES_UNACKED_MAX = 16
BYTES_UNACKED_MAX = 512 * 1024
"""The reader acknowledges after this much, well before the sender would have to wait."""

Send = Callable[[bytes], Awaitable[None]]
SendNowait = Callable[[bytes], None]


class NatsChannel:
    """One end; call `connect` before you use it."""

    def __init__(self, now_s: Callable[[], float], frame_bytes_max: int) -> None:
        self._send: Send = _send_before_connect
        self._send_nowait: SendNowait = lambda _: None
        self._now_s = now_s
        self._frame_bytes_max = frame_bytes_max
        self._piece_bytes_max = PIECE_BYTES_MAX
        self._sent = 0
        self._under_way: deque[int] = deque()
        self._under_way_bytes = 0
        self._is_within = False
        """A frame was begun, and its last piece was not sent yet."""
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._arrived_bytes = 0
        self._expected = 1
        self._taken = 0
        self._unacked_pieces = self._unacked_bytes = 0
        self._over: str | None = None
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self.heard_s = self.sent_s = now_s()
        self.on_over: Callable[[], None] = lambda: None

    def connect(self, send: Send, send_nowait: SendNowait, payload_bytes_max: int) -> None:
        """`send` sends to the other side; `send_nowait` does so without waiting and never raises."""
        self._send, self._send_nowait = send, send_nowait
        self._piece_bytes_max = min(PIECE_BYTES_MAX, payload_bytes_max - HEAD.size)

    # ------------------------------------------------------------------ the port

    async def send(self, frame: bytes) -> None:
        """Sends a frame; waits while the other side does not read."""
        if len(frame) > self._frame_bytes_max:
            raise TooLarge(f"a frame of {len(frame)} bytes, {self._frame_bytes_max} at most")
        size = self._piece_bytes_max
        if self._is_within:
            raise self._ended("a frame was given up in its middle")
        try:
            for begin in range(0, max(len(frame), 1), size):
                self._is_within = True
                piece = frame[begin : begin + size]
                await self._wait_room()
                self._sent += 1
                self._under_way.append(len(piece))
                self._under_way_bytes += len(piece)
                kind = LAST if begin + size >= len(frame) else PIECE
                self.sent_s = self._now_s()
                await self._send(HEAD.pack(kind, self._sent) + piece)
            self._is_within = False
        except LinkDown as error:
            raise self._ended(str(error)) from None

    async def receive(self) -> bytes:
        pieces: list[bytes] = []
        size_bytes = 0
        while True:
            while not self._arrived:
                if self._over is not None:
                    raise LinkDown(self._over)
                self._news.clear()
                await self._news.wait()
            kind, piece = self._arrived.popleft()
            pieces.append(piece)
            size_bytes += len(piece)
            await self._acknowledge(len(piece))
            if size_bytes > self._frame_bytes_max:
                self.close()
                raise TooLarge(f"a frame of more than {self._frame_bytes_max} bytes; the connection is closed")
            if kind == LAST:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Closes the channel and tells the other side."""
        if self._over is None:
            self._end("the connection is over")
            self._send_nowait(HEAD.pack(OVER, 0))

    # ------------------------------------------------------------------ messages of the other side

    @property
    def is_over(self) -> bool:
        """Whether the channel has ended; frames that have arrived can still be received."""
        return self._over is not None

    def take(self, data: bytes) -> None:
        if self._over is not None:
            return
        self.heard_s = self._now_s()
        try:
            self._take(data)
        except Malformed as error:
            self._end(f"the other side does not keep to the protocol: {error}")
            self._send_nowait(HEAD.pack(OVER, 0))

    def lose(self, why: str) -> None:
        """Ends the channel without telling the other side: the link broke, or the peer is gone."""
        if self._over is None:
            self._end(why)

    def beat(self) -> None:
        """Sends a heartbeat."""
        self.sent_s = self._now_s()
        self._send_nowait(HEAD.pack(ALIVE, 0))

    def _take(self, data: bytes) -> None:
        if len(data) < HEAD.size:
            raise Malformed(f"a message of {len(data)} bytes is too short")
        kind, number = HEAD.unpack_from(data)
        if kind in (PIECE, LAST):
            if number != self._expected:
                raise Malformed(f"piece {number} came where {self._expected} was expected: some were lost on the way")
            self._expected += 1
            self._arrived.append((kind, data[HEAD.size :]))
            self._arrived_bytes += len(data) - HEAD.size
            if len(self._arrived) > PIECES_UNDER_WAY_MAX or self._arrived_bytes > 2 * BYTES_UNDER_WAY_MAX:
                raise Malformed("the sender exceeds the flow control window")
            self._news.set()
        elif kind == TAKEN:
            if not self._sent - len(self._under_way) <= number <= self._sent:
                raise Malformed(f"{number} pieces acknowledged, {self._sent} sent")
            while self._sent - len(self._under_way) < number:
                self._under_way_bytes -= self._under_way.popleft()
            self._room.set()
        elif kind == OVER:
            self._end("the other side has ended the connection")
        elif kind != ALIVE:
            raise Malformed(f"unknown message kind {kind}")

    async def _wait_room(self) -> None:
        while len(self._under_way) >= PIECES_UNDER_WAY_MAX or self._under_way_bytes >= BYTES_UNDER_WAY_MAX:
            if self._over is not None:
                break
            self._room.clear()
            await self._room.wait()
        if self._over is not None:
            raise LinkDown(self._over)

    async def _acknowledge(self, size_bytes: int) -> None:
        self._taken += 1
        self._arrived_bytes -= size_bytes
        self._unacked_pieces += 1
        self._unacked_bytes += size_bytes
        if self._unacked_pieces < PIECES_UNACKED_MAX and self._unacked_bytes < BYTES_UNACKED_MAX:
            return
        self._unacked_pieces = self._unacked_bytes = 0
        if self._over is None:
            self.sent_s = self._now_s()
            self._send_nowait(HEAD.pack(TAKEN, self._taken))

    def _ended(self, why: str) -> LinkDown:
        if self._over is None:
            self._end(why)
            self._send_nowait(HEAD.pack(OVER, 0))
        return LinkDown(self._over or why)

    def _end(self, why: str) -> None:
        self._over = why
        self._room.set()
        self._news.set()
        self.on_over()


async def _send_before_connect(_: bytes) -> None:
    raise LinkDown("not connected yet")


CALL_S_MAX = 1.0
"""A listener that has not answered after this time counts as gone."""
BEAT_S = 0.5
"""An end that has sent nothing for this long sends a heartbeat."""
SILENCE_S_MAX = 3.0
"""An end that was silent for this long counts as gone."""
CHANNELS_MAX = 1_024
"""Further calls are refused."""

Serve = Callable[[NatsChannel], Coroutine[Any, Any, None]]


class Channels:
    """Calls other listeners and, after `listen`, answers calls. Close it at the end."""

    def __init__(self, link: NatsLink, *, frame_bytes_max: int, call_s_max: float = CALL_S_MAX) -> None:
        self._link = link
        self._frame_bytes_max = frame_bytes_max
        self._call_s_max = call_s_max
        self._instance = secrets.token_hex(11)
        self._inbox = f"_INBOX.{self._instance}"
        self._numbers = 0
        self._channels: dict[str, NatsChannel] = {}
        """By the subject where we receive."""
        self._places: dict[str, str] = {}
        """By the same key, the subject where the other side receives."""
        self._lost_callers: list[str] = []
        """Callers that do not know yet that their channel was lost with the link."""
        self._serving: dict[asyncio.Task[None], NatsChannel] = {}
        self._sending: dict[asyncio.Future[Any], None] = {}
        self._epochs: dict[str, int] = {}
        """The highest epoch that ever answered at a subject."""
        self._unsubscribes: list[Callable[[], Awaitable[None]]] = []
        """The first is that of our channels: it ends last, so that they can receive until they are closed."""
        self._is_subscribed = False
        self._subject = ""
        self._serve: Serve | None = None
        self._epoch = 0
        self._beating: asyncio.Task[None] | None = None
        self._is_closed = False
        self._unwatch_link = link.on_link(self._on_link)

    # ------------------------------------------------------------------ life

    async def listen(self, subject: str, serve: Serve, epoch: int = 0) -> None:
        """Answers calls at this subject, and stops owners there that have a lower epoch."""
        self._subject, self._serve, self._epoch = subject, serve, epoch
        await self._subscribe_once()
        self._unsubscribes.append(await self._link.subscribe(subject, self._on_message, drains=True))
        with contextlib.suppress(LinkDown):
            await self._link.flush()
            await self._announce()

    async def call(self, subject: str) -> NatsChannel:
        """Opens a channel to the listener at this subject. Raises LinkDown if nobody answers."""
        if self._is_closed:
            raise LinkDown("these channels are closed")
        await self._subscribe_once()
        where = self._next_place()
        call = ChannelRequest(FORMAT, where, self._epochs.get(subject, 0))
        channel = self._make(where)
        try:
            message = await self._link.request(subject, encode_message(call), within_s=self._call_s_max)
            answer = _read_answer(message.data)
            if isinstance(answer, ChannelRefused):
                raise LinkDown(f"it accepts no calls: {answer.why}")
            if answer.epoch < self._epochs.get(subject, 0):
                raise LinkDown("a former owner has answered; the new one does not answer yet")
        except NoResponders:
            channel.lose("nobody is there")
            raise LinkDown("nobody is there") from None
        except BaseException:
            channel.lose("the call was given up")
            raise
        self._epochs[subject] = answer.epoch
        self._connect(channel, where, answer.subject)
        return channel

    async def close(self) -> None:
        self._is_closed = True
        self._unwatch_link()
        unsubscribes, self._unsubscribes = self._unsubscribes, []
        for unsubscribe in unsubscribes[1:]:
            await unsubscribe()
        channels, serving = list(self._channels.values()), list(self._serving)
        for channel in channels:
            channel.close()
        await end_tasks(*serving)
        await asyncio.gather(*self._sending, return_exceptions=True)
        for unsubscribe in unsubscribes[:1]:
            await unsubscribe()
        await end_tasks(self._beating)

    # ------------------------------------------------------------------ calls to us

    async def _on_message(self, received: Msg) -> None:
        try:
            message = decode_message(received.data)
        except Malformed:
            return  # not one of our messages
        match message:
            case ChannelRequest():
                await self._answer(message, received.reply)
            case OwnerAnnounced():
                if message.epoch > self._epoch:
                    self._retire()
                elif message.epoch < self._epoch and message.instance != self._instance:
                    await self._announce()
            case _:
                return

    async def _answer(self, call: ChannelRequest, reply: str) -> None:
        if call.epoch > self._epoch:
            self._retire()
            return
        if self._serve is None or not reply:
            return
        why = ""
        if self._is_closed:
            why = "it has just closed; call again"  # an answer, so that the caller need not wait for its timeout
        elif call.format != FORMAT:
            why = f"it uses format {call.format}, this one {FORMAT}; run the same version everywhere"
        elif len(self._channels) >= CHANNELS_MAX:
            why = f"{CHANNELS_MAX} channels are open already; try again when one has closed"
        if why:
            await self._try(reply, encode_message(ChannelRefused(printable(why, REASON_CHARS_MAX))))
            return
        where = self._next_place()
        channel = self._make(where)
        self._connect(channel, where, call.subject)
        if await self._try(reply, encode_message(ChannelAccepted(where, self._epoch))):
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
            await self._try(self._subject, encode_message(OwnerAnnounced(self._epoch, self._instance)))

    def _retire(self) -> None:
        """A newer owner answers here: stop answering, and close our channels so that the callers call again."""
        self._serve = None
        for channel in list(self._serving.values()):
            channel.close()
        unsubscribes, self._unsubscribes = self._unsubscribes[1:], self._unsubscribes[:1]
        for unsubscribe in unsubscribes:
            # In a task: this runs in a callback of the very subscription that is to end.
            self._keep(asyncio.ensure_future(unsubscribe()))

    # ------------------------------------------------------------------ channels

    async def _subscribe_once(self) -> None:
        """Subscribes once for all channels, with the first one."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self._unsubscribes.insert(0, await self._link.subscribe(f"{self._inbox}.*", self._on_channel))

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
        # With a reply subject, the server reports at once when the other side no longer subscribes.
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
            # The channel was lost with a link, and the other side does not know it. OVER needs no answer.
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
            self._lost_callers += [there for where in self._channels if (there := self._places.get(where))]
            for channel in list(self._channels.values()):
                channel.lose("the link to NATS broke")
        else:
            self._keep(asyncio.ensure_future(self._come_back()))

    async def _come_back(self) -> None:
        """Announces that we listen again, and tells callers whose channels were lost."""
        if self._serve is not None:
            await self._announce()
        lost, self._lost_callers = self._lost_callers, []
        for there in lost:
            await self._try(there, HEAD.pack(OVER, 0))

    async def _beat(self) -> None:
        """Sends heartbeats and ends channels whose peer is silent, while there are channels."""
        while self._channels:
            await asyncio.sleep(BEAT_S)
            now_s = asyncio.get_running_loop().time()
            for channel in list(self._channels.values()):
                if now_s - channel.heard_s > SILENCE_S_MAX:
                    channel.lose(f"the other side was silent for {SILENCE_S_MAX:g} s")
                elif now_s - channel.sent_s >= BEAT_S:
                    channel.beat()

    def _keep(self, task: asyncio.Future[Any]) -> None:
        self._sending[task] = None
        task.add_done_callback(lambda done: self._sending.pop(done, None))

    async def _try(self, subject: str, data: bytes, reply: str = "") -> bool:
        try:
            await self._link.tell(subject, data, reply)
        except StigmergyError:
            return False
        return True


def _read_answer(data: bytes) -> ChannelAccepted | ChannelRefused:
    try:
        message = decode_message(data)
    except Malformed as error:
        raise LinkDown(f"another program has answered there: {error}") from None
    if not isinstance(message, ChannelAccepted | ChannelRefused):
        raise LinkDown("another program has answered there; nothing was sent")
    return message
