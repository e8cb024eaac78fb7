"""The world for other processes: a server beside it, and a client that agents' devices use in its place.

Over TCP on loopback go frames of a length and a list of messages in MessagePack. A client says which drones it has, by
the beginning of their names. It is told their names once, and twice a second what their flight controllers say, as one
array. Orders go the other way, many in a frame, and each is answered.

A client may say of each array that it has dealt with it. `behind_s` is then how far the slowest client is behind:
whoever advances the world can wait for it.

The client connects again by itself and repeats what was not answered: the world knows the keys of orders, so nothing is
done twice. While the world is away for longer than `AWAY_S`, orders fail with Unreachable, which actuators try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from apps.drones.messages import ArmBox, Fix, Grip, Land, Release, Steer
from apps.drones.physics import FIELDS
from apps.drones.world import TICK_S, Frame, Framed, World, fix_of
from stigmergy import Action, DeviceRefused, Overloaded, StaleOrder, StigmergyError, Unreachable

IN_FLIGHT_MAX = 10_000
"""Orders of a client that wait for an answer; one more is refused with Overloaded, and tried again."""
FRAME_BYTES_MAX = 64 * 1024 * 1024
UNSENT_BYTES_MAX = 8 * 1024 * 1024
"""A client that has not read so much is left out until it has: the next fixes are newer anyhow."""
STUCK_S = 2.5
ANSWER_S = 5.0
AWAY_S = 2.0
"""So long a world that is away is waited for; then orders fail, and so do sensors: what they have is too old."""
RECONNECT_S = 0.2
_LENGTH = struct.Struct(">I")


class Hello(Struct, frozen=True, tag="hello"):
    """From a client, first: it wants the drones whose names begin so; None: none of them, and the time only."""

    prefix: str | None


class Names(Struct, frozen=True, tag="names"):
    """To a client, first: its drones, in the order of the rows of all fixes to come."""

    names: tuple[str, ...]


class Fixes(Struct, frozen=True, tag="fixes"):
    """What its drones say: float32 [drone][physics.FIELDS], in the byte order of this machine."""

    t: float
    data: bytes


class Took(Struct, frozen=True, tag="took"):
    """From a client: it has dealt with the fixes of this time."""

    t: float


class Ask(Struct, frozen=True, tag="ask"):
    """An order; for boxes without a drone."""

    id: int
    drone: str
    action: Steer | Land | Grip | Release | ArmBox
    key: str
    token: int


class Answer(Struct, frozen=True, tag="answer", omit_defaults=True):
    """What became of an order: done, unless there is an error."""

    id: int
    error: str = ""
    why: str = ""


ERRORS: dict[str, type[StigmergyError]] = {
    "stale": StaleOrder,
    "refused": DeviceRefused,
    "overloaded": Overloaded,
    "unreachable": Unreachable,
}
"""In this order: StaleOrder is a DeviceRefused too."""
_encoder = msgspec.msgpack.Encoder()
_to_server = msgspec.msgpack.Decoder(list[Hello | Took | Ask])
_to_client = msgspec.msgpack.Decoder(list[Names | Fixes | Answer])


def packed(messages: Sequence[Struct]) -> bytes:
    """A frame."""
    body = _encoder.encode(messages)
    return _LENGTH.pack(len(body)) + body


async def read_body(reader: asyncio.StreamReader) -> bytes:
    """The body of the next frame. Raises ConnectionError at the end, or for one that is too large."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > FRAME_BYTES_MAX:
            raise ConnectionError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are read")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise ConnectionError("the other side is gone") from None


def place_of(url: str) -> tuple[str, int]:
    """Host and port of `tcp://127.0.0.1:4711`. Raises ValueError for anything else."""
    parts = urlsplit(url)
    if parts.scheme != "tcp" or not parts.hostname or parts.port is None:
        raise ValueError(f"invalid address of a world {url!r}; give tcp://127.0.0.1:4711")
    return parts.hostname, parts.port


# ------------------------------------------------------------------ beside the world


class _Partner:
    """A client, as the server sees it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.rows: NDArray[np.intp] | None = None
        """Its drones; None until it has said hello."""
        self.skipped = 0
        self.sent_t = self.took_t = 0.0
        self.took_s: float | None = None
        """When it last said that it has dealt with something; None: it never says so."""

    def send(self, messages: Sequence[Struct]) -> None:
        if messages and not self.writer.is_closing():
            self.writer.write(packed(messages))


class WorldServer:
    """Serves a world on the loop that advances it: `open`, `url`, `close`. Whoever advances the world goes on to."""

    def __init__(self, world: World, listen: str = "tcp://127.0.0.1:0") -> None:
        self._world = world
        self._host, self._port = place_of(listen)
        self._server: asyncio.Server | None = None
        self._partners: dict[asyncio.Task[None], _Partner] = {}
        self._last: tuple[float, Frame] | None = None
        world.each_frame(self._framed)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"tcp://{self._host}:{self._port}"

    @property
    def skipped(self) -> int:
        """Fixes that clients were not sent because they had not read those before."""
        return sum(partner.skipped for partner in self._partners.values())

    def behind_s(self) -> float:
        """How far the slowest client is behind, in seconds of the world. One that has said nothing for `STUCK_S` is not
        slow but stuck, or was stopped: nobody waits for it."""
        now_s = asyncio.get_running_loop().time()
        return max(
            (
                partner.sent_t - partner.took_t
                for partner in self._partners.values()
                if partner.took_s is not None and now_s - partner.took_s < STUCK_S
            ),
            default=0.0,
        )

    async def open(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for partner in self._partners.values():
            partner.writer.transport.abort()
        await asyncio.gather(*self._partners, return_exceptions=True)

    def _framed(self, t: float, names: tuple[str, ...], frame: Frame) -> None:
        for partner in self._partners.values():
            if partner.rows is None:
                continue
            if partner.writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                partner.skipped += 1
            else:
                partner.sent_t = t
                partner.send([Fixes(t, frame[partner.rows].tobytes())])
        self._last = (t, frame)

    def repeat(self) -> None:
        """Sends the last fixes again to clients that are not behind: while the world waits for others it measures
        nothing new, and drones that hear nothing take their sensors for dead."""
        if self._last is None:
            return
        t, frame = self._last
        for partner in self._partners.values():
            if partner.rows is not None and partner.took_t >= partner.sent_t == t:
                partner.send([Fixes(t, frame[partner.rows].tobytes())])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        partner = self._partners[task] = _Partner(writer)
        try:
            while True:
                answers: list[Struct] = []
                for message in _to_server.decode(await read_body(reader)):
                    if isinstance(message, Hello):
                        self._greet(partner, message)
                    elif isinstance(message, Took):
                        partner.took_t, partner.took_s = message.t, asyncio.get_running_loop().time()
                    else:
                        answers.append(await self._answer(message))
                partner.send(answers)
                await writer.drain()
        except (OSError, msgspec.DecodeError):
            pass  # it is gone, or speaks something else: it may come again
        finally:
            del self._partners[task]
            writer.close()

    def _greet(self, partner: _Partner, hello: Hello) -> None:
        names = self._world.names
        wanted = [i for i, name in enumerate(names) if hello.prefix is not None and name.startswith(hello.prefix)]
        partner.rows = np.array(wanted, dtype=np.intp)
        t, frame = self._world.frame()
        partner.send([Names(tuple(names[i] for i in wanted)), Fixes(t, frame[partner.rows].tobytes())])

    async def _answer(self, ask: Ask) -> Answer:
        try:
            if isinstance(ask.action, ArmBox):
                await self._world.arm_box(ask.action, ask.key)
            else:
                await self._world.order(ask.drone, ask.action, ask.key, ask.token)
        except StigmergyError as error:
            kind = next((name for name, one in ERRORS.items() if isinstance(error, one)), "unreachable")
            return Answer(ask.id, kind, str(error))
        except Exception as error:  # a bug in the world: the connection goes on, and somebody is told
            asyncio.get_running_loop().call_exception_handler({"message": f"{ask} failed", "exception": error})
            return Answer(ask.id, "refused", f"the world failed: {error!r}")
        return Answer(ask.id)


# ------------------------------------------------------------------ in other processes


class RemoteWorld:
    """The world at `url`, for devices: `fleet.attach(RemoteWorld(url, "r1-"))`. It has what `Controllers` has.

    `prefix` says whose fixes come: those of the drones whose names begin so, or none if it is None.
    """

    def __init__(self, url: str, prefix: str | None = "") -> None:
        self._place = place_of(url)
        self._url = url
        self._prefix = prefix
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._away_since_s: float | None = None
        """None while it is there: it has said something on this connection."""
        self._count = 0
        self._asked: dict[int, tuple[Ask, asyncio.Future[Answer]]] = {}
        self._unsent: list[Struct] = []
        self._each_frame: list[Framed] = []
        self._heard = asyncio.Event()
        self._rows: dict[str, int] = {}
        self.names: tuple[str, ...] = ()
        """Its drones, in the order of the rows of a frame; empty until the world was heard."""
        self._frame: Frame = np.zeros((0, len(FIELDS)), dtype=np.float32)
        self._frame_t = 0.0
        self._frame_at_s = 0.0

    # ------------------------------------------------------------------ its life

    async def open(self) -> None:
        """Begins to connect, and does not wait for it: see `wait_heard`."""
        self._away_since_s = asyncio.get_running_loop().time()
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Ends the connection; what was not answered fails."""
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=1.0)
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Unreachable(f"the link to the world at {self._url} was closed"))

    async def wait_heard(self) -> None:
        """Returns when the world has been heard for the first time."""
        await self._heard.wait()

    @property
    def is_connected(self) -> bool:
        """Whether the world is there at this moment."""
        return self._task is not None and self._away_since_s is None

    # ------------------------------------------------------------------ what devices see and say

    def fix(self, drone: str) -> Fix | None:
        """What its flight controller said last; None if it is silent, or not one of ours. Raises Unreachable when the
        world was not heard for AWAY_S: a drone that got its last fix again and again would never know."""
        old_s = self._check_heard()
        if old_s > AWAY_S:
            raise Unreachable(f"the world at {self._url} has said nothing for more than {AWAY_S:.0f} s")
        row = self._rows.get(drone)
        return None if row is None else fix_of(self._frame_t, self._frame[row].tolist())

    def now_t(self) -> float:
        """The time of the satellites. It stands still if the world does. Raises Unreachable until it was heard."""
        return self._frame_t + min(self._check_heard(), TICK_S)

    def _check_heard(self) -> float:
        """How old the last frame is. Raises Unreachable until there is one."""
        if not self._heard.is_set():
            raise Unreachable(f"the world at {self._url} has not been heard yet")
        return asyncio.get_running_loop().time() - self._frame_at_s

    def each_frame(self, framed: Framed) -> None:
        """Calls this with each frame: t, the names, and an array [drone][physics.FIELDS]; NaN for who is silent."""
        self._each_frame.append(framed)

    def took(self, t: float) -> None:
        """Says that the fixes of this time were dealt with: the world may wait for it."""
        self._send_soon(Took(t))

    async def order(self, drone: str, action: Action, key: str, token: int) -> None:
        """Has the world carry out an order. Raises as World.order does, and Unreachable if the world is away."""
        if not isinstance(action, Steer | Land | Grip | Release):
            raise DeviceRefused(f"a drone cannot {type(action).__name__}; it can steer, land, grip and release")
        self._count += 1
        await self._ask(Ask(self._count, drone, action, key, token))

    async def arm_box(self, action: ArmBox, key: str) -> None:
        """Has the world arm a box. Raises as `order` does."""
        self._count += 1
        await self._ask(Ask(self._count, "", action, key, 0))

    async def _ask(self, ask: Ask) -> None:
        loop = asyncio.get_running_loop()
        away_s = 0.0 if self._away_since_s is None else loop.time() - self._away_since_s
        if self._task is None or away_s > AWAY_S:
            raise Unreachable(f"the world at {self._url} is away; try again")
        if len(self._asked) >= IN_FLIGHT_MAX:
            raise Overloaded(f"{IN_FLIGHT_MAX} orders wait for the answer of the world at {self._url}")
        waiting: asyncio.Future[Answer] = loop.create_future()
        self._asked[ask.id] = (ask, waiting)
        self._send_soon(ask)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await waiting
        except TimeoutError:
            raise Unreachable(f"the world at {self._url} has not answered for {ANSWER_S:.0f} s") from None
        finally:
            del self._asked[ask.id]
        if answer.error:
            raise ERRORS[answer.error](answer.why)

    def _send_soon(self, message: Struct) -> None:
        if self._writer is not None:
            if not self._unsent:
                asyncio.get_running_loop().call_soon(self._flush)
            self._unsent.append(message)

    # ------------------------------------------------------------------ the connection

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            writer: asyncio.StreamWriter | None = None
            try:
                reader, writer = await asyncio.open_connection(*self._place)
                # All that is not answered goes out anew, in order, and behind it what is asked from now on.
                self._unsent.clear()
                writer.write(packed([Hello(self._prefix), *(ask for ask, _ in self._asked.values())]))
                self._writer = writer
                while True:
                    for message in _to_client.decode(await read_body(reader)):
                        self._take(message)
                    self._away_since_s = None
            except (OSError, msgspec.DecodeError):
                pass
            finally:
                self._writer = None
                self._away_since_s = loop.time() if self._away_since_s is None else self._away_since_s
                if writer is not None:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
            await asyncio.sleep(RECONNECT_S)

    def _flush(self) -> None:
        if self._writer is not None and self._unsent:
            self._writer.write(packed(self._unsent))
        self._unsent.clear()

    def _take(self, message: Names | Fixes | Answer) -> None:
        loop = asyncio.get_running_loop()
        match message:
            case Answer():
                _, waiting = self._asked.get(message.id, (None, None))
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case Names():
                self.names = message.names
                self._rows = {name: row for row, name in enumerate(message.names)}
            case Fixes():
                self._frame = np.frombuffer(message.data, dtype=np.float32).reshape(len(self.names), len(FIELDS))
                self._frame_t, self._frame_at_s = message.t, loop.time()
                self._heard.set()
                for framed in self._each_frame:
                    try:
                        framed(message.t, self.names, self._frame)
                    except Exception as error:
                        loop.call_exception_handler(
                            {"message": "taking the fixes of a frame failed", "exception": error}
                        )
