"""How every bus handles received messages: passes them on in order, and again if the handler did not accept them.

An adapter has one Reception and gives it every arrival. The Reception calls the handlers of the matching patterns and
tells the arrival when the broker may forget the message. It knows no protocol. The adapter bounds how much it gives:
messages that wait here are not acknowledged, so a broker stops at its window, and the adapter stops reading.

A broker delivers the messages of all sources in one sequence. They are read at once and wait by source; the sources
take turns (deficit round robin), so a flood of one does not delay the others. A handler that is a Gate decides on
arrival: a message that it sheds is acknowledged at once and never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable

from msgspec import Struct

from stigmergy.base.errors import Bug, PeerError, SequenceGap, StigmergyError
from stigmergy.base.fair_queue import FairQueue
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import (
    HANDLED_COUNT_MAX,
    HANDLED_PER_SOURCE_MAX,
    BusMessage,
    Gate,
    Handler,
    has_wildcards,
    matches,
)

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 5.0
"""A message whose handler failed comes again after a pause, which doubles from PAUSE_S_MIN to this."""
TRIES_MAX = 8
"""An error that is not ours may come from a handler that always fails on this message: after this many tries it is
given up, counted, and acknowledged. Our own temporary errors (Overloaded, LinkDown) are retried forever."""
EARLY_PAUSE_S = 0.5
"""An early message is offered again when its topic has moved on, and after this long without anything new."""
EARLY_S_MAX = 300.0
"""After this long the messages before an early one count as lost, and the early one is refused: a receiver that
prefers a gap must accept it sooner."""
STARTED_MAX = 32
"""Handlers that are called in one turn of the event loop. One a turn would be as slow as the loop is busy: on a node
that computes for 10 ms in each, a hundred messages a second."""
TOPICS_COUNT_MAX = 10_000
"""Bound of the cache of topics and their handlers."""
MESSAGE_COST = 1024
"""What a message costs beside its payload, in bytes: about its memory, and some work."""
WAITING_COST_MAX = 16 * 1024 * 1024
"""What may wait here, of all sources. A source may use as much as is still free: one alone gets half of it, nine get
a tenth each, and a new one always finds room. Beyond it a Gate sheds messages if it can; other messages wait, and the
adapter stops reading at its own bound."""
UNHEARD_S_MAX = 10.0
"""A broker delivers held messages as soon as the link is up. A message that matches no pattern waits this long after
`open` for its subscription; later it is left over from an older program, acknowledged and counted."""


class Receipts(Struct):
    """How received messages ended; for monitoring."""

    taken: int = 0
    refused: int = 0
    """By a PeerError, for good."""
    early: int = 0
    """Times that a handler raised SequenceGap."""
    again: int = 0
    """Times that a message waited for another try."""
    given_up: int = 0
    """After TRIES_MAX failures with errors that are not ours."""
    unheard: int = 0
    """Acknowledged without a handler: the broker's session has a subscription that this program lacks."""
    repeated: int = 0
    """Came again while still waiting here, and were dropped."""
    shed: int = 0
    """Acknowledged on arrival without being handled: for others, or beyond their source's share. The gate counts."""
    last_failure: str = ""


class Arrival:
    """A received message, and what to call when it is handled."""

    __slots__ = ("_settled", "early_since_s", "handlers", "message", "tries")

    def __init__(self, message: BusMessage, settled: Callable[[], None]) -> None:
        self.message = message
        self.handlers = 0
        """How many inboxes hold it."""
        self.tries = 0
        self.early_since_s: float | None = None
        self._settled = settled

    def finish(self) -> None:
        """One handler is done with it; when all are, the broker may forget it."""
        self.handlers -= 1
        if self.handlers == 0:
            self._settled()

    def finish_all(self) -> None:
        """No handler wants it."""
        self._settled()


_Early = tuple[int, int, Arrival]
"""Its sequence, or 0 if unknown; a count that keeps the order; the message."""


class _Load:
    """The load of all inboxes of a bus."""

    __slots__ = ("cost", "count")

    def __init__(self) -> None:
        self.count = 0
        """Messages that wait for a handler or are with one."""
        self.cost = 0
        """Of the waiting ones."""


class Reception:
    """All subscriptions of one bus, and the messages received for them."""

    def __init__(self) -> None:
        self.receipts = Receipts()
        self._load = _Load()
        self._inboxes: list[Inbox] = []
        self._of_topic: dict[str, list[int]] = {}
        """Which of them have this topic itself as their pattern: a node has several for each of its agents."""
        self._with_wildcards: list[int] = []
        """The others."""
        self._wanting: dict[str, list[tuple[Inbox, str]]] = {}
        """The handlers of each topic, with the source: most topics repeat."""
        self._unmatched: list[Arrival] = []
        self._unmatched_timer: asyncio.TimerHandle | None = None
        self._keeps_unmatched = False

    @property
    def patterns(self) -> list[str]:
        """The subscribed patterns, each once, in the order of subscription."""
        return list(dict.fromkeys(inbox.pattern for inbox in self._inboxes))

    def begin(self) -> None:
        """The bus was opened: later subscriptions have UNHEARD_S_MAX from now on."""
        self._keeps_unmatched = True
        self._unmatched_timer = asyncio.get_running_loop().call_later(UNHEARD_S_MAX, self._drop_unmatched)

    def subscribe(self, pattern: str, handler: Handler) -> None:
        """Also handles messages that arrived before and matched no pattern."""
        inbox = Inbox(pattern, handler, self.receipts, self._load)
        alike = self._with_wildcards if has_wildcards(pattern) else self._of_topic.setdefault(pattern, [])
        alike.append(len(self._inboxes))
        self._inboxes.append(inbox)
        self._wanting.clear()
        unmatched, self._unmatched = self._unmatched, []
        for arrival in unmatched:
            self.take(arrival)

    def take(self, arrival: Arrival) -> None:
        """Gives an arrival to every matching inbox."""
        wanting = self._who_wants(arrival.message.topic)
        arrival.handlers = len(wanting)
        for inbox, source in wanting:
            inbox.put_nowait(source, arrival)
        if not wanting and self._keeps_unmatched:
            self._unmatched.append(arrival)
        elif not wanting:
            self.receipts.unheard += 1
            arrival.finish_all()

    def _who_wants(self, topic: str) -> list[tuple[Inbox, str]]:
        wanting = self._wanting.get(topic)
        if wanting is None:
            if len(self._wanting) >= TOPICS_COUNT_MAX:
                del self._wanting[next(iter(self._wanting))]
            numbers = [one for one in self._with_wildcards if matches(self._inboxes[one].pattern, topic)]
            numbers = sorted([*numbers, *self._of_topic.get(topic, ())])
            wanting = [(self._inboxes[one], self._inboxes[one].source_of(topic)) for one in numbers]
            self._wanting[topic] = wanting
        return wanting

    async def close(self, within_s: float) -> None:
        """Lets handlers under way finish, within a bound. Waiting messages stay with the broker."""
        if self._unmatched_timer is not None:
            self._unmatched_timer.cancel()
        self._unmatched.clear()
        await asyncio.gather(*(inbox.close(within_s) for inbox in self._inboxes))

    def _drop_unmatched(self) -> None:
        self._keeps_unmatched = False
        unmatched, self._unmatched = self._unmatched, []
        for arrival in unmatched:
            self.take(arrival)


class Inbox:
    """The messages of one subscription: calls its handler, and settles them with the broker."""

    def __init__(self, pattern: str, handler: Handler, receipts: Receipts, load: _Load) -> None:
        self.pattern = pattern
        self._gate = handler if isinstance(handler, Gate) else None
        self._handler = handler.handle if isinstance(handler, Gate) else handler
        self._receipts = receipts
        self._load = load
        self._waiting: FairQueue[Arrival] = FairQueue()
        self._early: dict[str, dict[str, list[_Early]]] = {}
        """By topic and source, as heaps."""
        self._early_count = 0
        self._unsettled: dict[Arrival, bool] = {}
        """In order of arrival, and whether each is handled: the broker is told in this order. Without early messages:
        those handled after them would fill the broker's window while the early ones wait."""
        self._handling: dict[asyncio.Task[None], str] = {}
        """The calls under way, and the source of each message."""
        self._busy: dict[str, int] = {}
        """Calls under way of each source."""
        self._pausing: dict[str, int] = {}
        """Messages of each source that wait for their next try."""
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"inbox {pattern}")

    def source_of(self, topic: str) -> str:
        """The source whose share the messages on this topic use."""
        return topic if self._gate is None else self._gate.source_of(topic)

    def put_nowait(self, source: str, arrival: Arrival) -> None:
        """Queues it after the others of its source, or sheds it."""
        cost = _cost(arrival)
        if self._gate is not None and not self._admits(self._gate, source, arrival, cost):
            self._receipts.shed += 1
            arrival.finish()
            return
        self._unsettled[arrival] = False
        self._waiting.put(source, arrival, cost)
        self._load.count += 1
        self._load.cost += cost
        self._wake.set()

    def _admits(self, gate: Gate, source: str, arrival: Arrival, cost: int) -> bool:
        count = self._waiting.count_of(source) + self._busy.get(source, 0)
        if not gate.admit(source, arrival.message, count, self._load.count):
            return False
        waiting = self._waiting.cost_of(source)
        if gate.shed is None or not waiting or waiting + cost <= WAITING_COST_MAX - self._load.cost:
            return True
        gate.shed(source)
        return False

    async def close(self, within_s: float) -> None:
        """Lets handlers under way finish, within a bound, and calls none any more."""
        self._closing.set()
        for arrival in self._waiting.clear():
            self._load.count -= 1
            self._load.cost -= _cost(arrival)
        self._early.clear()
        self._wake.set()
        deadline_s = asyncio.get_running_loop().time() + within_s
        while self._handling and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
        await end_tasks(self._task, *self._handling)

    async def _run(self) -> None:
        while not self._closing.is_set():
            if not self._waiting.is_ready or len(self._handling) >= HANDLED_COUNT_MAX:
                await self._wait()
                continue
            await self._start_some()

    async def _start_some(self) -> None:
        """Calls handlers, each when the one before has reached its first wait: that is the promised order. The event
        loop begins new tasks in the order in which they were made, and then goes on here."""
        loop = asyncio.get_running_loop()
        begun: list[tuple[asyncio.Task[None], Arrival]] = []
        put_back: list[tuple[str, Arrival]] = []
        room = min(STARTED_MAX, HANDLED_COUNT_MAX - len(self._handling))
        while self._waiting.is_ready and len(begun) < room:
            source, arrival = self._waiting.pop()
            self._load.cost -= _cost(arrival)
            work = self._deal_with(source, arrival, put_back)
            task = loop.create_task(work, name=f"handler of {self.pattern}")
            begun.append((task, arrival))
            self._handling[task] = source
            self._busy[source] = self._busy.get(source, 0) + 1
            self._hold_or_release(source)
            task.add_done_callback(self._ended)
        await asyncio.sleep(0)
        for source, arrival in reversed(put_back):
            self._put_first(source, arrival)
        for task, arrival in begun:
            if not task.done():
                # The handler has the message's order fixed and waits for the disk. Early ones after it need not wait.
                self._reoffer(arrival.message.topic)

    async def _wait(self) -> None:
        self._wake.clear()
        if not self._early:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(EARLY_PAUSE_S):
                await self._wake.wait()
        except TimeoutError:
            for topic in list(self._early):
                self._reoffer(topic)

    def _hold_or_release(self, source: str) -> None:
        """A source gets no turn while it has its share of calls under way, or a message that waits for its next try."""
        if source in self._pausing or self._busy.get(source, 0) >= HANDLED_PER_SOURCE_MAX:
            self._waiting.hold(source)
        else:
            self._waiting.release(source)

    def _ended(self, task: asyncio.Task[None]) -> None:
        source = self._handling.pop(task)
        _count_down(self._busy, source)
        self._load.count -= 1
        self._hold_or_release(source)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{self.pattern}: handling a message failed", "exception": error, "task": task}
            )

    async def _deal_with(self, source: str, arrival: Arrival, put_back: list[tuple[str, Arrival]]) -> None:
        if source in self._pausing:
            # The one before it has just failed, and goes first when it is tried again.
            put_back.append((source, arrival))
        elif await self._offer(source, arrival):
            self._settle(arrival)
            self._reoffer(arrival.message.topic)

    def _settle(self, arrival: Arrival) -> None:
        if arrival in self._unsettled:
            self._unsettled[arrival] = True
            self._tell_in_order()
        else:
            arrival.finish()

    def _tell_in_order(self) -> None:
        while self._unsettled:
            first = next(iter(self._unsettled))
            if not self._unsettled[first]:
                return
            del self._unsettled[first]
            first.finish()

    async def _offer(self, source: str, arrival: Arrival) -> bool:
        """Calls the handler until the message is handled (True), or put aside or left (False)."""
        pause_s = PAUSE_S_MIN
        while True:
            arrival.tries += 1
            try:
                await self._handler(arrival.message)
            except Exception as error:
                failure = error
            else:
                self._receipts.taken += 1
                return True
            self._receipts.last_failure = f"{arrival.message.topic}: {type(failure).__name__}: {failure}"
            if isinstance(failure, SequenceGap) and self._put_aside(arrival, failure):
                return False
            if isinstance(failure, PeerError):
                self._receipts.refused += 1
                return True
            foreign = isinstance(failure, Bug) or not isinstance(failure, StigmergyError)
            if foreign and arrival.tries >= TRIES_MAX:
                self._receipts.given_up += 1
                return True
            self._receipts.again += 1
            if await self._pause(source, pause_s):
                return False
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)

    async def _pause(self, source: str, pause_s: float) -> bool:
        """Starts nothing newer of this source meanwhile; True if the inbox was closed."""
        self._pausing[source] = self._pausing.get(source, 0) + 1
        self._hold_or_release(source)
        try:
            async with asyncio.timeout(pause_s):
                await self._closing.wait()
        except TimeoutError:
            return False
        finally:
            _count_down(self._pausing, source)
            self._hold_or_release(source)
            self._wake.set()
        return True

    def _put_aside(self, arrival: Arrival, gap: SequenceGap) -> bool:
        """Keeps an early message for later; False if it has waited too long."""
        now_s = asyncio.get_running_loop().time()
        if arrival.early_since_s is None:
            arrival.early_since_s = now_s
        if self._closing.is_set():
            return True
        if now_s - arrival.early_since_s > EARLY_S_MAX:
            return False
        self._receipts.early += 1
        self._early_count += 1
        self._unsettled.pop(arrival, None)
        self._tell_in_order()
        heap = self._early.setdefault(arrival.message.topic, {}).setdefault(gap.source, [])
        heapq.heappush(heap, (gap.sequence, self._early_count, arrival))
        self._wake.set()
        return True

    def _reoffer(self, topic: str) -> None:
        """The topic has moved on, or it is time: of each source's early messages the first one may fit now.

        Some brokers repeat in no order at all (NATS is one): the lowest sequence goes first if the handler gave it,
        else all are tried.
        """
        again: list[Arrival] = []
        left: dict[str, list[_Early]] = {}
        for source, heap in self._early.pop(topic, {}).items():
            if heap[0][0]:
                again.append(heapq.heappop(heap)[2])
                if heap:
                    left[source] = heap
            else:
                again += [arrival for _, _, arrival in sorted(heap)]
        if left:
            self._early[topic] = left
        if again:
            source = self.source_of(topic)
            for arrival in reversed(again):
                self._put_first(source, arrival)

    def _put_first(self, source: str, arrival: Arrival) -> None:
        self._waiting.put_first(source, arrival, _cost(arrival))
        self._load.count += 1
        self._load.cost += _cost(arrival)
        self._wake.set()


def _cost(arrival: Arrival) -> int:
    return MESSAGE_COST + len(arrival.message.payload)


def _count_down(counts: dict[str, int], source: str) -> None:
    counts[source] -= 1
    if not counts[source]:
        del counts[source]
