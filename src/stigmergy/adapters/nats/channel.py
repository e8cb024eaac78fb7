"""One end of a channel on NATS: frames in order, no more under way than there is room for, an end that both hear of.

NATS itself drops what a slow reader has no room for, and tells nobody that the other side has died. So pieces are
numbered, the reader says what it has taken, and either end says from time to time that it is there. A piece that is
missing, an end that falls silent, or a link that breaks ends the channel; it is never mended, another one is made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from stigmergy.adapters.nats.pieces import ALIVE, HEAD, LAST, OVER, PIECE, TAKEN
from stigmergy.core.errors import LinkDown, Malformed, TooLarge

PIECE_BYTES_MAX = 256 * 1024
"""A longer frame travels in several; so does one that the server takes no message for."""
PIECES_UNDER_WAY_MAX = 64
BYTES_UNDER_WAY_MAX = 2 * 1024 * 1024
"""What was sent and not taken; then whoever sends waits."""
PIECES_UNSAID_MAX = 16
BYTES_UNSAID_MAX = 512 * 1024
"""So much is taken before the other side is told: well before it would have to wait."""

Say = Callable[[bytes], Awaitable[None]]
SayLater = Callable[[bytes], None]


class NatsChannel:
    """One end; `connect` it before it is used."""

    def __init__(self, now_s: Callable[[], float], frame_bytes_max: int) -> None:
        self._say: Say = _say_nothing
        self._say_later: SayLater = lambda _: None
        self._now_s = now_s
        self._frame_bytes_max = frame_bytes_max
        self._piece_bytes_max = PIECE_BYTES_MAX
        self._sent = 0
        self._under_way: deque[int] = deque()
        self._under_way_bytes = 0
        self._is_within = False
        """Some pieces of a frame were sent, and not the last."""
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._arrived_bytes = 0
        self._expected = 1
        self._taken = 0
        self._unsaid_pieces = self._unsaid_bytes = 0
        self._over: str | None = None
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self.heard_s = self.said_s = now_s()
        self.on_over: Callable[[], None] = lambda: None

    def connect(self, say: Say, say_later: SayLater, payload_bytes_max: int) -> None:
        """`say` sends to the other side, `say_later` does so without waiting and without raising."""
        self._say, self._say_later = say, say_later
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
                self.said_s = self._now_s()
                await self._say(HEAD.pack(kind, self._sent) + piece)
            self._is_within = False
        except LinkDown as error:
            raise self._ended(str(error)) from None

    async def receive(self) -> bytes:
        """The next frame."""
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
            await self._tell_taken(len(piece))
            if size_bytes > self._frame_bytes_max:
                self.close()
                raise TooLarge(f"a frame of more than {self._frame_bytes_max} bytes; the connection is closed")
            if kind == LAST:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Ends the channel; the other side hears of it."""
        if self._over is None:
            self._end("the connection is over")
            self._say_later(HEAD.pack(OVER, 0))

    # ------------------------------------------------------------------ what the other side says

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes or goes; what has arrived can still be received."""
        return self._over is not None

    def take(self, data: bytes) -> None:
        """Takes a message of the other side."""
        if self._over is not None:
            return
        self.heard_s = self._now_s()
        try:
            self._take(data)
        except Malformed as error:
            self._end(f"the other side does not keep to the protocol: {error}")
            self._say_later(HEAD.pack(OVER, 0))

    def lose(self, why: str) -> None:
        """The link broke, or the other side is gone."""
        if self._over is None:
            self._end(why)

    def beat(self) -> None:
        """Says that we are there."""
        self.said_s = self._now_s()
        self._say_later(HEAD.pack(ALIVE, 0))

    def _take(self, data: bytes) -> None:
        if len(data) < HEAD.size:
            raise Malformed(f"{len(data)} bytes are no message")
        kind, number = HEAD.unpack_from(data)
        if kind in (PIECE, LAST):
            if number != self._expected:
                raise Malformed(f"piece {number} came where {self._expected} was expected: some were lost on the way")
            self._expected += 1
            self._arrived.append((kind, data[HEAD.size :]))
            self._arrived_bytes += len(data) - HEAD.size
            if len(self._arrived) > PIECES_UNDER_WAY_MAX or self._arrived_bytes > 2 * BYTES_UNDER_WAY_MAX:
                raise Malformed("more is under way than there is room for")
            self._news.set()
        elif kind == TAKEN:
            if not self._sent - len(self._under_way) <= number <= self._sent:
                raise Malformed(f"{number} pieces taken of {self._sent}")
            while self._sent - len(self._under_way) < number:
                self._under_way_bytes -= self._under_way.popleft()
            self._room.set()
        elif kind == OVER:
            self._end("the other side has ended the connection")
        elif kind != ALIVE:
            raise Malformed(f"a message of kind {kind}")

    # ------------------------------------------------------------------ within

    async def _wait_room(self) -> None:
        while len(self._under_way) >= PIECES_UNDER_WAY_MAX or self._under_way_bytes >= BYTES_UNDER_WAY_MAX:
            if self._over is not None:
                break
            self._room.clear()
            await self._room.wait()
        if self._over is not None:
            raise LinkDown(self._over)

    async def _tell_taken(self, size_bytes: int) -> None:
        self._taken += 1
        self._arrived_bytes -= size_bytes
        self._unsaid_pieces += 1
        self._unsaid_bytes += size_bytes
        if self._unsaid_pieces < PIECES_UNSAID_MAX and self._unsaid_bytes < BYTES_UNSAID_MAX:
            return
        self._unsaid_pieces = self._unsaid_bytes = 0
        if self._over is None:
            self.said_s = self._now_s()
            self._say_later(HEAD.pack(TAKEN, self._taken))

    def _ended(self, why: str) -> LinkDown:
        if self._over is None:
            self._end(why)
            self._say_later(HEAD.pack(OVER, 0))
        return LinkDown(self._over or why)

    def _end(self, why: str) -> None:
        self._over = why
        self._room.set()
        self._news.set()
        self.on_over()


async def _say_nothing(_: bytes) -> None:
    raise LinkDown("not connected yet")
