"""Moves blobs between nodes on a bus whose stores are their own: who lacks an object asks the others for it.

    Blobs.elsewhere = BlobExchange(link.make_mesh("blobs"), blobs, members)

Datagrams of a mesh over the bus carry it: *ask* for an object from a place on, *has* it with some bytes, *lacks* it.
All of them may be lost; the asker repeats, within its patience. The bytes are verified by who asked: a node that lies
can waste time, and nothing else. Only manifests and pieces are given out, to whoever knows their digest and may publish
on the bus. Bounded: a few datagrams under way for each object, a few objects given out at once; more are not answered,
and asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from stigmergy.base.errors import StigmergyError, StoreUnavailable, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.membership.mesh import Mesh
from stigmergy.store.blobs import MANIFESTS, PIECE_BYTES, PIECES, Blobs

CHUNK_BYTES = 48 * 1024
"""Of an object in one datagram."""
WINDOW = 8
"""Chunks that are asked for at once."""
AGAIN_S = 2.0
"""What was not answered is asked for again after this time."""
SERVED_MAX = 8
"""Requests that are answered at once; more are dropped."""
OBJECT_BYTES_MAX = 2 * PIECE_BYTES
ASKED_NODES_MAX = 64
"""Of a larger fleet only so many nodes are asked, in alphabetical order."""
WHETHER = -1
"""As a place: whether it is there at all."""


class AskObject(Struct, frozen=True, array_like=True, tag="ask@1"):
    """Whether a node has an object (place -1), or its bytes from a place on."""

    number: int
    name: str
    place: int


class HasObject(Struct, frozen=True, array_like=True, tag="has@1"):
    """The size of an object, and its bytes from this place on."""

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
        self.lacking: dict[str, None] = {}
        self.chunks: dict[int, bytes] = {}
        self.changed = asyncio.Event()


class BlobExchange:
    """The exchange of one node; the `Elsewhere` of its blobs."""

    def __init__(self, mesh: Mesh, blobs: Blobs, members: Callable[[], Sequence[str]]) -> None:
        """`members` names the nodes that are there, and this one perhaps."""
        self._mesh = mesh
        self._blobs = blobs
        self._members = members
        self._requests: dict[int, _Request] = {}
        self._count = 0
        self._holder = ""
        """Who had the last one: asked first."""
        self._served: dict[int, asyncio.Task[None]] = {}
        self._at_hand: tuple[str, bytes] = ("", b"")
        """The object that was given out last: its next bytes are asked for soon."""

    async def start(self) -> None:
        """Answers from now on, and is asked for what the store lacks."""
        await self._mesh.open(self._hear)
        self._blobs.elsewhere = self

    async def stop(self) -> None:
        """Answers nobody any more."""
        self._blobs.elsewhere = None
        await self._mesh.close()
        await end_tasks(*self._served.values())
        self._served.clear()

    # ------------------------------------------------------------------ asking

    async def get(self, name: str) -> bytes | None:
        """The bytes of an object that another node has; None if all that are there say that they lack it.

        Raises StoreUnavailable if nobody has answered, or the holder has gone in the middle: what was fetched of a
        blob by then is kept.
        """
        self._count += 1
        number, request = self._count, _Request()
        self._requests[number] = request
        try:
            nodes = sorted(node for node in self._members() if node != self._mesh.node)[:ASKED_NODES_MAX]
            nodes.sort(key=lambda node: node != self._holder)
            for node in (nodes[:1], nodes[1:]) if nodes[:1] == [self._holder] else (nodes,):
                if holder := await self._find_holder(request, number, name, node):
                    self._holder = holder
                    return await self._fetch(request, number, name, holder)
            silent = [node for node in nodes if node not in request.lacking]
            if silent:
                raise StoreUnavailable(f"{name}: no answer from {', '.join(silent[:5])}; try again when they are there")
            return None
        finally:
            del self._requests[number]

    async def _find_holder(self, request: _Request, number: int, name: str, nodes: Sequence[str]) -> str:
        """Asks these nodes until one has it or all lack it; empty if none has."""
        for _ in range(self._tries):
            for node in nodes:
                if node not in request.lacking:
                    self._send(node, AskObject(number, name, WHETHER))
            await self._wait(request, lambda: bool(request.size_bytes) or all(one in request.lacking for one in nodes))
            if request.size_bytes or all(node in request.lacking for node in nodes):
                break
        return next(iter(request.size_bytes), "")

    async def _fetch(self, request: _Request, number: int, name: str, holder: str) -> bytes:
        size_bytes = request.size_bytes[holder]
        if size_bytes > OBJECT_BYTES_MAX:
            raise TooLarge(f"{name}: {holder} says that it has {size_bytes} bytes, {OBJECT_BYTES_MAX} at most")
        places = range(0, size_bytes, CHUNK_BYTES)
        tries_left = self._tries
        while missing := [place for place in places if place not in request.chunks][:WINDOW]:
            before = len(request.chunks)
            for place in missing:
                self._send(holder, AskObject(number, name, place))
            await self._wait(request, lambda missing=missing: all(place in request.chunks for place in missing))  # type: ignore[misc]
            tries_left = self._tries if len(request.chunks) > before else tries_left - 1
            if tries_left <= 0:
                raise StoreUnavailable(f"{name}: {holder} has it, and does not answer any more; try again")
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

    @property
    def _tries(self) -> int:
        return max(1, int(self._blobs.settings.patience_s / AGAIN_S))

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
            request.size_bytes.setdefault(sender, said.size_bytes)
        elif len(said.data) <= CHUNK_BYTES and sender in request.size_bytes:
            request.chunks[said.place] = said.data
        request.changed.set()

    def _serve(self, sender: str, asked: AskObject) -> None:
        if len(self._served) >= SERVED_MAX * WINDOW or not asked.name.startswith((MANIFESTS, PIECES)):
            return
        self._count += 1
        number = self._count
        self._served[number] = asyncio.ensure_future(self._answer(sender, asked))
        self._served[number].add_done_callback(lambda _: self._served.pop(number, None))

    async def _answer(self, sender: str, asked: AskObject) -> None:
        data: bytes | None = self._at_hand[1]
        if self._at_hand[0] != asked.name:
            try:
                objects = await self._blobs.find_objects()
                data = None if objects is None else await objects.get(asked.name)
            except StigmergyError:
                return  # the asker repeats it
            if data is not None:
                self._at_hand = (asked.name, data)
        if data is None:
            self._send(sender, LacksObject(asked.number))
        elif asked.place == WHETHER:
            self._send(sender, HasObject(asked.number, WHETHER, len(data), b""))
        elif 0 <= asked.place < len(data):
            part = data[asked.place : asked.place + CHUNK_BYTES]
            self._send(sender, HasObject(asked.number, asked.place, len(data), part))

    def _send(self, node: str, said: Said) -> None:
        self._mesh.send_nowait(node, _encode(said))
