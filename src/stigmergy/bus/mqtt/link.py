"""One connection to an MQTT broker, from the first byte to its loss: paho-mqtt on the event loop. Never used twice.

Paho implements the protocol; this module tells it when to read and write. Only name lookup, the TCP connect and the TLS
handshake, which block in paho, run in a thread. Nothing is kept for a later link: a publisher publishes again what was
not confirmed.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from stigmergy.base.errors import ConfigError, LinkDown, Malformed, StigmergyError
from stigmergy.bus.mqtt.options import VERSIONS, MqttOptions, tls_context
from stigmergy.bus.port import PAYLOAD_BYTES_MAX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX, BusMessage

CONNECT_S_MAX = 10.0
"""Time limit for each of name lookup, connect, TLS handshake and the broker's answer."""
ANSWER_S_MAX = 30.0
"""A broker that leaves a publish or subscribe unanswered for this long counts as gone: the link ends."""
DISCONNECT_S_MAX = 2.0
WINDOW_COUNT_MAX = 64
"""Unanswered publishes; further ones wait."""
RECEIVE_COUNT_MAX = 1_000
"""What a broker of version 5 may send unacknowledged. A broker of 3.1.1 has its own setting."""
PACKET_BYTES_MAX = PAYLOAD_BYTES_MAX + PROPERTIES_BYTES_MAX + TOPIC_BYTES_MAX + 4096
"""A broker of version 5 is told to drop larger ones."""
READ_COUNT_MAX = 32
"""The most packets read in one go; then other tasks have their turn."""
READ_BYTES = 65_536
MISC_S = 0.5
QOS = 1
_MENDABLE = frozenset({"Server unavailable", "Server busy", "Quota exceeded", "Connection rate exceeded"})
"""Refusals that may be temporary; for any other somebody must fix something."""
_TAKEN_OVER = "Session taken over"
_TOPIC_REFUSED = frozenset({"Not authorized", "Topic name invalid"})


class Receive(Protocol):
    """Receives a message from a link, with its packet id, its QoS, and whether the broker repeats it."""

    def __call__(self, link: MqttLink, message: BusMessage, mid: int, qos: int, again: bool) -> None: ...


class _Client(paho.Client):
    """Paho, made cheaper for each received message. If a later version does not call these two methods, it only gets
    slower.

    Paho reads a packet with three system calls, the first two for one byte each: we read many packets at once. And it
    looks for callbacks by topic, of which we have none, with a function that refers to itself: each message left such a
    cycle behind, and in a flood the garbage collector stopped the node for 50 ms again and again.
    """

    taken: Callable[[paho.MQTTMessage], None]
    _ahead = b""
    _ahead_at = 0

    @property
    def has_ahead(self) -> bool:
        """Whether some read data is not processed yet."""
        return self._ahead_at < len(self._ahead)

    def _sock_recv(self, bufsize: int) -> bytes:
        if not self.has_ahead:
            if bufsize >= READ_BYTES:
                return super()._sock_recv(bufsize)
            self._ahead, self._ahead_at = super()._sock_recv(READ_BYTES), 0
        data = self._ahead[self._ahead_at : self._ahead_at + bufsize]
        self._ahead_at += len(data)
        return data

    def _handle_on_message(self, message: paho.MQTTMessage) -> None:
        self.taken(message)


class MqttLink:
    """A connection. `connect` it, use it until `lost` is done, discard it."""

    def __init__(self, options: MqttOptions, client_id: str, will: BusMessage | None, receive: Receive) -> None:
        self._options = options
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[StigmergyError] = self._loop.create_future()
        """Done when the link is gone, with the reason."""
        self.session_present = False
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._slots = asyncio.Semaphore(WINDOW_COUNT_MAX)
        self._publishing: dict[int, tuple[asyncio.Future[None], float]] = {}
        self._subscribing: dict[int, tuple[asyncio.Future[list[ReasonCode]], float]] = {}
        self._sock: socket.socket | None = None
        self._is_reading = False
        self._received_count = 0
        self._misc: asyncio.TimerHandle | None = None
        self._complaint = ""
        self._tls = tls_context(options) if options.tls else None
        self._client = self._make_client(client_id, will)

    def _make_client(self, client_id: str, will: BusMessage | None) -> _Client:
        options = self._options
        is_v5 = options.version == "5"
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if is_v5 else options.session_s == 0,
            protocol=paho.MQTTv5 if is_v5 else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = CONNECT_S_MAX
        client.max_inflight_messages_set(0)
        if options.username:
            client.username_pw_set(options.username, options.password or None)
        if self._tls is not None:
            client.tls_set_context(self._tls)
        if will is not None:
            client.will_set(
                will.topic, will.payload, QOS, will.retained, properties=self._properties(will, PacketTypes.WILLMESSAGE)
            )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.taken = self._take
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_log = self._on_log
        return client

    # For the bus.

    async def connect(self) -> None:
        """Raises LinkDown or ConfigError."""
        connecting = self._loop.run_in_executor(None, self._connect_in_thread)
        try:
            failure = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(self._drop_late)
            raise
        if failure is not None:
            raise failure
        sock = self._client.socket()
        if not isinstance(sock, socket.socket):
            raise LinkDown(f"{self._options.place}: the link broke while connecting")
        # TCP_NODELAY: many small packets wait for an answer, and must not wait for each other.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._client.on_socket_close = self._on_socket_close
        self._client.on_socket_register_write = self._on_socket_register_write
        self._client.on_socket_unregister_write = self._on_socket_unregister_write
        self.resume_reading()
        if self._client.want_write():
            self._loop.add_writer(sock, self._write)
        self._misc = self._loop.call_later(MISC_S, self._look_after)
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await self._connected
        except TimeoutError:
            raise LinkDown(f"{self._options.place}: no answer within {CONNECT_S_MAX:g} s") from None

    async def publish(self, message: BusMessage) -> None:
        """Returns when the broker has it; raises LinkDown, or Malformed if the broker refuses it."""
        async with self._slots:
            if self.lost.done():
                raise LinkDown(f"{message.topic}: the link is down, nothing was sent; publish it when the link is up")
            answered: asyncio.Future[None] = self._loop.create_future()
            properties = self._properties(message, PacketTypes.PUBLISH)
            sent = self._client.publish(message.topic, message.payload, QOS, message.retained, properties)
            self._publishing[sent.mid] = (answered, self._loop.time())
            await answered

    async def subscribe(self, patterns: Sequence[str]) -> dict[str, str]:
        """Subscribes to all of them; returns those that the broker refuses, with the reason. Raises LinkDown."""
        if not patterns:
            return {}
        if self.lost.done():
            raise LinkDown("the link is down")
        _, mid = self._client.subscribe([(pattern, QOS) for pattern in patterns])
        answered: asyncio.Future[list[ReasonCode]] = self._loop.create_future()
        self._subscribing[mid or 0] = (answered, self._loop.time())
        reasons = await answered
        return {pattern: str(reason) for pattern, reason in zip(patterns, reasons, strict=False) if reason.is_failure}

    def acknowledge(self, mid: int) -> None:
        """Tells the broker that a message was handled."""
        if not self.lost.done():
            self._client.ack(mid, QOS)

    def pause_reading(self) -> None:
        """Reads next to nothing more: the broker stops sending when the buffers between us are full."""
        if self._is_reading and self._sock is not None:
            self._is_reading = False
            self._loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        if not self._is_reading and self._sock is not None:
            self._is_reading = True
            self._loop.add_reader(self._sock, self._read)
            self._loop.call_soon(self._read_on)

    async def disconnect(self) -> None:
        """Disconnects in order, after flushing."""
        if not self.lost.done():
            self._client.disconnect()
            try:
                async with asyncio.timeout(DISCONNECT_S_MAX):
                    await asyncio.shield(self.lost)
            except TimeoutError:
                pass
        self.abort(LinkDown("the bus was closed"))

    def abort(self, reason: StigmergyError) -> None:
        """Ends the link at once; the broker will publish the will."""
        self._drop_socket()
        self._end(reason)

    # In the thread.

    def _connect_in_thread(self) -> StigmergyError | None:
        """Returns the error. Drops the exception itself, which would keep the frames and sockets of paho alive."""
        try:
            self._connect_blocking()
        except (OSError, ValueError) as error:
            if self._tls is not None and self._tls.last is not None:
                self._tls.last.close()
            return self._connect_error(error)
        return None

    def _connect_blocking(self) -> None:
        options = self._options
        keepalive_s = math.ceil(options.keepalive_s)
        if options.version != "5":
            self._client.connect(options.host, options.port, keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = math.ceil(options.session_s)
        properties.ReceiveMaximum = RECEIVE_COUNT_MAX
        properties.MaximumPacketSize = PACKET_BYTES_MAX
        self._client.connect(
            options.host, options.port, keepalive_s, clean_start=options.session_s == 0, properties=properties
        )

    def _connect_error(self, error: Exception) -> StigmergyError:
        place = self._options.place
        if isinstance(error, ssl.SSLCertVerificationError):
            return ConfigError(f"{place}: the broker's certificate is not trusted: {error.verify_message}; check ca=")
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return ConfigError(f"{place}: no TLS with this broker: {error.reason}; check the port and ca=, cert=, key=")
        return LinkDown(f"{place}: {error}; trying again")

    # Callbacks of paho.

    def _on_connect(
        self, _client: paho.Client, _data: Any, flags: paho.ConnectFlags, reason: ReasonCode, properties: Any
    ) -> None:
        if self._connected.done():
            return
        if reason.is_failure:
            self._complaint = ""
            self._connected.set_exception(self._refusal(str(reason)))
            return
        self.session_present = bool(flags.session_present)
        window = getattr(properties, "ReceiveMaximum", WINDOW_COUNT_MAX)
        if window < WINDOW_COUNT_MAX:
            self._slots = asyncio.Semaphore(window)
        self._connected.set_result(None)

    def _refusal(self, reason: str) -> StigmergyError:
        place, version = self._options.place, self._options.version
        if reason in _MENDABLE:
            return LinkDown(f"{place}: the broker refuses: {reason}; trying again")
        if "protocol" in reason.lower():
            other = VERSIONS[0] if version != VERSIONS[0] else VERSIONS[1]
            return ConfigError(f"{place}: the broker does not speak MQTT {version}: {reason}; try version={other}")
        return ConfigError(f"{place}: the broker refuses: {reason}; check user, password, certificate and permissions")

    def _on_disconnect(
        self, _client: paho.Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any
    ) -> None:
        place = self._options.place
        why = f"{reason}; {self._complaint}" if self._complaint else str(reason)
        if str(reason) == _TAKEN_OVER:
            self._end(ConfigError(f"{place}: another client has our id; give each node its own name"))
        elif self._connected.done():
            self._end(LinkDown(f"{place}: the link is lost: {why}; reconnecting"))
        elif self._options.version == "5":
            self._end(ConfigError(f"{place}: no answer to MQTT 5 ({why}); a broker of 3.1.1 only? set version=3.1.1"))
        elif "SSL" in self._complaint and "ALERT" in self._complaint:
            self._end(ConfigError(f"{place}: the broker refuses our certificate: {why}; check cert= and key="))
        else:
            secured = (
                "" if self._tls is not None else "; if it takes encrypted links only, write mqtts:// and --identity"
            )
            self._end(LinkDown(f"{place}: the broker ended the link before it answered: {why}{secured}; trying again"))

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        self._take(message)

    def _take(self, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        given = message.properties
        self._received_count += 1
        received = BusMessage(
            topic=topic,
            payload=bytes(message.payload),
            content_type=getattr(given, "ContentType", ""),
            properties=tuple(getattr(given, "UserProperty", ())),
            retained=bool(message.retain),
        )
        self._receive(self, received, message.mid, message.qos, bool(message.dup))

    def _on_publish(self, _client: paho.Client, _data: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        answered, _ = self._publishing.pop(mid, (None, 0.0))
        if answered is None or answered.done():
            return
        if not reason.is_failure:
            answered.set_result(None)
        elif str(reason) in _TOPIC_REFUSED:
            answered.set_exception(Malformed(f"the broker refuses the message: {reason}; check topic and permissions"))
        else:
            answered.set_exception(LinkDown(f"the broker did not store the message: {reason}; publish it again"))

    def _on_subscribe(
        self, _client: paho.Client, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        answered, _ = self._subscribing.pop(mid, (None, 0.0))
        if answered is not None and not answered.done():
            answered.set_result(reasons)

    def _on_log(self, _client: paho.Client, _data: Any, level: int, text: str) -> None:
        if level == paho.MQTT_LOG_ERR:
            self._complaint = text

    def _on_socket_close(self, _client: paho.Client, _data: Any, sock: Any) -> None:
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        self._sock = None
        self._is_reading = False

    def _on_socket_register_write(self, _client: paho.Client, _data: Any, sock: Any) -> None:
        self._loop.add_writer(sock, self._write)

    def _on_socket_unregister_write(self, _client: paho.Client, _data: Any, sock: Any) -> None:
        self._loop.remove_writer(sock)

    # Sockets.

    def _read(self) -> None:
        """Reads while messages come: to ask the system first, before each, would cost half as much again."""
        for _ in range(READ_COUNT_MAX):
            before = self._received_count
            self._drive(self._client.loop_read)
            if not self._is_reading or (self._received_count == before and not self._is_pending):
                return
        if self._is_pending:
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_reading:
            self._read()

    @property
    def _is_pending(self) -> bool:
        """Data that was read ahead, or that TLS has decrypted already, makes no socket readable."""
        if self._sock is None:
            return False
        return self._client.has_ahead or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0)

    def _write(self) -> None:
        self._drive(self._client.loop_write)

    def _drive(self, step: Callable[[], object]) -> None:
        """Runs a step of paho. An error in it ends the link, and nothing else."""
        try:
            step()
        except Exception as error:
            self.abort(LinkDown(f"{self._options.place}: {type(error).__name__}: {error}; reconnecting"))

    def _look_after(self) -> None:
        """Pings when it is time, and notices a broker that does not answer. Not while reading is paused."""
        if self.lost.done():
            return
        self._misc = self._loop.call_later(MISC_S, self._look_after)
        if not self._is_reading:
            # Read a trickle, so that answers to our publishes get through: handlers may wait for them.
            self._drive(self._client.loop_read)
            return
        self._drive(self._client.loop_misc)
        sent_s = [sent_s for waiting in (self._publishing, self._subscribing) for _, sent_s in waiting.values()]
        if sent_s and self._loop.time() - min(sent_s) > ANSWER_S_MAX:
            self.abort(LinkDown(f"{self._options.place}: no answer for {ANSWER_S_MAX:g} s; the link was closed"))

    def _drop_late(self, connecting: asyncio.Future[StigmergyError | None]) -> None:
        """Closes a connection that was made after its timeout."""
        if not connecting.cancelled():
            connecting.exception()
        self._drop_socket()

    def _drop_socket(self) -> None:
        """Closes it under paho, which may notice at garbage collection, and must then call nobody."""
        client = self._client
        client.on_disconnect = client.on_socket_close = client.on_socket_unregister_write = None
        sock = self._sock or self._client.socket()
        if sock is not None:
            if self._sock is not None:
                self._on_socket_close(self._client, None, sock)
            sock.close()
        self._sock = None

    def _end(self, reason: StigmergyError) -> None:
        if self.lost.done():
            return
        if self._misc is not None:
            self._misc.cancel()
        self.lost.set_result(reason)
        if not self._connected.done():
            self._connected.set_exception(reason)
            self._connected.exception()
        unanswered: list[asyncio.Future[Any]] = [answered for answered, _ in self._publishing.values()]
        unanswered += [answered for answered, _ in self._subscribing.values()]
        for future in unanswered:
            if not future.done():
                future.set_exception(
                    LinkDown("the link broke under way: whether the broker has it is unknown, publish again")
                )
        self._publishing.clear()
        self._subscribing.clear()

    def _properties(self, message: BusMessage, packet: int) -> Properties | None:
        if self._options.version != "5" or not (message.content_type or message.properties):
            return None
        properties = Properties(packet)  # type: ignore[no-untyped-call]
        if message.content_type:
            properties.ContentType = message.content_type
        for pair in message.properties:
            properties.UserProperty = pair
        return properties
