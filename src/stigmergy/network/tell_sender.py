"""One peer that we send to: sends what our shard owes its shard over one connection, in order.

The outbox is the queue: this holds only what it owes, and nothing is forgotten before the peer has it durable. When the
connection breaks, everything unconfirmed is sent again over the next one, from its start; the peer's marks skip what it
had. A peer that is down delays only what is for it. A peer to which nothing is owed is not called, and one to which
nothing was owed for a while is disconnected: of many peers few talk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, printable, tagged_without_empty_end
from stigmergy.agents.effects import shard_sink
from stigmergy.base.errors import Bug, DataLost, LinkDown, Malformed, StaleEpoch, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.network.peer_port import PeerChannel, PeerNetwork
from stigmergy.node.host import Host
from stigmergy.node.tells import told_items, traces_of
from stigmergy.shard.inputs import EffectsSettled
from stigmergy.shard.outbox import Pending
from stigmergy.shard.tracing import WireTraces, write_traces

# Messages between the owners of a fleet's shards, and their bytes.
#
# The caller says hello, and is welcomed or refused. When it has something to tell, it asks how far the pair of shards
# is (`PairOpening`, `PairPosition`), and sends what follows (`TellBatch`). It hears when that is durable
# (`TellsAcknowledged`), or why it was refused (`TellsRefused`), which ends the connection. Each shard counts as a
# process of its own, shard 0 as process 1: earlier versions had several shards in a process.

FORMAT = 1


class Hello(Struct, array_like=True, frozen=True, tag=1):
    """Who calls, and what it takes the fleet for."""

    format: int
    fleet: str
    shards: int
    process: int
    processes: int


class Welcome(Struct, array_like=True, frozen=True, tag=2):
    """The other one is who we take it for."""


class PeerRefused(Struct, array_like=True, frozen=True, tag=3):
    """It is not, or what it does is wrong; and why. The connection is closed."""

    why: str


class PairOpening(Struct, array_like=True, frozen=True, tag=4):
    """We have something to tell over this pair of shards; so far the receiver has said that it has durable."""

    source: int
    target: int
    settled: int


class PairPosition(Struct, array_like=True, frozen=True, tag=5):
    """So far the pair has been consumed; nothing behind it was, ever."""

    source: int
    target: int
    consumed: int


class TellBatch(Struct, array_like=True, frozen=True, tag=6):
    """Tells that follow each other, from one shard to another; the first has this sequence."""

    source: int
    target: int
    epoch: int
    sequence: int
    items: list[tuple[str, bytes]]
    traces: WireTraces = []
    """The trace contexts of some items, by their place; not there if none has one."""


class TellsAcknowledged(Struct, array_like=True, frozen=True, tag=7):
    """Up to here the pair's tells are durable at the receiver."""

    source: int
    target: int
    last: int


class TellsRefused(Struct, array_like=True, frozen=True, tag=8):
    """A parcel was not taken: the name of the error, and what it says."""

    source: int
    target: int
    kind: str
    why: str


PeerFrame = Hello | Welcome | PeerRefused | PairOpening | PairPosition | TellBatch | TellsAcknowledged | TellsRefused

_decoder: msgspec.msgpack.Decoder[PeerFrame] = msgspec.msgpack.Decoder(PeerFrame)
_write = msgspec.msgpack.Encoder().encode
_FIELDS_MIN = TellBatch.__struct_fields__.index("traces")


def write_frame(frame: PeerFrame) -> bytes:
    """The bytes of a frame."""
    return _write(tagged_without_empty_end(frame, _FIELDS_MIN) if isinstance(frame, TellBatch) else frame)


def read_frame(data: bytes) -> PeerFrame:
    """Reads a frame; raises Malformed."""
    try:
        return _decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"a peer sent a frame that does not decode ({error}); run the same version in all") from None


TELL_BATCH_ITEMS_MAX = 1_000
TELL_BATCH_BYTES_MAX = 256 * 1024
"""A parcel with so much in it is sent; a single tell may be larger."""
TELL_BATCHES_IN_FLIGHT_MAX = 64
BYTES_IN_FLIGHT_MAX = 4 * 1024 * 1024
"""The bound of unconfirmed tells to one peer; beyond it they wait in the outbox."""
PAUSE_S = 0.02
PAUSE_S_MAX = 1.0
"""The pause before a peer is called again; it doubles up to the larger."""
WELCOME_S_MAX = 10.0
IDLE_S_MAX = 10.0
"""A connection over which nothing was owed for so long is closed."""


class TellSenderCounters(Struct):
    """Counts of what went to peers."""

    neighbour_tells_out: int = 0
    neighbour_tells_settled: int = 0
    neighbour_links: int = 0


def hello_of(host: Host) -> Hello:
    """How the owner of a shard introduces itself."""
    (shard,), shards = host.journal.identity.owned, host.shards.total
    return Hello(FORMAT, host.declaration.name, shards, shard + 1, shards)


class TellSender:
    """Sends to the owner of one shard. `start` once the host has recovered, `stop` at the end."""

    def __init__(self, host: Host, peer_network: PeerNetwork, target: int, counters: TellSenderCounters) -> None:
        self._host = host
        self._peer_network = peer_network
        (self._source,) = host.journal.identity.owned
        self._target = target
        self._process = target + 1
        self._counters = counters
        self._waiting: deque[Pending] = deque()
        self._under_way: deque[Pending] = deque()
        self._epoch = 0
        self._sent_last = 0
        """The highest sequence that can have been sent: by an earlier run until the pair is open, then by this one."""
        self._is_asked = False
        self._is_open = False
        """On this connection: whether the peer was asked how far the pair is, and has answered."""
        self._in_flight: deque[tuple[int, int]] = deque()
        """Parcels under way: the last sequence and the bytes of each."""
        self._bytes_count = 0
        self._woken = asyncio.Event()
        self._broken: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._pause_s = PAUSE_S
        self.is_up = False
        self.trouble = ""
        """Why the peer refuses us, in its words; empty while it accepts us, or is only down."""

    @property
    def owed(self) -> int:
        """How many tells the peer has not confirmed."""
        return len(self._waiting) + len(self._under_way)

    def release(self, epoch: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells; they go out when it is their turn."""
        self._epoch = epoch
        self._waiting.extend(pendings)
        self._woken.set()

    def start(self) -> None:
        """Remembers how much was owed when the host started, and calls the peer when something is."""
        self._sent_last = self._host.shards[self._source].state.outbox.sent().get(shard_sink(self._target), 0)
        self._task = asyncio.ensure_future(self._live())

    async def stop(self) -> None:
        """Sends nothing more. What is not confirmed is released again by the next start."""
        task, self._task = self._task, None
        await end_tasks(task)
        self.is_up = False

    # ------------------------------------------------------------------ the connection

    async def _live(self) -> None:
        """Calls the peer when something is owed to it, with a growing back-off while it does not answer."""
        while True:
            await self._wait_owed()
            try:
                channel = await self._peer_network.connect(self._process)
            except StigmergyError:
                await self._pause()
                continue
            try:
                await self._talk(channel)
                continue
            except LinkDown:
                pass
            except StigmergyError as error:
                self.trouble = f"process {self._process}: {printable(error, 500)}"
                if isinstance(error, DataLost | StaleEpoch):
                    self._host.fail(error)
                    return
            except Exception as error:
                self._host.fail(Bug(f"sending to process {self._process} failed: {type(error).__name__}: {error}"))
                return
            finally:
                self.is_up = False
                channel.close()
                self._forget_connection()
            await self._pause()

    async def _wait_owed(self) -> None:
        while not self._waiting:
            self._woken.clear()
            await self._woken.wait()

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(PAUSE_S_MAX, self._pause_s * 2)

    async def _talk(self, channel: PeerChannel) -> None:
        """One connection, from hello until it breaks, which is raised, or until nothing is owed any more."""
        await self._meet(channel)
        self.is_up, self.trouble, self._pause_s, self._broken = True, "", PAUSE_S, None
        self._counters.neighbour_links += 1
        hearing = asyncio.ensure_future(self._hear(channel))
        try:
            while self._broken is None:
                frame = self._next_frame()
                if frame is not None:
                    await channel.send(frame)
                    continue
                self._woken.clear()
                if not await self._woken_in_time():
                    return
        except LinkDown:
            if self._broken is None:
                raise
        finally:
            await end_tasks(hearing)
        raise self._broken

    async def _woken_in_time(self) -> bool:
        """Waits for news; whether there were any before the connection had been idle for too long."""
        if self.owed:
            await self._woken.wait()
            return True
        try:
            async with asyncio.timeout(IDLE_S_MAX):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    async def _meet(self, channel: PeerChannel) -> None:
        await channel.send(write_frame(hello_of(self._host)))
        try:
            async with asyncio.timeout(WELCOME_S_MAX):
                answer = read_frame(await channel.receive())
        except TimeoutError:
            raise LinkDown(f"process {self._process} has not answered for {WELCOME_S_MAX:g} s") from None
        if isinstance(answer, PeerRefused):
            raise Malformed(answer.why)
        if not isinstance(answer, Welcome):
            raise Malformed(f"it answered a hello with {type(answer).__name__}; run the same version in all processes")

    async def _hear(self, channel: PeerChannel) -> None:
        try:
            while self._broken is None:
                self._take(read_frame(await channel.receive()))
        except StigmergyError as error:
            self._broken = error
        finally:
            if self._broken is None:
                self._broken = LinkDown("the connection is over")
            channel.close()
            self._woken.set()

    def _forget_connection(self) -> None:
        """Everything that was not confirmed waits again, in order, before what came later."""
        self._in_flight.clear()
        self._bytes_count = 0
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way.clear()
        self._is_asked = self._is_open = False

    # ------------------------------------------------------------------ what is said

    def _next_frame(self) -> bytes | None:
        """What is to be sent next; None if nothing is, or too much is under way."""
        if not self._waiting:
            return None
        if not self._is_asked:
            self._is_asked = True
            settled = self._host.shards[self._source].state.outbox.cursor(shard_sink(self._target))
            return write_frame(PairOpening(self._source, self._target, settled))
        full = len(self._in_flight) >= TELL_BATCHES_IN_FLIGHT_MAX or self._bytes_count >= BYTES_IN_FLIGHT_MAX
        return None if full or not self._is_open else self._pack()

    def _pack(self) -> bytes:
        """The next parcel: tells whose sequences follow each other."""
        pendings = [self._waiting.popleft()]
        size_bytes = len(pendings[0].body)
        while self._waiting and len(pendings) < TELL_BATCH_ITEMS_MAX:
            following = self._waiting[0]
            size_bytes += len(following.body)
            if size_bytes > TELL_BATCH_BYTES_MAX or following.sequence != pendings[-1].sequence + 1:
                break
            pendings.append(self._waiting.popleft())
        self._under_way.extend(pendings)
        self._sent_last = max(self._sent_last, pendings[-1].sequence)
        items, carried = told_items(pendings), self._host.shards[self._source].state.traces
        traces = write_traces(traces_of(carried, pendings))
        frame = write_frame(TellBatch(self._source, self._target, self._epoch, pendings[0].sequence, items, traces))
        self._in_flight.append((pendings[-1].sequence, len(frame)))
        self._bytes_count += len(frame)
        self._counters.neighbour_tells_out += len(pendings)
        return frame

    def _take(self, frame: PeerFrame) -> None:
        match frame:
            case PairPosition():
                self._check_asked(frame.source, frame.target)
                self._reached(frame.consumed)
            case TellsAcknowledged():
                self._check_asked(frame.source, frame.target)
                self._arrived(frame.last)
            case TellsRefused():
                if frame.kind == StaleEpoch.__name__:
                    raise StaleEpoch(frame.why)
                raise LinkDown(f"process {self._process} did not take a parcel: {frame.why}")
            case PeerRefused():
                raise Malformed(frame.why)
            case _:
                raise Malformed(f"a receiving peer must not say {type(frame).__name__}; run the same version in all")

    def _check_asked(self, source: int, target: int) -> None:
        if (source, target) != (self._source, self._target) or not self._is_asked:
            raise Malformed(f"it speaks of shards {source} and {target}, over which we sent nothing")

    def _reached(self, consumed: int) -> None:
        if consumed > self._sent_last:
            raise DataLost(
                f"shard {self._source}: process {self._process} has {consumed} tells of it for its shard "
                f"{self._target}, this journal knows of {self._sent_last}: the end of the log is lost; restore it from "
                "a newer copy"
            )
        self._is_open = True
        self._woken.set()

    def _arrived(self, last: int) -> None:
        settled: list[int] = []
        while self._under_way and self._under_way[0].sequence <= last:
            settled.append(self._under_way.popleft().sequence)
        while self._in_flight and self._in_flight[0][0] <= last:
            self._bytes_count -= self._in_flight.popleft()[1]
        if settled:
            self._counters.neighbour_tells_settled += len(settled)
            if self._host.failure is None:
                self._host.intake.put_inside(self._source, EffectsSettled(shard_sink(self._target), settled))
        self._woken.set()
