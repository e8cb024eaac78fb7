"""The other owners of a fleet's shards, as one of them sees them. Each has one shard, and shard 0 is process 1.

What a peer sends is put into our mailbox, and confirmed when it is durable. The marks skip repetitions, as with any
source; so a connection needs no memory of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct, structs

from stigmergy.agents.codec import printable
from stigmergy.agents.effects import shard_sink
from stigmergy.base.errors import Bug, DataLost, LinkDown, Malformed, NotRunning, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.network.peer_port import PeerChannel, PeerNetwork
from stigmergy.network.tell_sender import (
    Hello,
    PairOpening,
    PairPosition,
    PeerFrame,
    PeerRefused,
    TellBatch,
    TellsAcknowledged,
    TellSender,
    TellSenderCounters,
    TellsRefused,
    Welcome,
    hello_of,
    read_frame,
    write_frame,
)
from stigmergy.node.host import Connections, Host
from stigmergy.node.mailbox import Queued
from stigmergy.shard.inputs import Delivery
from stigmergy.shard.outbox import Pending
from stigmergy.shard.tracing import read_traces

HELLO_S_MAX = 5.0
"""Who connects and says nothing for so long is sent away."""
TELL_BATCHES_WAITING_MAX = 256
"""One who sends more parcels than this before any of them is durable does not keep to its window."""
REASON_CHARS_MAX = 500


class TellReceiverCounters(Struct):
    """Counts of what came from peers."""

    neighbour_tells_in: int = 0
    neighbour_parcels_declined: int = 0
    neighbours_refused: int = 0


class TellReceiver:
    """Serves one connection, until it breaks."""

    def __init__(self, host: Host, channel: PeerChannel, counters: TellReceiverCounters) -> None:
        self._host = host
        self._channel = channel
        self._counters = counters
        self._from = 0
        self._waiting = 0
        """Parcels that are not durable yet."""
        self._replies: dict[str, PeerFrame] = {}
        """What is to be said, one of a kind: a later one says more."""
        self._woken = asyncio.Event()
        self._is_over = False

    async def serve(self) -> None:
        """Takes what comes. Raises nothing: the peer connects again."""
        answering: asyncio.Task[None] | None = None
        try:
            await self._meet()
            answering = asyncio.ensure_future(self._answer())
            while not self._is_over:
                self._take(read_frame(await self._channel.receive()))
        except LinkDown:
            pass
        except StigmergyError as error:
            await self._send_away(error)
        except Exception as error:
            self._host.fail(Bug(f"taking from process {self._from} failed: {type(error).__name__}: {error}"))
        finally:
            self._is_over = True
            await end_tasks(answering)
            self._channel.close()

    async def _meet(self) -> None:
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                hello = read_frame(await self._channel.receive())
        except TimeoutError:
            raise Malformed(f"nothing was said for {HELLO_S_MAX:g} s; say hello first") from None
        if not isinstance(hello, Hello):
            raise Malformed("a peer must say hello first; run the same version in all processes")
        mine = hello_of(self._host)
        is_alike = structs.replace(hello, process=mine.process) == mine
        if not is_alike or hello.process == mine.process or not 1 <= hello.process <= mine.processes:
            raise Malformed(
                f"process {hello.process} of {hello.processes} of the fleet {printable(hello.fleet, 64)!r} with "
                f"{hello.shards} shards is not a peer of process {mine.process} of {mine.processes} of "
                f"{mine.fleet!r} with {mine.shards}; start all with the same command"
            )
        self._from = hello.process
        await self._channel.send(write_frame(Welcome()))

    def _take(self, frame: PeerFrame) -> None:
        match frame:
            case PairOpening():
                self._check_pair(frame.source, frame.target)
                self._reached(frame)
            case TellBatch():
                self._check_pair(frame.source, frame.target)
                self._put(frame)
            case _:
                raise Malformed(f"a sending peer must not say {type(frame).__name__}; run the same version in all")

    def _check_pair(self, source: int, target: int) -> None:
        if source != self._from - 1 or target not in self._host.shards:
            raise Malformed(f"shard {source} of process {self._from} has nothing to tell shard {target} here")

    def _reached(self, opening: PairOpening) -> None:
        marks = self._host.shards[opening.target].state.marks
        consumed = marks.consumed(shard_sink(opening.source), 0)
        if consumed < opening.settled:
            lost = DataLost(
                f"shard {opening.target}: process {self._from} knows that {opening.settled} tells of its shard "
                f"{opening.source} were durable here, this journal has {consumed} of them: the end of the log is lost; "
                "restore it from a newer copy"
            )
            self._host.fail(lost)
            raise lost
        self._say("reached", PairPosition(opening.source, opening.target, consumed))

    def _put(self, batch: TellBatch) -> None:
        if self._waiting >= TELL_BATCHES_WAITING_MAX:
            raise Malformed(f"{self._waiting} parcels wait already; a peer must keep to its window")
        if not batch.items or batch.sequence < 1:
            raise Malformed("a parcel has items, and sequences count from 1")
        self._waiting += 1
        self._counters.neighbour_tells_in += len(batch.items)
        traces = read_traces(batch.traces, len(batch.items), self._host.clock.wall_ns())
        source, sequence = shard_sink(batch.source), batch.sequence
        delivery = Delivery(source, batch.items, sequence, epoch=batch.epoch, traces=traces, sender=None)
        ticket = _Ticket(self, batch)
        self._host.intake.put_queued(Queued(batch.target, delivery, (ticket,), len(batch.items)))

    def arrived(self, batch: TellBatch) -> None:
        """A parcel is durable."""
        self._waiting -= 1
        last = batch.sequence + len(batch.items) - 1
        self._say("arrived", TellsAcknowledged(batch.source, batch.target, last))

    def declined(self, batch: TellBatch, error: Exception) -> None:
        """A parcel was not taken."""
        self._waiting -= 1
        self._counters.neighbour_parcels_declined += 1
        why = printable(error, REASON_CHARS_MAX)
        self._say("declined", TellsRefused(batch.source, batch.target, type(error).__name__, why))

    def _say(self, kind: str, frame: PairPosition | TellsAcknowledged | TellsRefused) -> None:
        if not self._is_over:
            self._replies[kind] = frame
            self._woken.set()

    async def _answer(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            replies, self._replies = self._replies, {}
            for reply in replies.values():
                try:
                    await self._channel.send(write_frame(reply))
                except StigmergyError:
                    self._is_over = True
                    self._channel.close()
                    return

    async def _send_away(self, error: StigmergyError) -> None:
        """Says why, if it can still be said. One who stops just ends the connection: that is no fault of theirs."""
        if isinstance(error, NotRunning):
            return
        self._counters.neighbours_refused += 1
        try:
            await self._channel.send(write_frame(PeerRefused(printable(error, REASON_CHARS_MAX))))
        except StigmergyError:
            return


class _Ticket:
    """Waits until a parcel is durable, and tells the connection that it came over."""

    __slots__ = ("_batch", "_receiver")

    def __init__(self, receiver: TellReceiver, batch: TellBatch) -> None:
        self._receiver = receiver
        self._batch = batch

    def resolve(self) -> None:
        self._receiver.arrived(self._batch)

    def fail(self, error: Exception) -> None:
        self._receiver.declined(self._batch, error)


class PeerProcesses:
    """Makes a host one of several. The host connects to it when it is made; `start` it right after the host, before the
    host takes its first turn."""

    def __init__(self, host: Host, peer_network: PeerNetwork) -> None:
        self._host = host
        self._peer_network = peer_network
        self._sent = TellSenderCounters()
        self._received = TellReceiverCounters()
        self._sendings = {
            shard: TellSender(host, peer_network, shard, self._sent)
            for shard in range(host.shards.total)
            if shard not in host.journal.identity.owned
        }

    @property
    def connections(self) -> Connections:
        """What the host calls of it."""
        return Connections(peers=self)

    async def start(self) -> None:
        """Calls the peers and listens for them. Raises ConfigError if it cannot listen."""
        for sending in self._sendings.values():
            sending.start()
        try:
            await self._peer_network.open(self._serve)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Takes and sends nothing more. What was not confirmed stays owed on either side."""
        await self._peer_network.close()
        for sending in self._sendings.values():
            await sending.stop()

    def release(self, shard: int, epoch: int, target: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells for a shard that a peer owns."""
        self._sendings[target].release(epoch, pendings)

    def counters(self) -> dict[str, int]:
        """What came and went."""
        return {**structs.asdict(self._sent), **structs.asdict(self._received)}

    def troubles(self) -> list[Trouble]:
        """Peers that refuse us, and why."""
        return coded("tells-refused", (sending.trouble for sending in self._sendings.values()))

    async def _serve(self, channel: PeerChannel) -> None:
        await TellReceiver(self._host, channel, self._received).serve()
