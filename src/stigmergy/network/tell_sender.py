"""One peer that we send to: sends what our shards owe its shards over one connection, in order for each pair.

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
from msgspec import Struct, field

from stigmergy.agents.codec import UNDECODABLE, printable
from stigmergy.agents.effects import shard_sink
from stigmergy.base.errors import Bug, DataLost, LinkDown, Malformed, StaleEpoch, StigmergyError
from stigmergy.network.peer_port import PeerChannel, PeerNetwork
from stigmergy.network.shares import Share, owned_by
from stigmergy.node.host import Host
from stigmergy.node.tells import told_items
from stigmergy.shard.inputs import EffectsSettled
from stigmergy.shard.outbox import Pending

# Messages between the owners of a fleet's shards, and their bytes.
#
# The caller says hello, and is welcomed or refused. For each pair of shards with something to tell, it asks how far
# that pair is (`PairOpening`, `PairPosition`), and sends what follows (`TellBatch`). It hears when that is durable
# (`TellsAcknowledged`), or why it was refused (`TellsRefused`), which ends the connection.

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
write_frame = msgspec.msgpack.Encoder().encode


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

Pair = tuple[int, int]
"""Our shard, and the peer's."""


class TellSenderCounters(Struct):
    """Counts of what went to peers."""

    neighbour_tells_out: int = 0
    neighbour_tells_settled: int = 0
    neighbour_links: int = 0


class _Lane(Struct):
    """What one shard owes another."""

    waiting: deque[Pending] = field(default_factory=deque)
    under_way: deque[Pending] = field(default_factory=deque)
    epoch: int = 0
    sent_last: int = 0
    """The highest sequence that can have been sent: by an earlier run until the pair is open, then by this one."""
    is_asked: bool = False
    is_open: bool = False
    """On this connection: whether the peer was asked how far the pair is, and has answered."""


class TellSender:
    """Sends to one process. `start` once the host has recovered, `stop` at the end."""

    def __init__(
        self, host: Host, peer_network: PeerNetwork, share: Share, process: int, counters: TellSenderCounters
    ) -> None:
        self._host = host
        self._peer_network = peer_network
        self._share = share
        self._process = process
        self._counters = counters
        self._lanes: dict[Pair, _Lane] = {}
        self._ready: dict[Pair, None] = {}
        """Pairs that have something to send now, in the order in which they get their turn."""
        self._in_flight: dict[Pair, deque[tuple[int, int]]] = {}
        """Parcels under way: the last sequence and the bytes of each."""
        self._batches_count = 0
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
        return sum(len(lane.waiting) + len(lane.under_way) for lane in self._lanes.values())

    def release(self, shard: int, epoch: int, target: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells; they go out when it is their turn."""
        lane = self._lane(shard, target)
        lane.epoch = epoch
        lane.waiting.extend(pendings)
        self._make_ready((shard, target), lane)

    def start(self) -> None:
        """Remembers how much was owed when the host started, and calls the peer when something is."""
        for shard in self._host.shards:
            sent = shard.state.outbox.sent()
            for target in owned_by(self._process, self._share.processes, self._share.shards):
                if sequence := sent.get(shard_sink(target)):
                    self._lane(shard.state.shard, target).sent_last = sequence
        self._task = asyncio.ensure_future(self._live())

    async def stop(self) -> None:
        """Sends nothing more. What is not confirmed is released again by the next start."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.is_up = False

    def _lane(self, shard: int, target: int) -> _Lane:
        return self._lanes.setdefault((shard, target), _Lane())

    def _make_ready(self, pair: Pair, lane: _Lane) -> None:
        if lane.waiting and (lane.is_open or not lane.is_asked):
            self._ready[pair] = None
            self._woken.set()

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
        while not any(lane.waiting for lane in self._lanes.values()):
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
        for pair, lane in self._lanes.items():
            self._make_ready(pair, lane)
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
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
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
        share = self._share
        hello = Hello(FORMAT, self._host.declaration.name, share.shards, share.process, share.processes)
        await channel.send(write_frame(hello))
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
        self._ready.clear()
        self._in_flight.clear()
        self._batches_count = self._bytes_count = 0
        for lane in self._lanes.values():
            lane.waiting.extendleft(reversed(lane.under_way))
            lane.under_way.clear()
            lane.is_asked = lane.is_open = False

    # ------------------------------------------------------------------ what is said

    def _next_frame(self) -> bytes | None:
        """What is to be sent next; None if nothing is, or too much is under way."""
        while self._ready:
            full = self._batches_count >= TELL_BATCHES_IN_FLIGHT_MAX or self._bytes_count >= BYTES_IN_FLIGHT_MAX
            pair = next(iter(self._ready)) if not full else next((p for p in self._ready if self._asks(p)), None)
            if pair is None:
                return None
            del self._ready[pair]
            lane = self._lanes[pair]
            if not lane.waiting:
                continue
            if not lane.is_asked:
                lane.is_asked = True
                settled = self._host.shards[pair[0]].state.outbox.cursor(shard_sink(pair[1]))
                return write_frame(PairOpening(pair[0], pair[1], settled))
            frame = self._pack(pair, lane)
            self._make_ready(pair, lane)
            return frame
        return None

    def _asks(self, pair: Pair) -> bool:
        return not self._lanes[pair].is_asked

    def _pack(self, pair: Pair, lane: _Lane) -> bytes:
        """The next parcel of a pair: tells whose sequences follow each other."""
        pendings = [lane.waiting.popleft()]
        size_bytes = len(pendings[0].body)
        while lane.waiting and len(pendings) < TELL_BATCH_ITEMS_MAX:
            following = lane.waiting[0]
            size_bytes += len(following.body)
            if size_bytes > TELL_BATCH_BYTES_MAX or following.sequence != pendings[-1].sequence + 1:
                break
            pendings.append(lane.waiting.popleft())
        lane.under_way.extend(pendings)
        lane.sent_last = max(lane.sent_last, pendings[-1].sequence)
        frame = write_frame(TellBatch(pair[0], pair[1], lane.epoch, pendings[0].sequence, told_items(pendings)))
        self._in_flight.setdefault(pair, deque()).append((pendings[-1].sequence, len(frame)))
        self._batches_count += 1
        self._bytes_count += len(frame)
        self._counters.neighbour_tells_out += len(pendings)
        return frame

    def _take(self, frame: PeerFrame) -> None:
        match frame:
            case PairPosition():
                self._reached((frame.source, frame.target), frame.consumed)
            case TellsAcknowledged():
                self._arrived((frame.source, frame.target), frame.last)
            case TellsRefused():
                if frame.kind == StaleEpoch.__name__:
                    raise StaleEpoch(frame.why)
                raise LinkDown(f"process {self._process} did not take a parcel: {frame.why}")
            case PeerRefused():
                raise Malformed(frame.why)
            case _:
                raise Malformed(f"a receiving peer must not say {type(frame).__name__}; run the same version in all")

    def _reached(self, pair: Pair, consumed: int) -> None:
        lane = self._known(pair)
        if consumed > lane.sent_last:
            raise DataLost(
                f"shard {pair[0]}: process {self._process} has {consumed} tells of it for its shard {pair[1]}, this "
                f"journal knows of {lane.sent_last}: the end of the log is lost; restore it from a newer copy"
            )
        lane.is_open = True
        self._make_ready(pair, lane)

    def _arrived(self, pair: Pair, last: int) -> None:
        lane = self._known(pair)
        settled: list[int] = []
        while lane.under_way and lane.under_way[0].sequence <= last:
            settled.append(lane.under_way.popleft().sequence)
        batches = self._in_flight.get(pair, deque())
        while batches and batches[0][0] <= last:
            self._batches_count -= 1
            self._bytes_count -= batches.popleft()[1]
        if not batches:
            self._in_flight.pop(pair, None)
        if settled:
            self._counters.neighbour_tells_settled += len(settled)
            if self._host.failure is None:
                self._host.intake.put_inside(pair[0], EffectsSettled(shard_sink(pair[1]), settled))
        self._woken.set()

    def _known(self, pair: Pair) -> _Lane:
        lane = self._lanes.get(pair)
        if lane is None or not lane.is_asked:
            raise Malformed(f"it speaks of shards {pair[0]} and {pair[1]}, over which we sent nothing")
        return lane
