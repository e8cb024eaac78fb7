"""Fetches bytes by name from other nodes on a bus, and gives them theirs.

    exchange = Exchange(link.make_mesh("blobs"), find, bytes_max)
    data = await exchange.get(name, nodes, tries)

Datagrams of a mesh over the bus carry it: *ask* for an object from a place on, *has* it with some bytes, *lacks* it.
All of them may be lost; the asker repeats, within its patience. Whoever asks verifies the bytes: a node that lies can
waste time, and nothing else. Bounded: a few datagrams under way for each object, a few objects given out at once; more
are not answered, and asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from stigmergy.base.errors import StigmergyError, StoreUnavailable, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.membership.mesh import Mesh

CHUNK_BYTES = 48 * 1024
"""Of an object in one datagram."""
WINDOW = 8
"""Chunks that are asked for at once."""
AGAIN_S = 2.0
"""What was not answered is asked for again after this time."""
ROUND_MAX = 64
"""So many nodes are asked at once whether they have an object; then the next ones."""
SERVED_MAX = 64
"""Requests that are answered at once; more are dropped."""
AT_HAND_MAX = 16
AT_HAND_BYTES_MAX = 32 * 1024 * 1024
"""Objects that were given out last: their next bytes are asked for soon. Beyond it the oldest is found anew."""
AT_HAND_S = 10.0
"""So long after somebody has asked for it an object stays at hand."""
WHETHER = -1
"""As a place: whether it is there at all."""
Find = Callable[[str], Awaitable[bytes | None]]


class AskObject(Struct, frozen=True, array_like=True, tag="ask@1"):
    """Whether a node has an object (place -1), or its bytes from a place on."""

    number: int
    name: str
    place: int


class HasObject(Struct, frozen=True, array_like=True, tag="has@1"):
    """The size of an object, and its bytes from this place on; for place -1 all of a small one."""

    number: int
    place: int
    size_bytes: int
    data: bytes


class LacksObject(Struct, frozen=True, array_like=True, tag="lacks@1"):
    """It is not here."""

    number: int


Said = AskObject | HasObject | LacksObject
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Said)


class _Request:
    """An object that is asked for."""

    def __init__(self) -> None:
        self.size_bytes: dict[str, int] = {}
        """Of the nodes that have it."""
        self.asked: dict[str, None] = {}
        self.lacking: dict[str, None] = {}
        self.chunks: dict[int, bytes] = {}
        self.changed = asyncio.Event()

    def is_found(self, nodes: Sequence[str]) -> bool:
        """Whether a node has it, or all of these lack it."""
        return bool(self.size_bytes) or all(node in self.lacking for node in nodes)

    def silence(self, nodes: Sequence[str]) -> StoreUnavailable:
        """What to raise if not all of these have said that they lack it."""
        silent = [node for node in self.asked if node not in self.lacking]
        lacking = sum(node in self.lacking for node in nodes)
        found = f"{lacking} of {len(nodes)} nodes lack it; no answer from {', '.join(silent[:5])}"
        found += f" and {len(silent) - 5} more" if len(silent) > 5 else ""
        unasked = len(nodes) - len(self.asked)
        found += f"; {unasked} were not asked in time" if unasked else ""
        return StoreUnavailable(f"{found}; try again when they are there")


class Exchange:
    """The exchange of one node over one mesh."""

    def __init__(self, mesh: Mesh, find: Find, bytes_max: int) -> None:
        """`find` finds what others ask for, and raises what they are to ask for again. A larger object than `bytes_max`
        is not fetched."""
        self._mesh = mesh
        self._find = find
        self._bytes_max = bytes_max
        self._requests: dict[int, _Request] = {}
        self._count = 0
        self._holder = ""
        """Who had the last one: asked first."""
        self._served: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        """By sender, number and place: what is asked for again while it is looked for takes no further place."""
        self._finding: dict[str, asyncio.Task[bytes | None]] = {}
        self._at_hand: dict[str, tuple[float, bytes]] = {}
        """When somebody asked for it last, and its bytes."""

    async def start(self) -> None:
        """Answers from now on."""
        await self._mesh.open(self._hear)

    async def stop(self) -> None:
        """Answers nobody any more."""
        await self._mesh.close()
        await end_tasks(*self._served.values(), *self._finding.values())
        self._served.clear()
        self._finding.clear()

    # ------------------------------------------------------------------ asking

    async def get(self, name: str, nodes: Sequence[str], tries: int) -> bytes | None:
        """The bytes of an object that one of these nodes has; None if all of them say that they lack it.

        Raises StoreUnavailable if one has not answered in the time of so many tries, or the holder has gone meanwhile;
        TooLarge.
        """
        self._count += 1
        number, request = self._count, _Request()
        self._requests[number] = request
        try:
            first = [node for node in nodes if node == self._holder]
            for some in (first, [node for node in nodes if node != self._holder]) if first else (nodes,):
                if holder := await self._find_holder(request, number, name, some, tries):
                    self._holder = holder
                    return await self._fetch(request, number, name, holder, tries)
            if any(node not in request.lacking for node in nodes):
                raise request.silence(nodes)
            return None
        finally:
            del self._requests[number]

    async def _find_holder(self, request: _Request, number: int, name: str, nodes: Sequence[str], tries: int) -> str:
        """Asks these nodes, some at a time, until one has it, all lack it or the time is over; empty if none has."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + tries * AGAIN_S
        while left := [node for node in nodes if node not in request.lacking]:
            for first in range(0, len(left), ROUND_MAX):
                some = left[first : first + ROUND_MAX]
                for node in some:
                    request.asked[node] = None
                    self._send(node, AskObject(number, name, WHETHER))
                await self._wait(request, partial(request.is_found, some))
                if request.size_bytes:
                    return next(iter(request.size_bytes))
                if loop.time() >= end_s:
                    return ""
        return ""

    async def _fetch(self, request: _Request, number: int, name: str, holder: str, tries: int) -> bytes:
        size_bytes = request.size_bytes[holder]
        if size_bytes > self._bytes_max:
            raise TooLarge(f"{holder} says that it has {size_bytes} bytes, {self._bytes_max} at most")
        places = range(0, size_bytes, CHUNK_BYTES)
        tries_left = tries
        while missing := [place for place in places if place not in request.chunks][:WINDOW]:
            before = len(request.chunks)
            for place in missing:
                self._send(holder, AskObject(number, name, place))
            await self._wait(request, lambda missing=missing: all(place in request.chunks for place in missing))  # type: ignore[misc]
            tries_left = tries if len(request.chunks) > before else tries_left - 1
            if tries_left <= 0:
                raise StoreUnavailable(f"{holder} has it, and does not answer any more; try again")
        return b"".join(request.chunks[place] for place in places)

    async def _wait(self, request: _Request, done: Callable[[], bool]) -> None:
        """Until it is done, at most AGAIN_S."""
        try:
            async with asyncio.timeout(AGAIN_S):
                while not done():
                    request.changed.clear()
                    await request.changed.wait()
        except TimeoutError:
            pass

    # ------------------------------------------------------------------ hearing

    def _hear(self, sender: str, body: bytes) -> None:
        try:
            said = _decoder.decode(body)
        except msgspec.MsgspecError:
            return  # of a later version, or nonsense
        if isinstance(said, AskObject):
            self._serve(sender, said)
            return
        request = self._requests.get(said.number)
        if request is None:
            return  # late
        if isinstance(said, LacksObject):
            request.lacking[sender] = None
        elif said.place == WHETHER:
            if not request.size_bytes and len(said.data) == said.size_bytes:
                request.chunks[0] = said.data
            request.size_bytes.setdefault(sender, said.size_bytes)
        elif len(said.data) <= CHUNK_BYTES and request.size_bytes.get(sender) == said.size_bytes:
            request.chunks[said.place] = said.data
        request.changed.set()

    def _serve(self, sender: str, asked: AskObject) -> None:
        key = (sender, asked.number, asked.place)
        if key not in self._served and len(self._served) < SERVED_MAX:
            self._served[key] = asyncio.ensure_future(self._answer(sender, asked))
            self._served[key].add_done_callback(lambda _: self._served.pop(key, None))

    async def _answer(self, sender: str, asked: AskObject) -> None:
        try:
            data = await self._found(asked.name)
        except StigmergyError:
            return  # the asker repeats it
        if data is None:
            self._send(sender, LacksObject(asked.number))
        elif asked.place == WHETHER:
            small = data if len(data) <= CHUNK_BYTES else b""
            self._send(sender, HasObject(asked.number, WHETHER, len(data), small))
        elif 0 <= asked.place < len(data):
            part = data[asked.place : asked.place + CHUNK_BYTES]
            self._send(sender, HasObject(asked.number, asked.place, len(data), part))

    async def _found(self, name: str) -> bytes | None:
        """Found once, however often it is asked for meanwhile."""
        now_s = asyncio.get_running_loop().time()
        last_s, data = self._at_hand.pop(name, (0.0, b""))
        if data and now_s - last_s < AT_HAND_S:
            self._at_hand[name] = (now_s, data)
            return data
        finding = self._finding.get(name)
        if finding is None:
            finding = self._finding[name] = asyncio.ensure_future(self._look(name))
            finding.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(finding)

    async def _look(self, name: str) -> bytes | None:
        try:
            data = await self._find(name)
        finally:
            self._finding.pop(name, None)
        if data is not None:
            self._at_hand[name] = (asyncio.get_running_loop().time(), data)
            while len(self._at_hand) > 1 and (
                len(self._at_hand) > AT_HAND_MAX
                or sum(len(one) for _, one in self._at_hand.values()) > AT_HAND_BYTES_MAX
            ):
                del self._at_hand[next(iter(self._at_hand))]
        return data

    def _send(self, node: str, said: Said) -> None:
        self._mesh.send_nowait(node, _encode(said))
