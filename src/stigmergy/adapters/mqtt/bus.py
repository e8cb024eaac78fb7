"""The Bus port over MQTT: a session that outlives its links, at QoS 1.

Received messages are acknowledged after their handlers have returned, on the link they came on or, since the session
goes on, on a later one. A message that waits here when its link breaks stays: if the broker sends it again meanwhile,
that is put aside. So a broker that is slow to repeat (NATS: `ack_wait`) does not hold anything up that we have.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math

from stigmergy.adapters.mqtt.link import Link
from stigmergy.adapters.mqtt.options import MqttOptions, check_client_id, parse_url, tls_context
from stigmergy.core.errors import Bug, LinkDown, Malformed, StigmergyError
from stigmergy.ports.bus import PAYLOAD_BYTES_MAX, BusMessage, Handler, LinkHeard, check_message, check_pattern
from stigmergy.ports.clock import Entropy
from stigmergy.ports.receiving import Arrival, Receipts, Reception

RECONNECT_S_MIN = 0.1
"""The first wait before a new try is drawn between 0 and this; it doubles up to the option reconnect_s_max."""
STEADY_S = 1.0
"""A link that lasted so long was a good one: the next wait is short again."""
BACKLOG_COUNT_MAX = 8_192
BACKLOG_BYTES_MAX = 32 * 1024 * 1024
"""What has come in and is not dealt with. Above it nothing is read until half of it is: the broker must wait. Keep a
broker's own window smaller: a message that all others wait for must not be behind it."""
CLOSE_S_MAX = 5.0
"""Handlers under way at `close` get so long."""


class _Received:
    """A message that came in, and under which packet id of which session the broker waits to hear of it."""

    __slots__ = ("mid", "qos", "session", "size_bytes")

    def __init__(self, mid: int, qos: int, session: int, size_bytes: int) -> None:
        self.mid = mid
        self.qos = qos
        self.session = session
        self.size_bytes = size_bytes


class MqttBus:
    """The Bus port. `open` starts a task that keeps a link as long as the bus is open."""

    def __init__(self, options: MqttOptions, client_id: str, entropy: Entropy) -> None:
        check_client_id(client_id)
        if options.tls:
            tls_context(options)
        self.options = options
        self.client_id = client_id
        self._entropy = entropy
        self._will: BusMessage | None = None
        self._link: Link | None = None
        self._is_up = False
        """A link is up once it is there and all subscriptions are made on it."""
        self._last_error: StigmergyError | None = LinkDown(f"{options.place}: not connected yet")
        self._listeners: list[LinkHeard] = []
        self._reception = Reception()
        self._session = 0
        """Counts the sessions that the broker has forgotten: their packet ids mean nothing any more."""
        self._waiting: dict[int, _Received] = {}
        self._taken_offline: dict[int, _Received] = {}
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
        """How what came in has ended."""
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
            return  # It is made again with the link.
        if refused:
            raise Malformed(f"pattern {pattern!r}: the broker refuses it: {refused[pattern]}; check the rights")

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._reception.close(CLOSE_S_MAX)
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
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
        """One link from its beginning to its end; returns for how long it was up."""
        link: Link | None = None
        up_s = math.inf
        try:
            link = Link(self.options, self.client_id, self._will, self._arrive)
            await link.connect()
            await self._came_up(link)
            up_s = loop.time()
            reason = await asyncio.shield(link.lost)
        except StigmergyError as error:
            reason = error
        except Exception as error:
            reason = LinkDown(f"{self.options.place}: {type(error).__name__}: {error}; it is tried again")
        except asyncio.CancelledError:
            if link is not None and self._link is not link:
                link.abort(LinkDown("given up"))
            raise
        if link is not None:
            link.abort(reason)
        self._went_down(reason)
        return max(0.0, loop.time() - up_s)

    def _wait_s(self, tries: int) -> float:
        """Exponential, with full jitter: a fleet whose broker comes back must not come back all at once."""
        most_s = min(self.options.reconnect_s_max, RECONNECT_S_MIN * 2.0 ** min(tries - 1, 20))
        return most_s * int.from_bytes(self._entropy.token(4), "big") / 2**32

    async def _came_up(self, link: Link) -> None:
        if not link.session_present:
            self._session += 1
            self._taken_offline.clear()
        self._link = link
        for received in self._taken_offline.values():
            link.acknowledge(received.mid)
        self._taken_offline.clear()
        # All subscriptions, also when the broker says that it has kept them: it may be wrong, and it costs little.
        made: list[str] = []
        while missing := [pattern for pattern in self._reception.patterns if pattern not in made]:
            for pattern, why in (await link.subscribe(missing)).items():
                self.receipts.last_failure = f"the broker refuses the pattern {pattern!r}: {why}; check the rights"
            made += missing
        self._is_up = True
        self._tell(True)
        self._weigh_backlog()

    def _went_down(self, reason: StigmergyError) -> None:
        self._last_error = reason
        self._link = None
        if self._is_up:
            self._is_up = False
            self._tell(False)

    def _tell(self, up: bool) -> None:
        for heard in list(self._listeners):
            heard(up)

    # What comes in.

    def _arrive(self, message: BusMessage, mid: int, qos: int, again: bool) -> None:
        waiting = self._waiting.get(mid)
        if qos and again and waiting is not None and waiting.session == self._session:
            self.receipts.repeated += 1
            return
        received = _Received(mid, qos, self._session, len(message.payload))
        self._backlog_count += 1
        self._backlog_bytes += received.size_bytes
        if qos:
            self._waiting[mid] = received
        if not message.topic or len(message.payload) > PAYLOAD_BYTES_MAX:
            self.receipts.refused += 1
            self.receipts.last_failure = f"a message of {len(message.payload)} bytes on {message.topic!r} is refused"
            self._settle(received)
            return
        self._reception.take(Arrival(message, functools.partial(self._settle, received)))
        self._weigh_backlog()

    def _settle(self, received: _Received) -> None:
        """A message is dealt with: the broker is told now, or when there is a link again."""
        self._backlog_count -= 1
        self._backlog_bytes -= received.size_bytes
        self._weigh_backlog()
        if self._waiting.get(received.mid) is not received:
            return
        del self._waiting[received.mid]
        if received.session != self._session:
            return
        if self._link is None or self._link.lost.done():
            self._taken_offline[received.mid] = received
        else:
            self._link.acknowledge(received.mid)

    def _weigh_backlog(self) -> None:
        """Stops and starts reading. Only while the link is up: until then we wait for answers ourselves."""
        if self._link is None or not self._is_up:
            return
        if self._backlog_count > BACKLOG_COUNT_MAX or self._backlog_bytes > BACKLOG_BYTES_MAX:
            self._link.pause_reading()
        elif self._backlog_count <= BACKLOG_COUNT_MAX // 2 and self._backlog_bytes <= BACKLOG_BYTES_MAX // 2:
            self._link.resume_reading()


def open_bus(url: str, client_id: str, entropy: Entropy) -> MqttBus:
    """A bus to the broker that mqtt://host:port or mqtts://host:port names; see `options` for the rest of the URL."""
    return MqttBus(parse_url(url), client_id, entropy)
