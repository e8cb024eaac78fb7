"""The publisher: carries out `Publish` effects over a bus. In order per topic, owed until the broker has them.

While the link is down nothing is tried and nothing is given up: the journal holds what is owed, and it is sent in order
when the link is back, also after a restart. Only when more is owed than the bound allows, the oldest is shed, settled
and counted: a long time offline must never stop an agent. Alerts and orders (categories `alert` and `control`) are
shed last.

An agent sends no faster than receivers accept from one source (`messages_per_s`, and half of `burst` at once): a
backlog of hours is sent within minutes, and no receiver sheds it as a flood.

The messages of one topic are settled in order. So after a crash everything that is released again comes after
everything that the broker had, and a receiver that keeps marks accepts each message once. Each carries its outbox
number and the number of the message before it on its topic (`previous`), as far back as the log was read.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import tag_of
from stigmergy.agents.effects import PUBLISH
from stigmergy.agents.messages import category_of
from stigmergy.agents.raw import BUS
from stigmergy.base.errors import LinkDown, Malformed, NotRunning, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.cloudevents import (
    STRUCTURED,
    CloudEvent,
    data_of,
    trace_attributes,
    write_binary,
    write_structured,
)
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.quotas import PACE_LOOK_S, SECOND_NS, pace
from stigmergy.bus.topics import Topics, quota_source
from stigmergy.journal.port import StoredCommit
from stigmergy.shard.commit import open_commit
from stigmergy.shard.inputs import EffectsSettled
from stigmergy.shard.outbox import Pending
from stigmergy.shard.state import ShardState
from stigmergy.shard.tracing import TraceContext

SETTLED_COUNT_MAX = 1_000
"""Effects that are settled together."""
TOPICS_COUNT_MAX = 100_000
"""Topics whose last number is remembered."""
PRECIOUS = ("alert", "control")
"""Categories that are shed last."""
DRAIN_LOOK_S = 0.01
TOLD_CHARS_MAX = 100
_published = msgspec.msgpack.Decoder(tuple[str, bytes])
Settle = Callable[[int, EffectsSettled], None]
Outlet = Callable[[str, str, bytes], tuple[BusMessage, ...] | None]
"""Given an agent, its topic and the event's bytes: what to send to a device instead of a CloudEvent; None if no device
gets it."""


class PublisherCounters(Struct):
    """What happened to published messages."""

    published: int = 0
    publish_retries: int = 0
    publish_shed: int = 0
    unpublishable: int = 0


class PublishState(enum.Enum):
    """The progress of a message."""

    WAITING = 0
    FLYING = 1
    OVER = 2


class _Item:
    """An owed effect being published."""

    __slots__ = (
        "epoch",
        "lane",
        "pending",
        "precious",
        "previous",
        "sent",
        "shard",
        "shed",
        "state",
        "time_ns",
        "trace",
    )

    def __init__(
        self,
        lane: _Lane,
        shard: int,
        epoch: int,
        pending: Pending,
        time_ns: int,
        trace: TraceContext | None,
        *,
        precious: bool = False,
    ) -> None:
        self.trace = trace
        self.lane = lane
        self.shard = shard
        self.epoch = epoch
        self.pending = pending
        self.time_ns = time_ns
        self.precious = precious
        """An alert or an order, shed last."""
        self.state = PublishState.WAITING
        self.sent = False
        self.previous: int | None = None
        self.shed = 0
        """How many of its topic were shed since the last one sent."""


class _Lane:
    """What is owed to one topic, in order."""

    __slots__ = ("ahead", "failed", "flying", "items", "last", "listed", "sender", "shed", "topic", "waiting")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sender = quota_source(topic)
        """The source that receivers count its messages under."""
        self.items: OrderedDict[_Item, None] = OrderedDict()
        """Those not settled."""
        self.waiting: OrderedDict[_Item, None] = OrderedDict()
        """Those of `items` that may be sent. Failed ones wait until no other is under way."""
        self.flying = 0
        self.ahead = 0
        """How many are under way, or sent but not settled because an earlier one is not: bounded by the window."""
        self.failed = False
        self.listed = False
        """Whether it is in the queue of lanes that may send."""
        self.last: tuple[int, int] | None = None
        """Incarnation and sequence of the last message sent on the topic by this run."""
        self.shed = 0


class Publisher:
    """Sends what is owed. `release` adds an effect, `link` reports changes of the link."""

    def __init__(
        self,
        bus: Bus,
        topics: Topics,
        settle: Settle,
        wall_ns: Callable[[], int],
        *,
        owed_count_max: int,
        in_flight_max: int = 256,
        in_flight_per_topic_max: int = 64,
        messages_per_s: float = 1_000.0,
        burst: int = 500,
        retry_pause_s: float = 1.0,
        binary: bool = False,
        outlet: Outlet | None = None,
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._settle = settle
        self._wall_ns = wall_ns
        self._owed_count_max = owed_count_max
        self._in_flight_max = in_flight_max
        self._in_flight_per_topic_max = in_flight_per_topic_max
        self._pace = pace(messages_per_s, burst)
        self._resting: list[_Lane] = []
        """Lanes of agents that have used their quota."""
        self._retry_pause_s = retry_pause_s
        self._binary = binary
        self._outlet = outlet
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._oldest: tuple[OrderedDict[_Item, None], OrderedDict[_Item, None]] = (OrderedDict(), OrderedDict())
        """All unfinished items in the order of their release; alerts and orders separate."""
        self._settled: dict[int, list[int]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._task_number = 0
        self._paused: asyncio.TimerHandle | None = None
        self._running = False
        self._flying = 0
        self.owed = 0
        self.counters = PublisherCounters()

    def recall(
        self, state: ShardState, stored: Iterable[StoredCommit], stays: Callable[[str, str], bool] = lambda *_: False
    ) -> None:
        """Reads from the log, before the start, the last message of earlier runs on each topic.

        Without it the first message of this run would have no `previous`, and a receiver whose broker redelivers late
        would accept it as the next one. What `stays` here was never sent, so nobody waits for it.
        """
        for one in stored:
            commit = open_commit(one.sealed.body)
            for owed in commit.owed:
                if owed.sink == PUBLISH and state.outbox.get(PUBLISH, owed.sequence) is None:
                    about, event = _published.decode(owed.body)
                    if stays(tag_of(event), BUS):
                        continue
                    self._lane(self._topics.events(owed.agent, about)).last = (commit.incarnation, owed.sequence)

    def start(self) -> None:
        """Starts sending. Effects released before wait until then."""
        self._running = True
        self._pump()

    def release(self, shard: int, epoch: int, pending: Pending, trace: TraceContext | None = None) -> None:
        """Adds a durable effect. Its time of decision is known only for those that come after the start."""
        about, event = _published.decode(pending.body)
        lane = self._lane(self._topics.events(pending.agent, about))
        precious = category_of(tag_of(event)) in PRECIOUS
        time_ns = self._wall_ns() if self._running else 0
        item = _Item(lane, shard, epoch, pending, time_ns, trace, precious=precious)
        lane.items[item] = None
        lane.waiting[item] = None
        self._oldest[precious][item] = None
        self.owed += 1
        while self.owed > self._owed_count_max and self._shed_oldest():
            pass
        self._list(lane)
        self._pump()

    def link(self, up: bool) -> None:
        if up and self._paused is not None:
            self._paused.cancel()
            self._paused = None
        self._pump()

    async def wait_idle(self, within_s: float) -> bool:
        """Waits until the broker has everything, while the link is up, for at most this time."""
        deadline = asyncio.get_running_loop().time() + within_s
        while self.owed and self._bus.is_up:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(DRAIN_LOOK_S)
        return not self.owed

    async def stop(self) -> None:
        """Sends nothing more. What the broker does not have stays owed."""
        self._running = False
        if self._paused is not None:
            self._paused.cancel()
        await end_tasks(*self._tasks.values())
        for shard in list(self._settled):
            self._tell_settled(shard)

    # ------------------------------------------------------------------ sending

    def _list(self, lane: _Lane) -> None:
        if not lane.listed and lane.waiting and not lane.failed and lane.ahead < self._in_flight_per_topic_max:
            lane.listed = True
            self._ready.append(lane)

    def _pump(self) -> None:
        """Fills the window, one message of each topic in turn."""
        while (
            self._running
            and self._paused is None
            and self._bus.is_up
            and self._ready
            and self._flying < self._in_flight_max
        ):
            lane = self._ready.popleft()
            if lane.waiting and not lane.failed and not self._pace.admit(lane.sender, self._now_ns()):
                self._rest(lane)
                continue
            lane.listed = False
            if lane.waiting and not lane.failed:
                self._send(lane, lane.waiting.popitem(last=False)[0])
                self._list(lane)

    def _rest(self, lane: _Lane) -> None:
        self._resting.append(lane)
        if len(self._resting) == 1:
            asyncio.get_running_loop().call_later(PACE_LOOK_S, self._rested)

    def _rested(self) -> None:
        self._ready.extend(self._resting)
        self._resting.clear()
        self._pump()

    def _now_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * SECOND_NS)

    def _send(self, lane: _Lane, item: _Item) -> None:
        if not item.sent:
            item.sent = True
            incarnation, sequence = item.pending.incarnation, item.pending.sequence
            if lane.last is not None and lane.last[0] == incarnation:
                item.previous = lane.last[1]
            lane.last = (incarnation, sequence)
        item.shed, lane.shed = item.shed + lane.shed, 0
        item.state = PublishState.FLYING
        lane.flying += 1
        lane.ahead += 1
        self._flying += 1
        self._task_number += 1
        number_of_task = self._task_number
        self._tasks[number_of_task] = asyncio.ensure_future(self._publish(item))
        self._tasks[number_of_task].add_done_callback(lambda _: self._tasks.pop(number_of_task, None))

    async def _publish(self, item: _Item) -> None:
        taken = False
        try:
            for message in self._written(item):
                await self._bus.publish(message)
            self.counters.published += 1
            taken = True
        except (LinkDown, NotRunning):
            self.counters.publish_retries += 1
        except StigmergyError:
            # Too large, or an invalid topic: a retry would not help.
            self.counters.unpublishable += 1
            taken = True
        except asyncio.CancelledError:
            raise
        except Exception:
            # Not one of our errors: a failing driver. Retry, because nothing is given up.
            self.counters.publish_retries += 1
        finally:
            self._landed(item, taken)

    def _landed(self, item: _Item, taken: bool) -> None:
        lane = item.lane
        lane.flying -= 1
        self._flying -= 1
        if taken:
            self._over(item)
        else:
            item.state = PublishState.WAITING
            lane.ahead -= 1
            lane.failed = True
        if lane.failed and lane.flying == 0:
            # All that were under way are back: send the failed ones again, in their order.
            lane.failed = False
            lane.waiting = OrderedDict((one, None) for one in lane.items if one.state is PublishState.WAITING)
            self._pause()
        self._list(lane)
        self._pump()

    def _pause(self) -> None:
        """Waits before the next try when the link is up but a publish failed."""
        if self._paused is None and self._running:
            self._paused = asyncio.get_running_loop().call_later(self._retry_pause_s, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._pump()

    # ------------------------------------------------------------------ finished items

    def _over(self, item: _Item) -> None:
        """The broker has it. Each topic is settled in order."""
        self._end(item)
        lane = item.lane
        while lane.items and (first := next(iter(lane.items))).state is PublishState.OVER:
            del lane.items[first]
            lane.ahead -= 1
            self._settle_soon(first)

    def _end(self, item: _Item) -> None:
        item.state = PublishState.OVER
        self.owed -= 1
        del self._oldest[item.precious][item]

    def _settle_soon(self, item: _Item) -> None:
        waiting = self._settled.setdefault(item.shard, [])
        waiting.append(item.pending.sequence)
        if len(waiting) == 1:
            asyncio.get_running_loop().call_soon(self._tell_settled, item.shard)

    def _tell_settled(self, shard: int) -> None:
        sequences = self._settled.pop(shard, [])
        for first in range(0, len(sequences), SETTLED_COUNT_MAX):
            self._settle(shard, EffectsSettled(PUBLISH, sequences[first : first + SETTLED_COUNT_MAX]))

    def _shed_oldest(self) -> bool:
        """Sheds the oldest message that is not under way, alerts and orders last; False if there is none."""
        for oldest in self._oldest:
            for item in oldest:
                if item.state is PublishState.WAITING:
                    self._shed(item)
                    return True
        return False

    def _shed(self, item: _Item) -> None:
        """Settles it at once, whatever comes before it on its topic: it will never be sent, so it blocks nobody."""
        lane = item.lane
        self.counters.publish_shed += 1
        lane.shed += 1 + item.shed
        if item.sent:
            self._unchain(item)
        self._end(item)
        lane.waiting.pop(item, None)
        del lane.items[item]
        self._settle_soon(item)

    def _unchain(self, item: _Item) -> None:
        """Removes it from the chain, so that no receiver waits for it: its successor takes over its `previous`.

        Sent messages are a prefix of the unsettled ones, no longer than the window.
        """
        number, before = item.pending.sequence, item.previous
        for other in item.lane.items:
            if other.previous == number:
                other.previous = before
                return
            if not other.sent:
                break
        item.lane.last = None if before is None else (item.pending.incarnation, before)

    def _lane(self, topic: str) -> _Lane:
        """If there are too many topics, forgets those that owe nothing; their next message has no `previous`."""
        lane = self._lanes.get(topic)
        if lane is None:
            if len(self._lanes) >= TOPICS_COUNT_MAX:
                self._lanes = {name: other for name, other in self._lanes.items() if other.items or other.listed}
            lane = self._lanes[topic] = _Lane(topic)
        return lane

    # ------------------------------------------------------------------ messages

    def _written(self, item: _Item) -> tuple[BusMessage, ...]:
        """Raises Malformed for what cannot be encoded: a retry would not help, and it must not block others."""
        try:
            return self._messages(item)
        except StigmergyError:
            raise
        except Exception as error:
            raise Malformed(f"{item.lane.topic}: {type(error).__name__}: {error}") from None

    def _messages(self, item: _Item) -> tuple[BusMessage, ...]:
        about, body = _published.decode(item.pending.body)
        instead = self._outlet(item.pending.agent, about, body) if self._outlet is not None else None
        if instead is not None:
            return instead
        return (self._cloud_message(item, body),)

    def _cloud_message(self, item: _Item, body: bytes) -> BusMessage:
        pending, topic = item.pending, item.lane.topic
        tag, content_type, data = data_of(body)
        numbers: dict[str, int | None] = {
            "sequence": pending.sequence,
            "incarnation": pending.incarnation,
            "epoch": item.epoch,
            "previous": item.previous,
            "shed": item.shed or None,
        }
        extensions = {name: str(number) for name, number in numbers.items() if number is not None}
        if item.trace is not None:
            extensions |= trace_attributes(item.trace)
        event = CloudEvent(
            id=f"{pending.incarnation}.{item.shard}.{pending.position}.{pending.index}",
            source=self._topics.source_of(pending.agent),
            type=tag,
            subject=pending.agent,
            time=_time(item.time_ns),
            datacontenttype=content_type,
            data=data,
            extensions=extensions | category_attributes(tag, body),
        )
        if self._binary:
            payload, kind, properties = write_binary(event)
            return BusMessage(topic, payload, content_type=kind, properties=properties)
        return BusMessage(topic, write_structured(event), content_type=STRUCTURED)


def category_attributes(tag: str, body: bytes) -> dict[str, str]:
    """Attributes for routers and rules that do not parse the data: category and severity."""
    category = category_of(tag)
    if category is None:
        return {}
    fields = msgspec.msgpack.decode(body)
    found = {name: fields.get(name) for name in ("severity", "confidence", "delta")}
    texts = {
        name: str(value)
        for name, value in found.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }
    told = {name: text for name, text in texts.items() if text.isprintable() and len(text) <= TOLD_CHARS_MAX}
    return {"category": str(category), **told}


def _time(time_ns: int) -> str:
    """The time in the format of CloudEvents; empty if unknown."""
    if not time_ns:
        return ""
    moment = datetime.fromtimestamp(time_ns / 1_000_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
