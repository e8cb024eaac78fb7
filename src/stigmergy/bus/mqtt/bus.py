"""The Bus port over MQTT: a session that outlives its links, at QoS 1.

Received messages are acknowledged after their handlers have returned, and only on the link that they came on: on the
next link a broker may give the packet id to another message (NATS does, although the session goes on), which would then
be lost. A message that waits here when its link breaks stays, so a broker that repeats slowly does not delay it; when
the broker repeats it, the waiting one takes over the new packet id.
"""

from __future__ import annotations

import asyncio
import functools
import math

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import Bug, ConfigError, LinkDown, Malformed, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.inbox import Arrival, Receipts, Reception
from stigmergy.bus.mqtt.link import MqttLink
from stigmergy.bus.mqtt.options import MqttOptions, parse_url, tls_context
from stigmergy.bus.port import (
    PAYLOAD_BYTES_MAX,
    BusMessage,
    Handler,
    LinkHeard,
    check_client_id,
    check_message,
    check_pattern,
    tell_link,
)

RECONNECT_S_MIN = 0.1
"""The first wait before a retry is drawn between 0 and this; it doubles up to the option reconnect_s_max."""
STEADY_S = 1.0
"""A link that lasted this long was good: the next wait is short again."""
BACKLOG_COUNT_MAX = 8_192
BACKLOG_BYTES_MAX = 32 * 1024 * 1024
"""Received bytes that are not handled yet. Above it nothing is read until half of it is handled: the broker must wait.
Keep a broker's own window smaller: a message that all others wait for must not be behind it."""
CLOSE_S_MAX = 5.0
"""The limit at `close` for handlers under way."""


class _Received:
    """A message that waits here, with the link and packet id that the broker expects its acknowledgement on."""

    __slots__ = ("link", "message", "mid", "qos")

    def __init__(self, message: BusMessage, link: MqttLink | None, mid: int, qos: int) -> None:
        self.message = message
        self.link = link
        """None when that link is gone, until the broker repeats the message on another one."""
        self.mid = mid
        self.qos = qos


class MqttBus:
    """The Bus port. `open` starts a task that keeps a link while the bus is open."""

    def __init__(self, options: MqttOptions, client_id: str, entropy: Entropy) -> None:
        check_client_id(client_id)
        if options.tls:
            tls_context(options)
        self.options = options
        self.client_id = client_id
        self._entropy = entropy
        self._will: BusMessage | None = None
        self._link: MqttLink | None = None
        self._is_up = False
        """A link is up when it is connected and all subscriptions are made on it."""
        self._last_error: StigmergyError | None = LinkDown(f"{options.place}: not connected yet")
        self._listeners: list[LinkHeard] = []
        self._reception = Reception()
        self._waiting: dict[int, _Received] = {}
        """Unhandled messages of the current link, by packet id."""
        self._orphans: dict[BusMessage, dict[_Received, None]] = {}
        """Unhandled messages of earlier links, by content: nothing else identifies them."""
        self._backlog_count = 0
        self._backlog_bytes = 0
        self._keeping: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_up(self) -> bool:
        return self._is_up

    @property
    def last_error(self) -> StigmergyError | None:
        return None if self.is_up else self._last_error

    @property
    def receipts(self) -> Receipts:
        """How received messages have ended."""
        return self._reception.receipts

    def on_link(self, heard: LinkHeard) -> None:
        self._listeners.append(heard)

    async def open(self, will: BusMessage | None = None) -> None:
        if self._keeping is not None or self._is_closed:
            raise Bug("a bus is opened once; make another one")
        if will is not None:
            check_message(will)
        self._will = will
        self._reception.begin()
        self._keeping = asyncio.get_running_loop().create_task(self._keep_link(), name=f"link of {self.client_id}")

    async def publish(self, message: BusMessage) -> None:
        check_message(message)
        link = self._link
        if link is None or not self._is_up:
            raise LinkDown(f"{message.topic}: the link is down, nothing was sent; publish it when the link is up")
        await link.publish(message)

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        check_pattern(pattern)
        if self._is_closed:
            raise Bug("the bus is closed; open another one")
        self._reception.subscribe(pattern, handler)
        if self._link is None or not self._is_up:
            return
        try:
            refused = await self._link.subscribe([pattern])
        except LinkDown:
            return  # the next link makes the subscription
        if refused:
            raise Malformed(f"pattern {pattern!r}: the broker refuses it: {refused[pattern]}; check the permissions")

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._reception.close(CLOSE_S_MAX)
        await end_tasks(self._keeping)
        link = self._link
        if link is not None:
            await link.disconnect()
            self._went_down(LinkDown("the bus was closed"))

    # The link.

    async def _keep_link(self) -> None:
        loop, tries = asyncio.get_running_loop(), 0
        while True:
            lasted_s = await self._use_link(loop)
            tries = 1 if lasted_s >= STEADY_S else tries + 1
            await asyncio.sleep(self._wait_s(tries))

    async def _use_link(self, loop: asyncio.AbstractEventLoop) -> float:
        """One link from its beginning to its end; returns how long it was up."""
        link: MqttLink | None = None
        up_s = math.inf
        try:
            link = MqttLink(self.options, self.client_id, self._will, self._arrive)
            self._orphan_all()
            await link.connect()
            await self._came_up(link)
            up_s = loop.time()
            reason = await asyncio.shield(link.lost)
        except StigmergyError as error:
            reason = error
        except Exception as error:
            reason = LinkDown(f"{self.options.place}: {type(error).__name__}: {error}; trying again")
        except asyncio.CancelledError:
            if link is not None and self._link is not link:
                link.abort(LinkDown("given up"))
            raise
        if link is not None:
            link.abort(reason)
        self._went_down(reason)
        return max(0.0, loop.time() - up_s)

    def _wait_s(self, tries: int) -> float:
        """Exponential back-off with full jitter: a fleet must not reconnect all at once when its broker returns."""
        most_s = min(self.options.reconnect_s_max, RECONNECT_S_MIN * 2.0 ** min(tries - 1, 20))
        return most_s * int.from_bytes(self._entropy.token(4), "big") / 2**32

    async def _came_up(self, link: MqttLink) -> None:
        self._link = link
        # All subscriptions, even if the broker says that it has kept them: it may be wrong, and it costs little.
        made: list[str] = []
        while missing := [pattern for pattern in self._reception.patterns if pattern not in made]:
            if refused := await link.subscribe(missing):
                raise self._deaf(refused, len(made) + len(missing))
            made += missing
        self._is_up = True
        tell_link(self._listeners, True, self.client_id)
        self._weigh_backlog()

    def _deaf(self, refused: dict[str, str], count: int) -> ConfigError:
        """A node that hears only a part would wait for the rest for ever, and nobody would know: it has no link."""
        pattern, why = next(iter(refused.items()))
        return ConfigError(
            f"{self.options.place}: the broker refuses {len(refused)} of {count} subscriptions, {pattern!r} first: "
            f"{why}; check the permissions. nats-server has room for 65,535 / max_ack_pending: set it lower"
        )

    def _went_down(self, reason: StigmergyError) -> None:
        self._last_error = reason
        self._link = None
        if self._is_up:
            self._is_up = False
            tell_link(self._listeners, False, self.client_id)

    # Received messages.

    def _arrive(self, link: MqttLink, message: BusMessage, mid: int, qos: int, again: bool) -> None:
        if qos and again and self._is_here(link, message, mid):
            self.receipts.repeated += 1
            return
        received = _Received(message, link, mid, qos)
        self._backlog_count += 1
        self._backlog_bytes += len(message.payload)
        if qos:
            self._waiting[mid] = received
        if not message.topic or len(message.payload) > PAYLOAD_BYTES_MAX:
            self.receipts.refused += 1
            self.receipts.last_failure = f"a message of {len(message.payload)} bytes on {message.topic!r} is refused"
            self._settle(received)
            return
        self._reception.take(Arrival(message, functools.partial(self._settle, received)))
        self._weigh_backlog()

    def _is_here(self, link: MqttLink, message: BusMessage, mid: int) -> bool:
        """Whether a repeated message waits here: from this link, or from an earlier one, which gets the packet id."""
        if mid in self._waiting:
            return self._waiting[mid].message == message
        orphans = self._orphans.get(message)
        if not orphans:
            return False
        received = next(iter(orphans))
        self._adopt(received)
        received.link, received.mid = link, mid
        self._waiting[mid] = received
        return True

    def _orphan_all(self) -> None:
        """The packet ids of the last link mean nothing on the next one."""
        for received in self._waiting.values():
            received.link = None
            self._orphans.setdefault(received.message, {})[received] = None
        self._waiting.clear()

    def _adopt(self, received: _Received) -> None:
        orphans = self._orphans.get(received.message, {})
        orphans.pop(received, None)
        if not orphans:
            self._orphans.pop(received.message, None)

    def _settle(self, received: _Received) -> None:
        """A message is handled: acknowledges it, if the packet id is still valid."""
        self._backlog_count -= 1
        self._backlog_bytes -= len(received.message.payload)
        self._weigh_backlog()
        if received.link is None:
            self._adopt(received)
        elif self._waiting.get(received.mid) is received:
            del self._waiting[received.mid]
            received.link.acknowledge(received.mid)

    def _weigh_backlog(self) -> None:
        """Stops and resumes reading. Only while the link is up: before that we wait for answers ourselves."""
        if self._link is None or not self._is_up:
            return
        if self._backlog_count > BACKLOG_COUNT_MAX or self._backlog_bytes > BACKLOG_BYTES_MAX:
            self._link.pause_reading()
        elif self._backlog_count <= BACKLOG_COUNT_MAX // 2 and self._backlog_bytes <= BACKLOG_BYTES_MAX // 2:
            self._link.resume_reading()


def open_bus(url: str, client_id: str, entropy: Entropy) -> MqttBus:
    """A bus at mqtt://host:port or mqtts://host:port; `options` describes the rest of the URL."""
    return MqttBus(parse_url(url), client_id, entropy)
